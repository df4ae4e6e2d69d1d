"""Means, sums and counts that a fitted part publishes: x = n·mean − Σ known, over all rows or over a class.

Found by looking: an array of the object that equals a mean or a sum of the part's own table is one. A sum is kept as
the mean that it is n times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from remanence.tables.parts import Part, arrays_in
from remanence.tables.recovery import Clue
from remanence.tables.rows import UNKNOWN, as_values, classes_of, codes_of

_SAME = 1e-8  # of a column's size
_SAME_SINGLE = 2e-7  # in single precision


@dataclass(frozen=True)
class Published:
    """Means of the rows, of all or of each group: classes, or clusters that the object assigns."""

    values: np.ndarray  # (groups, columns), NaN in columns where it is none
    classes: tuple[Any, ...] | None = None
    clusters: np.ndarray | None = None  # (rows,)

    def clue(self, part: Part) -> Clue:
        """The published total minus the known rows; a gap if the mean does not change and other rows have gaps."""
        (rows, columns), groups = part.matrix.shape, self.groups(part)
        present, filled, times, sums, sizes = _sums(part, groups, len(self.values))
        said = ~np.isnan(self.values[0])
        best, lacking, labels = np.full(rows, -1.0), np.full((rows, columns), np.nan), np.full(rows, -1)
        gap = np.zeros((rows, columns), dtype=bool)
        for group, published in enumerate(self.values):
            member = (groups == group)[:, None]
            others = sums[group] - filled * times * member
            count = sizes[group] - present * times * member
            with np.errstate(invalid="ignore", divide="ignore"):
                off = np.abs(published - others / count) / (np.abs(filled).max(0) + 1e-300)
            off[:, ~said] = 0.0
            off[np.isnan(off)] = np.inf  # no known row is in this group, so the missing row is
            if self.clusters is not None:  # the object says which group the row is in
                off = np.where(groups[:, None] == group, off + 1, -1.0)
            score = off.max(1)
            better = score > best
            best, labels = np.where(better, score, best), np.where(better, group, labels)
            left = published * (count + times) - others
            own = np.divide(left, times, out=np.full_like(filled, np.nan), where=times > 0)
            lacking = np.where(better[:, None], own, lacking)
            nothing = (off <= _SAME) & ~present.all(0) & said
            gap = np.where(better[:, None], nothing, gap)
        values = as_values(lacking)
        values[gap] = None
        if self.classes is None:
            return Clue(values, np.full(rows, UNKNOWN, dtype=object))
        names = np.array(self.classes, dtype=object)[labels]
        names[part.times == 0] = UNKNOWN
        return Clue(values, names)

    def groups(self, part: Part) -> np.ndarray:
        """The group of each row."""
        if self.classes is not None:
            return codes_of(part.labels, self.classes)
        return np.zeros(len(part.matrix), dtype=int) if self.clusters is None else self.clusters


def _sums(part: Part, groups: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """Which cells are no gaps, the values with zeros in gaps, how often rows count; sums and sizes of each group."""
    assert part.times is not None
    present, times = ~np.isnan(part.matrix), part.times[:, None]
    filled = np.where(present, part.matrix, 0.0)
    sums, sizes = np.zeros((2, count, filled.shape[1]))
    np.add.at(sums, groups, filled * times)
    np.add.at(sizes, groups, present * times)
    return present, filled, times, sums, sizes


def published(part: Part) -> list[Published]:
    """Every array of a part that is a mean or a sum of its table."""
    matrix = part.numbers
    if matrix is None or not matrix.size or part.times is None:
        return []  # the missing row's own weight is unknown
    rows, columns = matrix.shape
    held = [values for _, values in arrays_in(part.estimator)]
    mixed: list[Any] = [getattr(part.estimator, name, None) for name in ("weights_", "means_")]
    if all(isinstance(each, np.ndarray) for each in mixed):  # a mixture's means, mixed, are the table's
        held.append(mixed[0] @ mixed[1])
    # A mean or a sum of rows is a float. Codes of classes and places of columns are whole, and 0 is a common mean.
    arrays = [
        (values.astype(np.float64).reshape(-1, columns), values.dtype == np.float32)
        for values in held
        if values.dtype.kind == "f" and values.ndim in (1, 2) and values.shape[-1] == columns
    ]
    found = []
    for classes, clusters in _groupings(part, rows):
        of_groups = Published(np.empty(0), classes, clusters)
        groups = of_groups.groups(part)
        _, filled, _, sums, sizes = _sums(part, groups, int(groups.max()) + 1)
        scale = np.abs(filled).max(0) + 1e-300
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / sizes
        if np.isnan(means).any():
            continue
        for values, single in arrays:
            if values.shape != sums.shape or not np.isfinite(values).all():
                continue
            near = _SAME_SINGLE if single else _SAME
            mean = (np.abs(values - means) / scale <= near).all(0)
            total = (np.abs(values - sums) / scale <= near * rows).all(0) & (sizes.max() > 1)
            for same, own in ((mean, values), (total & ~mean, values / sizes)):
                # Many numbers match a constant column.
                if (same & (np.ptp(filled, axis=0) > 0)).any():
                    found.append(replace(of_groups, values=np.where(same, own, np.nan)))
    return found


def _groupings(part: Part, rows: int) -> Iterator[tuple[tuple[Any, ...] | None, np.ndarray | None]]:
    yield None, None
    if part.labels is not None and np.ndim(part.labels) == 1 and _tells_classes(part):
        yield classes_of(part.estimator), None
    clusters = getattr(part.estimator, "labels_", None)
    if isinstance(clusters, np.ndarray) and clusters.shape == (rows,) and (clusters >= 0).all():
        yield None, clusters.astype(int)


@dataclass(frozen=True)
class Counts:
    """How many rows are of each class."""

    counts: np.ndarray  # (classes,)
    classes: tuple[Any, ...]

    def clue(self, part: Part) -> Clue:
        """The one class that the known rows leave one short."""
        clue, own = Clue.nothing(*part.features.shape), codes_of(part.labels, self.classes)
        short = self.counts - np.bincount(own, minlength=len(self.counts))
        without = short + np.eye(len(self.classes))  # if the missing row is of that class
        clue.labels[:] = np.array(self.classes, dtype=object)[without.argmax(1)[own]]
        return clue


def _tells_classes(part: Part) -> bool:
    """Whether every row has one of the model's classes: some models learn from rows without a label too."""
    classes = classes_of(part.estimator)
    return bool(classes) and set(np.asarray(part.labels).tolist()) <= set(classes)


