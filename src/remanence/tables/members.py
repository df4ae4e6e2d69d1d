"""Estimators inside estimators: searches, votes, calibrations and the like, as far as it is certain what each saw."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
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
from sklearn.feature_selection import RFE
from sklearn.linear_model import RANSACRegressor
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.utils.validation import has_fit_parameter


@dataclass(frozen=True)
class Member:
    """An estimator inside another, and which rows and columns of the outer one's table it saw; None: all of them."""

    name: str
    estimator: Any
    labels: np.ndarray | None
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None
    columns: Any = None
    back: Callable[[np.ndarray], np.ndarray] | None = (
        None  # from its labels to the outer ones; None: the same
    )
    by_label: bool = False  # whether the labels decide which rows it saw

    def sees(self, features: Any) -> Any:
        """Its part of the table."""
        if self.columns is not None:
            features = columns_of(features, self.columns)
        # Some wrappers hand on arrays, without the names.
        named = hasattr(features, "columns") and hasattr(self.estimator, "n_features_in_")
        if named and not hasattr(self.estimator, "feature_names_in_"):
            features = features.to_numpy()
        return features if self.rows is None else rows_of(features, self.rows)


def is_a(held: Any, *kinds: type) -> bool:
    """`isinstance`, for type checkers that know less about scikit-learn's attributes than they believe."""
    return isinstance(held, kinds)


def rows_depend_on_labels(estimator: Any) -> bool:
    """Whether some estimator inside was fitted on rows that their labels chose."""
    held = [estimator, *estimator.get_params().values()]
    return any(is_a(each, CalibratedClassifierCV, OneVsOneClassifier) for each in held)


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
    if is_a(estimator, StackingClassifier, StackingRegressor, VotingClassifier, VotingRegressor):
        if getattr(estimator, "cv", None) == "prefit":
            return None  # fitted on nobody knows what
        coder = getattr(estimator, "_label_encoder", getattr(estimator, "le_", None))
        seen = labels if labels is None or coder is None else coder.transform(labels)
        back = None if coder is None else lambda codes: coder.inverse_transform(codes.astype(int))
        named = estimator.named_estimators_.items()
        return [
            Member(name, member, seen, weights, back=back) for name, member in named if not is_a(member, str)
        ]
    if is_a(estimator, CalibratedClassifierCV):
        return _calibrated(estimator, features, labels, weights)
    if is_a(estimator, OneVsRestClassifier):
        return _one_against_rest(estimator, labels)
    if is_a(estimator, OneVsOneClassifier):
        return _one_against_one(estimator, labels)
    if is_a(estimator, TransformedTargetRegressor):
        coder = estimator.transformer_
        seen = None if labels is None else _through(coder.transform)(labels)
        back = _through(coder.inverse_transform)
        return [Member("regressor_", estimator.regressor_, seen, weights, back=back)]
    if is_a(estimator, RFE):  # and RFECV, which derives from it
        chosen = np.flatnonzero(estimator.support_)
        return [Member("estimator_", estimator.estimator_, labels, columns=chosen)]
    if is_a(estimator, RANSACRegressor):
        rows = np.flatnonzero(estimator.inlier_mask_)
        return [
            Member("estimator_", estimator.estimator_, None if labels is None else labels[rows], rows=rows)
        ]
    if is_a(estimator, BaggingClassifier, BaggingRegressor):
        return _bagged(estimator, labels, weights)
    name = (
        "best_estimator_" if hasattr(estimator, "best_estimator_") else _SAW_ALL.get(type(estimator).__name__)
    )
    member = None if name is None else getattr(estimator, name, None)
    return [Member(str(name), member, labels, weights)] if hasattr(member, "get_params") else None


