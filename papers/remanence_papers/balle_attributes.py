"""Balle et al. 2022, §II-C: attribute inference as a special case, on tables that scikit-learn carries.

The other columns of a record may give a hidden one away without any model, so every rate is printed next to the best
imputation without the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.core.attack import Attack
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.priors import EmpiricalPrior
from remanence.core.rates import SuccessRate
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release, Weights
from remanence.reconstructor.attack import Reconstructor
from remanence.scale.progress import track
from remanence.scale.seeds import stream
from remanence.tables.glm.families import Logistic
from remanence.tables.glm.model import GLM
from remanence.training.perceptron import Perceptron
from remanence.training.sgd import SGD
from remanence_papers.reproduction import Cell, Outcome, Settings, interval

TOLERANCE = 0.25  # standard deviations within which a number counts as found
_KNOWN, _PUBLIC = 100, 250
_HIDDEN = {
    "diabetes": ("sex", "bmi", "age"),
    "breast cancer": ("mean radius", "mean texture", "smoothness error"),
}


@dataclass(frozen=True)
class Column:
    """A column's places in a record: one number in standard units, or a 1 among its categories."""

    start: int
    categories: int = 0  # 0: a number

    @property
    def places(self) -> range:
        """The features that hold it."""
        return range(self.start, self.start + max(1, self.categories))

    def met(self, targets: Tensor, guesses: Tensor) -> Tensor:
        """Whether each number is within the tolerance, or each category right."""
        left, right = (values[..., self.start : self.places.stop] for values in (targets, guesses))
        if self.categories:
            return left.argmax(-1) == right.argmax(-1)
        return (left - right).abs()[..., 0] <= TOLERANCE


def read_table(
    values: Mapping[str, np.ndarray], label: np.ndarray, categorical: Collection[str] = ()
) -> tuple[dict[str, Column], Records]:
    """A table as records: numbers in standard units, categories as groups of 0 and 1.

    >>> table = {"age": np.array([30.0, 50.0]), "smokes": np.array(["no", "yes"])}
    >>> columns, records = read_table(table, np.array([0, 1]), ["smokes"])
    >>> columns["smokes"], records.features.tolist()
    (Column(start=1, categories=2), [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    """
    columns: dict[str, Column] = {}
    parts: list[np.ndarray] = []
    for name, column in values.items():
        start = sum(part.shape[1] for part in parts)
        if name in categorical:
            parts.append((column[:, None] == np.unique(column)).astype(float))
        else:
            parts.append(((column - column.mean()) / column.std())[:, None])
        columns[name] = Column(start, parts[-1].shape[1] if name in categorical else 0)
    features = torch.from_numpy(np.concatenate(parts, 1)).float()
    return columns, Records(features, torch.from_numpy(label.astype(np.int64)))


@final
@dataclass(frozen=True)
class Disclosed(Mechanism[Release]):
    """Another mechanism's release, together with the given columns of the targets' features.

    `Disclosed(None, columns)` trains nothing and shows the columns alone: the same attack on it imputes.
    """

    mechanism: Mechanism[Release] | None
    columns: tuple[int, ...]  # of the flattened features
    name: ClassVar[str] = "training, with some attributes of the record known"

    @property
    def releases(self) -> type[Release]:
        """What the training releases."""
        return Weights if self.mechanism is None else self.mechanism.releases

    def settings(self) -> dict[str, Setting]:
        """How many columns are known."""
        return {"known_attributes": len(self.columns)}

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Release:
        """Train, and show the given columns."""
        given = targets.flat[..., list(self.columns)].float()
        if self.mechanism is None:
            return Weights({"given": given})
        release = self.mechanism.release(known_data, targets, generator)
        return type(release)({**release.tensors, "given": given})


@dataclass(frozen=True)
class Held:
    """Records that are trained on with each target in turn, others of the same population, and the targets."""

    known: Records
    public: Records
    targets: Records


