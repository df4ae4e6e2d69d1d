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
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.model_selection import check_cv
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import TargetEncoder
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from remanence.exceptions import InputError


@dataclass(frozen=True)
class Part:
    """An estimator, where it stands in the object, and the table and the labels that it was fitted on."""

    path: str
    estimator: Any
    features: Any
    labels: np.ndarray | None
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None  # their numbers in the object's own table; None: all of them


@dataclass(frozen=True)
class Member:
    """An estimator inside another, and which rows and columns of the outer one's table it saw; None: all of them."""

    name: str
    estimator: Any
    labels: np.ndarray | None
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None
    columns: Any = None

    def sees(self, features: Any) -> Any:
        """Its part of the table."""
        if self.columns is not None:
            features = columns_of(features, self.columns)
        return features if self.rows is None else rows_of(features, self.rows)


def parts_of(
    estimator: Any,
    features: Any,
    labels: np.ndarray | None,
    weights: np.ndarray | None = None,
    path: str = "model",
    rows: np.ndarray | None = None,
) -> Iterator[Part]:
    """Every estimator in a fitted object that holds no others, in the order of fitting."""
    if estimator is None or isinstance(estimator, str):  # "passthrough", "drop"
        return
    if isinstance(estimator, Pipeline):
        for place, (name, step) in enumerate(estimator.steps):
            last = place == len(estimator.steps) - 1
            yield from parts_of(step, features, labels, weights if last else None, f"{path}.{name}", rows)
            features = features if last else transformed(step, features, labels)
    elif (members := members_of(estimator, features, labels, weights)) is None:
        yield Part(path, estimator, features, labels, weights, rows)
    else:
        for member in members:
            seen = None if features is None else member.sees(features)
            if seen is None or seen.shape[1]:
                inside = f"{path}.{member.name}"
                own = rows if member.rows is None else member.rows if rows is None else rows[member.rows]
                yield from parts_of(member.estimator, seen, member.labels, member.weights, inside, own)


def is_a(held: Any, *kinds: type) -> bool:
    """`isinstance`, for type checkers that know less about scikit-learn's attributes than they believe."""
    return isinstance(held, kinds)


def members_of(
    estimator: Any, features: Any, labels: np.ndarray | None, weights: np.ndarray | None
) -> list[Member] | None:
    """The estimators side by side inside one, where it is certain what each saw; None for one that stands alone."""
    if is_a(estimator, ColumnTransformer):
        steps = [
            step
            for step in estimator.transformers_
            if not isinstance(step[1], str) or step[1] == "passthrough"
        ]
        return [Member(name, step, labels, None, None, columns) for name, step, columns in steps]
    if is_a(estimator, FeatureUnion):
        return [Member(name, step, labels) for name, step in estimator.transformer_list]
    if is_a(estimator, StackingClassifier, StackingRegressor):
        if estimator.cv == "prefit":
            return None  # fitted on nobody knows what
        seen = labels  # recoded below, as it was when they were fitted
        if labels is not None and getattr(estimator, "_label_encoder", None) is not None:
            seen = estimator._label_encoder.transform(labels)
        return [Member(name, member, seen, weights) for name, member in estimator.named_estimators_.items()]
    if is_a(estimator, VotingClassifier, VotingRegressor):
        seen = labels if labels is None or not hasattr(estimator, "le_") else estimator.le_.transform(labels)
        return [Member(name, member, seen, weights) for name, member in estimator.named_estimators_.items()]
    if is_a(estimator, CalibratedClassifierCV):
        return _calibrated(estimator, features, labels, weights)
    if is_a(estimator, OneVsRestClassifier):
        # Two classes make one problem, that of the second.
        classes = estimator.classes_[-len(estimator.estimators_) :]
        return [
            Member(str(label), member, None if labels is None else (labels == label).astype(int))
            for member, label in zip(estimator.estimators_, classes, strict=True)
        ]
    if is_a(estimator, TransformedTargetRegressor):
        seen = (
            None
            if labels is None
            else np.ravel(estimator.transformer_.transform(np.reshape(labels, (-1, 1))))
        )
        return [Member("regressor_", estimator.regressor_, seen, weights)]
    if is_a(estimator, BaggingClassifier, BaggingRegressor):
        return _bagged(estimator, labels, weights)
    name = (
        "best_estimator_" if hasattr(estimator, "best_estimator_") else _SAW_ALL.get(type(estimator).__name__)
    )
    member = None if name is None else getattr(estimator, name, None)
    return [Member(str(name), member, labels, weights)] if hasattr(member, "get_params") else None


