"""Any fitted scikit-learn object and its table as a game: pipelines, forests, models that hold their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier, is_regressor
from sklearn.svm import LinearSVC
from sklearn.utils import get_tags

from remanence.core.checks import refusing, shaped, whole
from remanence.core.errors import Criterion, label_error
from remanence.core.exceptions import InputError, MisfitError
from remanence.core.priors import FinitePrior
from remanence.core.releases import FittedObject
from remanence.game import Game
from remanence.results.caveats import NO_TRACE, Caveat
from remanence.tables.belonging import check_belongs, check_columns
from remanence.tables.caveats import (
    COLUMNS_NOT_READ,
    DUPLICATE_RECORDS,
    PART_NOT_CONFIRMED,
    PART_NOT_READ,
)
from remanence.tables.checked import numbers
from remanence.tables.fitted import FittedModel, numbers_in
from remanence.tables.from_object import plans_of
from remanence.tables.leave_one_out import LeaveOneOut
from remanence.tables.objects import arrays_in
from remanence.tables.parts import (
    Part,
    as_input,
    columns_read,
    final_estimator,
    parts_of,
    require_fitted,
    spared,
)
from remanence.tables.rows import Rows

_ROWS_AT_ONCE = 2**14  # of a table that may be too large for a copy


def table_game(
    estimator: Any, table: Any, labels: Any = None, sample_weight: Any = None
) -> LeaveOneOut[FittedModel]:
    """Audit any fitted object on its own table: every row in turn is the one that the adversary is missing.

    The table is a DataFrame or an array, as it was before any step of the pipeline: words and gaps are welcome. A row
    counts as recovered when every number is within a hundredth of its standard deviation and every word and gap is
    right. What learns without labels needs none.
    """
    require_fitted(estimator)
    if hasattr(table, "toarray"):
        numbers(table, "features")  # says what to do with a sparse matrix
    check_columns(estimator, table)
    called, labels = str(getattr(labels, "name", None) or "label"), _one_label(estimator, labels, len(table))
    names = [str(name) for name in getattr(table, "columns", ())]
    if names and not hasattr(
        estimator, "feature_names_in_"
    ):  # fitted on an array: columns go by their places
        table = table.to_numpy()
    weights = None if sample_weight is None else numbers(sample_weight, "sample weights")
    _require_transformable(estimator, table)
    found = check_belongs(estimator, table, labels, weights)
    if not found.confirmed:
        raise MisfitError(
            "Nobody can tell whether this model was fitted on this table.",
            needs="a part of the model that can be recomputed from the table",
            got=_why_untold(final_estimator(estimator)),
            hint="the .skops file of an estimator that was fitted in one go, with random_state=0",
        )
    model = final_estimator(estimator)
    worded = hasattr(model, "classes_") or labels.dtype.kind in "OUSb"
    classes = tuple(np.unique(labels).tolist()) if worded else ()
    rows = Rows.read(table, names)
    read = columns_read(estimator, table, labels).tolist()
    kept = [column.name for column, seen in zip(rows.columns, read, strict=True) if seen]
    unread = tuple(column.name for column in rows.columns if column.name not in kept)
    plans = plans_of(estimator, table, labels, weights, found.confirmed)
    mechanism = FittedModel(estimator, rows, classes, plans, unread=unread)
    data = mechanism.records(table, labels)
    if weights is not None:
        data = replace(data, weights=torch.from_numpy(weights))
    margin = _beyond_margin(parts_of(estimator, table, labels, weights))
    silent = _silent_parts(estimator, found.confirmed, {path for path, _ in plans})
    caveats = (
        *duplicates(data.flat.numpy(), np.zeros(len(data))),
        *([PART_NOT_CONFIRMED] if found.unconfirmed else []),
        *([replace(COLUMNS_NOT_READ, seen=f"Not read: {', '.join(unread)}.")] if unread else []),
        *([replace(NO_TRACE, seen=margin)] if margin else []),
        *([replace(PART_NOT_READ, seen=f"Without a finding: {', '.join(silent)}.")] if silent else []),
    )
    if not plans:
        raise InputError(
            f"Nothing that {type(model).__name__} holds is known to tell about single rows.",
            needs="stored rows or values, means, sums, counts, a linear model's equations, or decision trees",
            got=type(model).__name__
            + (f" with loss={model.loss!r}" if hasattr(model, "loss") else "")
            + (f"; {margin[:-1]}" if margin else "")
            + ("" if getattr(model, "fit_intercept", True) else " without an intercept: rows up to a factor"),
            hint="wrap its training in remanence.looped() and attack it with retrain-and-compare; no attack that is "
            "known here is no proof that there is none",
        )
    release = FittedObject({"numbers": torch.from_numpy(numbers_in(estimator))[None]})
    error = rows.error(kept)
    if learns_from_labels(model):
        spread = 1.0 if classes else float(data.labels.std()) or 1.0
        label = label_error("label" if called in names else called, spread)
        error = replace(error, parts=(*error.parts, label))
    return LeaveOneOut(mechanism, data, Criterion(error), release, caveats, columns=rows.features)


def _why_untold(model: Any) -> str:
    if getattr(model, "warm_start", False):
        return f"{type(model).__name__}, which went on from an earlier fit (warm_start)"
    return f"{type(model).__name__}, whose training draws at random"


def _beyond_margin(parts: Iterable[Part]) -> str:
    """What to say about rows that leave no trace in a support vector machine: those beyond its margin."""
    for part in parts:
        if isinstance(part.estimator, LinearSVC) and part.features is not None and part.labels is not None:
            scores = np.reshape(part.estimator.decision_function(part.features), (len(part.labels), -1))
            classes = np.asarray(part.estimator.classes_)[-scores.shape[1] :]
            own = np.where(np.asarray(part.labels)[:, None] == classes, 1, -1)
            beyond = int((own * scores > 1).all(1).sum())
            return (
                f"{beyond} of {len(own)} rows lie beyond the margin of {part.path} and leave no trace in it."
            )
    return ""


def learns_from_labels(model: Any) -> bool:
    """Whether an estimator needs labels to be fitted."""
    return bool(get_tags(model).target_tags.required) or is_classifier(model) or is_regressor(model)


def _one_label(estimator: Any, labels: Any, count: int) -> np.ndarray:
    """One label for each row; zeros for what learns without any."""
    model = final_estimator(estimator)
    if labels is None and not learns_from_labels(model):
        return np.zeros(count)
    if labels is None:
        raise InputError(
            "The label is missing.",
            needs=f"the labels that {type(model).__name__} was fitted on",
            got="none",
            hint="table_game(model, table, labels)",
        )
    labels = np.asarray(labels)
    labels = labels[:, 0] if labels.shape == (count, 1) else labels
    shaped("labels", labels, (count,), "one label per row; audit one output at a time")
    return labels


def _silent_parts(estimator: Any, confirmed: tuple[str, ...], telling: set[str]) -> list[str]:
    """Parts that learned numbers from the table, of which nothing is known to tell about single rows."""
    return [
        part.path
        for part in parts_of(estimator, None, None)
        if part.path in confirmed
        and part.path not in telling
        and (
            get_tags(part.estimator).input_tags.string
            or any(values.dtype.kind == "f" and values.size for _, values in arrays_in(part.estimator))
        )
    ]


def _require_transformable(estimator: Any, table: Any) -> None:
    """Refuse a table on which the model cannot even predict: text without an encoder, gaps without an imputer."""
    if not any(hasattr(estimator, name) for name in ("predict", "transform")):
        return
    some = as_input(estimator, spared(estimator, table[:2]))
    needs = "the table as it was passed to fit(), before the first step of the pipeline"
    hint = (
        "text needs an encoder and gaps an imputer within the pipeline, as when it was fitted; "
        "a model of texts alone takes a table of the texts and the label"
    )
    kinds, name = (ValueError, TypeError, AttributeError), type(estimator).__name__
    with refusing(kinds, "The model cannot read this table.", needs=needs, got=name, hint=hint):
        shape = np.shape((estimator.predict if hasattr(estimator, "predict") else estimator.transform)(some))
    if hasattr(estimator, "predict") and len(shape) == 2 and shape[1] > 1:
        raise InputError(
            "The model has several outputs.",
            needs="a model that predicts one column",
            got=f"one that predicts {shape[1]}",
            hint="audit the steps in front of it: model[:-1], in a file of its own, needs no label",
        )


def duplicates(matrix: np.ndarray, labels: np.ndarray) -> tuple[Caveat, ...]:
    """The caveat about rows that have a twin, where there are any."""
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