@dataclass(frozen=True)
class LabelSum:
    """The sum of the labels, which are numbers."""

    total: float

    def clue(self, part: Part) -> Clue:
        """The published sum minus the known labels."""
        clue, labels = Clue.nothing(*part.features.shape), np.asarray(part.labels, dtype=np.float64)
        clue.labels[:] = self.total - (labels.sum() - labels)
        return clue


def label_statistics(part: Part) -> list[Counts | LabelSum]:
    """An array of a part that is the mean of its labels, or counts the rows of each class."""
    model, labels = part.estimator, part.labels
    weighted = part.weights is not None or getattr(model, "class_weight", None) is not None
    if labels is None or np.ndim(labels) != 1 or weighted or part.features is None:
        return []
    labels, exact = np.asarray(labels), 1e-9
    held = [np.ravel(values) for _, values in arrays_in(model) if values.dtype.kind in "fiu"]
    single = [value for name, value in vars(model).items() if name.endswith("_") and isinstance(value, float)]
    held += map(np.ravel, single)
    if classes := classes_of(model):
        if not _tells_classes(part):
            return []
        counts = np.bincount(codes_of(labels, classes), minlength=len(classes)).astype(np.float64)
        found = Counts(counts, classes)
        with np.errstate(divide="ignore"):
            shares, logarithms = counts / len(labels), np.log(counts / len(labels))
        both = (shares[1:], np.diff(logarithms)) if len(classes) == 2 else ()
        wanted = (counts, shares, logarithms, *both)
    elif labels.dtype.kind in "fiu" and np.ptp(labels) > 0:
        numbers = labels.astype(np.float64)
        found, wanted = LabelSum(float(numbers.sum())), (numbers.mean(keepdims=True),)
        if not (numbers % 1).any():  # in single precision, as far as it resolves whole labels
            exact = min(1e-6, 0.1 / max(1.0, abs(found.total)))
    else:
        return []
    pairs = ((values, each) for values in held for each in wanted if values.shape == each.shape)
    return [found] if any(np.allclose(*pair, rtol=exact, atol=0) for pair in pairs) else []
