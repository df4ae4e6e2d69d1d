"""A fitted object taken apart: every estimator in it, with the table that it was fitted on.

A pipeline is replayed step by step; searches, votes, calibrations and the like are opened, as far as it is certain
which rows and labels their members saw.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import TargetEncoder
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.tables.members import members_of, places_of


@dataclass(frozen=True)
class Part:
    """An estimator, where it stands in the object, and the table and the labels that it was fitted on."""

    path: str
    estimator: Any
    features: Any
    labels: np.ndarray | None
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None  # their numbers in the object's own table; None: all of them
    sparse: bool = False  # whether it was fitted on a sparse matrix: some solvers take other steps then
    circular: bool = (
        False  # whether every row of its table depends on every other's label, behind a TargetEncoder
    )


def parts_of(
    estimator: Any,
    features: Any,
    labels: np.ndarray | None,
    weights: np.ndarray | None = None,
    path: str = "model",
    rows: np.ndarray | None = None,
    *,
    sparse: bool = False,
    circular: bool = False,
) -> Iterator[Part]:
    """Every estimator in a fitted object that holds no others, in the order of fitting."""
    if estimator is None or isinstance(estimator, str):  # "passthrough", "drop"
        return
    if isinstance(estimator, Pipeline):
        for place, (name, step) in enumerate(estimator.steps):
            last = place == len(estimator.steps) - 1
            own = weights if last else None
            yield from parts_of(
                step, features, labels, own, f"{path}.{name}", rows, sparse=sparse, circular=circular
            )
            circular = circular or any(isinstance(inner, TargetEncoder) for inner in _all_steps(step))
            if not last:
                sparse = _gives_sparse(step, features) if features is not None else False
                features = transformed(step, features, labels)
    elif (members := members_of(estimator, features, labels, weights)) is None:
        yield Part(path, estimator, features, labels, weights, rows, sparse, circular)
    else:
        for member in members:
            seen = None if features is None else member.sees(features)
            if seen is None or seen.shape[1]:
                inside = f"{path}.{member.name}"
                own = rows if member.rows is None else member.rows if rows is None else rows[member.rows]
                labels_, weights_ = member.labels, member.weights
                yield from parts_of(
                    member.estimator, seen, labels_, weights_, inside, own, sparse=sparse, circular=circular
                )


def columns_read(estimator: Any, features: Any, labels: np.ndarray | None) -> np.ndarray:
    """Which columns of its table any part of a fitted object was given; a ColumnTransformer may drop some."""
    if isinstance(estimator, Pipeline):
        steps = [step for _, step in estimator.steps if step not in (None, "passthrough")]
        return columns_read(steps[0] if steps else None, features, labels)
    read = np.zeros(features.shape[1], dtype=bool)
    members = None if estimator is None else members_of(estimator, features, labels, None)
    if members is None:
        return ~read
    for member in members:
        seen = columns_read(member.estimator, member.sees(features), member.labels)
        read[places_of(features, member.columns)[seen]] = True
    return read


def as_input(estimator: Any, features: Any) -> Any:
    """A table as an estimator takes it: the texts themselves, where it reads texts and the table is one column."""
    first = estimator
    while isinstance(first, Pipeline):
        first = first.steps[0][1]
    if np.ndim(features) != 2 or features.shape[1] != 1 or not hasattr(first, "get_params"):
        return features
    if not get_tags(first).input_tags.string or get_tags(first).input_tags.two_d_array:
        return features
    return features.iloc[:, 0] if hasattr(features, "iloc") else features[:, 0]


def final_estimator(estimator: Any) -> Any:
    """What predicts, at the end of pipelines and inside searches."""
    while True:
        if isinstance(estimator, Pipeline):
            estimator = estimator.steps[-1][1]
        elif hasattr(getattr(estimator, "best_estimator_", None), "get_params"):
            estimator = estimator.best_estimator_
        else:
            return estimator


def transformed(step: Any, features: Any, labels: np.ndarray | None = None) -> Any:
    """The table behind a step, as the next one was fitted on it; None where that cannot be recomputed."""
    if features is None or step is None or isinstance(step, str):
        return features
    if any(isinstance(inner, TargetEncoder) for inner in _all_steps(step)):
        # It encodes the rows that it learns from by folds, and may draw these at random.
        first, second = (_fitted_transform(step, features, labels) for _ in range(2))
        return first if np.array_equal(np.asarray(first), np.asarray(second)) else None
    return _dense(step.transform(as_input(step, spared(step, features))))


def spared(estimator: Any, features: Any) -> Any:
    """The table, or a copy of it for an estimator that was told to write over its input."""
    settings = estimator.get_params() if hasattr(estimator, "get_params") else {}
    writes = any(
        value is False and name.split("__")[-1] in ("copy", "copy_X") for name, value in settings.items()
    )
    return features.copy() if writes else features


def _gives_sparse(step: Any, features: Any) -> bool:
    if step is None or isinstance(step, str):
        return False
    return hasattr(step.transform(as_input(step, spared(step, features[:1]))), "toarray")


def _fitted_transform(step: Any, features: Any, labels: np.ndarray | None) -> Any:
    fresh: Any = clone(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _dense(fresh.fit_transform(features, labels))


def _dense(table: Any) -> Any:
    return table.toarray() if hasattr(table, "toarray") else table


def _all_steps(step: Any) -> Iterator[Any]:
    yield step
    for inner in (
        [each for _, each in step.steps]
        if isinstance(step, Pipeline)
        else [each for _, each, _ in step.transformers_]
        if isinstance(step, ColumnTransformer)
        else [each for _, each in step.transformer_list]
        if isinstance(step, FeatureUnion)
        else []
    ):
        yield from _all_steps(inner)


def require_fitted(estimator: Any) -> None:
    """Refuse what is no fitted estimator, with a sentence that says what it is."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise InputError(
            "There is no model to audit.",
            needs="a fitted scikit-learn estimator or Pipeline",
            got=f"the class {estimator.__name__}"
            if isinstance(estimator, type)
            else type(estimator).__name__,
            hint="LogisticRegression().fit(X, y)",
        )
    needs, hint = "an estimator after fit()", "model.fit(X, y), or the file of the fitted model"
    name = f"{type(estimator).__name__} before it"
    with refusing(Exception, "The model has not been fitted.", needs=needs, got=name, hint=hint):
        check_is_fitted(estimator)
