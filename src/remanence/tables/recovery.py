"""What a fitted object gives away about each row, mapped back through its pipeline to the original table.

A clue has a value for each row and column of the table that a part was fitted on, or `UNKNOWN`. The i-th row of a clue
follows from the part and the other rows alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import impute, preprocessing
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline

from remanence.tables.parts import Part, places_of, transformed
from remanence.tables.rows import UNKNOWN, as_numbers, as_values, known, plain


@dataclass(frozen=True)
class Clue:
    """Values `(rows, columns)` and labels `(rows,)`, as objects; `UNKNOWN` where undetermined."""

    values: np.ndarray
    labels: np.ndarray

    @classmethod
    def nothing(cls, rows: int, columns: int) -> Clue:
        """No value at all."""
        return cls(np.full((rows, columns), UNKNOWN, dtype=object), np.full(rows, UNKNOWN, dtype=object))

    def filled(self, other: Clue) -> Clue:
        """This clue, completed by the other one."""
        return Clue(fill(self.values, other.values), fill(self.labels, other.labels))


def fill(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The first values where they are known, the second elsewhere."""
    return np.where(known(first), first, second)


_INVERSES = {"log1p": np.expm1, "log": np.exp, "log10": lambda x: 10.0**x, "log2": np.exp2, "sqrt": np.square}
_SAME = 1e-6  # of a fill value's size


def backwards(step: Any, after: np.ndarray, before: Any) -> np.ndarray:
    """The table in front of a step `(rows, columns)`, given the one behind it; `before` is the true one.

    For row i, only the other rows of the true table are used: to distinguish a filled gap from an equal value.
    """
    rows, columns = before.shape
    nothing = np.full((rows, columns), UNKNOWN, dtype=object)
    if not known(after).any():
        return nothing
    if isinstance(step, preprocessing.OneHotEncoder):
        return _categories_of_blocks(step, as_numbers(after), columns)
    if isinstance(step, preprocessing.OrdinalEncoder):
        return _categories_of_codes(step, as_numbers(after))
    if isinstance(step, impute.SimpleImputer):
        return _unfilled(step, after, before)
    if isinstance(step, preprocessing.PolynomialFeatures):
        for place, powers in enumerate(step.powers_):
            if powers.sum() == 1:
                nothing[:, powers.argmax()] = after[:, place]
        return nothing
    if hasattr(step, "get_support"):
        nothing[:, step.get_support()] = after
        return nothing
    return _inverted(step, as_numbers(after), before)


def _inverted(step: Any, after: np.ndarray, before: Any) -> np.ndarray:
    """The result of the step's own inverse, or of a known one, in columns where it reproduces this table."""
    inverse: Any = _INVERSES.get(getattr(getattr(step, "func", None), "__name__", ""))
    if inverse is None or step.inverse_func is not None or step.kw_args:
        inverse = getattr(step, "inverse_transform", None)
    found = np.full(before.shape, UNKNOWN, dtype=object)
    try:
        with np.errstate(all="ignore"):
            table = np.asarray(before, dtype=np.float64)
            replayed = np.asarray(inverse(np.asarray(transformed(step, before), dtype=np.float64)))
            same = np.isclose(replayed, table, rtol=1e-6, atol=1e-9 * np.nanstd(table, 0), equal_nan=True)
            own = np.asarray(inverse(after), dtype=np.float64)
    except (TypeError, ValueError):  # words, or no inverse
        return found
    right = same.mean(0) > 0.5
    found[:, right] = as_values(own[:, right])
    return found


def _categories_of_blocks(step: Any, after: np.ndarray, columns: int) -> np.ndarray:
    """The largest entry of each block, which holds a single 1; a dropped category is a block of zeros."""
    ends, dropped = np.cumsum(step._n_features_outs), step.drop_idx_
    clean, unsure = np.zeros_like(after), np.zeros((len(after), columns), dtype=bool)
    for column, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        block = after[:, start:end]
        unsure[:, column] = np.isnan(block).any(1)
        if start < end:
            best = np.where(np.isnan(block), -np.inf, block).argmax(1)
            zeros = dropped is not None and dropped[column] is not None
            clean[np.arange(len(after)), start + best] = (block.max(1) >= 0.5) | (not zeros)
    found = step.inverse_transform(clean).astype(object)
    for column, rare in enumerate(getattr(step, "infrequent_categories_", ())):
        if rare is not None:  # rare categories share an entry: only a single one can be told
            found[found[:, column] == "infrequent_sklearn", column] = rare[0] if len(rare) == 1 else UNKNOWN
    found[unsure] = UNKNOWN
    return found


