"""The equations of a linear model somewhere inside a fitted object, solved for the missing row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from remanence.core.exceptions import RemanenceError
from remanence.core.knowledge import Knowledge
from remanence.core.priors import Uninformed
from remanence.core.records import Records
from remanence.tables.checked import encoded
from remanence.tables.clues import UNKNOWN, Clue, as_values, matrix_of
from remanence.tables.glm.closed_form import ClosedForm
from remanence.tables.glm.model import GLM
from remanence.tables.objectives import is_linear, objective
from remanence.tables.parts import Part


@dataclass(frozen=True)
class Equations:
    """A linear model's objective, and the features that its equations contain."""

    path: str
    mechanism: GLM
    release: Any
    active: np.ndarray  # (columns,)

    def clue(self, part: Part) -> Clue:
        """Solve for every row in turn."""
        matrix = matrix_of(part.features)
        assert matrix is not None
        found = ClosedForm().expose(self.mechanism, self.records(part, matrix), self.release)
        values = np.full(matrix.shape, UNKNOWN, dtype=object)
        values[:, self.active] = as_values(found.records.flat[:, 0].numpy())
        labels = found.records.labels[:, 0].numpy()
        classes = getattr(part.estimator, "classes_", None)
        names = labels.astype(object)
        if classes is not None:
            names[:] = [np.asarray(classes).tolist()[int(code)] for code in labels]
        return Clue(values, names)

    def records(self, part: Part, matrix: np.ndarray) -> Records:
        """The rows as the equations see them: those features whose coefficients are not zero."""
        labels = np.asarray(part.labels)
        coded = (
            encoded(part.estimator, labels) if self.mechanism.family.classes else labels.astype(np.float64)
        )
        weights = (
            None if part.weights is None else torch.from_numpy(np.asarray(part.weights, dtype=np.float64))
        )
        return Records(
            torch.from_numpy(np.ascontiguousarray(matrix[:, self.active])), torch.from_numpy(coded), weights
        )


def equations(part: Part) -> list[Equations]:
    """A linear part's equations, where they determine anything."""
    matrix = None if part.features is None else matrix_of(part.features)
    if matrix is None or part.labels is None or not is_linear(part.estimator) or np.isnan(matrix).any():
        return []
    try:
        own = objective(part.estimator, np.ascontiguousarray(matrix), np.asarray(part.labels), part.weights)
        coefficient = own.release["coefficient"][0].numpy()
        active = (
            (coefficient != 0).all(0) if own.mechanism.l1_penalty else np.ones(matrix.shape[1], dtype=bool)
        )
        tensors = {
            n: t if n == "intercept" else t[..., torch.from_numpy(active)]
            for n, t in own.release.tensors.items()
        }
        found = Equations(part.path, own.mechanism, replace(own.release, tensors=tensors), active)
        known = found.records(part, matrix)[1:]
        ClosedForm().check(Knowledge(own.mechanism, Uninformed(), known))
    except RemanenceError:
        return []
    return [found] if active.any() else []
