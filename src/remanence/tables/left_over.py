"""What the equations of a linear model have left, once all other rows have pulled at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from remanence.core.records import Records
from remanence.tables.clues import matrix_of
from remanence.tables.equations import Equations
from remanence.tables.parts import Part

_FITS = 3000  # at most, and at most so many numbers of all tables that are trained on
_NUMBERS = 2**28
_LEAST = 1e-9  # of the largest pull


@dataclass(frozen=True)
class LeftOver:
    """What the other rows leave of one model's equations, and how far a row is from explaining it."""

    plan: Equations
    part: Part
    left: np.ndarray  # (rows, numbers)
    own: np.ndarray  # (rows, numbers), each row's gradient
    labels: np.ndarray  # (rows,), as the model counts them
    pulls: np.ndarray  # (numbers,), the sum of their squares over all rows

    @classmethod
    def of(cls, plan: Equations, part: Part) -> LeftOver | None:
        """Of one model and what it was fitted on; None where its weights are not known."""
        matrix, mechanism = matrix_of(part.features), plan.mechanism
        if matrix is None or mechanism.class_weights == "balanced" or part.weights is not None:
            return None
        records = plan.records(part, matrix)
        weights = mechanism.fixed_class_weights(torch.device("cpu"))
        own = mechanism.record_gradients(
            records[None], plan.release, weights=mechanism.training_weights(records[None], weights)
        )[0]
        left = own.sum(0) - own + mechanism.penalty_gradient(plan.release)
        flat = own.flatten(1).numpy()
        labels = records.labels.numpy().astype(np.float64)
        return cls(plan, part, left.flatten(1).numpy(), flat, labels, (flat**2).sum(0))

    @property
    def affordable(self) -> int:
        """How many times the model may be trained."""
        return min(_FITS, _NUMBERS // max(1, self.own.size))

    @property
    def least(self) -> float:
        """So that a number at which no row pulls divides nothing by zero."""
        return _LEAST * max(float(self.pulls.max()), 1e-300)

    def distances(self, features: Any, rows: np.ndarray, label: int | None) -> np.ndarray:
        """How much of what is left each of these rows does not explain; without a label, the best number is taken."""
        matrix = matrix_of(features)
        if matrix is None or np.isnan(matrix).any():
            return np.full(len(rows), np.inf)
        mechanism = self.plan.mechanism
        records = Records(
            torch.from_numpy(np.ascontiguousarray(matrix[:, self.plan.active])),
            torch.full((len(rows),), float(label or 0), dtype=torch.float64),
        )[None]
        if label is None:
            along = np.hstack([np.ones((len(rows), 1)), matrix[:, self.plan.active]])
            pull = (self._product(along, self.left[rows], rows)) / self._product(along, along, rows)
            off = self.left[rows] - pull[:, None] * along
        else:
            weights = mechanism.training_weights(records, mechanism.fixed_class_weights(torch.device("cpu")))
            own = mechanism.record_gradients(records, self.plan.release, weights=weights)[0]
            off = self.left[rows] + own.flatten(1).numpy()
        return self._product(off, off, rows)

    def _product(self, left: np.ndarray, right: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Their product in units of what the other rows pull at each number."""
        return (left * right / (self.pulls - self.own[rows] ** 2 + self.least)).sum(1)
