"""Decision trees: which rows each saw, the nodes they pass through, and what both reveal about a missing row.

The row counts of the nodes, minus the known rows, show which nodes the missing row passed through: a box. A threshold
lies halfway between two neighbouring values of its node. Where the known rows do not explain one, the missing row is
one of the two neighbours. Its value is twice the threshold minus the other's: exact, in single precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn._loss.loss import HalfBinomialLoss, HalfSquaredError, HuberLoss
from sklearn.base import clone
from sklearn.ensemble._gb import set_huber_delta
from sklearn.tree import BaseDecisionTree
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from remanence.tables.parts import Part
from remanence.tables.recovery import Clue
from remanence.tables.rows import UNKNOWN, as_numbers, as_values, column_values, known

_TOLERANCE = 1e-6  # of the largest number, between sums in another order
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
    """How many times each row was in the tree's training set; None if this is unknown.

    A forest publishes the seed of each tree, and with it the rows that were drawn for it.
    """
    model, count = part.estimator, part.features.shape[0]
    if isinstance(model, _FORESTS) and model.bootstrap:
        return _drawn_rows(part, tree, count)
    if isinstance(model, BaseDecisionTree) and part.weights is not None:
        return np.asarray(part.weights)
    if getattr(model, "subsample", 1.0) != 1.0 or getattr(model, "n_iter_no_change", None) is not None:
        return None  # some rows were drawn, or held out
    return np.ones(count, dtype=np.int64)


def _drawn_rows(part: Part, tree: BaseDecisionTree, count: int) -> np.ndarray | None:
    """How many times each row was drawn for a tree of a forest with bootstrap."""
    forest, weights = part.estimator, None
    if hasattr(forest, "_sample_weight"):  # since 1.9 rows are drawn by their weights, which the forest keeps
        weights = forest._sample_weight
        weights = weights if weights is None or len(weights) == count else _forest_weights(part)
    elif part.weights is not None:
        return None
    most = forest.max_samples
    total = count if weights is None else weights.sum()
    drawn = count if most is None else most if isinstance(most, int) else max(1, int(total * most))
    draw = np.random.RandomState(tree.random_state)
    chances = None if weights is None else weights / weights.sum()
    rows = draw.randint(0, count, drawn) if chances is None else draw.choice(count, drawn, p=chances)
    return np.bincount(rows, minlength=count)


def _forest_weights(part: Part) -> np.ndarray | None:
    """The weights by which a forest draws the rows of this table."""
    subsampled = getattr(part.estimator, "class_weight", None) == "balanced_subsample"
    return part.weights if subsampled and part.estimator.bootstrap else _row_weights(part)


def _row_weights(part: Part) -> np.ndarray | None:
    """The sample weights times the class weights; None if there are neither."""
    kind, weights = getattr(part.estimator, "class_weight", None), part.weights
    if kind is None or part.labels is None:
        return None if weights is None else np.asarray(weights, dtype=np.float64)
    labels = np.asarray(part.labels)
    if isinstance(kind, str):
        classes, given = np.unique(labels), weights if isinstance(part.estimator, _FORESTS) else None
        balanced = compute_class_weight("balanced", classes=classes, y=labels, sample_weight=given)
        kind = dict(zip(classes.tolist(), balanced, strict=True))
    own = compute_sample_weight(kind, labels)
    return own if weights is None else own * np.asarray(weights)


@dataclass(frozen=True)
class _Grown:
    """A tree with what it was grown on: its rows' weights, and the targets that it splits by."""

    tree: BaseDecisionTree
    weights: np.ndarray  # (rows,), 0 for rows that it never saw
    targets: np.ndarray | None  # (rows, outputs), whose means its nodes hold; None if unknown
    leaves_hold_means: bool = True  # in boosting, leaves hold steps
    labels: np.ndarray | None = None  # for growing it again from its own seed
    misses: bool = False  # whether the loss after this tree is another one than the model holds


