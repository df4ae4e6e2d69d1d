"""Rows and values that a fitted object holds verbatim, found by searching it, whatever its class."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial import KDTree
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge

from remanence.tables.parts import Part, arrays_in
from remanence.tables.recovery import Clue
from remanence.tables.rows import UNKNOWN, column_values, plain

_FEWEST = 2  # stored rows; a single one may be a mean that happens to be a row
_CHANCE = 1 / 64  # that rows of a table appear in an array by coincidence
_SNAPS = 1e-10  # of a column's size


@dataclass(frozen=True)
class StoredRows:
    """An array inside an object whose rows, or some of them, are rows of the table."""

    path: str
    count: int  # of its rows that are the table's
    keys: Counter  # rows as bytes, and how often each is stored
    labels: Mapping[bytes, Any]  # of the stored rows, where the object holds these too
    rows: np.ndarray  # their numbers in the object's own table
    alone: bool = False  # whether the adversary knows no other row
    among_others: bool = False  # whether it holds other rows, too: only the owner knows which are which

    def clue(self, part: Part) -> Clue:
        """The stored row that is not among the known ones."""
        matrix = part.matrix
        keys, clue = _keys(matrix), Clue.nothing(*matrix.shape)
        if self.alone:  # all stored rows are read; the row is among them or not
            for row in [row for row, key in enumerate(keys) if key in self.keys]:
                clue.values[row] = _plain(matrix[row])
                clue.labels[row] = self.labels.get(keys[row], UNKNOWN)
            return clue
        if self.among_others:
            return clue
        for row, found in _unexplained(self.keys, keys, counted=True):
            clue.values[row] = _plain(np.frombuffer(found))
            clue.labels[row] = self.labels.get(found, UNKNOWN)
        return clue


def _unexplained(stored: Counter, table: list, *, counted: bool) -> Iterator[tuple[int, Any]]:
    """For each row, by position, the one stored item that the others do not explain; two would be ambiguous.

    If items are `counted`, it is stored once more often than the others have it; otherwise none of them has it.
    """
    total = Counter(table)
    surplus = [key for key, count in stored.items() if (count > total[key] if counted else not total[key])]
    for row, key in enumerate(table):
        last = total[key] <= stored[key] if counted else total[key] == 1 and key in stored
        found = [*surplus, key] if last and key not in surplus else surplus
        if len(found) == 1:
            yield row, found[0]


def stored_rows(part: Part) -> list[StoredRows]:
    """Every array of a part that holds rows of its table, alone or among others, as cluster centres are."""
    matrix = part.numbers
    if matrix is None or not matrix.size:
        return []
    own, found, seen = _keys(matrix), [], set()
    rows = set(own)
    numbers = np.arange(len(own)) if part.rows is None else part.rows
    for path, values in arrays_in(part.estimator, part.path):
        if values.ndim != 2 or values.shape[1] != matrix.shape[1] or values.dtype.kind not in "fiu":
            continue
        with np.errstate(over="ignore"):
            single = np.array_equal(values, values.astype(np.float32), equal_nan=True)  # whatever its dtype
        if single and (near := nearest_rows(values, matrix)).min(initial=0) >= 0:
            values = matrix[near]  # rows that were rounded before they were stored
        stored = _keys(values.astype(np.float64))
        keys = Counter(key for key in stored if key in rows)
        held, others = frozenset(keys.items()), len(set(stored) - rows)
        if len(keys) >= _FEWEST and _telling(len(keys), others, matrix) and held not in seen:
            seen.add(held)  # a copy adds nothing
            held_here = numbers[[key in keys for key in own]]
            labels = {} if others else _labels(part, matrix, values)
            count = sum(keys.values())
            found.append(StoredRows(path, count, keys, labels, held_here, among_others=others > 0))
    return found


def nearest_rows(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """For each row, the row of a table that is equal in single precision; −1 if there is none."""
    unit = np.nanstd(matrix, 0) + 1e-5 * np.abs(matrix).max(0) + 1e-300
    if np.isnan(matrix).any() or not np.isfinite(rows).all():
        return np.full(len(rows), -1)
    off, found = KDTree(matrix / unit).query(rows.astype(np.float64) / unit, p=np.inf)
    rounding = np.finfo(np.float32).eps * (np.abs(rows) / unit).max(1) + 1e-6
    return np.where(off <= 8 * rounding, found, -1)


def _labels(part: Part, matrix: np.ndarray, stored: np.ndarray) -> dict[bytes, Any]:
    """The labels of stored rows, if an array of the object holds them in the same order or groups rows by them."""
    if part.labels is None or np.ndim(part.labels) != 1:
        return {}
    own = np.asarray(part.labels)
    label_of = dict(zip(_keys(matrix), own.tolist(), strict=True))
    keys = _keys(stored.astype(np.float64))
    wanted = np.array([label_of[key] for key in keys])
    classes = getattr(part.estimator, "classes_", None)
    shown = [wanted] if classes is None else [wanted, np.searchsorted(classes, wanted)]
    held = [values.ravel() for _, values in arrays_in(part.estimator) if values.size == len(keys)]
    sizes = getattr(part.estimator, "n_support_", None)
    if classes is not None and sizes is not None and len(sizes) == len(classes):
        held.append(np.repeat(classes, sizes))
    held += _implied_labels(part.estimator)
    if own.dtype.kind in "fiu" and classes is None:
        spread = 1e-4 * float(wanted.std())
        stored_too = any(
            values.dtype.kind in "fiu" and np.abs(wanted - values).max() <= spread for values in held
        )
    else:
        stored_too = any(np.array_equal(each, values) for each in shown for values in held)
    return dict(zip(keys, wanted.tolist(), strict=True)) if stored_too else {}


def _implied_labels(model: Any) -> list[np.ndarray]:
    """Labels that follow from the object: a Gaussian process stores them standardised, kernel ridge as (K + α)·dual."""
    if isinstance(model, GaussianProcessRegressor):
        return [np.ravel(np.asarray(model.y_train_) * model._y_train_std + model._y_train_mean)]
    if isinstance(model, KernelRidge) and np.ndim(model.alpha) == 0:
        kernel: Any = model._get_kernel(model.X_fit_)
        return [np.ravel(kernel @ model.dual_coef_ + model.alpha * model.dual_coef_)]
    return []


def _keys(matrix: np.ndarray) -> list[bytes]:
    # Zero has two signs, and a gap has many bit patterns.
    tidy = np.where(np.isnan(matrix), np.nan, matrix) + 0.0
    return [row.tobytes() for row in np.ascontiguousarray(tidy)]


def _telling(stored: int, others: int, matrix: np.ndarray) -> bool:
    """Whether this many matching rows, among others that do not match, are unlikely to be a coincidence.

    A row made of the columns' own values at random is one of n rows with probability n / patterns.
    """
    patterns = np.prod([float(len(np.unique(column))) for column in matrix.T[:20]])
    chance = math.comb(stored + others, stored) * min(1.0, len(matrix) / patterns) ** stored
    return bool(chance <= _CHANCE) or (stored >= 8 and not others)


@dataclass(frozen=True)
class StoredValues:
    """Values of one column that an object holds: extremes, categories, quantiles."""

    column: int
    values: Counter
    whole: bool  # one value per row, so that they can be counted

    def clue(self, part: Part) -> Clue:
        """The stored value that no known row explains."""
        clue = Clue.nothing(*part.features.shape)
        table = _plain(column_values(part.features, self.column))
        for row, found in _unexplained(self.values, table, counted=self.whole):
            clue.values[row, self.column] = found
        return clue


def stored_values(part: Part) -> list[StoredValues]:
    """The values of single columns that a part holds, where all of them are in the table."""
    if part.features is None or not part.features.shape[1]:
        return []
    columns, found = part.features.shape[1], []
    table = [Counter(_plain(column_values(part.features, place))) for place in range(columns)]
    for place, values in _held(part.estimator, columns):
        stored = Counter(_snapped(values, table[place]))
        if stored and stored.keys() <= table[place].keys():
            found.append(StoredValues(place, stored, stored == table[place]))
    return found


def _snapped(values: list, table: Counter) -> list:
    """The values, snapped to the table's own numbers to undo rounding errors of an interpolation."""
    numbers = [v for v in table if isinstance(v, int | float) and not isinstance(v, bool)]
    if not numbers or not all(isinstance(value, int | float) and np.isfinite(value) for value in values):
        return values
    off, nearest = map(np.ravel, KDTree(np.reshape(numbers, (-1, 1))).query(np.reshape(values, (-1, 1))))
    close = off <= _SNAPS * max(1e-300, *map(abs, numbers))
    return [numbers[place] if near else v for place, near, v in zip(nearest, close, values, strict=True)]


def _held(estimator: Any, columns: int) -> Iterator[tuple[int, list]]:
    """Values that an object holds for each column: a list of arrays, the columns of a matrix, or one number each."""
    for name, held in vars(estimator).items():
        if isinstance(held, list) and len(held) == columns:
            if all(isinstance(item, np.ndarray) for item in held):
                yield from ((place, _plain(item)) for place, item in enumerate(held) if item.ndim == 1)
        elif isinstance(held, np.ndarray) and held.dtype.kind in "fiu" and name.endswith("_"):
            if held.ndim == 2 and held.shape[1] == columns and len(held) > 1:
                yield from ((place, _plain(held[:, place])) for place in range(columns))
            elif columns == 1 and held.ndim == 1 and len(held) > 1:
                yield 0, _plain(held)
            elif held.shape == (columns,) and name.startswith(("data_m", "max_abs", "center")):
                yield from ((place, _plain(held[place : place + 1])) for place in range(columns))


def _plain(values: np.ndarray) -> list:
    """Values that can be counted: gaps are None."""
    return [plain(value) for value in np.asarray(values).tolist()]
