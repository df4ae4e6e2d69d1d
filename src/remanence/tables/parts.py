"""A fitted object taken apart: every estimator in it, with the table that it was fitted on.

A pipeline is replayed step by step; searches, votes, calibrations and the like are opened, as far as it is certain
which rows and labels their members saw.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
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
from sklearn.feature_selection import RFE
from sklearn.linear_model import RANSACRegressor
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import TargetEncoder
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.tables.rows import UNKNOWN

_DEEPEST = 12


def arrays_in(held: Any, path: str = "model") -> Iterator[tuple[str, np.ndarray]]:
    """Every array in an object and in everything that it holds, once.

    >>> from sklearn.preprocessing import StandardScaler
    >>> found = dict(arrays_in(StandardScaler().fit([[1.0], [3.0]]), "scaler"))
    >>> found["scaler.mean_"]
    array([2.])
    """
    yield from _walk(held, path, {}, 0)


def _walk(held: Any, path: str, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, np.ndarray]]:
    if held is None or isinstance(held, str | bytes | int | float | type) or depth > _DEEPEST:
        return
    if id(held) in seen:
        return
    seen[id(held)] = held  # kept, so that its id is not reused
    if isinstance(held, np.ndarray) and not held.dtype.names:
        yield path, held
    for name, item in _inside(held):
        yield from _walk(item, f"{path}{name}", seen, depth + 1)


def _inside(held: Any) -> list[tuple[str, Any]]:
    """The contents of an object, each with its part of the path."""
    if hasattr(held, "to_numpy") and hasattr(held, "index"):  # a pandas table or column, and its index
        return [("", held.to_numpy()), (".index", np.asarray(held.index))]
    if hasattr(held, "toarray") and hasattr(held, "nnz"):  # sparse
        return [("", held.toarray() if held.shape[0] * held.shape[1] < 1e8 else held.data)]
    if isinstance(held, np.ndarray):
        if held.dtype.names:
            return [(f".{name}", held[name]) for name in held.dtype.names]
        items = held.ravel()[:10_000] if held.dtype.kind == "O" else ()
        return [(f"[{place}]", item) for place, item in enumerate(items)]
    if isinstance(held, Mapping):
        return [(f".{name}" if isinstance(name, str) else f"[{name!r}]", item) for name, item in held.items()]
    if isinstance(held, memoryview):
        return [("", np.asarray(held))]
    if hasattr(held, "get_arrays"):  # a tree of neighbours: its first array holds the rows
        return [(".data", np.asarray(held.get_arrays()[0]))]
    if not isinstance(held, list | tuple | set | frozenset):
        held = _state(held)
    if isinstance(held, Mapping):
        # The user's unfitted argument (transformers) is not the fitted attribute (transformers_).
        shown = {name: item for name, item in held.items() if name != "transformers"}
        return [("" if name in _LISTS else f".{name}", item) for name, item in shown.items()]
    items = list(held)
    if items and all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
        return [("", np.asarray(items))]
    return [_item(place, item) for place, item in enumerate(items)]


_LISTS = ("steps", "transformers_", "estimators_", "transformer_list")  # their items have names of their own


def _item(place: int, item: Any) -> tuple[str, Any]:
    if isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], str):  # a named step
        return f".{item[0]}", item[1]
    return f"[{place}]", item


def _state(held: Any) -> Any:
    """The attributes of an object, or of a compiled class of scikit-learn's, such as a decision tree."""
    state = getattr(held, "__dict__", None)
    if state is None and type(held).__module__.startswith("sklearn."):
        with contextlib.suppress(Exception):  # without a state there is nothing to read
            state = held.__getstate__()
    return state if isinstance(state, Mapping | tuple | list) else ()


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
    drawn: bool = False  # whether the weights count how often each row was drawn, which the object publishes

    def sees(self, features: Any) -> Any:
        """Its part of the table."""
        if self.columns is not None:
            features = columns_of(features, self.columns)
        # Some wrappers pass arrays on, without the names.
        named = hasattr(features, "columns") and hasattr(self.estimator, "n_features_in_")
        if named and not hasattr(self.estimator, "feature_names_in_"):
            features = features.to_numpy()
        return features if self.rows is None else _safe_indexing(features, self.rows)


def is_a(held: Any, *kinds: type) -> bool:
    """`isinstance`, for type checkers with incomplete knowledge of scikit-learn's attributes."""
    return isinstance(held, kinds)


def rows_depend_on_labels(estimator: Any) -> bool:
    """Whether some estimator inside was fitted on rows chosen by their labels."""
    held = [estimator, *estimator.get_params().values()]
    return any(is_a(each, CalibratedClassifierCV, OneVsOneClassifier) for each in held)


