"""What the adversary of a table knows besides the other rows, or instead of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from remanence.core.checks import refusing, same_columns
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Given
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.tables.fitted import FittedModel
from remanence.tables.leave_one_out import LeaveOneOut
from remanence.tables.parts import final_estimator

TableGame = LeaveOneOut[FittedModel]
_SAME_UNITS = "the columns in the same units and words as in the training table"


def with_known(game: TableGame, *, columns: Sequence[str] = (), others: bool = True) -> TableGame:
    """The same game for an adversary who knows some `columns` of the missing row too, or none of the `others`."""
    mechanism = game.mechanism
    if not others and mechanism.held_rows(game.data) is None:
        raise InputError(
            "Nothing in this object is known to tell a row to somebody who knows no other row.",
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
    known = [column for column in rows.columns if column.name in columns]
    places = tuple(place for column in known for place in range(column.start, column.start + column.width))
    return replace(
        game,
        mechanism=mechanism,
        criterion=replace(game.criterion, error=replace(error, parts=(*error.parts, *label))),
        given=Given(tuple(columns), places, rows.error(columns)),
        others_known=others,
    )


def with_public(game: TableGame, table: Any, labels: Any = None) -> TableGame:
    """The same game for an adversary who believes that rows are like those of a public `table` with the same columns.

    They guess from it. Rows with a word missing from the training table cannot be the missing row and are left out.
    """
    mechanism = game.mechanism
    names = [column.name for column in mechanism.rows.columns]
    same_columns(table.columns, names, "a table with the same columns; the label may be missing", more=True)
    summary = "The public table cannot be compared with the model's."
    needs = "numbers in the columns that are numbers in the training table"
    with refusing((ValueError, TypeError), summary, needs=needs, got="the public table", hint=_SAME_UNITS):
        features = mechanism.rows.encode(table.rename(columns=str)[names])
    codes = np.full(len(table), np.nan) if labels is None else mechanism.codes(np.asarray(labels))
    fits = np.isfinite(features).all(1)
    if not fits.any():
        raise InputError(
            "No row of the public table could be one of the training table.",
            needs="at least one row without gaps or words that the training table has not",
            got=f"{len(table)} rows, none of them",
            hint=_SAME_UNITS,
        )
    public = Records(torch.from_numpy(features[fits]), torch.from_numpy(codes[fits]))
    prior = EmpiricalPrior(public, called="rows of a public table")
    return replace(game, prior=prior)


def with_fixed_totals(game: TableGame, columns: Sequence[str], label: str | None = None) -> TableGame:
    """The same game where a design fixes the totals of some columns, or of the label: a guess knows them too."""
    if not columns:
        return game
    totals = torch.full((game.data.flat.shape[-1] + 1,), torch.nan, dtype=torch.float64)
    for column in game.mechanism.rows.columns:
        if column.name in columns:
            places = slice(column.start, column.start + column.width)
            totals[places] = game.data.flat[:, places].double().sum(0)
    if label in columns:
        totals[-1] = game.data.labels.double().sum()
    return replace(game, totals=totals)