def _categories_of_codes(step: Any, after: np.ndarray) -> np.ndarray:
    """For each number the category whose code, its place, is nearest."""
    found = np.full(after.shape, UNKNOWN, dtype=object)
    for column, categories in enumerate(step.categories_):
        names, codes = categories.tolist(), after[:, column].round().clip(0, len(categories) - 1)
        sure = ~np.isnan(codes)
        found[sure, column] = [plain(names[int(code)]) for code in codes[sure]]
    return found


def _unfilled(step: impute.SimpleImputer, after: np.ndarray, before: Any) -> np.ndarray:
    """A value equal to the fill value was a gap if most other rows with that value were."""
    table = before.to_numpy(dtype=object) if hasattr(before, "to_numpy") else np.asarray(before, dtype=object)
    statistics: Any = step.statistics_
    kept = [place for place, fill in enumerate(statistics) if plain(fill) is not None]
    found = np.full(table.shape, UNKNOWN, dtype=object)
    for place, column in enumerate(kept):
        fill, own = statistics[column], table[:, column]
        gaps = np.array([plain(value) is None for value in own])
        common = np.array([nearly_equal(value, fill) for value in own]) & ~gaps
        found[:, column] = after[:, place]
        filled = np.array([value is not UNKNOWN and nearly_equal(value, fill) for value in after[:, place]])
        for row in np.flatnonzero(filled):
            if gaps.sum() - gaps[row] <= common.sum() - common[row]:
                continue
            # A gap does not change a fill value that is learned; an observed value equal to it may.
            others, fresh = np.delete(own, row)[~np.delete(gaps, row)], clone(step)
            again: Any = len(others) and fresh.set_params(add_indicator=False).fit(others[:, None])  # pyright: ignore[reportAttributeAccessIssue]
            if step.strategy == "constant" or (again and nearly_equal(again.statistics_[0], fill)):
                found[row, column] = None
    return found


def nearly_equal(value: Any, fill: Any) -> bool:
    """Whether two values are equal up to rounding."""
    if isinstance(value, int | float) and isinstance(fill, int | float | np.number):
        return abs(float(value) - float(fill)) <= _SAME * max(1.0, abs(float(fill)))
    return bool(value == fill)


def recover(part: Part, after: np.ndarray | None, plans: Sequence[tuple[str, Any]]) -> Clue:
    """The table in front of an estimator, from its own clues and from clues about the table behind it."""
    found = Clue.nothing(*part.features.shape)
    if isinstance(part.estimator, Pipeline):  # backwards from the last step to the first
        for step in reversed(part.steps()):
            if step.features is not None:
                clue = recover(step, after, plans)
                after, found = clue.values, Clue(clue.values, fill(found.labels, clue.labels))
        return found
    if part.estimator is None or isinstance(part.estimator, str):
        return found if after is None else Clue(after, found.labels)
    members = part.members()
    if members is None:
        for path, plan in plans:
            found = found.filled(plan.clue(part)) if path == part.path else found
        if after is not None:
            found = Clue(fill(found.values, backwards(part.estimator, after, part.features)), found.labels)
        return found
    slices = part.estimator.output_indices_ if isinstance(part.estimator, ColumnTransformer) else {}
    for member in members:
        own = slices.get(member.path.removeprefix(f"{part.path}."))
        behind = None if after is None or own is None else after[:, own]
        found = found.filled(_widened(part, member, recover(member, behind, plans)))
    return found


def _widened(part: Part, member: Part, clue: Clue) -> Clue:
    """A member's clue about the rows and columns that it saw, as one about its outer estimator's table."""
    wide, rows = Clue.nothing(*part.features.shape), len(part.features)
    held = np.arange(rows) if member.outer_rows is None else member.outer_rows
    once = np.bincount(held, minlength=rows)[held] == 1  # a row that was drawn twice is its own twin
    wide.values[np.ix_(held[once], places_of(part.features, member.outer_columns))] = clue.values[once]
    said = known(clue.labels) & once
    if said.any():
        wide.labels[held[said]] = clue.labels[said] if member.back is None else member.back(clue.labels[said])
    return wide
