"""A fitted object taken apart: every estimator in it, with the table that it was fitted on.

A pipeline is replayed step by step; searches, votes, calibrations and the like are opened, as far as it is certain
which rows and labels their members saw.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
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
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import TargetEncoder
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils._indexing import _get_column_indices
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError, MisfitError
from remanence.tables.rows import UNKNOWN

_DEEPEST = 12


def arrays_in(held: Any, path: str = "model") -> Iterator[tuple[str, np.ndarray]]:
    """Every array in an object and in everything that it holds, once.

    >>> from sklearn.preprocessing import StandardScaler
    >>> found = dict(arrays_in(StandardScaler().fit([[1.0], [3.0]]), "scaler"))
    >>> found["scaler.mean_"]
    array([2.])
    """
    seen: dict[int, Any] = {}  # by id; kept, so that no id is reused
    left = [(path, held, 0)]
    while left:
        path, held, depth = left.pop()
        plain = held is None or isinstance(held, str | bytes | int | float | type)
        if plain or depth > _DEEPEST or id(held) in seen:
            continue
        seen[id(held)] = held
        if isinstance(held, np.ndarray) and not held.dtype.names:
            yield path, np.asarray(held)  # of a masked array, the numbers
        left += [(f"{path}{name}", item, depth + 1) for name, item in reversed(_inside(held))]


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
    named = [isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], str) for item in items]
    return [
        (f".{item[0]}", item[1]) if step else (f"[{place}]", item)
        for place, (item, step) in enumerate(zip(items, named, strict=True))
    ]


_LISTS = ("steps", "transformers_", "estimators_", "transformer_list")  # their items have names of their own


def _state(held: Any) -> Any:
    """The attributes of an object, or of a compiled class of scikit-learn's, such as a decision tree."""
    state = getattr(held, "__dict__", None)
    if state is None and type(held).__module__.startswith("sklearn."):
        with contextlib.suppress(Exception):  # without a state there is nothing to read
            state = held.__getstate__()
    return state if isinstance(state, Mapping | tuple | list) else ()


@dataclass(frozen=True)
class Part:
    """An estimator, its path inside the object, and the table and the labels that it was fitted on.

    The last fields say which part of the outer estimator's table this is; None: all of it, and the same labels.
    """

    path: str
    estimator: Any
    features: Any
    labels: np.ndarray | None
    weights: np.ndarray | None = None
    rows: np.ndarray | None = None  # their numbers in the object's own table; None: all of them
    sparse: Any = None  # the sparse matrix that it was fitted on, for which some solvers take other steps
    drawn: bool = False  # whether the weights are how often each row was drawn, which the object publishes
    outer_rows: np.ndarray | None = None
    outer_columns: Any = None
    back: Callable[[np.ndarray], np.ndarray] | None = None  # from its labels to the outer ones

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
            return np.asarray(self.features, dtype=np.float64)
        except (TypeError, ValueError):
            return None

    @property
    def matrix(self) -> np.ndarray:
        """The same table, for parts whose table is known to be numeric."""
        assert self.numbers is not None
        return self.numbers

    def innermost(self) -> Iterator[Part]:
        """Every innermost estimator, in the order of fitting."""
        if self.estimator is None or isinstance(self.estimator, str):  # "passthrough", "drop"
            return
        inside = self.steps() if isinstance(self.estimator, Pipeline) else self.members()
        if inside is None:
            yield self
        for part in inside or ():
            yield from part.innermost()

    def steps(self) -> list[Part]:
        """The steps of a pipeline, each with the table that the steps in front of it give."""
        found, features, sparse = [], self.features, self.sparse
        for name, step in self.estimator.steps:
            found.append(Part(f"{self.path}.{name}", step, features, self.labels, None, self.rows, sparse))
            if len(found) < len(self.estimator.steps):
                behind = _behind(step, features)
                sparse, features = behind if hasattr(behind, "toarray") else None, _dense(behind)
        return [*found[:-1], replace(found[-1], weights=self.weights)]

    def members(self) -> list[Part] | None:
        """The estimators side by side inside this one, if it is certain what each saw; None if it has no members."""
        members = _members_of(self)
        return members and [each for each in members if each.features is None or each.features.shape[1]]

    def member(
        self,
        name: str,
        estimator: Any,
        labels: np.ndarray | None,
        weights: np.ndarray | None = None,
        *,
        rows: np.ndarray | None = None,
        columns: Any = None,
        back: Callable[[np.ndarray], np.ndarray] | None = None,
        drawn: bool = False,
    ) -> Part:
        """An estimator inside this one that saw these rows and columns of its table."""
        seen: Any = self.features
        sparse = self.sparse
        if seen is not None:
            if columns is not None:  # as a ColumnTransformer names them once it is fitted
                several = [columns] if isinstance(columns, str | int) else columns
                seen = _safe_indexing(seen, several, axis=1)
            # Some wrappers pass arrays on, without the names.
            named = hasattr(seen, "columns") and hasattr(estimator, "n_features_in_")
            seen = seen.to_numpy() if named and not hasattr(estimator, "feature_names_in_") else seen
            seen = seen if rows is None else _safe_indexing(seen, rows)
        if sparse is not None and seen is not self.features:
            sparse = csr_matrix(np.asarray(seen))
        own = self.rows if rows is None else rows if self.rows is None else self.rows[rows]
        return Part(
            f"{self.path}.{name}", estimator, seen, labels, weights, own, sparse, drawn, rows, columns, back
        )

    def columns_read(self) -> np.ndarray:
        """Which columns of its table any part of it was given; a ColumnTransformer may drop some."""
        read = np.zeros(self.features.shape[1], dtype=bool)
        if isinstance(self.estimator, Pipeline):
            steps = [step for _, step in self.estimator.steps if step not in (None, "passthrough")]
            return replace(self, estimator=steps[0]).columns_read() if steps else ~read
        members = self.members()
        for member in members or ():
            read[places_of(self.features, member.outer_columns)[member.columns_read()]] = True
        return ~read if members is None else read


