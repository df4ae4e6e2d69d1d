"""Fitted scikit-learn models as games: which rows of the training table come back out of this object?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import get_tags

from remanence.core.checks import refusing, whole
from remanence.core.errors import Criterion, label_error, relative_error
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Given
from remanence.core.priors import FinitePrior
from remanence.core.records import Records
from remanence.core.releases import FittedObject
from remanence.game import Game
from remanence.results.caveats import Caveat
from remanence.tables.belonging import check_columns
from remanence.tables.caveats import COLUMNS_NOT_READ, DUPLICATE_RECORDS, INACTIVE_FEATURES
from remanence.tables.game import LeaveOneOut
from remanence.tables.glm.families import Gaussian
from remanence.tables.glm.model import standard_units
from remanence.tables.linear import as_records, is_linear, objective, one_label
from remanence.tables.mechanism import FittedModel, Fitting, numbers_in
from remanence.tables.parts import Part, as_input, final_estimator, require_fitted, spared
from remanence.tables.rows import RowColumn, Rows, classes_of, numbers


def table_game(
    estimator: Any, table: Any, labels: Any = None, sample_weight: Any = None
) -> LeaveOneOut[FittedModel]:
    """Audit any fitted object on its own table: every row in turn is the one that the adversary is missing.

    The table is a DataFrame or an array, as it was before any step of the pipeline; words and gaps are allowed. A row
    counts as recovered when every number is within a hundredth of its standard deviation and every word and gap is
    right. Unsupervised models need no labels.
    """
    require_fitted(estimator)
    if hasattr(table, "toarray"):
        numbers(table, "features")  # explains what to do with a sparse matrix
    table = table if hasattr(table, "columns") else np.asarray(table)
    check_columns(estimator, table)
    model, labelled = final_estimator(estimator), labels is not None
    called, labels = str(getattr(labels, "name", None) or "label"), _one_label(model, labels, len(table))
    names = [str(name) for name in getattr(table, "columns", ())]
    if names and not hasattr(estimator, "feature_names_in_"):
        table = table.to_numpy()  # fitted on an array: columns are matched by position
    weights = None if sample_weight is None else numbers(sample_weight, "sample weights")
    _require_transformable(estimator, table)
    worded = bool(classes_of(model)) or labels.dtype.kind in "OUSb"
    needs, hint = "words or numbers alone, without gaps", "the labels as they were passed to fit()"
    with refusing(TypeError, "The labels are of several kinds.", needs=needs, got=called, hint=hint):
        label = RowColumn("label", 0, tuple(np.unique(labels).tolist()) if worded else (), 1.0, gaps=False)
    rows = Rows.read(table, names)
    whole = Part("model", estimator, table, labels, weights)
    read = dict(zip((column.name for column in rows.columns), whole.columns_read(), strict=True))
    kept, unread = ([name for name, seen in read.items() if seen == wanted] for wanted in (True, False))
    mechanism = FittedModel(estimator, rows, Fitting(whole), label, unread=tuple(unread))
    own = None if weights is None else torch.from_numpy(weights)
    data = replace(mechanism.records(table, labels), weights=own)
    caveats = _duplicates(data)
    if unread:
        caveats += (replace(COLUMNS_NOT_READ, seen=f"Not read: {', '.join(unread)}."),)
    release = FittedObject({"numbers": torch.from_numpy(numbers_in(estimator))[None]})
    error = rows.error(kept)
    learning = [model, *(part.estimator for part in Part("model", estimator, None, None).innermost())]
    if labelled and any(map(learns_from_labels, learning)):
        spread = 1.0 if worded else float(data.labels.std()) or 1.0
        right = label_error("label" if called in names else called, spread)
        error = replace(error, parts=(*error.parts, right))
    criterion, fitting = Criterion(error), mechanism.fitting
    return LeaveOneOut(mechanism, data, criterion, release, caveats, columns=rows.features, fitting=fitting)


def learns_from_labels(model: Any) -> bool:
    """Whether an estimator needs labels to be fitted."""
    return bool(get_tags(model).target_tags.required) or is_classifier(model) or is_regressor(model)


def _one_label(model: Any, labels: Any, count: int) -> np.ndarray:
    """One label for each row; zeros for an unsupervised model."""
    if labels is None and not learns_from_labels(model):
        return np.zeros(count)
    if labels is None:
        raise InputError(
            "The label is missing.",
            needs=f"the labels that {type(model).__name__} was fitted on",
            got="none",
            hint="table_game(model, table, labels)",
        )
    return one_label(np.asarray(labels), count)


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


def _duplicates(data: Records) -> tuple[Caveat, ...]:
    """The caveat about records that are equal but for the label, if there are any."""
    repeated = replace(data, labels=torch.zeros_like(data.labels)).repeated()
    seen = f"{repeated} of the {len(data)} records equal an earlier one, labels aside."
    return (replace(DUPLICATE_RECORDS, seen=seen),) if repeated else ()


def shortlist_game(estimator: Any, table: Any, labels: Any, *, candidates: int = 10, seed: int = 0) -> Game:
    """Is a default tolerance a defence? The same training again, with one of a few candidates in the table.

    The adversary knows all rows but `candidates` of them, one of which was trained on, and fits the estimator on each:
    retrain-and-compare needs no equation to hold. Training must be deterministic, or have a seed.
    """
    game = table_game(estimator, table, labels)
    count = len(game.data)
    whole("candidates", candidates, least=2)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    shortlist, known = game.data[order[:candidates]], game.data[order[candidates:].sort().values]
    return Game(game.mechanism, FinitePrior(shortlist), known, game.criterion)


def leave_one_out(estimator: Any, features: Any, labels: Any, sample_weight: Any = None) -> LeaveOneOut:
    """Audit a fitted estimator or pipeline on its own training table.

    Every record in turn is the one that the adversary is missing. A table of double precision is not copied: leave it
    as it is until the audit is done. A model that was not fitted on this table is refused. A linear model of numbers is
    attacked by its own equations: a record counts as recovered at a relative error of 1e-2 in standard units, together
    with its label. Everything else, pipelines included, goes to `table_game`.

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
    if not is_linear(estimator):
        return table_game(estimator, features, labels, sample_weight)
    check_columns(estimator, features)
    matrix = numbers(features, "features")
    weights = None if sample_weight is None else numbers(sample_weight, "sample weights")
    labels = one_label(np.asarray(labels), len(matrix))
    described = objective(estimator, labels, weights)
    mechanism, release = described.mechanism, described.release
    _require_equations(mechanism, estimator, matrix)
    data = as_records(matrix, described.labels, weights)
    caveats = _duplicates(data)
    mechanism.family.check(data.labels)
    mechanism.check_weights(data)
    table = features if hasattr(features, "columns") else matrix
    fitting = Fitting(Part("model", estimator, table, labels, weights), taken_apart=False)
    columns = tuple(str(name) for name in getattr(features, "columns", ()))
    active = described.active
    if not active.all():
        _refuse_partly_active(release["coefficient"][0].numpy(), active)
        caveats = (*caveats, INACTIVE_FEATURES)
        data = replace(data, features=data.features[:, torch.from_numpy(active)])
        release = described.of_active
        columns = tuple(name for name, used in zip(columns, active, strict=False) if used)
    label_scale = 1.0 if mechanism.family.classes else float(data.labels.std())
    if weights is not None and not mechanism.family.classes:
        label_scale = None  # a residual times an unknown weight does not determine the label
    criterion = Criterion(relative_error(*standard_units(data)), label_scale=label_scale)
    return LeaveOneOut(mechanism, data, criterion, release, caveats, columns=columns, fitting=fitting)


