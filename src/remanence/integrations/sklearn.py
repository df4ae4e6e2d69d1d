"""Fitted scikit-learn models as games: which training records come back out of this estimator?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn import linear_model as linear
from sklearn import preprocessing
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from remanence.data.records import Records
from remanence.data.releases import Weights
from remanence.exceptions import InputError
from remanence.games.leave_one_out import LeaveOneOut
from remanence.mechanisms.glm.families import Gaussian, Logistic, Multinomial, Tweedie
from remanence.mechanisms.glm.model import GLM, standard_units
from remanence.results.caveats import INACTIVE_FEATURES
from remanence.scoring.errors import Criterion, relative_error

_LOGISTIC_SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear")
_SCALERS = (
    preprocessing.StandardScaler,
    preprocessing.MinMaxScaler,
    preprocessing.MaxAbsScaler,
    preprocessing.RobustScaler,
)


def leave_one_out(estimator: Any, features: Any, labels: Any, sample_weight: Any = None) -> LeaveOneOut:
    """Audit a fitted estimator, or a Pipeline of a scaler and one, on its own training data.

    Every record in turn is the one that the adversary is missing. A record counts as recovered at a
    relative error of 1e-2 in standard units, together with its label.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> game = leave_one_out(linear.Ridge(alpha=0.1).fit(X, y), X, y)
    >>> game.mechanism.settings()["penalty"], len(game.data)
    (0.1, 442)
    """
    scaler, model = _split(estimator)
    check_is_fitted(model)
    matrix = _numbers(features, "features")
    if matrix.ndim != 2 or matrix.shape[1] != model.n_features_in_:
        raise InputError(
            "The features do not fit the model.",
            needs=f"a table with {model.n_features_in_} columns, one row per training record",
            got=f"an array of shape {matrix.shape}",
            hint="pass the same columns, in the same order, as to fit()",
        )
    weights = None if sample_weight is None else _numbers(sample_weight, "sample weights")
    described = _describe(model, matrix, np.asarray(labels), weights)
    numbers = matrix.shape[1] + model.fit_intercept
    unpenalised = described.mechanism.penalty == 0 and described.mechanism.l1_penalty == 0
    exact = isinstance(described.mechanism.family, Gaussian) and numbers == len(matrix)
    if unpenalised and (exact or numbers > len(matrix)):
        raise InputError(
            "The model fits every record exactly, which leaves nothing to solve for.",
            needs="a penalty above 0, or more records than parameters",
            got=f"{len(matrix)} records, {numbers} parameters and no penalty",
            hint="Ridge with a small alpha has a unique optimum, and can be audited",
        )
    mechanism, caveats = described.mechanism, ()
    coefficient = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    if len(coefficient) != mechanism.family.outputs:
        raise InputError(
            "The model has several outputs.",
            needs="a model with one output, or one class label",
            got=f"coefficients of shape {coefficient.shape}",
            hint="audit one output at a time",
        )
    tensors = {
        "coefficient": coefficient[None],
        "intercept": np.broadcast_to(np.atleast_1d(model.intercept_), (1, len(coefficient))),
    }
    if scaler is not None:
        tensors["mean"], tensors["scale"] = _affine(scaler, matrix.shape[1])
        mean_leaks = isinstance(scaler, preprocessing.StandardScaler) and scaler.with_mean
        mechanism = replace(mechanism, scaler="mean" if mean_leaks else "affine")
    if mechanism.l1_penalty:
        active = (coefficient != 0).all(0)
        if not active.all():
            _refuse_partly_active(coefficient, active)
            caveats = (INACTIVE_FEATURES,)
            matrix = matrix[:, active]
            tensors = {n: t if n == "intercept" else t[..., active] for n, t in tensors.items()}
    tensor = torch.from_numpy
    data = Records(tensor(matrix), tensor(described.labels), None if weights is None else tensor(weights))
    mechanism.family.check(data.labels)
    mechanism.check_weights(data)
    release = Weights({name: tensor(np.array(value, dtype=np.float64)) for name, value in tensors.items()})
    label_scale = 1.0 if mechanism.family.classes else float(data.labels.std())
    if weights is not None and not mechanism.family.classes:
        label_scale = None  # a residual times an unknown weight does not tell the label
    criterion = Criterion(relative_error(*standard_units(data)), label_scale=label_scale)
    return LeaveOneOut(mechanism, data, criterion, release, caveats)


@dataclass(frozen=True)
class _Description:
    mechanism: GLM
    labels: np.ndarray


def _describe(
    model: Any, features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> _Description:
    """The objective that this estimator minimises, with the penalty on the *sum* of the losses."""
    describe = _DESCRIPTIONS.get(type(model))
    if describe is None:
        raise InputError(
            f"{type(model).__name__} is not a model that the closed form can attack.",
            needs=", ".join(kind.__name__ for kind in _DESCRIPTIONS),
            got=type(model).__name__,
            hint="wrap its training in remanence.looped() and attack it with retrain-and-compare",
        )
    if labels.shape != (len(features),):
        raise InputError(
            "The labels do not fit the features.",
            needs=f"one label per record, shape ({len(features)},)",
            got=f"shape {labels.shape}",
            hint="audit one output at a time",
        )
    if getattr(model, "positive", False):
        raise InputError(
            "A model with non-negative coefficients is not at an unconstrained optimum.",
            needs="positive=False",
            got="positive=True",
            hint="audit an unconstrained fit of the same data",
        )
    total = len(features) if weights is None else float(weights.sum())
    return describe(model, labels, total)


def _logistic(model: linear.LogisticRegression, labels: np.ndarray, _total: float) -> _Description:
    if model.solver not in _LOGISTIC_SOLVERS:
        raise InputError(
            "The solver's conventions are not known.",
            needs=", ".join(_LOGISTIC_SOLVERS),
            got=f"solver = {model.solver!r}",
            hint="lbfgs, the default",
        )
    classes = list(model.classes_)
    strange = sorted(set(labels.tolist()) - set(classes), key=str)
    if strange:
        raise InputError(
            "The labels are not those that the model was trained on.",
            needs=f"labels among {', '.join(map(str, classes[:8]))}",
            got=f"{strange[0]!r}",
            hint="pass the labels as they were passed to fit()",
        )
    encoded = np.searchsorted(model.classes_, labels)
    strength = 0.0 if np.isinf(model.C) else 1 / model.C
    ratio = {"l1": 1.0, "l2": 0.0, None: 0.0}.get(
        getattr(model, "penalty", "deprecated"), model.l1_ratio or 0.0
    )
    if getattr(model, "penalty", "deprecated") is None:
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
    class_weights = model.class_weight
    if isinstance(class_weights, dict):
        class_weights = tuple(float(class_weights.get(label, 1.0)) for label in classes)
    mechanism = GLM(
        Logistic() if len(classes) == 2 else Multinomial(len(classes)),
        penalty=strength * (1 - ratio),
        l1_penalty=strength * ratio,
        fit_intercept=model.fit_intercept,
        intercept_penalty=intercept_penalty,
        class_weights=class_weights,
        tolerance=model.tol,
    )
    return _Description(mechanism, encoded)


def _least_squares(model: Any, labels: np.ndarray, total: float) -> _Description:
    """LinearRegression and Ridge minimise a sum, Lasso and ElasticNet a mean; all halve the square."""
    ridge = lasso = 0.0
    if isinstance(model, linear.Ridge):
        if np.size(model.alpha) != 1:
            raise InputError(
                "Ridge has a penalty per output.",
                needs="one alpha",
                got=f"{np.size(model.alpha)} of them",
                hint="audit one output at a time",
            )
        ridge = float(np.ravel(model.alpha)[0])
    elif not isinstance(model, linear.LinearRegression):
        ratio = 1.0 if isinstance(model, linear.Lasso) else float(model.l1_ratio)
        ridge, lasso = total * model.alpha * (1 - ratio), total * model.alpha * ratio
    mechanism = GLM(
        Gaussian(),
        penalty=ridge,
        l1_penalty=lasso,
        fit_intercept=model.fit_intercept,
        tolerance=model.tol,
    )
    return _Description(mechanism, _numbers(labels, "labels"))


def _tweedie(model: Any, labels: np.ndarray, total: float) -> _Description:
    power = {linear.PoissonRegressor: 1.0, linear.GammaRegressor: 2.0}.get(
        type(model), getattr(model, "power", 0)
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
    mechanism = GLM(
        Gaussian() if identity else Tweedie(power),
        penalty=total * model.alpha,  # scikit-learn penalises the mean loss
        fit_intercept=model.fit_intercept,
        tolerance=model.tol,
    )
    return _Description(mechanism, _numbers(labels, "labels"))


_DESCRIPTIONS: dict[type, Callable[[Any, np.ndarray, float], _Description]] = {
    linear.LinearRegression: _least_squares,
    linear.Ridge: _least_squares,
    linear.Lasso: _least_squares,
    linear.ElasticNet: _least_squares,
    linear.LogisticRegression: _logistic,
    linear.PoissonRegressor: _tweedie,
    linear.GammaRegressor: _tweedie,
    linear.TweedieRegressor: _tweedie,
}


def _split(estimator: Any) -> tuple[Any, Any]:
    """A Pipeline's scaler, if it has one, and its model."""
    if not isinstance(estimator, Pipeline):
        return None, estimator
    *before, model = [step for _, step in estimator.steps]
    before = [step for step in before if step not in (None, "passthrough")]
    if len(before) > 1 or not all(isinstance(step, _SCALERS) for step in before):
        raise InputError(
            "The pipeline cannot be run backwards.",
            needs=f"at most one step before the model: {', '.join(kind.__name__ for kind in _SCALERS)}",
            got=" → ".join(type(step).__name__ for step in before),
            hint="apply the other steps first, and audit on their output",
        )
    return (before[0] if before else None), model


