"""Means, sums and counts that a fitted part publishes: x = n·mean − Σ known, over all rows or over a class.

Found by looking: an array of the object that equals a mean or a sum of the part's own table is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from remanence.tables.parts import Part, arrays_in
from remanence.tables.recovery import UNKNOWN, Clue, matrix_of

_SAME = 1e-8  # of a column's size
_SAME_SINGLE = 2e-7  # in single precision


@dataclass(frozen=True)
class Published:
    """Means or sums of the rows, of all or of each group: classes, or clusters that the object assigns."""

    path: str
    kind: Literal["mean", "sum"]
    values: np.ndarray  # (groups, columns), NaN in columns of which it is no such thing
    classes: tuple[Any, ...] | None = None
    clusters: np.ndarray | None = None  # (rows,)

    def clue(self, part: Part) -> Clue:
        """What the known rows lack to the published number; a gap where they lack nothing and others have gaps."""
        matrix = matrix_of(part.features)
        assert matrix is not None
        rows, columns = matrix.shape
        groups = self._groups(part, rows)
        present = ~np.isnan(matrix)
        filled = np.where(present, matrix, 0.0)
        sums, sizes = _sums(filled, present, groups, len(self.values))
        said = ~np.isnan(self.values[0])
        best, lacking, labels = np.full(rows, -1.0), np.full((rows, columns), np.nan), np.full(rows, -1)
        gap = np.zeros((rows, columns), dtype=bool)
        for group, published in enumerate(self.values):
            member = (groups == group)[:, None]
            others, count = sums[group] - filled * member, sizes[group] - present * member
            with np.errstate(invalid="ignore", divide="ignore"):
                expected = others / count if self.kind == "mean" else others
            total = published * (count + 1) if self.kind == "mean" else published
            off = np.abs(published - expected) / (np.abs(filled).max(0) + 1e-300)
            off[:, ~said] = 0.0
            off[np.isnan(off)] = np.inf  # no known row is in this group: it is the missing one's
            if self.clusters is not None:  # the object says which group the row is in
                off = np.where(groups[:, None] == group, off + 1, -1.0)
            score = off.max(1)
            better = score > best
            best, labels = np.where(better, score, best), np.where(better, group, labels)
            lacking = np.where(better[:, None], total - others, lacking)
            nothing = (off <= _SAME) & ~present.all(0) & said
            gap = np.where(better[:, None], nothing, gap)
        values = lacking.astype(object)
        values[np.isnan(lacking)] = UNKNOWN
        values[gap] = None
        names = np.full(rows, UNKNOWN, dtype=object)
        if self.classes is not None:
            names[:] = [self.classes[label] for label in labels]
        return Clue(values, names)

    def _groups(self, part: Part, rows: int) -> np.ndarray:
        if self.clusters is not None:
            return self.clusters
        if self.classes is None:
            return np.zeros(rows, dtype=int)
        places = {label: place for place, label in enumerate(self.classes)}
        return np.array([places.get(label, -1) for label in np.asarray(part.labels).tolist()])


def _sums(
    filled: np.ndarray, present: np.ndarray, groups: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    sums, sizes = np.zeros((count, filled.shape[1])), np.zeros((count, filled.shape[1]))
    np.add.at(sums, groups, filled)
    np.add.at(sizes, groups, present.astype(np.float64))
    return sums, sizes


def published(part: Part) -> list[Published]:
    """Every array of a part that is a mean or a sum of its table."""
    matrix = None if part.features is None else matrix_of(part.features)
    if matrix is None or not matrix.size or part.weights is not None:
        return []  # with weights, the missing row's own is not known
    rows, columns = matrix.shape
    present = ~np.isnan(matrix)
    filled = np.where(present, matrix, 0.0)
    scale = np.abs(filled).max(0) + 1e-300
    held = list(arrays_in(part.estimator, part.path))
    mixed = [getattr(part.estimator, name, None) for name in ("weights_", "means_")]
    if all(isinstance(each, np.ndarray) for each in mixed):  # a mixture's means, mixed, are the table's
        held.append((f"{part.path}.means_", np.asarray(mixed[0] @ mixed[1])))  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    arrays = [
        (
            path,
            np.asarray(values, dtype=np.float64).reshape(-1, columns),
            _SAME_SINGLE if values.dtype == np.float32 else _SAME,
        )
        for path, values in held
        if values.dtype.kind in "fiu" and values.ndim in (1, 2) and values.shape[-1] == columns
    ]
    found = []
    for classes, clusters in _groupings(part, rows):
        probe = Published(
            "", "mean", np.empty((1 if classes is None else len(classes), columns)), classes, clusters
        )
        groups = probe._groups(part, rows)
        sums, sizes = _sums(filled, present, groups, int(groups.max()) + 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / sizes
        if np.isnan(means).any():
            continue
        for path, held, near in arrays:
            if held.shape != sums.shape or not np.isfinite(held).all():
                continue
            mean = (np.abs(held - means) / scale <= near).all(0)
            total = (np.abs(held - sums) / scale <= near * rows).all(0) & (sizes.max() > 1)
            kinds: list[tuple[Literal["mean", "sum"], np.ndarray]] = [("mean", mean), ("sum", total & ~mean)]
            for kind, same in kinds:
                # A constant column is met by many numbers.
                if (same & (np.ptp(filled, axis=0) > 0)).any():
                    found.append(Published(path, kind, np.where(same, held, np.nan), classes, clusters))
    return found


def _groupings(part: Part, rows: int) -> Iterator[tuple[tuple[Any, ...] | None, np.ndarray | None]]:
    yield None, None
    if part.labels is not None and np.ndim(part.labels) == 1 and _tells_classes(part):
        yield tuple(np.asarray(part.estimator.classes_).tolist()), None
    clusters = getattr(part.estimator, "labels_", None)
    if isinstance(clusters, np.ndarray) and clusters.shape == (rows,) and (clusters >= 0).all():
        yield None, clusters.astype(int)


@dataclass(frozen=True)
class CountTable:
    """CategoricalNB's counts of one column's categories by class."""

    path: str
    column: int
    counts: np.ndarray  # (classes, categories)
    classes: tuple[Any, ...]

    def clue(self, part: Part) -> Clue:
        """The one cell of the table that the known rows leave one short."""
        matrix = matrix_of(part.features)
        assert matrix is not None
        clue = Clue.nothing(*matrix.shape)
        short = self.counts - _crosstab(part, matrix, self.column, self.classes, self.counts.shape)
        for row, (label, code) in enumerate(
            zip(_codes(part, self.classes), matrix[:, self.column].astype(int), strict=True)
        ):
            left = short.copy()
            left[label, code] += 1
            place = np.unravel_index(left.argmax(), left.shape)
            clue.values[row, self.column], clue.labels[row] = float(place[1]), self.classes[place[0]]
        return clue


def count_tables(part: Part) -> list[CountTable]:
    """The tables of counts that a part holds, one for each column."""
    tables = getattr(part.estimator, "category_count_", None)
    matrix = None if part.features is None else matrix_of(part.features)
    if tables is None or matrix is None or part.labels is None or part.weights is not None:
        return []
    classes = tuple(np.asarray(part.estimator.classes_).tolist())
    return [
        CountTable(f"{part.path}.category_count_[{place}]", place, table, classes)
        for place, table in enumerate(tables)
        if np.array_equal(table, _crosstab(part, matrix, place, classes, table.shape))
    ]


def _tells_classes(part: Part) -> bool:
    """Whether every row has one of the model's classes: some models learn from rows without a label too."""
    classes = np.asarray(getattr(part.estimator, "classes_", ()))
    return bool(len(classes)) and set(np.asarray(part.labels).tolist()) <= set(classes.tolist())