def misplaced_nodes(part: Part) -> tuple[int, int] | None:
    """How many nodes of a part's trees do not match this table, and how many there are; None if unknown."""
    trees = trees_of(part.estimator)
    if not trees or part.labels is None or multiplicities(part, trees[0]) is None:
        return None
    table, labels = as_float32(part.features), np.asarray(part.labels)
    if isinstance(part.estimator, _FORESTS) and hasattr(part.estimator, "_sample_weight"):
        both, ones = (part.estimator._sample_weight, _forest_weights(part)), np.ones(len(table))
        stored, given = (ones if weights is None else np.asarray(weights) for weights in both)
        if stored.shape != given.shape or not np.allclose(stored, given):
            count = sum(tree.tree_.node_count for tree in trees)
            return count, count
    wrong = [_misplaced(grown, table) for grown in _grown(part, table, labels)]
    return (sum(int(each.sum()) for each in wrong), sum(map(len, wrong))) if wrong else None


def _grown(part: Part, table: np.ndarray, labels: np.ndarray) -> Iterator[_Grown]:
    """The trees, where it is known what their nodes hold."""
    model, forest = part.estimator, isinstance(part.estimator, _FORESTS)
    if isinstance(model, _BOOSTED):
        adaptive = isinstance(model, ensemble.AdaBoostClassifier)
        yield from (_reweighted if adaptive else _boosted)(part, table, labels)
        return
    targets, own, coded = _targets(model, labels), _row_weights(part), labels
    if targets is None and not forest:
        return  # a second fit decides
    if hasattr(model, "classes_"):
        coded = np.searchsorted(model.classes_, labels).astype(np.float64)
    for tree in trees_of(model):
        weights = multiplicities(part, tree)
        assert weights is not None
        if not (forest and model.bootstrap):
            weights = weights if own is None else own
        elif getattr(model, "class_weight", None) == "balanced_subsample":
            drawn = np.repeat(np.arange(len(labels)), weights)
            weights = weights * compute_sample_weight("balanced", labels, indices=drawn)
        yield _Grown(tree, np.asarray(weights, np.float64), targets, labels=coded if forest else None)


def _targets(model: Any, labels: np.ndarray) -> np.ndarray | None:
    if getattr(model, "monotonic_cst", None) is not None:
        return None
    if hasattr(model, "classes_"):
        return (labels[:, None] == model.classes_).astype(np.float64)
    means = getattr(model, "criterion", "") in ("squared_error", "friedman_mse", "poisson")
    return labels.astype(np.float64)[:, None] if means else None


def _reweighted(part: Part, table: np.ndarray, labels: np.ndarray) -> Iterator[_Grown]:
    """AdaBoost's trees: after each of them, misclassified rows weigh more."""
    model = part.estimator
    weights = np.ones(len(table)) if part.weights is None else np.asarray(part.weights, dtype=np.float64)
    for tree, size in zip(model.estimators_, model.estimator_weights_, strict=False):
        weights = weights / weights.sum()
        yield _Grown(tree, weights, _targets(model, labels))
        weights = weights * np.exp(size * (np.asarray(tree.predict(table)) != labels))


def _boosted(part: Part, table: np.ndarray, labels: np.ndarray) -> Iterator[_Grown]:
    """Gradient boosting's trees: each is grown on the gradient that the ones before it leave."""
    model: Any = part.estimator
    weights = np.ones(len(table)) if part.weights is None else np.asarray(part.weights, dtype=np.float64)
    loss, coded = deepcopy(model._loss), np.asarray(labels)
    if hasattr(model, "classes_"):
        coded = np.searchsorted(model.classes_, labels)
    coded, raw = coded.astype(np.float64), model._raw_predict_init(table)
    halves = 2 if isinstance(loss, HalfSquaredError | HalfBinomialLoss) else 1
    for stage, score in zip(model.estimators_, model.train_score_, strict=True):
        if isinstance(loss, HuberLoss):
            set_huber_delta(loss, coded, raw.copy(), weights)
        gradient = np.reshape(loss.gradient(y_true=coded, raw_prediction=raw.copy()), (len(table), -1))
        raw = raw + model.learning_rate * np.stack([tree.predict(table) for tree in stage], 1)
        left = halves * loss(y_true=coded, raw_prediction=raw.copy(), sample_weight=weights)
        misses = abs(left - score) > _TOLERANCE * max(1.0, abs(score))
        for place, tree in enumerate(stage):
            targets = -gradient[:, place : place + 1]
            yield _Grown(tree, weights, targets, leaves_hold_means=False, misses=misses)