def is_a(held: Any, *kinds: type) -> bool:
    """`isinstance`, for type checkers with incomplete knowledge of scikit-learn's attributes."""
    return isinstance(held, kinds)


def _members_of(part: Part) -> list[Part] | None:
    estimator, labels, weights = part.estimator, part.labels, part.weights
    if is_a(estimator, ColumnTransformer):
        return [
            part.member(name, step, labels, columns=columns)
            for name, step, columns in estimator.transformers_
            if not is_a(step, str) or step == "passthrough"
        ]
    if is_a(estimator, StackingClassifier, StackingRegressor, VotingClassifier, VotingRegressor):
        if getattr(estimator, "cv", None) == "prefit":
            return None  # their training data are unknown
        coder = getattr(estimator, "_label_encoder", getattr(estimator, "le_", None))
        seen = labels if labels is None or coder is None else coder.transform(labels)
        back = None if coder is None else lambda codes: coder.inverse_transform(codes.astype(int))
        named = ((name, held) for name, held in estimator.named_estimators_.items() if not is_a(held, str))
        return [part.member(name, held, seen, weights, back=back) for name, held in named]
    if is_a(estimator, CalibratedClassifierCV):
        (first, *others), name = estimator.calibrated_classifiers_, "calibrated_classifiers_[0]"
        # Of several, the labels decide which rows each saw.
        return None if others else [part.member(name, first.estimator, labels, weights)]
    if is_a(estimator, OneVsRestClassifier):
        return _one_against_rest(part)
    if is_a(estimator, TransformedTargetRegressor):
        coder = estimator.transformer_
        seen = None if labels is None else _through(coder.transform)(labels)
        back = _through(coder.inverse_transform)
        return [part.member("regressor_", estimator.regressor_, seen, weights, back=back)]
    if is_a(estimator, RFE):  # and RFECV, which derives from it
        chosen = np.flatnonzero(estimator.support_)
        return [part.member("estimator_", estimator.estimator_, labels, columns=chosen)]
    if is_a(estimator, RANSACRegressor):
        rows = np.flatnonzero(estimator.inlier_mask_)
        own = None if labels is None else _of_this_many(part, labels, len(estimator.inlier_mask_))[rows]
        return [part.member("estimator_", estimator.estimator_, own, rows=rows)]
    if is_a(estimator, BaggingClassifier, BaggingRegressor):
        return _bagged(part)
    name = _SAW_ALL.get(type(estimator).__name__, "best_estimator_")
    member = getattr(estimator, name, None)
    return [part.member(name, member, labels, weights)] if hasattr(member, "get_params") else None


def _of_this_many(part: Part, labels: np.ndarray, count: int) -> np.ndarray:
    """The labels of a table with as many rows as the one from which an estimator drew those of its members."""
    if len(labels) == count:
        return np.asarray(labels)
    raise MisfitError(
        "This model was not fitted on this table.",
        needs=f"{count} rows, as the table from which {type(part.estimator).__name__} drew",
        got=f"{len(labels)} rows",
        hint="the table and the labels that fit() was called with",
    )