def _codes(part: Part, classes: tuple[Any, ...]) -> list[int]:
    places = {label: place for place, label in enumerate(classes)}
    return [places[label] for label in np.asarray(part.labels).tolist()]


def _crosstab(
    part: Part, matrix: np.ndarray, column: int, classes: tuple, shape: tuple[int, ...]
) -> np.ndarray:
    counts = np.zeros(shape)
    np.add.at(counts, (np.asarray(_codes(part, classes)), matrix[:, column].astype(int)), 1.0)  # pyright: ignore
    return counts


@dataclass(frozen=True)
class LabelCounts:
    """The labels' mean, or how many rows are of each class, as a part publishes it."""

    path: str
    total: np.ndarray  # (1,) the sum of the labels, or (classes,) the rows of each
    classes: tuple[Any, ...] | None

    def clue(self, part: Part) -> Clue:
        """The label that the known ones lack."""
        rows = len(np.asarray(part.labels))
        clue, own = Clue.nothing(rows, part.features.shape[1]), np.asarray(part.labels)
        if self.classes is None:
            numbers = own.astype(np.float64)
            clue.labels[:] = self.total[0] - (numbers.sum() - numbers)
            return clue
        codes = np.array(_codes(part, self.classes))
        short = self.total - np.bincount(codes, minlength=len(self.classes))
        for row, code in enumerate(codes.tolist()):
            left = short.copy()
            left[code] += 1
            clue.labels[row] = self.classes[int(left.argmax())]
        return clue


def label_counts(part: Part) -> list[LabelCounts]:
    """The arrays of a part that are the mean of its labels, or how many rows are of each class."""
    labels = part.labels
    if labels is None or np.ndim(labels) != 1 or part.weights is not None or part.features is None:
        return []
    model, count, exact = part.estimator, len(labels), 1e-9
    if getattr(model, "class_weight", None) is not None:
        return []
    if hasattr(model, "classes_") and not _tells_classes(part):
        return []
    held = [(path, np.ravel(v)) for path, v in arrays_in(model, part.path) if v.dtype.kind in "fiu"]
    held += [
        (f"{part.path}.{name}", np.array([value]))
        for name, value in vars(model).items()
        if isinstance(value, float) and name.endswith("_")
    ]
    if hasattr(model, "classes_"):
        classes = tuple(np.asarray(model.classes_).tolist())
        counts = np.bincount(_codes(part, classes), minlength=len(classes)).astype(np.float64)
        with np.errstate(divide="ignore"):
            odds = np.log(counts[1:] / counts[:1]) if len(classes) == 2 else np.log(counts / count)
        shares = (counts / count,) if len(classes) > 2 else (counts / count, counts[1:] / count)
        wanted = (counts, *shares, np.log(counts / count), odds)
    elif np.asarray(labels).dtype.kind in "fiu":
        numbers = np.asarray(labels, dtype=np.float64)
        classes, counts = None, np.array([numbers.sum()])
        wanted = (counts / count,) if np.ptp(numbers) > 0 else ()
        exact = (
            1e-9 if (numbers % 1).any() else min(1e-6, 0.1 / max(1.0, abs(counts[0])))
        )  # of single precision
    else:
        return []
    return [
        LabelCounts(path, counts, classes)
        for path, values in held
        if any(
            values.shape == each.shape and np.allclose(values, each, rtol=exact, atol=0) for each in wanted
        )
    ][:1]