def _require_equations(mechanism: Any, model: Any, matrix: np.ndarray) -> None:
    width = matrix.shape[1] + mechanism.fit_intercept
    classes_weigh_alike = mechanism.family.classes and mechanism.class_weights is None
    if not mechanism.fit_intercept and not classes_weigh_alike:
        raise InputError(
            "Without an intercept the equations give a record only up to a factor.",
            needs="an intercept, or classes that weigh the same",
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


def _refuse_partly_active(coefficient: np.ndarray, active: np.ndarray) -> None:
    if not active.any() or ((coefficient != 0).any(0) & ~active).any():
        raise InputError(
            "The L1 penalty leaves too little to solve for.",
            needs="at least one feature whose coefficient is not zero, and for several classes the same ones",
            got=f"{int(active.sum())} of {len(active)} features active in every class",
            hint="a weaker penalty",
        )


TableGame = LeaveOneOut[FittedModel]


def with_known(game: TableGame, *, columns: Sequence[str] = (), others: bool = True) -> TableGame:
    """The same game for an adversary who also knows some `columns` of the missing row, or none of the `others`."""
    mechanism = game.mechanism
    if not others and mechanism.held_rows(game.data) is None:
        raise InputError(
            "No attack is known that recovers a row from this object without the other rows.",
            needs="arrays that hold rows of the table",
            got=f"{type(final_estimator(mechanism.estimator)).__name__}, which holds none",
            hint="--known all-but-one",
        )
    mechanism = replace(mechanism, given=tuple(columns), others_known=others)
    if not columns:
        return replace(game, mechanism=mechanism, others_known=others)
    rows = mechanism.rows
    names = [column.name for column in rows.columns]
    asked = [name for name in names if name not in (*columns, *mechanism.unread)]
    if not asked:
        raise InputError(
            "There is nothing left to find.",
            needs="at least one column that the adversary does not know",
            got=", ".join(columns),
            hint="leave one of them out",
        )
    label = [part for part in game.criterion.error.parts if part.name not in names]
    error = rows.error(asked)
    every = range(game.data.flat.shape[-1])
    places = tuple(
        place for column in rows.columns if column.name in columns for place in every[column.places]
    )
    return replace(
        game,
        mechanism=mechanism,
        criterion=replace(game.criterion, error=replace(error, parts=(*error.parts, *label))),
        given=Given(tuple(columns), places, rows.error(columns)),
        others_known=others,
    )
