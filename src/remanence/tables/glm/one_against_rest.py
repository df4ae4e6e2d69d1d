"""Families with a binary problem per class: least squares on signs, and the squared hinge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.tables.glm.families import Family, check_classes


@dataclass(frozen=True)
class OneAgainstRest(Family):
    """A binary problem per class, or a single one for two classes, with signs s = ±1 for labels."""

    count: int

    @property
    def classes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many classes there are."""
        return self.count

    @property
    def outputs(self) -> int:
        """One linear predictor, or one per class where there are more than two."""
        return 1 if self.count == 2 else self.count

    def check(self, labels: Tensor) -> None:
        """Classes from 0 to the last, all present."""
        check_classes(labels, self.count)

    def signs(self, labels: Tensor) -> Tensor:
        """1 for the record's own class and −1 for the others, `(..., outputs, records)`."""
        if self.count == 2:
            return (2 * labels.double() - 1).unsqueeze(-2)
        return 2 * one_hot(labels.long(), self.count).transpose(-1, -2).double() - 1

    def largest(self, scores: Tensor) -> Tensor:
        """The class with the largest score; of two, the second where its score is positive."""
        return ((scores[:, 0] > 0) if self.count == 2 else scores.argmax(1)).to(scores.dtype)


@final
@dataclass(frozen=True)
class Indicators(OneAgainstRest):
    """Least squares on signs: scikit-learn's RidgeClassifier."""

    name: ClassVar[str] = "least squares on classes"

    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """½ Σ (η_k − s_k)²."""
        return 0.5 * (predictor - self.signs(labels)).square().sum(1)

    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Prediction minus sign, η_k − s_k."""
        return predictor - self.signs(labels)

    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Always 1."""
        return torch.diag_embed(torch.ones_like(predictor).transpose(1, 2)).permute(0, 2, 3, 1)

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """The class whose s_k = η_k − r_k is 1."""
        return self.largest(predictor - residual)


@final
@dataclass(frozen=True)
class SquaredHinge(OneAgainstRest):
    """max(0, 1 − sη)²: scikit-learn's LinearSVC. Records beyond the margin leave no trace."""

    name: ClassVar[str] = "squared hinge"

    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Σ max(0, 1 − s_k η_k)²."""
        return (1 - self.signs(labels) * predictor).clamp(min=0).square().sum(1)

    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """−2 s_k max(0, 1 − s_k η_k)."""
        signs = self.signs(labels)
        return -2 * signs * (1 - signs * predictor).clamp(min=0)

    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """2 within the margin, 0 beyond."""
        within = (1 - self.signs(labels) * predictor > 0).to(predictor.dtype)
        return torch.diag_embed(2 * within.transpose(1, 2)).permute(0, 2, 3, 1)

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """The class whose residual is negative; of several classes, the most negative one's."""
        return self.largest(-residual)