def infer(
    training: Mechanism[Release],
    held: Held,
    columns: Mapping[str, Column],
    hidden: Sequence[str],
    attack: Attack,
    seed: int = 0,
) -> dict[str, dict[str, Cell]]:
    """How often each hidden column is found with the model, without it, and by the best constant."""
    given = tuple(place for name, each in columns.items() if name not in hidden for place in each.places)
    truth = held.targets.flat
    guesses = []
    for mechanism in (Disclosed(training, given), Disclosed(None, given)):
        knowledge = Knowledge(mechanism, EmpiricalPrior(held.public), held.known)
        reconstruct = attack.prepare(knowledge, stream(seed, "attack", "cpu"))
        release = mechanism.release(held.known, held.targets[:, None], stream(seed, "training", "cpu"))
        guesses.append(reconstruct(release).records.flat[:, 0])
    fitted = regressed(concatenate([held.public, held.known]), held.targets, list(given))
    found = {}
    for name in hidden:
        column, public = columns[name], held.public.flat
        constant = public[torch.stack([column.met(public, row) for row in public]).sum(1).argmax()]
        inferred, *imputed = (column.met(truth, each) for each in (*guesses, fitted, constant))
        found[name] = compared(inferred, imputed)
    return found


def compared(inferred: Tensor, imputed: Sequence[Tensor]) -> dict[str, Cell]:
    """Whether each target was met with the model and in ways without it, the last of which is the best constant.

    The imputation that turned out best counts, in favour of the model. p is an exact sign test that the model helps no
    more often than it misleads.
    """
    best = max(imputed, key=lambda hits: int(hits.sum()))
    helped, misled = int((inferred & ~best).sum()), int((best & ~inferred).sum())
    rates = {"inferred": inferred, "imputed": best, "guessed": imputed[-1]}
    cells: dict[str, Cell] = {
        name: interval(SuccessRate(int(hits.sum()), len(hits))) for name, hits in rates.items()
    }
    return cells | {"p": float(binom.sf(helped - 1, helped + misled, 0.5))}  # 1 where nothing differs


def regressed(held: Records, targets: Records, given: list[int]) -> Tensor:
    """All columns from the given ones and the label, by a ridge regression on all records that the adversary holds."""
    classes = int(held.labels.max()) + 1
    known, asked = (
        torch.cat([each.flat[:, given].double(), one_hot(each.labels, classes).double()], 1)
        for each in (held, targets)
    )
    penalty = torch.eye(known.shape[1], dtype=known.dtype)
    solved = torch.linalg.solve(known.T @ known + penalty, known.T @ held.flat.double())
    return (asked @ solved).to(targets.flat.dtype)


def attributes(settings: Settings) -> Outcome:
    """Hidden columns of patients, from a logistic regression and from a small network."""
    rows: list[dict[str, Cell]] = []
    cases = [(name, kind) for name in _HIDDEN for kind in ("logistic regression", "network")]
    for name, kind in track(cases, total=len(cases), what="models"):
        columns, records = _patients(name)
        order = torch.randperm(len(records), generator=torch.Generator().manual_seed(settings.seed))
        known, public, targets = (records[part] for part in order.tensor_split((_KNOWN, _KNOWN + _PUBLIC)))
        training: Mechanism[Release] = GLM(Logistic())
        if kind == "network":
            network = Perceptron((records.flat.shape[1], 10, 2))
            training = SGD(network, 100, 0.2, 0.9, initial_seed=settings.seed)
        attack = Reconstructor(shadows=1000, steps=500)
        found = infer(training, Held(known, public, targets), columns, _HIDDEN[name], attack, settings.seed)
        rows += [
            {"patients": name, "model": kind, "hidden": hidden, **cells} for hidden, cells in found.items()
        ]
    return Outcome(
        "scikit-learn's diabetes and breast cancer, at either scale",
        rows,
        settings={"known records": _KNOWN, "adversary's records": _PUBLIC, "tolerance": TOLERANCE},
        notes=[
            "*inferred*: from the release and all columns but the hidden three; *guessed*: the best constant; "
            "*imputed*: without the release, by the same attack, by a ridge regression or by the guess, "
            "whichever turned out best. A number counts within a quarter of a standard deviation, a category if "
            "it is right. *p*: an exact sign test that the model helps no more often than it misleads.",
            "The label of diabetes is whether the disease progressed by more than 140. The paper shows no such "
            "experiment.",
        ],
    )


def _patients(name: str) -> tuple[dict[str, Column], Records]:
    from sklearn.datasets import load_breast_cancer, load_diabetes

    diabetes = name == "diabetes"
    data: Any = load_diabetes(scaled=False) if diabetes else load_breast_cancer()
    values = dict(zip(map(str, data.feature_names), data.data.T, strict=True))
    return read_table(values, data.target > 140 if diabetes else data.target, ("sex",))
