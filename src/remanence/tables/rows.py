"""Tables as records, and back without loss: numbers in their own units, words as codes, gaps as gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from remanence.core.checks import refusing
from remanence.core.errors import Error
from remanence.core.exceptions import InputError
from remanence.core.records import Records

_ORDERED = 4  # classes of which every order is tried


def classes_of(model: Any) -> tuple[Any, ...]:
    """The labels that a model distinguishes; none if it predicts numbers, or several outputs."""
    classes = getattr(model, "classes_", None)
    return tuple(classes.tolist()) if isinstance(classes, np.ndarray) and classes.ndim == 1 else ()


def codes_of(labels: Any, classes: Sequence[Any]) -> np.ndarray:
    """The place of each label among the classes, −1 for another one."""
    places = {label: place for place, label in enumerate(classes)}
    return np.array([places.get(label, -1) for label in np.asarray(labels).tolist()])


def encoded(model: Any, labels: np.ndarray) -> np.ndarray:
    """The class of each label, as the model counts them."""
    classes = classes_of(model)
    codes = codes_of(labels, classes)
    if (codes < 0).any():
        raise InputError(
            "The labels are not those that the model was trained on.",
            needs=f"labels among {', '.join(map(str, classes[:8]))}",
            got=repr(min(labels[codes < 0].tolist(), key=str)),
            hint="pass the labels as they were passed to fit()",
        )
    return codes


def codings(model: Any, labels: Any) -> Iterator[dict[Any, Any] | None]:
    """How the labels of a table may stand for those that a model was fitted on; None: they are the same.

    A file loses types, and people code words as numbers before they fit: by the same text, by the order of the
    alphabet (as LabelEncoder does) or by any other order.
    """
    classes = classes_of(model)
    words = [] if labels is None else sorted(set(np.asarray(labels).tolist()), key=str)
    if not classes or set(words) <= set(classes):
        yield None
        return
    texts = {str(name): name for name in classes}
    if all(str(word) in texts for word in words):
        yield {word: texts[str(word)] for word in words}
    elif len(words) == len(classes) > _ORDERED:
        yield dict(zip(words, classes, strict=True))
    elif len(words) == len(classes):
        for order in itertools.permutations(classes):
            yield dict(zip(words, order, strict=True))
    else:
        yield None


def numbers(values: Any, name: str) -> np.ndarray:
    """Finite numbers in double precision, or an error that says why not.

    Double precision is not copied: a table may be as large as memory allows.
    """
    if hasattr(values, "toarray"):
        raise InputError(
            f"The {name} are a sparse matrix.",
            needs="a dense array",
            got=type(values).__name__,
            hint="X.toarray(), if it fits into memory",
        )
    summary, needs = f"The {name} are not all numbers.", "numeric columns"
    hint = "encode categories as numbers first, as fit() required"
    with refusing((TypeError, ValueError), summary, needs=needs, got=name, hint=hint):
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
        array = array.astype(np.float64, copy=not array.flags.writeable)  # torch wants to be able to write
    if not np.isfinite(array).all():
        rows = np.unique(np.argwhere(~np.isfinite(array))[:, 0])
        raise InputError(
            f"The {name} contain NaN or infinite values.",
            needs="finite numbers",
            got=f"{len(rows)} records affected, the first is number {rows[0]}",
            hint="drop or impute those records, as fit() required",
        )
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class RowColumn:
    """A column and its place in a record: its value or code and, if the column has gaps, a 1 that marks a gap."""

    name: str
    start: int
    categories: tuple[Any, ...]  # none: a number
    spread: float  # the standard deviation of a number
    gaps: bool
    whole: bool = False  # all numbers are whole

    @property
    def width(self) -> int:
        """Features in a record."""
        return 1 + self.gaps

    @property
    def places(self) -> slice:
        """Where they are."""
        return slice(self.start, self.start + self.width)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Values as features, `(rows, width)`. Unknown values, and words missing from the table, are NaN."""
        missing = gaps_in(values)
        if self.categories:
            places = {category: place for place, category in enumerate(self.categories)}
            words = map(self._word, values.tolist())
            numbers = np.array([places.get(word, np.nan) for word in words], dtype=float)
        else:
            numbers = as_numbers(values)
            numbers = np.round(numbers) if self.whole else numbers
        numbers[missing] = 0.0 if self.gaps else np.nan
        return np.stack([numbers, missing.astype(np.float64)], 1) if self.gaps else numbers[:, None]

    def _word(self, value: Any) -> Any:
        """Behind a pipeline, booleans are numbers near 0 and 1."""
        truth = isinstance(value, float) and value == value and set(self.categories) <= {False, True}
        return value > 0.5 if truth else value

    def decode(self, features: np.ndarray) -> np.ndarray:
        """Features as values again; NaN becomes a gap."""
        numbers = features[:, self.start]
        missing = features[:, self.start + 1] > 0.5 if self.gaps else np.zeros(len(features), dtype=bool)
        missing = missing | np.isnan(numbers)
        if not self.categories:
            return np.where(missing, np.nan, numbers)
        codes = np.where(missing, 0, numbers).round().astype(int).clip(0, len(self.categories) - 1)
        found = np.array([*self.categories, None], dtype=object)[codes]
        found[missing] = None
        return found

    def errors(self, targets: Tensor, guesses: Tensor) -> Tensor:
        """How far guesses are off in standard deviations; 1 for a wrong word or gap and for a missing guess."""
        left, right = (values[..., self.start].double() for values in (targets, guesses))
        off = (left != right).double() if self.categories else (left - right).abs() / self.spread
        if self.gaps:
            missing, said = (values[..., self.start + 1] > 0.5 for values in (targets, guesses))
            off = off.where(~(missing & said), 0.0).where(missing == said, 1.0)
        return off.nan_to_num(nan=1.0, posinf=1e30)