def _misplaced(grown: _Grown, table: np.ndarray) -> np.ndarray:
    """Which nodes of a tree hold other rows, means or thresholds than the table gives, `(nodes,)`."""
    structure, weights = grown.tree.tree_, grown.weights
    seen = np.flatnonzero(weights > 0)
    paths = structure.decision_path(table[seen]).tocsc()
    own = weights[seen]
    total = paths.T @ own
    wrong = np.asarray(paths.sum(0)).ravel() != structure.n_node_samples
    wrong |= grown.misses
    wrong |= np.abs(total - structure.weighted_n_node_samples) > _TOLERANCE * max(1.0, float(total.max()))
    inner = structure.children_left != -1
    if grown.targets is not None:
        targets = grown.targets[seen]
        held = np.maximum(total, 1e-300)[:, None]
        means = paths.T @ (own[:, None] * targets) / held
        checked = np.ones(len(total), dtype=bool) if grown.leaves_hold_means else inner
        off = np.abs(means - structure.value[:, 0, :]).max(1)
        wrong |= checked & (off > _TOLERANCE * max(1.0, float(np.abs(targets).max(initial=0.0))))
        if not grown.leaves_hold_means:  # the impurity of each node shows what they were grown on
            spread = (paths.T @ (own[:, None] * targets**2) / held - means**2)[:, 0]
            # Equal targets have an impurity of some rounding errors of their squares.
            largest = float(np.abs(structure.impurity).max() + 1e-6 * np.square(targets).max(initial=0.0))
            wrong |= np.abs(spread - structure.impurity) > _TOLERANCE * largest
    if grown.tree.splitter == "best":
        for node in np.flatnonzero(inner).tolist():
            wrong[node] |= not _splits(structure, paths, table[seen], node)
    if grown.labels is not None and not wrong.any():  # on another table, other splits would be better
        fresh: Any = clone(grown.tree)
        repeated = fresh.fit(table, grown.labels, sample_weight=weights).tree_
        same = (
            np.array_equal(getattr(repeated, of), getattr(structure, of)) for of in ("feature", "threshold")
        )
        wrong[:] = not all(same)
    return wrong


def _splits(structure: Any, paths: Any, table: np.ndarray, node: int) -> bool:
    """Whether a threshold lies halfway between the two values that it separates, as the best split's does."""
    sides = []
    for child in (structure.children_left[node], structure.children_right[node]):
        rows = paths.indices[paths.indptr[child] : paths.indptr[child + 1]]
        values = table[rows, structure.feature[node]].astype(np.float64)
        sides.append(values[~np.isnan(values)])
    if not len(sides[0]) or not len(sides[1]):
        return True  # it separates gaps from values
    low, high, threshold = sides[0].max(), sides[1].min(), structure.threshold[node]
    return threshold == low or abs(low / 2 + high / 2 - threshold) <= 1e-12 * max(abs(low), abs(high))


def as_float32(features: Any) -> np.ndarray:
    """A table as trees see it."""
    return np.ascontiguousarray(np.asarray(features, dtype=np.float32))


_ROUNDING = 2.0**-22  # of single precision, in which thresholds are made
_TRIED = 64  # other rows' values that are tried within a box


@dataclass(frozen=True)
class Leaves:
    """The trees of an estimator."""

    def clue(self, part: Part) -> Clue:
        """The value if a threshold determines it; otherwise the likeliest known value in the box, or its middle."""
        low, high, guesses, labels = read_nodes(part)
        matrix = part.matrix
        for column in range(matrix.shape[1]):
            own = matrix[:, column]
            values, counts = np.unique(own[~np.isnan(own)], return_counts=True)
            for row in np.flatnonzero(np.isnan(guesses[:, column])):
                left = counts - (values == own[row])
                others, times = values[left > 0], left[left > 0]
                within = (others > low[row, column]) & (others <= high[row, column])
                if 0 < within.sum() <= _TRIED:
                    guesses[row, column] = others[within][times[within].argmax()]
                else:
                    ends = max(low[row, column], others[0]), min(high[row, column], others[-1])
                    guesses[row, column] = sum(ends) / 2
        return Clue(as_values(guesses), labels)


