"""Fitted scikit-learn models as games: which training records come back out of this estimator?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn import preprocessing
from sklearn.pipeline import Pipeline

from remanence.adversary.priors import FinitePrior
from remanence.attacks.tables.from_object import plans_of
from remanence.checks import whole
from remanence.data.records import Records
from remanence.data.releases import FittedObject, Weights
from remanence.exceptions import InputError, MisfitError
from remanence.game import Game
from remanence.games.leave_one_out import LeaveOneOut
from remanence.mechanisms.glm.families import Gaussian
from remanence.mechanisms.glm.units import standard_units
from remanence.mechanisms.tables.belonging import check_belongs, check_columns
from remanence.mechanisms.tables.checked import numbers
from remanence.mechanisms.tables.fitted import FittedModel, numbers_in
from remanence.mechanisms.tables.objectives import is_linear, objective
from remanence.mechanisms.tables.parts import final_estimator, require_fitted
from remanence.mechanisms.tables.rows import Rows
from remanence.results.caveats import DUPLICATE_RECORDS, INACTIVE_FEATURES, PART_NOT_CONFIRMED, Caveat
from remanence.scoring.errors import Criterion, label_error, relative_error

_ROWS_AT_ONCE = 2**14  # of a table that may be too large for a copy
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
    described = objective(
        model, matrix if scaler is None else np.asarray(scaler.transform(matrix)), labels, weights
    )
    mean_leaks = isinstance(scaler, preprocessing.StandardScaler) and bool(scaler.with_mean)
    _require_equations(described.mechanism, model, matrix, mean_leaks)
    mechanism = described.mechanism
    caveats = _duplicates(matrix, described.labels)
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


def table_game(estimator: Any, table: Any, labels: Any, sample_weight: Any = None) -> LeaveOneOut:
    """The same for any fitted object: pipelines, forests, models that hold their rows.

    The table is a DataFrame or an array, as it was before any step of the pipeline: words and gaps are welcome. A row
    counts as recovered when every number is within a hundredth of its standard deviation and every word and gap is
    right.
    """
    require_fitted(estimator)
    check_columns(estimator, table)
    called, labels = str(getattr(labels, "name", None) or "label"), np.asarray(labels)
    names = [str(name) for name in getattr(table, "columns", ())]
    if names and not hasattr(
        estimator, "feature_names_in_"
    ):  # fitted on an array: columns go by their places
        table = table.to_numpy()
    labels = labels[:, 0] if labels.shape == (len(table), 1) else labels
    if labels.shape != (len(table),):
        raise InputError(
            "The labels do not fit the table.",
            needs=f"one label per row, shape ({len(table)},)",
            got=f"shape {labels.shape}",
            hint="audit one output at a time",
        )
    weights = None if sample_weight is None else numbers(sample_weight, "sample weights")
    _require_transformable(estimator, table)
    found = check_belongs(estimator, table, labels, weights)
    if not found.confirmed:
        raise MisfitError(
            "Nobody can tell whether this model was fitted on this table.",
            needs="a part of the model that can be recomputed from the table",
            got=f"{type(final_estimator(estimator)).__name__}, whose training draws at random",
            hint="fit it with random_state=0",
        )
    model = final_estimator(estimator)
    classes = (
        tuple(np.unique(labels).tolist()) if hasattr(model, "classes_") or labels.dtype.kind in "OUSb" else ()
    )
    rows = Rows.read(table, names)
    plans = plans_of(estimator, table, labels, weights, found.confirmed)
    mechanism = FittedModel(estimator, rows, classes, plans)
    data = mechanism.records(table, labels)
    if weights is not None:
        data = replace(data, weights=torch.from_numpy(weights))
    caveats = _duplicates(data.flat.numpy(), np.zeros(len(data)))
    if found.unconfirmed:
        caveats = (*caveats, PART_NOT_CONFIRMED)
    if not plans:
        raise InputError(
            f"Nothing that {type(model).__name__} holds is known to tell about single rows.",
            needs="stored rows or values, means, sums, counts, a linear model's equations, or decision trees",
            got=type(model).__name__,
            hint="wrap its training in remanence.looped() and attack it with retrain-and-compare",
        )
    release = FittedObject({"numbers": torch.from_numpy(numbers_in(estimator))[None]})
    error = rows.error()
    spread = 1.0 if classes else float(data.labels.std()) or 1.0
    if called in names:
        called = "label"
    error = replace(error, parts=(*error.parts, label_error(called, spread)))
    return LeaveOneOut(mechanism, data, Criterion(error), release, caveats, columns=rows.features)


def _require_transformable(estimator: Any, table: Any) -> None:
    """Refuse a table on which the model cannot even predict: text without an encoder, gaps without an imputer."""
    if not any(hasattr(estimator, name) for name in ("predict", "transform")):
        return
    try:
        (estimator.predict if hasattr(estimator, "predict") else estimator.transform)(table[:2])
    except (ValueError, TypeError) as error:
        raise InputError(
            "The model cannot read this table.",
            needs="the table as it was passed to fit(), before the first step of the pipeline",
            got=str(error).splitlines()[0][:200],
            hint="text needs an encoder and gaps an imputer within the pipeline, as when it was fitted",
        ) from None


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


def _duplicates(matrix: np.ndarray, labels: np.ndarray) -> tuple[Caveat, ...]:
    # Equal rows have equal sums with weights drawn once; sorting numbers is quicker than sorting rows.
    *weights, weight = np.random.default_rng(0).normal(size=matrix.shape[1] + 1)
    keys = np.empty(len(matrix))
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        keys[some] = (np.ascontiguousarray(matrix[some]) * weights).sum(1) + labels[some] * weight
    _, counts = np.unique(keys, return_counts=True)
    repeated = int(counts[counts > 1].sum())
    if not repeated:
        return ()
    return (
        replace(
            DUPLICATE_RECORDS,
            means=f"{repeated} of {len(matrix)} records have a twin. {DUPLICATE_RECORDS.means}",
        ),
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


def shortlist_game(estimator: Any, table: Any, labels: Any, *, candidates: int = 10, seed: int = 0) -> Game:
    """Is a default tolerance a defence? The same training once more, with one of a few candidates in the table.

    The adversary knows all rows but `candidates` of them, one of which was trained on, and fits the estimator on each:
    retrain-and-compare needs no equation to hold. Training must draw nothing at random, or the same with its seed.
    """
    game = table_game(estimator, table, labels)
    count = len(game.data)
    whole("candidates", candidates, least=2)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    shortlist, known = game.data[order[:candidates]], game.data[order[candidates:].sort().values]
    return Game(game.mechanism, FinitePrior(shortlist), known, game.criterion)
