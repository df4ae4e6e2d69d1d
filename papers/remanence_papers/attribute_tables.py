"""Tables of people: named columns, numeric or categorical, as the records that training and attacks work on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remanence.core.checks import few, same_columns
from remanence.core.errors import Error
from remanence.core.exceptions import InputError
from remanence.core.records import Records

MOST_CATEGORIES = 100


@dataclass(frozen=True)
class Column:
    """A column and where it stands in a record: one number in standard units, or a 1 among the categories."""

    name: str
    start: int
    categories: tuple[Any, ...] = ()  # none: a number
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def places(self) -> range:
        """Its features."""
        return range(self.start, self.start + max(1, len(self.categories)))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """The features of these values."""
        if self.categories:
            return np.eye(len(self.categories))[_codes(self.name, values, self.categories)]
        return ((_numbers(self.name, values) - self.mean) / self.deviation)[:, None]

    def errors(self, targets: Tensor, guesses: Tensor) -> Tensor:
        """How far guesses are off in standard units; for a category 0 where it is right and 1 where it is not."""
        left, right = (values[..., self.places.start : self.places.stop] for values in (targets, guesses))
        if self.categories:
            return (left.argmax(-1) != right.argmax(-1)).double()
        return (left.double() - right.double()).abs()[..., 0]

    def between(self, targets: Records, guesses: Records) -> Tensor:
        """The same of records."""
        return self.errors(targets.flat, guesses.flat)


@dataclass(frozen=True)
class Table:
    """How a table becomes records: numbers in standard units, categories as groups of 0 and 1.

    >>> table, records = Table.read({"age": [30.0, 50.0], "smokes": ["no", "yes"], "ill": [0, 1]}, label="ill")
    >>> [column.name for column in table.columns], records.features.tolist()
    (['age', 'smokes'], [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    >>> table.encode({"age": [60.0], "smokes": ["no"], "ill": [1]}).features.tolist()
    [[2.0, 1.0, 0.0]]
    """

    columns: tuple[Column, ...]
    label: str
    classes: tuple[Any, ...]  # of the label; none: a number

    @classmethod
    def read(
        cls, table: Any, *, label: Hashable, categorical: Iterable[Hashable] = ()
    ) -> tuple[Table, Records]:
        """From a pandas DataFrame, or a mapping from names to arrays.

        Text, booleans and pandas' categories are categorical, and so are numeric columns named in `categorical`. A
        numeric label is a class; with fractions or more than a hundred values it is a regression's and stays a number,
        unless `categorical` names it. Names that are no text are written as text.
        """
        arrays = _arrays(table)
        label, categorical = str(label), {str(name) for name in categorical}
        unknown = sorted({label, *categorical} - arrays.keys())
        if unknown or len(arrays) < 2:
            raise InputError(
                "A column is missing.",
                needs=f"{', '.join(sorted({label, *categorical}))}, and at least one column besides the label",
                got=f"the columns {', '.join(arrays)}"[:200],
                hint="names are compared letter by letter",
            )
        columns, parts, start = [], [], 0
        for name, values in arrays.items():
            if name == label:
                continue
            column = _column(name, values, start, categorical=name in categorical)
            columns.append(column)
            parts.append(column.encode(values))
            start = column.places.stop
        classes, labels = _read_label(label, arrays[label], categorical=label in categorical)
        return cls(tuple(columns), label, classes), _records(parts, labels)

    def encode(self, table: Any) -> Records:
        """Another table with the same columns as records, in this one's units and categories."""
        arrays = _arrays(table)
        expected = [*(column.name for column in self.columns), self.label]
        same_columns(arrays, expected, "names are compared letter by letter; the label is needed too")
        labels = arrays[self.label]
        labels = _codes(self.label, labels, self.classes) if self.classes else _numbers(self.label, labels)
        return _records([column.encode(arrays[column.name]) for column in self.columns], labels)

    @property
    def width(self) -> int:
        """How many features a record has."""
        return sum(len(column.places) for column in self.columns)

    def column(self, name: Hashable) -> Column:
        """The column of this name."""
        for column in self.columns:
            if column.name == str(name):
                return column
        raise InputError(
            f"There is no column {name!r}.",
            needs=", ".join(column.name for column in self.columns),
            got=str(name),
            hint="the label is not a column",
        )

    def places(self, names: Sequence[Hashable]) -> tuple[int, ...]:
        """The features of some columns."""
        return tuple(place for name in names for place in self.column(name).places)

    def error(self, names: Sequence[Hashable]) -> Error:
        """The largest error of these columns, which are its parts: in standard units, 1 where a category is wrong."""
        columns = [self.column(name) for name in names]

        def measure(targets: Records, guesses: Records) -> Tensor:
            return torch.stack([c.errors(targets.flat, guesses.flat) for c in columns]).amax(0)

        parts = tuple(Error(column.name, column.between, _twice) for column in columns)
        return Error(f"largest error of {', '.join(c.name for c in columns)}", measure, _twice, parts=parts)


def _twice(threshold: float) -> float:
    """How far apart two values can be that one guess meets."""
    return 2 * threshold


def _arrays(table: Any) -> dict[str, np.ndarray]:
    """The columns, each one-dimensional, all of the same length, without gaps."""
    names = list(table.keys()) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
    arrays = {str(name): np.asarray(table[name]) for name in names}
    if len(arrays) < len(names):
        raise InputError(
            "Two columns have the same name.",
            needs="names that differ as text",
            got=", ".join(map(repr, names))[:200],
            hint="rename one of them",
        )
    lengths = {array.shape for array in arrays.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise InputError(
            "The table cannot be read.",
            needs="a pandas DataFrame or a mapping from names to arrays of one length",
            got=f"{type(table).__name__} with shapes {sorted(lengths)}"[:200],
            hint="dict(zip(names, array.T))",
        )
    if lengths == {(0,)}:
        raise InputError("The table is empty.", needs="at least one row", got="none", hint="check its filter")
    for name, array in arrays.items():
        gaps = sum(_is_gap(value) for value in array.tolist())
        if gaps:
            raise InputError(
                f"The column {name!r} has gaps.",
                needs="a value in every row",
                got=f"{gaps} missing or infinite values",
                hint="drop those rows, or make 'missing' a category",
            )
    return arrays


def _is_gap(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return value is None or str(value) in ("<NA>", "NaT")  # pandas' own


def _column(name: str, values: np.ndarray, start: int, *, categorical: bool) -> Column:
    if values.dtype.kind in "fiu" and not categorical:
        return Column(name, start, (), float(values.mean()), float(values.std()) or 1.0)
    categories = _categories(values)
    few(f"categories in {name!r}", len(categories), MOST_CATEGORIES, "leave out names and identifiers")
    return Column(name, start, categories)


def _read_label(name: str, values: np.ndarray, *, categorical: bool) -> tuple[tuple[Any, ...], np.ndarray]:
    """The classes and the class of each row, or no classes and numbers."""
    classes = _categories(values)
    fractions = values.dtype.kind == "f" and bool((values % 1 != 0).any())
    if values.dtype.kind in "fiu" and not categorical and (fractions or len(classes) > MOST_CATEGORIES):
        return (), _numbers(name, values)
    few(f"classes in {name!r}", len(classes), MOST_CATEGORIES, "above or below the median, say, or numbers")
    return classes, _codes(name, values, classes)


def _categories(values: np.ndarray) -> tuple[Any, ...]:
    return tuple(np.unique(_plain(values)).tolist())


def _plain(values: np.ndarray) -> np.ndarray:
    """Objects as text: they may have no order and no hash."""
    return values.astype(str) if values.dtype.kind == "O" else values


def _codes(name: str, values: np.ndarray, categories: tuple[Any, ...]) -> np.ndarray:
    """The place of each value among the categories, whose type may be another table's."""
    places = {category: place for place, category in enumerate(categories)}
    rows = _plain(values).tolist()
    codes = [places.get(value, places.get(str(value), -1)) for value in rows]
    unknown = {str(value) for value, code in zip(rows, codes, strict=True) if code < 0}
    if unknown:
        raise InputError(
            f"The column {name!r} has categories that the first table has not.",
            needs=", ".join(map(str, categories))[:200],
            got=", ".join(sorted(unknown))[:200],
            hint="leave those rows out, or let Table.read see both tables as one",
        )
    return np.array(codes)


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiu":
        raise InputError(
            f"The column {name!r} has no numbers.",
            needs="a numeric type, as in the first table",
            got=f"{values.dtype}, such as {values.tolist()[0]!r}"[:200],
            hint="frame[name].astype(float)",
        )
    return values.astype(np.float64)


def _records(parts: Sequence[np.ndarray], labels: np.ndarray) -> Records:
    return Records(torch.from_numpy(np.concatenate(parts, 1)).float(), torch.from_numpy(labels))
