"""Decision trees as they are fitted: which rows each saw, and the nodes through which these fall."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn.tree import BaseDecisionTree

from remanence.tables.parts import Part

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
