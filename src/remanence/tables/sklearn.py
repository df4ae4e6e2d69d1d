"""Fitted scikit-learn models as games: which training records come back out of this estimator?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn import preprocessing
from sklearn.pipeline import Pipeline

from remanence.core.errors import Criterion, relative_error
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.tables.belonging import check_belongs, check_columns
from remanence.tables.caveats import INACTIVE_FEATURES, PART_NOT_CONFIRMED
from remanence.tables.checked import numbers
from remanence.tables.glm.families import Gaussian
from remanence.tables.glm.units import standard_units
from remanence.tables.leave_one_out import LeaveOneOut
from remanence.tables.objectives import is_described, is_linear, objective
from remanence.tables.parts import require_fitted, transformed
from remanence.tables.sklearn_tables import duplicates, shortlist_game, table_game

__all__ = ["leave_one_out", "shortlist_game", "table_game"]

_SCALERS = (
    preprocessing.StandardScaler,
    preprocessing.MinMaxScaler,
    preprocessing.MaxAbsScaler,
    preprocessing.RobustScaler,
)


def leave_one_out(estimator: Any, features: Any, labels: Any, sample_weight: Any = None) -> LeaveOneOut:
    """Audit a fitted estimator or pipeline on its own training table.

    Every record in turn is the one that the adversary is missing. A table of double precision is not copied: leave it
    as it is until the audit is done. A model that was not fitted on this table is
    refused. Linear models on numbers, alone or behind a scaler, are attacked by their own equations: a record counts as
    recovered at a relative error of 1e-2 in standard units, together with its label. The rest is `table_game`'s.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> game = leave_one_out(Ridge(alpha=0.1).fit(X, y), X, y)
    >>> game.mechanism.settings()["penalty"], len(game.data)
    (0.1, 442)
    """
    require_fitted(estimator)
    if hasattr(getattr(estimator, "best_estimator_", None), "get_params"):
        return leave_one_out(estimator.best_estimator_, features, labels, sample_weight)
    scaler, model = _split(estimator)
    if not is_linear(model):
        return table_game(estimator, features, labels, sample_weight)
    check_columns(estimator, features)
    matrix = numbers(features, "features")
    weights = None if sample_weight is None else numbers(sample_weight, "sample weights")
    labels = np.asarray(labels)
    # Where a model's settings say what it minimises, no copy of the table is needed.
    seen = matrix if is_described(model) else np.asarray(transformed(scaler, matrix))
    described = objective(model, seen, labels, weights)
    mean_leaks = isinstance(scaler, preprocessing.StandardScaler) and bool(scaler.with_mean)
    _require_equations(described.mechanism, model, matrix, mean_leaks)
    mechanism = described.mechanism
    caveats = duplicates(matrix, described.labels)
    tensors = {name: tensor.numpy() for name, tensor in described.release.tensors.items()}
    if scaler is not None:
        tensors["mean"], tensors["scale"] = _affine(scaler, matrix.shape[1])
        mechanism = replace(mechanism, scaler="mean" if mean_leaks else "affine")
    data = Records(
        torch.from_numpy(matrix),
        torch.from_numpy(described.labels),
        None if weights is None else torch.from_numpy(weights),
    )
    mechanism.family.check(data.labels)
    mechanism.check_weights(data)
    found = check_belongs(
        estimator, matrix if not hasattr(features, "columns") else features, labels.ravel(), weights
    )
    if found.unconfirmed:
        caveats = (*caveats, PART_NOT_CONFIRMED)
    columns = tuple(str(name) for name in getattr(features, "columns", ()))
    coefficient = tensors["coefficient"][0]
    if mechanism.l1_penalty:
        active = (coefficient != 0).all(0)
        if not active.all():
            _refuse_partly_active(coefficient, active)
            caveats = (*caveats, INACTIVE_FEATURES)
            data = Records(data.features[:, torch.from_numpy(active)], data.labels, data.weights)
            columns = tuple(name for name, used in zip(columns, active, strict=False) if used)
            tensors = {n: t if n == "intercept" else t[..., active] for n, t in tensors.items()}
    release = Weights(
        {name: torch.from_numpy(np.array(value, dtype=np.float64)) for name, value in tensors.items()}
    )
    label_scale = 1.0 if mechanism.family.classes else float(data.labels.std())
    if weights is not None and not mechanism.family.classes:
        label_scale = None  # a residual times an unknown weight does not tell the label
    criterion = Criterion(relative_error(*standard_units(data)), label_scale=label_scale)
    return LeaveOneOut(mechanism, data, criterion, release, caveats, columns=columns)


def _require_equations(mechanism: Any, model: Any, matrix: np.ndarray, mean_leaks: bool) -> None:
    width = matrix.shape[1] + bool(getattr(model, "fit_intercept", True))
    if not mechanism.fit_intercept and not mechanism.family.classes and not mean_leaks:
        raise InputError(
            "Without an intercept the equations give a record only up to a factor.",
            needs="an intercept, a StandardScaler in front, or classes",
            got=f"{type(model).__name__} with fit_intercept=False",
            hint="audit a fit with an intercept; this one is not safe, only harder to read",
        )
    unpenalised = mechanism.penalty == 0 and mechanism.l1_penalty == 0
    exact = isinstance(mechanism.family, Gaussian) and width == len(matrix)
    if unpenalised and (exact or width > len(matrix)):
        raise InputError(
            "The model fits every record exactly, which leaves nothing to solve for.",
            needs="a penalty above 0, or more records than parameters",
            got=f"{len(matrix)} records, {width} parameters and no penalty",
            hint="Ridge with a small alpha has a unique optimum, and can be audited",
        )


def _split(estimator: Any) -> tuple[Any, Any]:
    """A Pipeline's scaler and its model, where it is no more than that; otherwise nothing and itself."""
    if not isinstance(estimator, Pipeline):
        return None, estimator
    *before, model = [step for _, step in estimator.steps]
    before = [step for step in before if step not in (None, "passthrough")]
    if len(before) > 1 or not all(isinstance(step, _SCALERS) for step in before):
        return None, estimator
    if any(getattr(step, "clip", False) for step in before):
        return None, estimator
    return (before[0] if before else None), model


def _affine(scaler: Any, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean and scale with which x̃ = (x − mean) / scale, `(1, features)` each."""
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
