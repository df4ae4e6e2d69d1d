"""Which splits a tree considered: its published seed tells the columns that it drew at each node, and in which order.

scikit-learn draws columns until enough of them vary among the node's records, and takes the best split. So for every
node the seed names the columns whose splits were no better than the published one, once it is known which of those that
were drawn before varied at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from remanence.tables.trees import drawn_rows, trees_of


@dataclass(frozen=True)
class Visit:
    """A column that a tree looked at while it split a node, or with a column of −1 the end of that search."""

    node: int
    column: int
    constant: bool  # among the node's records


def visits(tree: Any, constant: Callable[[int, int], bool]) -> Iterator[Visit]:
    """All columns that a tree looked at, in their order, if `constant` says which did not vary in which node."""
    structure, width, most = tree.tree_, int(tree.n_features_in_), int(tree.max_features_)
    numbers = _numbers(np.random.RandomState(tree.random_state).randint(0, 2**31 - 1))
    features, constants, waiting = list(range(width)), [0] * width, [(0, 0, 0)]
    while waiting:
        node, known, depth = waiting.pop()
        if not _is_searched(tree, node, depth):
            continue
        left, visited, found, drawn = width, 0, 0, 0
        while left > known + found and (visited < most or visited <= found + drawn):
            visited += 1
            place = drawn + next(numbers) % (left - found - drawn)
            if place < known:
                features[drawn], features[place] = features[place], features[drawn]
                drawn += 1
                continue
            place += found
            column = features[place]
            same = constant(node, column)
            other = known + found if same else left - 1
            features[other], features[place] = features[place], features[other]
            found, left = found + same, left - (not same)
            yield Visit(node, column, same)
        features[:known] = constants[:known]
        constants[known : known + found] = features[known : known + found]
        yield Visit(node, -1, True)
        if structure.children_left[node] != -1:
            children = structure.children_right[node], structure.children_left[node]
            waiting += [(int(child), known + found, depth + 1) for child in children]


def _numbers(state: int) -> Iterator[int]:
    """scikit-learn's own random numbers (Marsaglia's xorshift)."""
    state = state or 1
    while True:
        state ^= state << 13 & 0xFFFFFFFF
        state ^= state >> 17
        state ^= state << 5 & 0xFFFFFFFF
        yield state % 2**31


def _is_searched(tree: Any, node: int, depth: int) -> bool:
    """Whether a split was looked for: nodes that are pure, small or deep enough are left alone."""
    structure = tree.tree_
    deepest = np.inf if tree.max_depth is None else tree.max_depth
    few = tree.min_samples_split
    few = few if isinstance(few, int) else max(2, int(np.ceil(few * structure.n_node_samples[0])))
    return (
        structure.impurity[node] > np.finfo("double").eps
        and structure.n_node_samples[node] >= few
        and depth < deepest
    )


def draws_are_known(forest: Any) -> bool:
    """Whether the draws above, Gini's impurity and two classes are all that decided about splits."""
    trees = trees_of(forest)
    return len(forest.classes_) == 2 and all(
        (tree.criterion, tree.splitter, tree.max_leaf_nodes, tree.monotonic_cst)
        == ("gini", "best", None, None)
        and (tree.min_samples_leaf, tree.min_weight_fraction_leaf, tree.min_impurity_decrease)
        == (1, 0.0, 0.0)
        and isinstance(tree.random_state, int | np.integer)
        for tree in trees
    )


def gain(right: np.ndarray, counts: np.ndarray) -> float:
    """How good a split is, as scikit-learn computes it for Gini's impurity, to the bit; none is the worst."""
    left = counts - right
    if not left.sum() or not right.sum():
        return -np.inf
    return (
        float((left.astype(float) ** 2).sum()) / left.sum()
        + float((right.astype(float) ** 2).sum()) / right.sum()
    )


def trees_given_again(forest: Any, features: np.ndarray, labels: np.ndarray) -> int:
    """How many trees come out node by node if they are trained again on these records, with their own seeds."""
    codes, same = np.searchsorted(forest.classes_, labels), 0
    for tree in trees_of(forest):
        fresh: Any = clone(tree)
        drawn = drawn_rows(forest, tree, len(labels)) if getattr(forest, "bootstrap", False) else None
        own, again = tree.tree_, fresh.fit(features, codes, sample_weight=drawn).tree_
        same += (
            own.node_count == again.node_count
            and np.array_equal(own.feature, again.feature)
            and np.array_equal(own.n_node_samples, again.n_node_samples)
            and np.allclose(own.value, again.value)
        )
    return same


def class_counts_of(structure: Any) -> np.ndarray:
    """How many records of each class every node holds, `(nodes, classes)`."""
    return np.round(structure.value[:, 0, :] * structure.weighted_n_node_samples[:, None]).astype(int)
