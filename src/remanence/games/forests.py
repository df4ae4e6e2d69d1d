"""A whole training set out of a random forest: every node says how many records of each class went through it.

After Ferry et al. 2024 (DRAFT), for columns of 0 and 1, by OR-Tools' CP-SAT. Here a forest with bootstrap is read with
the rows that its published seeds drew (`tree.random_state`), which the paper takes for unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from remanence.checks import number, whole
from remanence.exceptions import InputError
from remanence.mechanisms.tables.trees import drawn_rows, trees_of


@dataclass(frozen=True)
class Recovered:
    """Records that explain every count of a forest, and whether the solver finished."""

    features: np.ndarray  # (records, columns), 0 and 1
    labels: np.ndarray  # (records,)
    solved: bool

    def matched(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The columns of each true record that its partner has wrong, under the best pairing of equal labels."""
        off = np.abs(np.asarray(features)[:, None] - self.features[None]).sum(-1)
        cost = off + 1000 * (np.asarray(labels)[:, None] != self.labels[None])
        rows, partners = linear_sum_assignment(cost)
        return off[rows, partners] + (np.asarray(labels)[rows] != self.labels[partners])


def records_of_forest(
    forest: Any, records: int, *, seconds: float = 120.0, workers: int = 2, seed: int = 0
) -> Recovered:
    """Records that, trained on, give every node of the forest the counts that it states.

    `records` is the size of the training set. Nothing else is known. Where several sets explain the forest, one of them
    is found; the true one explains it too.
    """
    whole("records", records)
    number("seconds", seconds, above=0)
    trees = trees_of(forest)
    classes = getattr(forest, "classes_", None)
    if not trees or classes is None or not all(_splits_bits(tree.tree_) for tree in trees):
        raise InputError(
            "This forest cannot be solved.",
            needs="a forest or tree that classifies, on columns of 0 and 1 (every threshold is 0.5)",
            got=type(forest).__name__,
            hint="tree-leaves, by `remanence audit`, reads other trees",
        )
    try:
        cp = import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise InputError(
            "OR-Tools is not installed.",
            needs="an exact solver",
            got="an environment without ortools",
            hint="pip install 'remanence[forests]'",
        ) from None
    model = cp.CpModel()
    width = int(forest.n_features_in_)
    x = [[model.new_bool_var(f"x{k},{i}") for i in range(width)] for k in range(records)]
    z = [[model.new_bool_var(f"z{k},{c}") for c in range(len(classes))] for k in range(records)]
    for row in z:
        model.add_exactly_one(row)
    bootstrap = bool(getattr(forest, "bootstrap", False))
    for tree in trees:
        times = drawn_rows(forest, tree, records) if bootstrap else np.ones(records, dtype=int)
        _explain(model, tree.tree_, times, x, z)
    if not bootstrap:
        _break_symmetry(model, trees[0].tree_, x, z)
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        empty = np.zeros((records, width), dtype=int)
        return Recovered(empty, np.full(records, classes[0]), solved=False)
    features = np.array([[solver.value(bit) for bit in row] for row in x])
    labels = classes[np.array([[solver.value(bit) for bit in row] for row in z]).argmax(1)]
    return Recovered(features, labels, solved=True)


def _splits_bits(structure: Any) -> bool:
    inner = structure.children_left != -1
    return bool((np.abs(structure.threshold[inner] - 0.5) < 1e-6).all())


def _counts(structure: Any) -> np.ndarray:
    """How many records of each class every node holds, `(nodes, classes)`."""
    return np.round(structure.value[:, 0, :] * structure.weighted_n_node_samples[:, None]).astype(int)


def _paths(structure: Any) -> dict[int, list[tuple[int, int]]]:
    """The columns and bits that lead to each leaf."""
    found, waiting = {}, [(0, [])]
    while waiting:
        node, path = waiting.pop()
        if structure.children_left[node] == -1:
            found[node] = path
            continue
        column = int(structure.feature[node])
        waiting += [
            (structure.children_left[node], [*path, (column, 0)]),
            (structure.children_right[node], [*path, (column, 1)]),
        ]
    return found


def _explain(model: Any, structure: Any, times: np.ndarray, x: list, z: list) -> None:
    """Every record falls into one leaf, by its bits, and the leaves' counts come out."""
    counts, leaves = _counts(structure), _paths(structure)
    there: dict[tuple[int, int], list] = {}
    for k, row in enumerate(x):
        if not times[k]:
            continue
        chosen = []
        for leaf, path in leaves.items():
            for label in np.flatnonzero(counts[leaf]):
                here = model.new_bool_var("")
                model.add_implication(here, z[k][label])
                for column, bit in path:
                    model.add_implication(here, row[column] if bit else row[column].negated())
                chosen.append(here)
                there.setdefault((leaf, int(label)), []).append((int(times[k]), here))
        model.add_exactly_one(chosen)
    for (leaf, label), each in there.items():
        model.add(sum(weight * here for weight, here in each) == int(counts[leaf, label]))


def _break_symmetry(model: Any, structure: Any, x: list, z: list) -> None:
    """Records have no order: the first tree may deal them out, leaf by leaf and class by class."""
    counts, place = _counts(structure), 0
    for leaf, path in _paths(structure).items():
        for label, count in enumerate(counts[leaf]):
            for _ in range(count):
                model.add(z[place][label] == 1)
                for column, bit in path:
                    model.add(x[place][column] == bit)
                place += 1