def _through(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of one column, for labels."""
    return lambda labels: np.ravel(function(np.asarray(labels, dtype=np.float64).reshape(-1, 1)))


def _one_against_rest(estimator: Any, labels: np.ndarray | None) -> list[Member]:
    """One problem for each class; two classes make one, that of the second."""
    classes = np.asarray(estimator.classes_)
    alone = len(estimator.estimators_) == 1

    def names(label: Any) -> Callable[[np.ndarray], np.ndarray]:
        other = classes.tolist()[0] if alone else ...  # not this one: one of several others
        return lambda told: np.array([label if each == 1 else other for each in told] + [...], dtype=object)[
            :-1
        ]

    return [
        Member(
            str(label), member, None if labels is None else (labels == label).astype(int), back=names(label)
        )
        for member, label in zip(
            estimator.estimators_, classes[-len(estimator.estimators_) :].tolist(), strict=True
        )
    ]


def _one_against_one(estimator: Any, labels: np.ndarray | None) -> list[Member] | None:
    """One problem for each pair of classes, on the rows that are of either."""
    if labels is None or estimator.pairwise_indices_ is not None:
        return None
    classes, found = np.asarray(estimator.classes_), []
    pairs = itertools.combinations(classes.tolist(), 2)
    for member, (first, second) in zip(estimator.estimators_, pairs, strict=True):
        rows = np.flatnonzero((labels == first) | (labels == second))
        own, both = (labels[rows] == second).astype(int), np.array([first, second])

        def back(codes: np.ndarray, both: np.ndarray = both) -> np.ndarray:
            return both[codes.astype(int)]

        found.append(Member(f"{first}-{second}", member, own, rows=rows, back=back, by_label=True))
    return found


# Wrappers whose one member was fitted on the whole table, and not on columns or rows that the wrapper chose.
_SAW_ALL = {
    "FrozenEstimator": "estimator",
    "SelectFromModel": "estimator_",
    "FixedThresholdClassifier": "estimator_",
    "TunedThresholdClassifierCV": "estimator_",
}


def _bagged(estimator: Any, labels: np.ndarray | None, weights: Any) -> list[Member] | None:
    """Members saw rows as often as these were drawn, which is a weight where the member takes weights."""
    if weights is not None or labels is None:
        return None
    classes, labels = getattr(estimator, "classes_", None), np.asarray(labels)
    labels = labels if classes is None else np.searchsorted(classes, labels)
    back = None if classes is None else lambda codes: np.asarray(classes)[codes.astype(int)]
    found = []
    for number, (member, rows) in enumerate(
        zip(estimator.estimators_, estimator.estimators_samples_, strict=True)
    ):
        columns = estimator.estimators_features_[number]
        if has_fit_parameter(member, "sample_weight"):
            times = np.bincount(rows, minlength=len(labels)).astype(np.float64)
            found.append(Member(str(number), member, labels, times, None, columns, back))
        else:
            found.append(Member(str(number), member, labels[rows], None, rows, columns, back))
    return found


def _calibrated(
    estimator: Any, features: Any, labels: np.ndarray | None, weights: Any
) -> list[Member] | None:
    members = [getattr(each, "estimator", None) for each in estimator.calibrated_classifiers_]
    if len(members) == 1:
        return [Member("calibrated_classifiers_[0]", members[0], labels, weights)]
    if labels is None or features is None or weights is not None:
        return None
    folds: Any = check_cv(estimator.cv, labels, classifier=True)
    if getattr(folds, "shuffle", False) and not isinstance(getattr(folds, "random_state", None), int):
        return None  # nobody knows which rows each member saw
    stratified = is_a(folds, StratifiedKFold)
    return [
        Member(
            f"calibrated_classifiers_[{number}]",
            member,
            np.asarray(labels)[rows],
            rows=rows,
            by_label=stratified,
        )
        for number, (member, (rows, _)) in enumerate(
            zip(members, folds.split(features, labels), strict=False)
        )
    ]


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


def places_of(features: Any, columns: Any) -> np.ndarray:
    """The places of a member's columns in the outer table."""
    count = features.shape[1]
    if columns is None:
        return np.arange(count)
    if hasattr(features, "columns"):
        chosen = columns_of(features.iloc[:0], columns).columns
        return np.array([list(features.columns).index(name) for name in chosen], dtype=int)
    return columns_of(np.arange(count)[None], columns)[0]