def members_of(
    estimator: Any, features: Any, labels: np.ndarray | None, weights: np.ndarray | None
) -> list[Member] | None:
    """The estimators side by side inside one, if it is certain what each saw; None for one without members."""
    if is_a(estimator, ColumnTransformer):
        return [
            Member(name, step, labels, columns=columns)
            for name, step, columns in estimator.transformers_
            if not is_a(step, str) or step == "passthrough"
        ]
    if is_a(estimator, FeatureUnion):
        return [Member(name, step, labels) for name, step in estimator.transformer_list]
    if is_a(estimator, StackingClassifier, StackingRegressor, VotingClassifier, VotingRegressor):
        if getattr(estimator, "cv", None) == "prefit":
            return None  # their training data are unknown
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
        own = None if labels is None else labels[rows]
        return [Member("estimator_", estimator.estimator_, own, rows=rows)]
    if is_a(estimator, BaggingClassifier, BaggingRegressor):
        return _bagged(estimator, labels, weights)
    name = _SAW_ALL.get(type(estimator).__name__, "best_estimator_")
    member = getattr(estimator, name, None)
    return [Member(name, member, labels, weights)] if hasattr(member, "get_params") else None


def _through(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of one column, for labels."""
    return lambda labels: np.ravel(function(np.asarray(labels, dtype=np.float64).reshape(-1, 1)))


def _one_against_rest(estimator: Any, labels: np.ndarray | None) -> list[Member]:
    """One problem for each class; with two classes, only that of the second."""
    classes = np.asarray(estimator.classes_).tolist()
    other = classes[0] if len(estimator.estimators_) == 1 else UNKNOWN  # one of several others
    found = []
    for member, label in zip(estimator.estimators_, classes[-len(estimator.estimators_) :], strict=True):
        names = np.array([other, label, UNKNOWN], dtype=object)[:2]
        own = None if labels is None else (labels == label).astype(int)
        found.append(Member(str(label), member, own, back=_names(names)))
    return found


def _names(of_codes: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From the codes of classes to their names."""
    return lambda codes: np.asarray(of_codes)[codes.astype(int)]


def _one_against_one(estimator: Any, labels: np.ndarray | None) -> list[Member] | None:
    """One problem for each pair of classes, on the rows that are of either."""
    if labels is None or estimator.pairwise_indices_ is not None:
        return None
    pairs, found = itertools.combinations(np.asarray(estimator.classes_).tolist(), 2), []
    for member, (first, second) in zip(estimator.estimators_, pairs, strict=True):
        rows = np.flatnonzero((labels == first) | (labels == second))
        own, back = (labels[rows] == second).astype(int), _names([first, second])
        found.append(Member(f"{first}-{second}", member, own, rows=rows, back=back, by_label=True))
    return found


# Wrappers whose one member was fitted on the whole table, not on columns or rows that the wrapper chose.
_SAW_ALL = {
    "FrozenEstimator": "estimator",
    "SelectFromModel": "estimator_",
    "FixedThresholdClassifier": "estimator_",
    "TunedThresholdClassifierCV": "estimator_",
}


def _bagged(estimator: Any, labels: np.ndarray | None, weights: Any) -> list[Member] | None:
    """Members saw rows as often as they were drawn: a weight, if the member takes weights."""
    if weights is not None or labels is None:
        return None
    classes, labels = getattr(estimator, "classes_", None), np.asarray(labels)
    labels = labels if classes is None else np.searchsorted(classes, labels)
    back, found = None if classes is None else _names(classes), []
    drawn = zip(
        estimator.estimators_, estimator.estimators_samples_, estimator.estimators_features_, strict=True
    )
    for number, (member, rows, columns) in enumerate(drawn):
        if has_fit_parameter(member, "sample_weight"):
            times = np.bincount(rows, minlength=len(labels)).astype(np.float64)
            found.append(Member(str(number), member, labels, times, None, columns, back, drawn=True))
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
        return None  # which rows each member saw is unknown
    stratified, found = is_a(folds, StratifiedKFold), []
    for number, (rows, _) in enumerate(folds.split(features, labels)):
        own, name = np.asarray(labels)[rows], f"calibrated_classifiers_[{number}]"
        found.append(Member(name, members[number], own, rows=rows, by_label=stratified))
    return found


def columns_of(features: Any, columns: Any) -> Any:
    """Some columns of an array or a DataFrame, as a ColumnTransformer names them once it is fitted."""
    return _safe_indexing(features, [columns] if isinstance(columns, str | int) else columns, axis=1)


def places_of(features: Any, columns: Any) -> np.ndarray:
    """The positions of a member's columns in the outer table."""
    count = features.shape[1]
    if columns is None:
        return np.arange(count)
    if hasattr(features, "columns"):
        chosen = columns_of(features.iloc[:0], columns).columns
        return np.array([list(features.columns).index(name) for name in chosen], dtype=int)
    return columns_of(np.arange(count)[None], columns)[0]


@dataclass(frozen=True)
class Part:
    """An estimator, its path inside the object, and the table and the labels that it was fitted on."""

    path: str
    estimator: Any
    features: Any
    labels: np.ndarray | None
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None  # their numbers in the object's own table; None: all of them
    sparse: Any = None  # the sparse matrix that it was fitted on, for which some solvers take other steps
    circular: bool = False  # whether, behind a TargetEncoder, every row depends on every other's label
    drawn: bool = False  # whether the weights are how often each row was drawn

    @property
    def times(self) -> np.ndarray | None:
        """How often each row counts, which the adversary knows too; None with sample weights, which are secret."""
        if self.weights is None:
            return np.ones(len(self.features))
        return np.asarray(self.weights, dtype=np.float64) if self.drawn else None

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """Its table as numbers, gaps as NaN; None if it is unknown or contains words."""
        if self.features is None:
            return None
        try:
            return np.asarray(self.features).astype(np.float64)
        except (TypeError, ValueError):
            return None

    @property
    def matrix(self) -> np.ndarray:
        """The same table, for parts whose table is known to be numeric."""
        assert self.numbers is not None
        return self.numbers


def parts_of(
    estimator: Any,
    features: Any,
    labels: np.ndarray | None,
    weights: np.ndarray | None = None,
    path: str = "model",
    rows: np.ndarray | None = None,
    *,
    sparse: Any = None,
    circular: bool = False,
    drawn: bool = False,
) -> Iterator[Part]:
    """Every innermost estimator in a fitted object, in the order of fitting."""
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
                behind = _behind(step, features, labels)
                sparse = behind if hasattr(behind, "toarray") else None
                features = _dense(behind)
    elif (members := members_of(estimator, features, labels, weights)) is None:
        yield Part(path, estimator, features, labels, weights, rows, sparse, circular, drawn)
    else:
        for member in members:
            seen = None if features is None else member.sees(features)
            if seen is None or seen.shape[1]:
                inside = f"{path}.{member.name}"
                own = rows if member.rows is None else member.rows if rows is None else rows[member.rows]
                labels_, weights_ = member.labels, member.weights
                if sparse is not None and seen is not features:
                    sparse = csr_matrix(np.asarray(seen))
                yield from parts_of(
                    member.estimator,
                    seen,
                    labels_,
                    weights_,
                    inside,
                    own,
                    sparse=sparse,
                    circular=circular,
                    drawn=member.drawn,
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
    """A table as an estimator takes it: a one-column table becomes its texts, if the estimator reads texts."""
    first = estimator
    while isinstance(first, Pipeline):
        first = first.steps[0][1]
    if np.ndim(features) != 2 or features.shape[1] != 1 or not hasattr(first, "get_params"):
        return features
    if not get_tags(first).input_tags.string or get_tags(first).input_tags.two_d_array:
        return features
    return features.iloc[:, 0] if hasattr(features, "iloc") else features[:, 0]


def final_estimator(estimator: Any) -> Any:
    """The predictor at the end of pipelines and inside searches."""
    while True:
        if isinstance(estimator, Pipeline):
            estimator = estimator.steps[-1][1]
        elif hasattr(getattr(estimator, "best_estimator_", None), "get_params"):
            estimator = estimator.best_estimator_
        else:
            return estimator


def transformed(step: Any, features: Any, labels: np.ndarray | None = None) -> Any:
    """The output of a step on which the next one was fitted; None if it cannot be recomputed."""
    return _dense(_behind(step, features, labels))


def _behind(step: Any, features: Any, labels: np.ndarray | None) -> Any:
    if features is None or step is None or isinstance(step, str):
        return features
    if any(isinstance(inner, TargetEncoder) for inner in _all_steps(step)):
        # It encodes its training rows by folds, which may be random.
        first, second = (_fitted_transform(step, features, labels) for _ in range(2))
        return first if np.array_equal(np.asarray(first), np.asarray(second)) else None
    return step.transform(as_input(step, spared(step, features)))


def spared(estimator: Any, features: Any) -> Any:
    """The table, or a copy of it for an estimator that was told to write over its input."""
    settings = estimator.get_params() if hasattr(estimator, "get_params") else {}
    writes = any(
        value is False and name.split("__")[-1] in ("copy", "copy_X") for name, value in settings.items()
    )
    return features.copy() if writes else features


def _fitted_transform(step: Any, features: Any, labels: np.ndarray | None) -> Any:
    fresh: Any = clone(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _dense(fresh.fit_transform(features, labels))


def _dense(table: Any) -> Any:
    return table.toarray() if hasattr(table, "toarray") else table


def _all_steps(step: Any) -> Iterator[Any]:
    """A step and all steps inside it."""
    yield step
    for name in ("steps", "transformers_", "transformer_list"):
        for _, inner, *_ in getattr(step, name, ()):
            yield from _all_steps(inner)


def require_fitted(estimator: Any) -> None:
    """Refuse anything but a fitted estimator, and name the argument's type."""
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