def _affine(scaler: Any, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean and scale with which x̃ = (x − mean) / scale, `(1, features)` each."""
    if getattr(scaler, "clip", False):
        raise InputError(
            "A scaler that clips cannot be run backwards.",
            needs="clip=False",
            got="clip=True",
            hint="fit the scaler without clipping",
        )
    at_zero, at_one = scaler.inverse_transform(np.stack([np.zeros(features), np.ones(features)]))
    return at_zero[None], (at_one - at_zero)[None]


def _refuse_partly_active(coefficient: np.ndarray, active: np.ndarray) -> None:
    if not active.any() or ((coefficient != 0).any(0) & ~active).any():
        raise InputError(
            "The L1 penalty leaves too little to solve for.",
            needs="at least one feature whose coefficient is not zero, and for several classes the same ones",
            got=f"{int(active.sum())} of {len(active)} features active in every class",
            hint="a weaker penalty",
        )


def _numbers(values: Any, name: str) -> np.ndarray:
    if hasattr(values, "toarray"):
        raise InputError(
            f"The {name} are a sparse matrix.",
            needs="a dense array",
            got=type(values).__name__,
            hint="X.toarray(), if it fits into memory",
        )
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The {name} are not all numbers.",
            needs="numeric columns",
            got=str(error),
            hint="encode categories as numbers first, as fit() required",
        ) from None
    if not np.isfinite(array).all():
        rows = np.unique(np.argwhere(~np.isfinite(array))[:, 0])
        raise InputError(
            f"The {name} contain NaN or infinite values.",
            needs="finite numbers",
            got=f"{len(rows)} records affected, the first is number {rows[0]}",
            hint="drop or impute those records, as fit() required",
        )
    return np.ascontiguousarray(array)
