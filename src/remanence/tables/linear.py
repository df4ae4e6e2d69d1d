"""Linear models inside a fitted object: what each minimises, and its equations solved for the missing row.

A model's own settings say what it minimises, with the penalty on the *sum* of the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn import linear_model as linear

from remanence.core.checks import one_of, shaped
from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.knowledge import Knowledge
from remanence.core.priors import Uninformed
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.tables.glm.closed_form import ClosedForm
from remanence.tables.glm.families import (
    Gaussian,
    Indicators,
    Logistic,
    Multinomial,
    Tweedie,
)
from remanence.tables.glm.model import GLM
from remanence.tables.parts import Part
from remanence.tables.recovery import Clue
from remanence.tables.rows import UNKNOWN, as_values, encoded, numbers

_LOGISTIC_SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear")


@dataclass(frozen=True)
class Objective:
    """A linear model as a mechanism, its labels in that mechanism's coding, and its numbers as a release."""

    mechanism: GLM
    labels: np.ndarray
    release: Weights

    @property
    def active(self) -> np.ndarray:
        """Which features its equations determine: under an L1 penalty, those without a zero coefficient."""
        coefficient = self.release["coefficient"][0].numpy()
        return (coefficient != 0).all(0) if self.mechanism.l1_penalty else np.full(coefficient.shape[1], True)


def of_features(release: Weights, chosen: np.ndarray) -> Weights:
    """The numbers of some features only, in double precision."""
    tensors = release.tensors.items()
    return Weights(
        {n: (t if n == "intercept" else t[..., torch.from_numpy(chosen)]).double() for n, t in tensors}
    )


def is_linear(model: Any) -> bool:
    """Whether it is a linear model whose settings say what it minimises."""
    return any(isinstance(model, kinds) for kinds, _ in _DESCRIPTIONS)


def objective(model: Any, labels: np.ndarray, weights: np.ndarray | None) -> Objective:
    """The objective of a fitted linear model."""
    labels = one_label(labels, len(labels))
    if getattr(model, "positive", False):
        raise InputError(
            "A model with non-negative coefficients is not at an unconstrained optimum.",
            needs="positive=False",
            got="positive=True",
            hint="audit an unconstrained fit of the same data",
        )
    release = Weights(_parameters(model))
    total = len(labels) if weights is None else float(weights.sum())
    describe = next(describe for kinds, describe in _DESCRIPTIONS if isinstance(model, kinds))
    mechanism = describe(model, total)
    outputs = len(release["coefficient"][0])
    if outputs != mechanism.family.outputs:
        raise InputError(
            "The model has several outputs.",
            needs="a model with one output, or one class label",
            got=f"coefficients for {outputs} outputs",
            hint="audit one output at a time",
        )
    return Objective(mechanism, coded_labels(model, mechanism, labels), release)


def coded_labels(model: Any, mechanism: GLM, labels: np.ndarray) -> np.ndarray:
    """Labels as the mechanism counts them: classes from 0 on, or numbers."""
    return encoded(model, labels) if mechanism.family.classes else numbers(labels, "labels")


def one_label(labels: np.ndarray, count: int) -> np.ndarray:
    """One label for each row, or an error."""
    labels = labels[:, 0] if labels.shape == (count, 1) else labels
    shaped("labels", labels, (count,), "one label per row; audit one output at a time")
    return labels


def _parameters(model: Any) -> dict[str, torch.Tensor]:
    coefficient = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    intercept = np.broadcast_to(np.atleast_1d(np.asarray(model.intercept_, float)), (len(coefficient),))
    # A model without an intercept has 0 there.
    return {
        "coefficient": torch.from_numpy(coefficient.copy())[None],
        "intercept": torch.from_numpy(intercept.copy())[None],
    }


def _class_weights(model: Any) -> Any:
    weights = model.class_weight
    if isinstance(weights, dict):
        return tuple(float(weights.get(label, 1.0)) for label in model.classes_)
    return weights


def _logistic(model: Any, _total: float) -> GLM:
    one_of("solver", model.solver, _LOGISTIC_SOLVERS)
    searched = isinstance(model, linear.LogisticRegressionCV)
    inverse = _first(model.C_ if searched else model.C)
    strength = 0.0 if np.isinf(inverse) else 1 / inverse
    penalty = getattr(model, "penalty", "deprecated")
    ratio = _first(model.l1_ratio_ if searched else model.l1_ratio)
    ratio = {"l1": 1.0, "l2": 0.0, None: 0.0}.get(penalty, ratio)
    if penalty is None:
        strength = 0.0
    intercept_penalty = 0.0
    if model.solver == "liblinear" and model.fit_intercept:
        # liblinear appends a constant feature of this size and penalises its coefficient like any other.
        intercept_penalty = strength / model.intercept_scaling**2
        if ratio:
            raise InputError(
                "liblinear's L1 penalty on the intercept leaves the intercept's condition undetermined.",
                needs="another solver for an L1 penalty",
                got="solver = 'liblinear' with l1_ratio = 1",
                hint="solver='saga'",
            )
    return GLM(
        Logistic() if len(model.classes_) == 2 else Multinomial(len(model.classes_)),
        penalty=strength * (1 - ratio),
        l1_penalty=strength * ratio,
        fit_intercept=model.fit_intercept,
        intercept_penalty=intercept_penalty,
        class_weights=_class_weights(model),
        tolerance=model.tol,
    )


