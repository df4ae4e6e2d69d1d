"""Names and numbers of people in a fitted object: feature names, categories, the index of a table that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from remanence.tables.objects import arrays_in

_SHORTEST = 3  # letters of a word that can be somebody's name
_MOSTLY = 0.9  # of a column's values that are different, and of an array's numbers that are in the column
_FEWEST = 8  # numbers that are no accident
_SPREAD = 4  # times the number of rows: numbers from 0 to n are nobody's


@dataclass(frozen=True)
class Identifiers:
    """Values of a column that tell rows apart, and where in the object they stand."""

    path: str
    column: str
    count: int


def identifiers_in(estimator: Any, table: Any) -> list[Identifiers]:
    """Every array of an object that holds values of a column whose values are nearly all different.

    The table is the whole file, with columns that the model was not fitted on: names and numbers of people are often
    among these.
    """
    words, numbers = {}, {}
    for name in table.columns:
        column = table[name].dropna()
        if column.nunique() < _MOSTLY * max(len(column), 2):
            continue
        if column.dtype.kind in "iu":
            if int(column.max()) - int(column.min()) > _SPREAD * len(column):
                numbers[str(name)] = set(column.tolist())
        elif column.dtype.kind not in "fcb":
            words[str(name)] = {str(value) for value in column if len(str(value)) >= _SHORTEST}
    found: dict[tuple[str, str], set] = {}
    for path, values in _looked_at(estimator):
        if values.dtype.kind in "OUS":
            held = {str(value) for value in values.ravel().tolist()}
            for name, known in words.items():
                if hits := {word for word in known if any(word in text for text in held)}:
                    found.setdefault((path, name), set()).update(hits)
        elif values.dtype.kind in "iuf" and values.ndim == 1 and values.size >= _FEWEST:
            held = set(values.tolist())
            for name, known in numbers.items():
                if len(held & known) >= max(_FEWEST, _MOSTLY * len(held)):
                    found.setdefault((path, name), set()).update(held & known)
    return [Identifiers(path, name, len(hits)) for (path, name), hits in found.items()]


def _looked_at(estimator: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, values in arrays_in(estimator):
        values = np.asarray(values)
        if values.size:
            yield path, values