def _through(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of one column, for labels."""
    return lambda labels: np.ravel(function(np.asarray(labels, dtype=np.float64).reshape(-1, 1)))


def _names(of_codes: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From the codes of classes to their names."""
    return lambda codes: np.asarray(of_codes)[codes.astype(int)]


def _one_against_rest(part: Part) -> list[Part]:
    """One problem for each class; with two classes, only that of the second."""
    classes, members = np.asarray(part.estimator.classes_).tolist(), part.estimator.estimators_
    other = classes[0] if len(members) == 1 else UNKNOWN  # one of several others
    found = []
    for member, label in zip(members, classes[-len(members) :], strict=True):
        names = np.array([other, label, UNKNOWN], dtype=object)[:2]
        own = None if part.labels is None else (part.labels == label).astype(int)
        found.append(part.member(str(label), member, own, back=_names(names)))
    return found


# Wrappers whose one member was fitted on the whole table, not on columns or rows that the wrapper chose.
_SAW_ALL = {"FrozenEstimator": "estimator"} | dict.fromkeys(
    ("SelectFromModel", "FixedThresholdClassifier", "TunedThresholdClassifierCV"), "estimator_"
)


def _bagged(part: Part) -> list[Part] | None:
    """Members saw rows as often as they were drawn: a weight, if the member takes weights."""
    bag: Any = part.estimator
    if part.weights is not None or part.labels is None:
        return None
    classes, labels = getattr(bag, "classes_", None), _of_this_many(part, part.labels, bag._n_samples)
    labels = labels if classes is None else np.searchsorted(classes, labels)
    back, found = None if classes is None else _names(classes), []
    drawn = zip(bag.estimators_, bag.estimators_samples_, bag.estimators_features_, strict=True)
    for number, (member, rows, columns) in enumerate(drawn):
        counted = has_fit_parameter(member, "sample_weight")
        times = np.bincount(rows, minlength=len(labels)).astype(np.float64) if counted else None
        own, seen = (labels, None) if counted else (labels[rows], rows)
        saw = {"rows": seen, "columns": columns, "back": back, "drawn": counted}
        found.append(part.member(str(number), member, own, times, **saw))
    return found


def places_of(features: Any, columns: Any) -> np.ndarray:
    """The positions of a member's columns in the outer table."""
    if columns is None:
        return np.arange(features.shape[1])
    return np.asarray(_get_column_indices(features, columns), dtype=int)


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
    if isinstance(estimator, Pipeline):
        return final_estimator(estimator.steps[-1][1])
    best = getattr(estimator, "best_estimator_", None)
    return final_estimator(best) if hasattr(best, "get_params") else estimator


def transformed(step: Any, features: Any) -> Any:
    """The output of a step that needs no labels."""
    return _dense(_behind(step, features))


def _behind(step: Any, features: Any) -> Any:
    if features is None or step is None or isinstance(step, str):
        return features
    if any(isinstance(inner, TargetEncoder) for inner in _all_steps(step)):
        return None  # fit() encoded each row by the labels of a part of the others
    needs = "a table with no other words and gaps than the training table"
    name, summary = type(step).__name__, "A step of the model cannot read this table."
    kinds, hint = (ValueError, TypeError), "the table as passed to fit()"
    with refusing(kinds, summary, needs=needs, got=name, hint=hint):
        return step.transform(as_input(step, spared(step, features)))


def spared(estimator: Any, features: Any) -> Any:
    """The table, or a copy of it for an estimator that was told to write over its input."""
    settings = estimator.get_params() if hasattr(estimator, "get_params") else {}
    writes = any(
        value is False and name.split("__")[-1] in ("copy", "copy_X") for name, value in settings.items()
    )
    return features.copy() if writes else features


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
        kind = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        needs, hint = "a fitted scikit-learn estimator or Pipeline", "LogisticRegression().fit(X, y)"
        raise InputError("There is no model to audit.", needs=needs, got=kind, hint=hint)
    needs, hint = "an estimator after fit()", "model.fit(X, y), or the file of the fitted model"
    name = f"{type(estimator).__name__} before it"
    with refusing(Exception, "The model has not been fitted.", needs=needs, got=name, hint=hint):
        check_is_fitted(estimator)