def leaves(part: Part) -> list[Leaves]:
    """The trees of a part, if it is known which rows each saw."""
    trees = trees_of(part.estimator) if part.numbers is not None else []
    return [Leaves()] if trees and multiplicities(part, trees[0]) is not None else []


def read_nodes(part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What the nodes tell of each row, given all others: low and high bounds, values that thresholds determine, labels.

    Undetermined are −∞, ∞, NaN and `UNKNOWN`.
    """
    table = as_float32(part.matrix)
    low, high, exact = (np.full(table.shape, nothing) for nothing in (-np.inf, np.inf, np.nan))
    labels = np.full(len(table), UNKNOWN, dtype=object)
    for tree in trees_of(part.estimator):
        times = multiplicities(part, tree)
        assert times is not None
        fallen = _Fallen.of(tree, times, table)
        structure, inside = tree.tree_, fallen.inside
        for node in np.flatnonzero(structure.children_left != -1).tolist():
            column, threshold = structure.feature[node], structure.threshold[node]
            values = table[inside, column].astype(np.float64)
            left, right = (~np.isnan(values) & each for each in fallen.sides(fallen.fell, node))
            high[inside[left], column] = np.minimum(high[inside[left], column], threshold)
            low[inside[right], column] = np.maximum(low[inside[right], column], threshold)
            if tree.splitter == "best":
                for row, value in _determined(values, left, right, fallen, node):
                    exact[inside[row], column] = value
        _read_labels(part, fallen, times, labels)
    return low, high, exact, labels


@dataclass(frozen=True)
class _Fallen:
    """Which nodes of a tree its rows pass by their values, and which the other rows imply, `(inside, nodes)`."""

    structure: Any
    inside: np.ndarray  # the rows that it was grown on
    goes: np.ndarray
    fell: np.ndarray
    complete: bool  # whether every row explains its own path, as on the table that the tree was fitted on

    @classmethod
    def of(cls, tree: Any, times: np.ndarray, table: np.ndarray) -> _Fallen:
        """One more row went through a node than the others explain: the missing one."""
        inside = np.flatnonzero(times > 0)
        goes = tree.tree_.decision_path(table[inside]).toarray().astype(bool)
        short = tree.tree_.n_node_samples - goes.sum(0)
        if not short.any():
            return cls(tree.tree_, inside, goes, goes, complete=True)
        left = goes.astype(np.int64) + short
        possible = ((left == 0) | (left == 1)).all(1, keepdims=True)
        return cls(tree.tree_, inside, goes, possible & (left == 1), complete=False)

    def sides(self, passed: np.ndarray, node: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows passed to the left and to the right of a node."""
        return passed[:, self.structure.children_left[node]], passed[:, self.structure.children_right[node]]


def _determined(
    values: np.ndarray, left: np.ndarray, right: np.ndarray, fallen: _Fallen, node: int
) -> list[tuple[int, float]]:
    """Rows whose value follows from a threshold and the other rows."""
    threshold, found = fallen.structure.threshold[node], []
    goes = [side & ~np.isnan(values) for side in fallen.sides(fallen.goes, node)]
    for fell, own, across, sign in ((left, *goes, 1.0), (right, *goes[::-1], -1.0)):
        turned, goal = values * sign, threshold * sign
        both = own.any() and across.any()
        if fallen.complete and both and _halfway(turned[own].max(), turned[across].min(), goal):
            rows = [int(np.flatnonzero(own)[turned[own].argmax()])]  # only the outermost row can have made it
        else:
            rows = [int(row) for row in np.flatnonzero(fell)]
        for row in rows:
            others, facing = (np.delete(turned, row)[np.delete(side, row)] for side in (own, across))
            # Without this row the known ones would put the threshold elsewhere, or nowhere.
            if len(facing) and not (len(others) and _halfway(others.max(), facing.min(), goal)):
                found.append((row, (2 * goal - facing.min()) * sign))
    return found


def _halfway(low: float, high: float, threshold: float) -> bool:
    return abs((low + high) / 2 - threshold) <= _ROUNDING * (abs(threshold) + abs(high))


def _read_labels(part: Part, fallen: _Fallen, times: np.ndarray, labels: np.ndarray) -> None:
    """Write the labels that are unknown and follow from a leaf and the other labels there; in boosted trees none do."""
    own, classes = np.asarray(part.labels), getattr(part.estimator, "classes_", None)
    if part.labels is None or own.ndim != 1 or hasattr(part.estimator, "init_"):
        return
    weighted = getattr(part.estimator, "class_weight", None) is not None
    names = [] if classes is None else np.asarray(classes).tolist()
    columns = (own[:, None] if classes is None else own[:, None] == classes).astype(np.float64)
    structure, inside = fallen.structure, fallen.inside
    sums = (fallen.goes.T * times[inside]) @ columns[inside]
    ends = fallen.fell & (structure.children_left == -1)
    for place in np.flatnonzero((ends.sum(1) == 1) & ~known(labels[inside])):
        row, leaf = inside[place], ends[place].argmax()
        held = structure.value[leaf, 0]
        if weighted:  # a leaf of one class gives the label, whatever its weight
            labels[row] = names[int(held.argmax())] if held.max() > 1 - 1e-12 else UNKNOWN
            continue
        others = sums[leaf] - times[row] * columns[row] * fallen.goes[place, leaf]
        left = (held * structure.weighted_n_node_samples[leaf] - others) / times[row]
        labels[row] = names[int(left.argmax())] if names else float(left[0])


@dataclass(frozen=True)
class Bins:
    """Histogram boosting's thresholds of one column: halfway points between all neighbouring values."""

    column: int
    thresholds: np.ndarray

    def clue(self, part: Part) -> Clue:
        """The value that explains the thresholds that the known values do not."""
        own, clue = _numbers_of(part, self.column), Clue.nothing(*part.features.shape)
        values, counts = np.unique(own[~np.isnan(own)], return_counts=True)
        single = set(values[counts == 1].tolist())
        for row, value in enumerate(own.tolist()):
            found = self._lacking(values[values != value] if value in single else values)
            if found is not None:
                clue.values[row, self.column] = found
        return clue

    def _lacking(self, others: np.ndarray) -> float | None:
        near = np.isclose(self.thresholds[:, None], _middles(others), rtol=1e-12, atol=0).any(1)
        new = self.thresholds[~near]
        if not 1 <= len(new) <= 2:
            return None
        below = others[others < new[0]]
        return float(2 * new[0] - below[-1]) if len(below) else float(2 * new[-1] - others[0])


def bins(part: Part) -> list[Bins]:
    """The columns of a part whose bins are as fine as their values."""
    mapper, found = getattr(part.estimator, "_bin_mapper", None), []
    if mapper is None or part.features is None:
        return []
    words = getattr(part.estimator, "is_categorical_", None)
    words = np.zeros(part.features.shape[1], dtype=bool) if words is None else words
    order = np.argsort(~words, kind="stable")  # within, it puts columns of categories first
    for column, thresholds in zip(order.tolist(), mapper.bin_thresholds_, strict=True):
        if words[column]:
            continue
        values = _numbers_of(part, column)
        middles = _middles(np.unique(values[~np.isnan(values)]))
        if len(middles) == len(thresholds) > 0 and np.allclose(middles, thresholds, rtol=1e-12):
            found.append(Bins(column, np.asarray(thresholds)))
    return found


def _middles(values: np.ndarray) -> np.ndarray:
    return values[:-1] * 0.5 + values[1:] * 0.5


def _numbers_of(part: Part, column: int) -> np.ndarray:
    return as_numbers(column_values(part.features, column))
