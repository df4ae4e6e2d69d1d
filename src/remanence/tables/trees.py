"""Decision trees: which rows each saw, the nodes through which these fall, and what both say about a missing row.

The numbers of rows in the nodes, less the known ones, tell through which nodes the missing row fell: a box. And a
threshold lies halfway between two neighbouring values of its node. Where the known rows do not explain one, the missing
row is one of the two neighbours, and its value is twice the threshold less the other's: exact, in single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn.tree import BaseDecisionTree

from remanence.tables.parts import Part
from remanence.tables.recovery import Clue, as_values, matrix_of

_FORESTS = (
    ensemble.RandomForestClassifier,
    ensemble.RandomForestRegressor,
    ensemble.ExtraTreesClassifier,
    ensemble.ExtraTreesRegressor,
)
_BOOSTED = (
    ensemble.GradientBoostingClassifier,
    ensemble.GradientBoostingRegressor,
    ensemble.AdaBoostClassifier,
)


def trees_of(estimator: Any) -> list[BaseDecisionTree]:
    """The decision trees of an estimator, in their order."""
    if isinstance(estimator, BaseDecisionTree):
        return [estimator]
    if isinstance(estimator, _FORESTS + _BOOSTED):
        trees = np.ravel(np.asarray(estimator.estimators_, dtype=object)).tolist()
        return [tree for tree in trees if isinstance(tree, BaseDecisionTree)]
    return []


def multiplicities(part: Part, tree: BaseDecisionTree) -> np.ndarray | None:
    """How many times each row was in the tree's training set; None where that cannot be told.

    A forest publishes the seed of each tree, and with it the rows that were drawn for it.
    """
    model, count = part.estimator, part.features.shape[0]
    if isinstance(model, _FORESTS) and model.bootstrap:
        if part.weights is not None:
            return None  # newer versions draw by the weights
        return drawn_rows(model, tree, count)
    if isinstance(model, BaseDecisionTree) and part.weights is not None:
        return np.asarray(part.weights)
    if getattr(model, "subsample", 1.0) != 1.0 or isinstance(model, ensemble.AdaBoostRegressor):
        return None
    if getattr(model, "n_iter_no_change", None) is not None:
        return None  # some rows were held out
    return np.ones(count, dtype=np.int64)


def drawn_rows(forest: Any, tree: BaseDecisionTree, count: int) -> np.ndarray:
    """How many times each of so many rows was drawn for a tree of a forest with bootstrap."""
    most = forest.max_samples
    drawn = count if most is None else most if isinstance(most, int) else max(1, round(count * most))
    return np.bincount(np.random.RandomState(tree.random_state).randint(0, count, drawn), minlength=count)


def misplaced_leaves(tree: BaseDecisionTree, part: Part) -> tuple[int, int] | None:
    """How many leaves hold another number of rows than the tree says, and how many leaves there are."""
    times = multiplicities(part, tree)
    if times is None:
        return None
    structure = tree.tree_
    leaves = structure.children_left == -1
    reached = tree.apply(as_float32(part.features))
    found = np.bincount(reached[times > 0], minlength=structure.node_count)
    # A forest with weights of zero for rows that were not drawn counts only those that were.
    wrong = found != structure.n_node_samples
    if (
        part.labels is not None
        and not isinstance(part.estimator, _BOOSTED)
        and (part.weights is None or isinstance(part.estimator, BaseDecisionTree))
    ):
        wrong |= _other_values(tree, part, reached, times)
    return int((wrong & leaves).sum()), int(leaves.sum())


def _other_values(tree: BaseDecisionTree, part: Part, reached: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Which leaves hold other labels than the tree says; none where weights change what they say."""
    nothing, labels = np.zeros(tree.tree_.node_count, dtype=bool), np.asarray(part.labels)
    if labels.ndim != 1 or getattr(part.estimator, "class_weight", None) is not None:
        return nothing
    if hasattr(part.estimator, "classes_"):
        columns = (labels[:, None] == part.estimator.classes_).astype(np.float64)
    elif getattr(part.estimator, "criterion", "") in ("squared_error", "friedman_mse"):
        columns = labels.astype(np.float64)[:, None]
    else:
        return nothing
    sums = np.zeros((tree.tree_.node_count, columns.shape[1]))
    np.add.at(sums, reached, columns * times[:, None])
    held = np.bincount(reached, times, minlength=len(sums))[:, None]
    stated = tree.tree_.value[:, 0, :]
    means = np.divide(sums, held, out=stated.copy(), where=held > 0)
    return np.abs(means - stated).max(1) > 1e-6 * max(1.0, float(np.abs(stated).max()))


def as_float32(features: Any) -> np.ndarray:
    """A table as trees see it."""
    return np.ascontiguousarray(np.asarray(features, dtype=np.float32))


_ROUNDING = 2.0**-22  # of single precision, in which thresholds are made
_TRIED = 64  # values of others that are looked at within a box


