"""What a fitted part gives away about each row to somebody who knows all the others.

A clue has a value for each row and column of the table that the part was fitted on, or `UNKNOWN`. The i-th row of a
clue follows from the part and the other rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

UNKNOWN: Final = ...


@dataclass(frozen=True)
class Clue:
    """Values `(rows, columns)` and labels `(rows,)`, as objects; `UNKNOWN` where nothing follows."""

    values: np.ndarray
    labels: np.ndarray

    @classmethod
    def nothing(cls, rows: int, columns: int) -> Clue:
        """No value at all."""
        return cls(np.full((rows, columns), UNKNOWN, dtype=object), np.full(rows, UNKNOWN, dtype=object))

    def filled(self, other: Clue) -> Clue:
        """This clue, and the other one where this one knows nothing."""
        return Clue(fill(self.values, other.values), fill(self.labels, other.labels))


def fill(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The first values where they are known, the second elsewhere."""
    return np.where(known(first), first, second)


def known(values: np.ndarray) -> np.ndarray:
    """Which values are known."""
    return np.asarray(np.frompyfunc(lambda value: value is not UNKNOWN, 1, 1)(values), dtype=bool)


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Values as numbers; NaN for what is unknown or no number."""

    def number(value: Any) -> float:
        try:
            return float("nan") if value is UNKNOWN or value is None else float(value)
        except (TypeError, ValueError):
            return float("nan")

    return np.asarray(np.frompyfunc(number, 1, 1)(values), dtype=np.float64)


def as_values(numbers: np.ndarray) -> np.ndarray:
    """Numbers as values; `UNKNOWN` for NaN."""
    values = numbers.astype(object)
    values[np.isnan(numbers)] = UNKNOWN
    return values


def matrix_of(features: Any) -> np.ndarray | None:
    """A table as numbers, gaps as NaN; None where it has words."""
    try:
        return np.asarray(features.to_numpy() if hasattr(features, "to_numpy") else features).astype(
            np.float64
        )
    except (TypeError, ValueError):
        return None