# Wrappers whose one member was fitted on the whole table, and not on columns or rows that the wrapper chose.
_SAW_ALL = {
    "SelectFromModel": "estimator_",
    "FixedThresholdClassifier": "estimator_",
    "TunedThresholdClassifierCV": "estimator_",
}


def _bagged(estimator: Any, labels: np.ndarray | None, weights: Any) -> list[Member] | None:
    """Members saw rows as often as these were drawn, which is a weight where the member takes weights."""
    if weights is not None or labels is None:
        return None
    labels = (
        np.searchsorted(estimator.classes_, labels) if hasattr(estimator, "classes_") else np.asarray(labels)
    )
    found = []
    for number, (member, rows) in enumerate(
        zip(estimator.estimators_, estimator.estimators_samples_, strict=True)
    ):
        columns = estimator.estimators_features_[number]
        if has_fit_parameter(member, "sample_weight"):
            times = np.bincount(rows, minlength=len(labels)).astype(np.float64)
            found.append(Member(str(number), member, labels, times, None, columns))
        else:
            found.append(Member(str(number), member, labels[rows], None, rows, columns))
    return found


def _calibrated(
    estimator: Any, features: Any, labels: np.ndarray | None, weights: Any
) -> list[Member] | None:
    members = [getattr(each, "estimator", None) for each in estimator.calibrated_classifiers_]
    if len(members) == 1:
        return [Member("calibrated_classifiers_[0]", members[0], labels, weights)]
    folds = None if labels is None or features is None else _folds(estimator, labels)
    if folds is None or weights is not None:
        return None
    if getattr(folds, "shuffle", False) and not isinstance(getattr(folds, "random_state", None), int):
        return None  # nobody knows which rows each member saw
    return [
        Member(f"calibrated_classifiers_[{number}]", member, np.asarray(labels)[rows], None, rows)
        for number, (member, (rows, _)) in enumerate(
            zip(members, folds.split(features, labels), strict=False)
        )
    ]


def _folds(estimator: Any, labels: Any) -> Any:
    return check_cv(estimator.cv, labels, classifier=True)


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
    return _dense(step.transform(features))


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


def columns_of(features: Any, columns: Any) -> Any:
    """Some columns of an array or a DataFrame, as a ColumnTransformer names them once it is fitted."""
    columns = columns(features) if callable(columns) else columns
    columns = [columns] if isinstance(columns, str | int) else columns
    if not hasattr(features, "iloc"):
        return features[:, columns]
    names = all(isinstance(column, str) for column in columns) if not isinstance(columns, slice) else False
    return features.loc[:, columns] if names else features.iloc[:, columns]


def rows_of(features: Any, rows: np.ndarray) -> Any:
    """Some rows of an array or a DataFrame."""
    return features.iloc[rows] if hasattr(features, "iloc") else np.asarray(features)[rows]


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
    try:
        check_is_fitted(estimator)
    except Exception as error:  # noqa: BLE001 - whatever a class of somebody's own raises here
        raise InputError(
            "The model has not been fitted.",
            needs="an estimator after fit()",
            got=f"{type(estimator).__name__} before it ({type(error).__name__})",
            hint="model.fit(X, y), or the file of the fitted model",
        ) from None