@dataclass(frozen=True)
class Boxes:
    """Between which numbers each row must lie, column by column, and its value where a threshold tells it."""

    low: np.ndarray  # (rows, columns), −∞ where nothing tells
    high: np.ndarray
    exact: np.ndarray  # (rows, columns), NaN where no threshold tells
    seen: np.ndarray  # (rows,), in how many trees' training sets the row was
    alone: np.ndarray  # (rows,), in how many of these it has a leaf of its own

    def widths(self, table: np.ndarray) -> np.ndarray:
        """The boxes' sides within the range of the table, 0 where the value is known."""
        high, low = np.minimum(self.high, np.nanmax(table, 0)), np.maximum(self.low, np.nanmin(table, 0))
        return np.where(np.isnan(self.exact), np.maximum(high - low, 0.0), 0.0)


@dataclass(frozen=True)
class Leaves:
    """The trees of an estimator."""

    path: str
    trees: int

    def clue(self, part: Part) -> Clue:
        """A value where a threshold tells it; elsewhere the likeliest of the known values in the box, or its middle."""
        boxes, matrix = boxes_of(part), matrix_of(part.features)
        assert matrix is not None
        guesses = boxes.exact.copy()
        for column in range(matrix.shape[1]):
            own = matrix[:, column]
            values, counts = np.unique(own[~np.isnan(own)], return_counts=True)
            for row in np.flatnonzero(np.isnan(guesses[:, column])):
                left = counts - (values == own[row])
                others, times = values[left > 0], left[left > 0]
                low, high = boxes.low[row, column], boxes.high[row, column]
                within = (others > low) & (others <= high)
                if 0 < within.sum() <= _TRIED:
                    guesses[row, column] = others[within][times[within].argmax()]
                else:
                    guesses[row, column] = (max(low, others[0]) + min(high, others[-1])) / 2
        labels = np.full(len(matrix), ..., dtype=object)
        if part.labels is not None and not hasattr(
            part.estimator, "init_"
        ):  # a boosted tree's leaves hold no labels
            labels = _labels(part, labels)
        return Clue(as_values(guesses), labels)


def leaves(part: Part) -> list[Leaves]:
    """The trees of a part, where it can be told which rows each saw."""
    if part.features is None or matrix_of(part.features) is None:
        return []
    trees = trees_of(part.estimator)
    told = [tree for tree in trees if multiplicities(part, tree) is not None]
    return [Leaves(part.path, len(told))] if told else []


def boxes_of(part: Part) -> Boxes:
    """The box of each row, as somebody sees it who knows the others."""
    matrix = matrix_of(part.features)
    assert matrix is not None
    table = as_float32(matrix)
    low, high = np.full(matrix.shape, -np.inf), np.full(matrix.shape, np.inf)
    exact, seen, alone = np.full(matrix.shape, np.nan), np.zeros(len(table), int), np.zeros(len(table), int)
    for tree in trees_of(part.estimator):
        times = multiplicities(part, tree)
        if times is None:
            continue
        inside = np.flatnonzero(times > 0)
        seen[inside] += 1
        structure, paths = tree.tree_, _paths(tree, table, inside)
        alone[inside] += (paths.fell & (structure.children_left == -1) & (structure.n_node_samples == 1)).any(
            1
        )
        for node in np.flatnonzero(structure.children_left != -1).tolist():
            column, threshold = structure.feature[node], structure.threshold[node]
            values = table[inside, column].astype(np.float64)
            here = [~np.isnan(values) & each for each in paths.through(structure, node)]
            high[inside[here[0]], column] = np.minimum(high[inside[here[0]], column], threshold)
            low[inside[here[1]], column] = np.maximum(low[inside[here[1]], column], threshold)
            if tree.splitter == "best":
                for row, value in _told(values, here[0], here[1], paths, node, structure):
                    exact[inside[row], column] = value
    return Boxes(low, high, exact, seen, alone)


