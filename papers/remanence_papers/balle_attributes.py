"""Balle et al. 2022, §II-C: attribute inference as a special case, on tables that scikit-learn carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from remanence.core.mechanism import Mechanism
from remanence.core.releases import Release
from remanence.reconstructor.attack import Reconstructor
from remanence.scale.progress import track
from remanence.tables.glm.families import Logistic
from remanence.tables.glm.model import GLM
from remanence.training.perceptron import Perceptron
from remanence.training.sgd import SGD
from remanence_papers.attribute_tables import Table
from remanence_papers.attributes import Attributes, SplitTable, infer_attributes
from remanence_papers.reproduction import Cell, Outcome, Settings, interval

_KNOWN, _PUBLIC = 100, 250
_HIDDEN = {
    "diabetes": ("sex", "bmi", "age"),
    "breast cancer": ("mean radius", "mean texture", "smoothness error"),
}


def attributes(settings: Settings) -> Outcome:
    """Hidden columns of patients, from a logistic regression and from a small network."""
    rows: list[dict[str, Cell]] = []
    cases = [(name, kind) for name in _HIDDEN for kind in ("logistic regression", "network")]
    for name, kind in track(cases, total=len(cases), what="models"):
        columns, label, categorical = _columns(name)
        table, records = Table.read(columns, label=label, categorical=categorical)
        order = torch.randperm(len(records), generator=torch.Generator().manual_seed(settings.seed))
        records = records[order]
        network = Perceptron((records.flat.shape[1], 10, 2))
        training: Mechanism[Release] = GLM(Logistic())
        if kind == "network":
            training = SGD(network, 100, 0.2, 0.9, initial_seed=settings.seed)
        held = records[:_KNOWN], records[_KNOWN : _KNOWN + _PUBLIC]
        game = Attributes(training, SplitTable(table, *held, records[_KNOWN + _PUBLIC :]), _HIDDEN[name])
        attack = Reconstructor(shadows=1000, steps=500)
        found = infer_attributes(game, attack, seed=settings.seed, device=settings.device)
        rows += [
            {
                "patients": name,
                "model": kind,
                "hidden": attribute.name,
                "inferred": interval(attribute.inferred),
                "imputed": interval(attribute.imputed),
                "guessed": interval(attribute.guessed),
                "p": attribute.p_value,
            }
            for attribute in found
        ]
    return Outcome(
        "scikit-learn's diabetes and breast cancer, at either scale",
        rows,
        settings={"known records": _KNOWN, "adversary's records": _PUBLIC, "tolerance": 0.25},
        notes=[
            "*inferred*: from the release and all columns but the hidden three; *guessed*: the best constant; "
            "*imputed*: without the release, by the same attack, by a ridge regression or by the guess, "
            "whichever turned out best. A number counts within a quarter of a standard deviation, a category if "
            "it is right. *p*: an exact sign test that the model helps no more often than it misleads.",
            "The label of diabetes is whether the disease progressed by more than 140. The paper shows no such "
            "experiment.",
        ],
    )


def _columns(name: str) -> tuple[Mapping[str, np.ndarray], str, tuple[str, ...]]:
    """A table, the name of its label and its categories."""
    from sklearn.datasets import load_breast_cancer, load_diabetes

    if name == "diabetes":
        data: Any = load_diabetes(scaled=False)
        label, values, categorical = "progressed", data.target > 140, ("sex",)
    else:
        data = load_breast_cancer()
        label, values, categorical = "benign", data.target, ()
    columns = dict(zip(map(str, data.feature_names), data.data.T, strict=True))
    return {**columns, label: values}, label, categorical
