"""Exponential families as a GLM sees them: loss, residual and curvature in the linear predictor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from remanence.core.checks import number
from remanence.core.exceptions import InputError


class Family(ABC):
    """How a label depends on the linear predictor η = θ·x.

    Predictors have the outputs before the records, `(trials, outputs, records)`; labels broadcast
    as `(records,)` or `(trials, records)`.
    """

    name: ClassVar[str]
    classes: ClassVar[int] = 0  # 0: the label is a number, not a class

    @property
    def outputs(self) -> int:
        """How many linear predictors there are."""
        return 1

    @abstractmethod
    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """The loss of each record, `(trials, records)`."""

    @abstractmethod
    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """The derivative of the loss in each predictor, `(trials, outputs, records)`."""

    @abstractmethod
    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """The second derivatives of the loss, `(trials, outputs, outputs, records)`."""

    @abstractmethod
    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """The label that has this residual at this predictor, `(trials, records)`.

        `residual` may be off by a positive factor for classes, whose sign alone decides.
        """

    @abstractmethod
    def check(self, labels: Tensor) -> None:
        """Refuse labels outside the family's domain."""


@final
@dataclass(frozen=True)
class Gaussian(Family):
    """Least squares."""

    name: ClassVar[str] = "gaussian"

    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """½(η − y)²."""
        return 0.5 * (predictor[:, 0] - labels).square()

    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Prediction minus label, η − y."""
        return predictor - labels.unsqueeze(-2)

    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Always 1."""
        return torch.ones_like(predictor).unsqueeze(1)

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """Label y = η − r."""
        return (predictor - residual)[:, 0]

    def check(self, labels: Tensor) -> None:
        """Any number is a label."""


@dataclass(frozen=True)
class Classes(Family):
    """Classes, labelled 0, 1, ...: one linear predictor for each, or a single one for two."""

    count: int

    @property
    def classes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many classes there are."""
        return self.count

    @property
    def outputs(self) -> int:
        """How many linear predictors there are."""
        return 1 if self.count == 2 else self.count

    def check(self, labels: Tensor) -> None:
        """Classes from 0 to the last, all present."""
        found = labels.unique().tolist()
        if found != list(range(self.count)):
            raise InputError(
                "The labels are not the classes of this model.",
                needs=f"the classes 0 to {self.count - 1}, each present at least once",
                got=f"{len(found)} distinct labels: {', '.join(f'{label:g}' for label in found[:8])}",
                hint="encode the classes as 0, 1, ...; a single class trains no classifier",
            )

    def indicator(self, labels: Tensor) -> Tensor:
        """1 for the record's own class and 0 for the others, `(..., outputs, records)`."""
        if self.outputs == 1:
            return labels.double().unsqueeze(-2)
        return one_hot(labels.long(), self.count).transpose(-1, -2).double()

    def signs(self, labels: Tensor) -> Tensor:
        """1 for the record's own class and −1 for the others, `(..., outputs, records)`."""
        return 2 * self.indicator(labels) - 1

    def largest(self, scores: Tensor) -> Tensor:
        """The class with the largest score; of two, the second where its score is positive."""
        return ((scores[:, 0] > 0) if self.outputs == 1 else scores.argmax(1)).to(scores.dtype)


@final
@dataclass(frozen=True)
class Logistic(Classes):
    """Two classes, labelled 0 and 1."""

    count: int = field(default=2, init=False, repr=False)
    name: ClassVar[str] = "binary logistic"

    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """log(1 + e^η) − yη."""
        return softplus(predictor[:, 0], threshold=40.0) - labels * predictor[:, 0]

    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """The probability's distance to the label, p − y."""
        # Written apart for the two labels, because p − 1 loses every digit where p is near 1.
        wrong = torch.where(labels.unsqueeze(-2) > 0.5, -predictor, predictor).sigmoid()
        return torch.where(labels.unsqueeze(-2) > 0.5, -wrong, wrong)

    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """p(1 − p)."""
        return (predictor.sigmoid() * (-predictor).sigmoid()).unsqueeze(1)

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """1 where the residual p − y is negative."""
        return self.largest(-residual)


