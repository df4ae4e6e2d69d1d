"""The splits of a forest's trees: how good each is, and which training again makes otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from remanence.mechanisms.tables.trees import drawn_rows, trees_of


def no_better(structure: Any, node: int, counts: np.ndarray, *, strictly: bool) -> list[tuple[int, int]]:
    """The records of both classes to the right of a split that is no better than the one that was chosen."""
    pairs = [(a, b) for a in range(counts[0] + 1) for b in range(counts[1] + 1)]
    if structure.children_left[node] == -1:
        return [(a, b) for a, b in pairs if a + b in (0, counts.sum())]
    goal = _right(structure, node)
    gains = {pair: _gain(np.array(pair), counts) for pair in pairs}
    return [pair for pair, gain in gains.items() if gain < goal or (gain == goal and not strictly)]


def _gain(right: np.ndarray, counts: np.ndarray) -> float:
    """How good a split is, as scikit-learn computes it for Gini's impurity, to the bit; none is the worst."""
    left = counts - right
    if not left.sum() or not right.sum():
        return -np.inf
    return (
        float((left.astype(float) ** 2).sum()) / left.sum()
        + float((right.astype(float) ** 2).sum()) / right.sum()
    )


def trained_again(forest: Any, features: np.ndarray, labels: np.ndarray) -> list[Any]:
    """The trees of the same forest, with the same seeds, trained on these records."""
    codes, found = np.searchsorted(forest.classes_, labels), []
    for tree in trees_of(forest):
        fresh: Any = clone(tree)
        drawn = drawn_rows(forest, tree, len(labels)) if getattr(forest, "bootstrap", False) else None
        found.append(fresh.fit(features, codes, sample_weight=drawn).tree_)
    return found


@dataclass(frozen=True)
class OtherSplit:
    """Where training again splits by another column than a tree does."""

    tree: int
    node: int
    column: int  # of the new split; below 0: none
    tie: bool  # whether both are equally good, so that the published one must be the better one


def other_splits(trees: list[Any], again: list[Any]) -> Iterator[OtherSplit]:
    """The first such node of each tree. All before it split alike, and mostly the same columns were drawn."""
    for place, (tree, fresh) in enumerate(zip(trees, again, strict=True)):
        own, waiting = tree.tree_, [(0, 0)]
        while waiting:
            node, other = waiting.pop()
            mine, theirs = int(own.feature[node]), int(fresh.feature[other])
            if mine != theirs:
                yield OtherSplit(
                    place, int(node), theirs, mine >= 0 and _right(own, node) == _right(fresh, other)
                )
                break
            if mine >= 0:
                waiting.append((own.children_right[node], fresh.children_right[other]))
                waiting.append((own.children_left[node], fresh.children_left[other]))


def _right(structure: Any, node: int) -> float:
    """How good the split of a node is."""
    counts, child = class_counts_of(structure), structure.children_right[node]
    return _gain(counts[child], counts[node]) if child >= 0 else -np.inf


def leaves_below(structure: Any, node: int) -> list[int]:
    """The leaves under a node."""
    waiting, found = [node], []
    while waiting:
        here = waiting.pop()
        if structure.children_left[here] == -1:
            found.append(int(here))
        else:
            waiting += [structure.children_left[here], structure.children_right[here]]
    return found


def class_counts_of(structure: Any) -> np.ndarray:
    """How many records of each class every node holds, `(nodes, classes)`."""
    return np.round(structure.value[:, 0, :] * structure.weighted_n_node_samples[:, None]).astype(int)