@dataclass(frozen=True)
class _Paths:
    """Through which nodes rows go by their values, and fell as the others leave it to them, `(rows, nodes)`."""

    goes: np.ndarray
    fell: np.ndarray
    candidates: np.ndarray | None  # rows that may be the missing one; None: every row explains its own fall

    def through(self, structure: Any, node: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows fell to the left and to the right of a node."""
        return self.fell[:, structure.children_left[node]], self.fell[:, structure.children_right[node]]


def _paths(tree: Any, table: np.ndarray, inside: np.ndarray) -> _Paths:
    """One more row went through a node than the others explain: the missing one."""
    goes = np.asarray(tree.decision_path(table[inside]).todense(), dtype=bool)
    short = tree.tree_.n_node_samples - goes.sum(0)  # nothing, on the table that the tree was fitted on
    if not short.any():
        return _Paths(goes, goes, None)
    left = goes.astype(np.int64) + short
    possible = np.flatnonzero(((left == 0) | (left == 1)).all(1))
    fell = np.zeros_like(goes)
    fell[possible] = left[possible] == 1
    return _Paths(goes, fell, possible)


def _told(
    values: np.ndarray, left: np.ndarray, right: np.ndarray, paths: _Paths, node: int, structure: Any
) -> list[tuple[int, float]]:
    """Rows whose value a threshold tells to somebody who knows the others."""
    threshold, found = structure.threshold[node], []
    goes = [
        paths.goes[:, child[node]] & ~np.isnan(values)
        for child in (structure.children_left, structure.children_right)
    ]
    for fell, own, across, sign in ((left, *goes, 1.0), (right, *goes[::-1], -1.0)):
        turned, goal = values * sign, threshold * sign
        both = own.any() and across.any()
        if paths.candidates is None and both and _halfway(turned[own].max(), turned[across].min(), goal):
            rows = [int(np.flatnonzero(own)[turned[own].argmax()])]  # only the outermost row can have made it
        else:
            rows = [int(row) for row in np.flatnonzero(fell)]
        for row in rows:
            others, facing = own.copy(), across.copy()
            others[row] = facing[row] = False
            if not facing.any():
                continue
            nearest = turned[facing].min()
            # Without this row the known ones would put the threshold elsewhere, or nowhere.
            if not others.any() or not _halfway(turned[others].max(), nearest, goal):
                found.append((row, (2 * goal - nearest) * sign))
    return found


def _halfway(low: float, high: float, threshold: float) -> bool:
    return abs((low + high) / 2 - threshold) <= _ROUNDING * (abs(threshold) + abs(high))


def _labels(part: Part, labels: np.ndarray) -> np.ndarray:
    """What the other labels of its leaf leave for the missing row."""
    table, own = as_float32(matrix_of(part.features)), np.asarray(part.labels)
    classes = getattr(part.estimator, "classes_", None)
    weighted = getattr(part.estimator, "class_weight", None) is not None
    if own.ndim != 1 or (weighted and classes is None):
        return labels
    columns = (
        own.astype(np.float64)[:, None] if classes is None else (own[:, None] == classes).astype(np.float64)
    )
    for tree in trees_of(part.estimator):
        times = multiplicities(part, tree)
        if times is None:
            continue
        inside = np.flatnonzero(times > 0)
        structure, paths = tree.tree_, _paths(tree, table, inside)
        sums = (paths.goes.T * times[inside]) @ columns[inside]
        for place, row in enumerate(inside):
            if labels[row] is not ...:
                continue
            leaf = np.flatnonzero(paths.fell[place] & (structure.children_left == -1))
            if len(leaf) != 1:
                continue
            if weighted:  # a leaf of one class tells it, whatever its weight
                if classes is not None and structure.value[leaf[0], 0].max() > 1 - 1e-12:
                    labels[row] = np.asarray(classes).tolist()[int(structure.value[leaf[0], 0].argmax())]
                continue
            total = structure.value[leaf[0], 0] * structure.weighted_n_node_samples[leaf[0]]
            others = sums[leaf[0]] - times[row] * columns[row] * paths.goes[place, leaf[0]]
            left = (total - others) / times[row]
            labels[row] = (
                float(left[0]) if classes is None else np.asarray(classes).tolist()[int(left.argmax())]
            )
    return labels


@dataclass(frozen=True)
class Bins:
    """Histogram boosting's thresholds of one column: halfway points between all neighbouring values."""

    path: str
    column: int
    thresholds: np.ndarray

    def clue(self, part: Part) -> Clue:
        """The value that makes the thresholds which the known values do not."""
        matrix = matrix_of(part.features)
        assert matrix is not None
        clue, own = Clue.nothing(*matrix.shape), matrix[:, self.column]
        values, counts = np.unique(own[~np.isnan(own)], return_counts=True)
        single = set(values[counts == 1].tolist())
        for row, value in enumerate(own.tolist()):
            found = self._lacking(values[values != value] if value in single else values)
            if found is not None:
                clue.values[row, self.column] = found
        return clue

    def _lacking(self, others: np.ndarray) -> float | None:
        made = others[:-1] * 0.5 + others[1:] * 0.5
        near = (
            np.isclose(self.thresholds[:, None], made[None], rtol=1e-12, atol=0).any(1) if len(made) else []
        )
        new = self.thresholds[~np.asarray(near, dtype=bool)]
        if not 1 <= len(new) <= 2:
            return None
        below = others[others < new[0]]
        return float(2 * new[0] - below[-1]) if len(below) else float(2 * new[-1] - others[0])


def bins(part: Part) -> list[Bins]:
    """The columns of a part whose bins are as fine as their values."""
    mapper = getattr(part.estimator, "_bin_mapper", None)
    matrix = None if mapper is None or part.features is None else matrix_of(part.features)
    if matrix is None or mapper is None:
        return []
    found = []
    # Within, it puts columns of categories first.
    categorical = getattr(part.estimator, "is_categorical_", None)
    order = np.arange(matrix.shape[1])
    if categorical is not None:
        order = np.concatenate([order[categorical], order[~categorical]])
    for column, thresholds in zip(order.tolist(), mapper.bin_thresholds_, strict=True):
        if categorical is not None and categorical[column]:
            continue
        values = np.unique(matrix[:, column][~np.isnan(matrix[:, column])])
        middles = values[:-1] * 0.5 + values[1:] * 0.5
        if len(middles) == len(thresholds) > 0 and np.allclose(middles, thresholds, rtol=1e-12):
            found.append(Bins(f"{part.path}._bin_mapper", column, np.asarray(thresholds)))
    return found
