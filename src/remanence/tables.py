"""Tables of people: named columns, numeric or categorical, as the records that training and attacks work on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remanence.errors import Error
from remanence.exceptions import InputError
from remanence.records import Records

_MOST_CATEGORIES = 100


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

    def errors(self, targets: Tensor, guesses: Tensor) -> Tensor:
        """How far guesses are off in standard units; for a category 0 where it is right and 1 where it is not."""
        left, right = (values[..., self.places.start : self.places.stop] for values in (targets, guesses))
        if self.categories:
            return (left.argmax(-1) != right.argmax(-1)).double()
        return (left.double() - right.double()).abs()[..., 0]


@dataclass(frozen=True)
class Table:
    """How a table becomes records: numbers in standard units, categories as groups of 0 and 1.

    >>> table, records = Table.read({"age": [30.0, 50.0], "smokes": ["no", "yes"], "ill": [0, 1]}, label="ill")
    >>> [column.name for column in table.columns], records.features.tolist()
    (['age', 'smokes'], [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    """

    columns: tuple[Column, ...]

    @classmethod
    def read(cls, table: Any, *, label: str, categorical: Iterable[str] = ()) -> tuple[Table, Records]:
        """From a pandas DataFrame, or a mapping from names to arrays.

        Text, booleans and pandas' categories are categorical, and so are numeric columns named in `categorical`.
        """
        arrays = _arrays(table)
        categorical = set(categorical)
        if not all(len(values) for values in arrays.values()):
            raise InputError(
                "The table is empty.", needs="at least one row", got="none", hint="check its filter"
            )
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
            column, part = _encode(name, values, start, categorical=name in categorical)
            columns.append(column)
            parts.append(part)
            start += part.shape[1]
        classes, labels = np.unique(arrays[label], return_inverse=True)
        if len(classes) > _MOST_CATEGORIES:
            raise InputError(
                f"The label {label!r} is no class.",
                needs=f"at most {_MOST_CATEGORIES} different labels",
                got=str(len(classes)),
                hint="above or below the median, say",
            )
        features = torch.from_numpy(np.concatenate(parts, 1)).float()
        return cls(tuple(columns)), Records(features, torch.from_numpy(labels.reshape(-1)).long())

    def column(self, name: str) -> Column:
        """The column of this name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise InputError(
            f"There is no column {name!r}.",
            needs=", ".join(column.name for column in self.columns),
            got=name,
            hint="the label is no column",
        )

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """The features of some columns."""
        return tuple(place for name in names for place in self.column(name).places)

    def error(self, names: Sequence[str]) -> Error:
        """The largest error of these columns: in standard units, and 1 where a category is wrong."""
        columns = [self.column(name) for name in names]

        def measure(targets: Records, guesses: Records) -> Tensor:
            return torch.stack([c.errors(targets.flat, guesses.flat) for c in columns]).amax(0)

        return Error(f"largest error of {', '.join(names)}", measure, lambda threshold: 2 * threshold)


def _arrays(table: Any) -> dict[str, np.ndarray]:
    """The columns, each one-dimensional, all of the same length, without gaps."""
    names = list(table.keys()) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
    arrays = {str(name): np.asarray(table[name]) for name in names}
    lengths = {array.shape for array in arrays.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise InputError(
            "The table cannot be read.",
            needs="a pandas DataFrame or a mapping from names to arrays of one length",
            got=f"{type(table).__name__} with shapes {sorted(lengths)}"[:200],
            hint="dict(zip(names, array.T))",
        )
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


def _encode(name: str, values: np.ndarray, start: int, *, categorical: bool) -> tuple[Column, np.ndarray]:
    if values.dtype.kind in "fiu" and not categorical:
        mean, deviation = float(values.mean()), float(values.std()) or 1.0
        return Column(name, start, (), mean, deviation), ((values - mean) / deviation)[:, None]
    categories, codes = np.unique(
        values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True
    )
    if len(categories) > _MOST_CATEGORIES:
        raise InputError(
            f"The column {name!r} has too many categories.",
            needs=f"at most {_MOST_CATEGORIES}",
            got=str(len(categories)),
            hint="leave out names and identifiers; numbers need a numeric type",
        )
    return Column(name, start, tuple(categories.tolist())), np.eye(len(categories))[codes.reshape(-1)]