@dataclass(frozen=True)
class Rows:
    """How rows become records. `frame` says whether they came as a DataFrame.

    >>> rows = Rows.read(np.array([[1.0, 2.0], [3.0, np.nan]]))
    >>> [column.name for column in rows.columns], rows.encode(np.array([[5.0, np.nan]])).tolist()
    (['x0', 'x1'], [[5.0, 0.0, 1.0]])
    """

    columns: tuple[RowColumn, ...]
    frame: bool
    kinds: tuple[Any, ...]  # of a DataFrame's columns

    @classmethod
    def read(cls, table: Any, named: Sequence[str] = ()) -> Rows:
        """From a DataFrame or an array, whose columns may be `named`."""
        frame = hasattr(table, "columns")
        names = list(named) or [str(name) for name in getattr(table, "columns", ())]
        names = names or [f"x{place}" for place in range(np.shape(table)[1])]
        if len(set(names)) < len(names):
            raise InputError(
                "Two columns have the same name.",
                needs="names that differ as text",
                got=", ".join(names)[:200],
                hint="rename one of them",
            )
        columns, start = [], 0
        for place, name in enumerate(names):
            column = _column(name, start, column_values(table, place))
            columns.append(column)
            start += column.width
        return cls(tuple(columns), frame, tuple(table.dtypes) if frame else ())

    @property
    def features(self) -> tuple[str, ...]:
        """The names of a record's features."""
        named = []
        for column in self.columns:
            named.append(f"{column.name} (code)" if column.categories else column.name)
            named += [f"{column.name} (missing)"] * column.gaps
        return tuple(named)

    def encode(self, table: Any) -> np.ndarray:
        """Features of each row, `(rows, numbers)`."""
        return np.concatenate([c.encode(column_values(table, i)) for i, c in enumerate(self.columns)], 1)

    def decode(self, features: np.ndarray) -> Any:
        """The table again: a DataFrame with its types, or an array."""
        values = [column.decode(features) for column in self.columns]
        if not self.frame:
            words = any(column.categories for column in self.columns)
            return np.stack([v.astype(object) if words else v for v in values], 1)
        import pandas as pd

        names = [column.name for column in self.columns]
        made = pd.DataFrame(dict(zip(names, values, strict=True)))
        for name, kind in zip(names, self.kinds, strict=True):
            with suppress(pd.errors.IntCastingNaNError):
                made[name] = made[name].astype(kind)
        return made

    def error(self, names: Sequence[str] = ()) -> Error:
        """The largest error over these columns, or all; each column is a part."""
        chosen = [column for column in self.columns if not names or column.name in names]

        def measure(targets: Records, guesses: Records) -> Tensor:
            return torch.stack([c.errors(targets.flat, guesses.flat) for c in chosen], -1).amax(-1)

        return Error(
            "largest error of a column, in standard deviations",
            measure,
            lambda threshold: 2 * threshold,
            parts=tuple(Error(c.name, lambda t, g, c=c: c.errors(t.flat, g.flat)) for c in chosen),
        )


def column_values(table: Any, place: int) -> np.ndarray:
    """One column, as an array."""
    if hasattr(table, "iloc"):
        column = table.iloc[:, place]
        return column.astype(object).to_numpy() if column.dtype.kind not in "fiub" else column.to_numpy()
    return np.asarray(table)[:, place]


def gaps_in(values: np.ndarray) -> np.ndarray:
    """Which cells are empty."""
    if values.dtype.kind in "fiub":
        return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    return np.array([plain(value) is None for value in values.tolist()], dtype=bool)


def plain(value: Any) -> Any:
    """A cell's value; None for an empty one, however a library represents it."""
    gap = value is None or (isinstance(value, float) and value != value) or str(value) in ("<NA>", "NaT")
    return None if gap else value


UNKNOWN: Final = ...  # a value that the clues do not determine; None is a gap


def known(values: np.ndarray) -> np.ndarray:
    """Which values are known."""
    return np.asarray(np.frompyfunc(lambda value: value is not UNKNOWN, 1, 1)(values), dtype=bool)


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Values as numbers; NaN if unknown or not a number."""

    def number(value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            return float("nan")

    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    return np.asarray(np.frompyfunc(number, 1, 1)(values), dtype=np.float64)


def as_values(numbers: np.ndarray) -> np.ndarray:
    """Numbers as values; `UNKNOWN` for NaN."""
    values = numbers.astype(object)
    values[np.isnan(numbers)] = UNKNOWN
    return values


def _column(name: str, start: int, values: np.ndarray) -> RowColumn:
    missing = gaps_in(values)
    gaps, values = bool(missing.any()), values[~missing]
    present = values.tolist() if values.dtype.kind not in "fiu" else []
    truths = bool(present) and all(isinstance(value, bool) for value in present)
    if truths or not all(isinstance(value, int | float) for value in present):
        return RowColumn(name, start, tuple(sorted(set(present), key=lambda v: (str(type(v)), v))), 1.0, gaps)
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        summary = f"The column {name!r} has infinite values."
        raise InputError(summary, needs="finite numbers or gaps", got="inf", hint="drop them")
    spread = float(numbers.std()) if len(numbers) else 0.0
    return RowColumn(name, start, (), spread or 1.0, gaps, whole=bool((numbers == np.round(numbers)).all()))
