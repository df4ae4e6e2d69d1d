"""Linear models inside a fitted object: what each minimises, and its equations solved for the missing row.

A model's own settings say what it minimises, with the penalty on the *sum* of the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn import linear_model as linear
from sklearn.svm import LinearSVC

from remanence.core.checks import shaped
from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.knowledge import Knowledge
from remanence.core.priors import Uninformed
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.tables.glm.closed_form import ClosedForm
from remanence.tables.glm.families import Gaussian, Indicators, Logistic, Multinomial, SquaredHinge, Tweedie
from remanence.tables.glm.model import GLM
from remanence.tables.parts import Part
from remanence.tables.recovery import Clue
from remanence.tables.rows import as_values, encoded, numbers


@dataclass(frozen=True)
class Objective:
    """A linear model as a mechanism, its labels in that mechanism's coding, and its numbers as a release."""

    mechanism: GLM
    labels: np.ndarray
    release: Weights

    @cached_property
    def active(self) -> np.ndarray:
        """Which features its equations determine: under an L1 penalty, those without a zero coefficient."""
        coefficient = self.release["coefficient"][0].numpy()
        return (coefficient != 0).all(0) if self.mechanism.l1_penalty else np.full(coefficient.shape[1], True)

    @property
    def of_active(self) -> Weights:
        """Its numbers, for these features only."""
        chosen = self.release["coefficient"][..., torch.from_numpy(self.active)]
        return Weights({"coefficient": chosen, "intercept": self.release["intercept"]})

    def records(self, part: Part) -> Records:
        """The rows as its equations see them: the labels coded, and only the features that they determine."""
        labels = coded_labels(part.estimator, self.mechanism, np.asarray(part.labels))
        return as_records(part.matrix[:, self.active], labels, part.weights)

    def clue(self, part: Part) -> Clue:
        """Solve for every row in turn."""
        found = ClosedForm().expose(self.mechanism, self.records(part), self.of_active).records
        clue, labels = Clue.nothing(*part.matrix.shape), found.labels[:, 0].numpy()
        clue.values[:, self.active] = as_values(found.flat[:, 0].numpy())
        clue.labels[:] = labels
        if self.mechanism.family.classes:
            clue.labels[:] = np.asarray(part.estimator.classes_)[labels.astype(int)].tolist()
        return clue


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
    coefficient = np.atleast_2d(np.array(model.coef_, dtype=np.float64))
    intercept = np.full(len(coefficient), model.intercept_, dtype=np.float64)  # 0 without an intercept
    arrays = {"coefficient": coefficient, "intercept": intercept}
    release = Weights({name: torch.from_numpy(values)[None] for name, values in arrays.items()})
    total = len(labels) if weights is None else float(weights.sum())
    describe = next(describe for kinds, describe in _DESCRIPTIONS if isinstance(model, kinds))
    mechanism = describe(model, total)
    if len(coefficient) != mechanism.family.outputs:
        raise InputError(
            "The model has several outputs.",
            needs="a model with one output, or one class label",
            got=f"coefficients for {len(coefficient)} outputs",
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


def _class_weights(model: Any) -> Any:
    weights = model.class_weight
    if isinstance(weights, dict):
        return tuple(float(weights.get(label, 1.0)) for label in model.classes_)
    return weights


def _logistic(model: Any, _total: float) -> GLM:
    penalty = getattr(model, "penalty", "deprecated")
    strength = 0.0 if penalty is None else 1 / _setting(model, "C")  # C may be infinite
    ratio = {"l1": 1.0, "l2": 0.0, None: 0.0}.get(penalty, _setting(model, "l1_ratio"))
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


def _setting(model: Any, name: str, otherwise: float = 0.0) -> float:
    """What a search chose or what was set, the first of several outputs, which are refused; 0 for None."""
    found = np.ravel(getattr(model, f"{name}_", getattr(model, name, otherwise)))
    return float(found[0] or 0.0) if len(found) else 0.0


_L1 = (linear.ElasticNet, linear.LassoCV, linear.LassoLars, linear.LassoLarsCV, linear.ElasticNetCV)


def _least_squares(model: Any, total: float) -> GLM:
    """LinearRegression and Ridge minimise a sum, Lasso and ElasticNet a mean; all halve the square."""
    ridge = lasso = 0.0
    if isinstance(model, linear.BayesianRidge):
        ridge = float(model.lambda_ / model.alpha_)
    elif isinstance(model, linear.Ridge | linear.RidgeCV):
        ridge = _setting(model, "alpha")
    elif isinstance(model, _L1):
        alpha, ratio = total * _setting(model, "alpha"), _setting(model, "l1_ratio", 1.0)
        ridge, lasso = alpha * (1 - ratio), alpha * ratio
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
        penalty=_setting(model, "alpha"),
        fit_intercept=model.fit_intercept,
        class_weights=_class_weights(model),
    )


def _margin(model: LinearSVC, _total: float) -> GLM:
    if (model.penalty, model.loss, model.multi_class) != ("l2", "squared_hinge", "ovr"):
        raise InputError(
            "How strongly a record on the margin pulls is not determined by this loss and penalty.",
            needs="loss='squared_hinge', penalty='l2' and multi_class='ovr', the defaults",
            got=f"loss={model.loss!r}, penalty={model.penalty!r}, multi_class={model.multi_class!r}",
            hint="audit a fit with the defaults; or SVC(kernel='linear'), which holds its support vectors",
        )
    return GLM(
        SquaredHinge(len(model.classes_)),
        penalty=1 / model.C,
        fit_intercept=model.fit_intercept,
        intercept_penalty=1 / model.C / model.intercept_scaling**2 if model.fit_intercept else 0.0,
        class_weights=_class_weights(model),
        tolerance=model.tol,
    )


def _tweedie(model: Any, total: float) -> GLM:
    power = 2.0 if isinstance(model, linear.GammaRegressor) else getattr(model, "power", 1.0)  # or Poisson
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
    (LinearSVC, _margin),
    ((linear.PoissonRegressor, linear.GammaRegressor, linear.TweedieRegressor), _tweedie),
    ((linear.LinearRegression, linear.Ridge, linear.RidgeCV, linear.BayesianRidge, *_L1), _least_squares),
)


def as_records(features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Records:
    """Arrays as records, without a copy where none is needed."""
    own = None if weights is None else torch.from_numpy(np.asarray(weights, dtype=np.float64))
    return Records(torch.from_numpy(np.ascontiguousarray(features)), torch.from_numpy(labels), own)


def equations(part: Part) -> list[Objective]:
    """A linear part's objective, if its equations determine anything."""
    matrix = part.numbers
    if matrix is None or part.labels is None or not is_linear(part.estimator) or np.isnan(matrix).any():
        return []
    try:
        own = objective(part.estimator, np.asarray(part.labels), part.weights)
        ClosedForm().check(Knowledge(own.mechanism, Uninformed(), own.records(part)[1:]))
    except RemanenceError:
        return []
    return [own] if own.active.any() else []