@final
@dataclass(frozen=True)
class Multinomial(Classes):
    """Several classes, with one linear predictor each."""

    name: ClassVar[str] = "multinomial logistic"

    @property
    def outputs(self) -> int:
        """One linear predictor per class."""
        return self.count

    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """log Σ e^η_k − η_y."""
        return predictor.logsumexp(1) - (predictor * self.indicator(labels)).sum(1)

    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Probability minus indicator, p_k − 1[y = k]."""
        indicator = self.indicator(labels)
        probability = predictor.softmax(1)
        # −(1 − p_y) as minus the sum of the others keeps its digits where p_y is near 1.
        others = (probability * (1 - indicator)).sum(1, keepdim=True)
        return torch.where(indicator > 0.5, -others, probability)

    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """p_k(1[k = l] − p_l)."""
        probability = predictor.softmax(1)
        return _diagonal(probability) - torch.einsum("tkn,tln->tkln", probability, probability)

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """The one class whose residual p_k − 1[y = k] is negative."""
        return residual.argmin(1).to(residual.dtype)


@final
@dataclass(frozen=True)
class Tweedie(Family):
    """Positive means with variance μ^power and a log link: Poisson (1), gamma (2), inverse Gaussian (3)."""

    power: float = 1.0
    name: ClassVar[str] = "Tweedie with log link"

    def __post_init__(self) -> None:
        hint = "1: Poisson, 2: gamma, 3: inverse Gaussian; power 0 is least squares: use Gaussian()"
        number("power", self.power, least=1, hint=hint)

    def loss(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """Half the deviance, up to a term without θ."""
        eta = predictor[:, 0]
        if self.power == 1:
            return eta.exp() - labels * eta
        if self.power == 2:
            return eta + labels * (-eta).exp()
        first = ((2 - self.power) * eta).exp() / (2 - self.power)
        return first - labels * ((1 - self.power) * eta).exp() / (1 - self.power)

    def residual(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """(μ − y)·μ^(1 − power)."""
        return (predictor.exp() - labels.unsqueeze(-2)) * ((1 - self.power) * predictor).exp()

    def curvature(self, predictor: Tensor, labels: Tensor) -> Tensor:
        """The second derivative where it is positive, its expectation elsewhere, so that Newton descends."""
        expected = ((2 - self.power) * predictor).exp()
        observed = (2 - self.power) * expected
        observed = observed - (1 - self.power) * labels.unsqueeze(-2) * ((1 - self.power) * predictor).exp()
        return torch.where(observed > 0, observed, expected).unsqueeze(1)

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """y = μ − r·μ^(power − 1); the canonical y = μ − r holds for Poisson only."""
        return (predictor.exp() - residual * ((self.power - 1) * predictor).exp())[:, 0]

    def check(self, labels: Tensor) -> None:
        """Counts and amounts are not negative; from power 2 on they are positive."""
        smallest = float(labels.min())
        if smallest < 0 or (self.power >= 2 and smallest == 0):
            raise InputError(
                f"A label lies outside the domain of {self.name}.",
                needs="labels above 0" if self.power >= 2 else "labels of at least 0",
                got=f"a smallest label of {smallest:g}",
                hint="a family without that limit (Ridge), or check the label column",
            )


@final
@dataclass(frozen=True)
class Indicators(Classes):
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
        return _diagonal(torch.ones_like(predictor))

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """The class whose s_k = η_k − r_k is 1."""
        return self.largest(predictor - residual)


@final
@dataclass(frozen=True)
class SquaredHinge(Classes):
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
        return _diagonal(2 * (1 - self.signs(labels) * predictor > 0).to(predictor.dtype))

    def label(self, predictor: Tensor, residual: Tensor) -> Tensor:
        """The class whose residual is negative; of several classes, the most negative one's."""
        return self.largest(-residual)


def _diagonal(values: Tensor) -> Tensor:
    """Second derivatives of outputs that do not mix, `(trials, outputs, outputs, records)`."""
    return torch.diag_embed(values.transpose(1, 2)).permute(0, 2, 3, 1)