def _first(values: Any) -> float:
    """A setting, or the first of those of several outputs, which are refused; 0 if there is none."""
    found = np.ravel(values)
    return float(found[0] or 0.0) if len(found) else 0.0


def _least_squares(model: Any, total: float) -> GLM:
    """LinearRegression and Ridge minimise a sum, Lasso and ElasticNet a mean; all halve the square."""
    ridge = lasso = 0.0
    if isinstance(model, linear.BayesianRidge):
        ridge = float(model.lambda_ / model.alpha_)
    elif isinstance(model, linear.Ridge | linear.RidgeCV):
        ridge = _first(getattr(model, "alpha_", getattr(model, "alpha", None)))
    elif not isinstance(model, linear.LinearRegression):
        alpha = float(getattr(model, "alpha_", getattr(model, "alpha", None)))  # pyright: ignore[reportArgumentType]
        ratio = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0))
        ratio = 1.0 if isinstance(model, linear.LassoCV | linear.Lasso) else float(ratio)
        ridge, lasso = total * alpha * (1 - ratio), total * alpha * ratio
    return GLM(
        Gaussian(),
        penalty=ridge,
        l1_penalty=lasso,
        fit_intercept=model.fit_intercept,
        tolerance=float(getattr(model, "tol", None) or 1e-10),
    )


def _indicators(model: Any, _total: float) -> GLM:
    """RidgeClassifier: least squares on −1 and 1."""
    return GLM(
        Indicators(len(model.classes_)),
        penalty=_first(getattr(model, "alpha_", getattr(model, "alpha", None))),
        fit_intercept=model.fit_intercept,
        class_weights=_class_weights(model),
    )


def _tweedie(model: Any, total: float) -> GLM:
    powers = {linear.PoissonRegressor: 1.0, linear.GammaRegressor: 2.0}
    power = next(
        (powers[kind] for kind in type(model).__mro__ if kind in powers), getattr(model, "power", 0.0)
    )
    link = getattr(model, "link", "log")
    identity = link == "identity" or (link == "auto" and power <= 0)
    if identity and power != 0:
        raise InputError(
            "This combination of power and link is not supported.",
            needs="a log link, or power 0 with the identity link",
            got=f"power = {power:g} with the identity link",
            hint="power 0, or a power of at least 1 with link='log'",
        )
    return GLM(
        Gaussian() if identity else Tweedie(power),
        penalty=total * model.alpha,  # scikit-learn penalises the mean loss
        fit_intercept=model.fit_intercept,
        tolerance=model.tol,
    )


_DESCRIPTIONS: tuple[tuple[Any, Callable[[Any, float], GLM]], ...] = (
    (linear.LogisticRegression, _logistic),  # and LogisticRegressionCV, which derives from it
    ((linear.RidgeClassifier, linear.RidgeClassifierCV), _indicators),
    ((linear.PoissonRegressor, linear.GammaRegressor, linear.TweedieRegressor), _tweedie),
    (
        (
            linear.LinearRegression,
            linear.Ridge,
            linear.RidgeCV,
            linear.BayesianRidge,
            linear.ElasticNet,
            linear.LassoCV,
            linear.LassoLars,
            linear.LassoLarsCV,
            linear.ElasticNetCV,
        ),
        _least_squares,
    ),
)


@dataclass(frozen=True)
class Equations:
    """A linear model's objective, and the features that its equations contain."""

    mechanism: GLM
    release: Weights
    active: np.ndarray  # (columns,)

    def clue(self, part: Part) -> Clue:
        """Solve for every row in turn."""
        found = ClosedForm().expose(self.mechanism, self.records(part), self.release).records
        values = np.full(part.matrix.shape, UNKNOWN, dtype=object)
        values[:, self.active] = as_values(found.flat[:, 0].numpy())
        labels = found.labels[:, 0].numpy()
        names = labels.astype(object)
        if self.mechanism.family.classes:
            names[:] = np.asarray(part.estimator.classes_)[labels.astype(int)].tolist()
        return Clue(values, names)

    def records(self, part: Part) -> Records:
        """The rows as the equations see them: only features with non-zero coefficients."""
        labels = coded_labels(part.estimator, self.mechanism, np.asarray(part.labels))
        return as_records(part.matrix[:, self.active], labels, part.weights)


def as_records(features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Records:
    """Arrays as records, without a copy where none is needed."""
    own = None if weights is None else torch.from_numpy(np.asarray(weights, dtype=np.float64))
    return Records(torch.from_numpy(np.ascontiguousarray(features)), torch.from_numpy(labels), own)


def equations(part: Part) -> list[Equations]:
    """A linear part's equations, if they determine anything."""
    matrix = part.numbers
    if matrix is None or part.labels is None or not is_linear(part.estimator) or np.isnan(matrix).any():
        return []
    try:
        own = objective(part.estimator, np.asarray(part.labels), part.weights)
        found = Equations(own.mechanism, of_features(own.release, own.active), own.active)
        ClosedForm().check(Knowledge(own.mechanism, Uninformed(), found.records(part)[1:]))
    except RemanenceError:
        return []
    return [found] if own.active.any() else []
