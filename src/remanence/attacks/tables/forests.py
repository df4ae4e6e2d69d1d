"""A whole training set out of a random forest: every node says how many records of each class went through it.

After Ferry et al. 2024 (DRAFT), for columns of 0 and 1, by OR-Tools' CP-SAT. Two things go beyond the paper. A forest
with bootstrap is read with the rows that its published seeds drew (`tree.random_state`), which the paper takes for
unknown. And counts alone leave several sets of records: the forest is trained again on the one that was found, with the
same seeds, and where a tree then splits otherwise, records are asked for on which the published split is the better
one. The true ones are such records if the same columns were drawn there, which a column that is constant in one table
and not in the other can change: so this guides the search, and `reproduced` counts what training really gives again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from remanence.attacks.tables.forest_splits import (
    OtherSplit,
    class_counts_of,
    leaves_below,
    no_better,
    other_splits,
    trained_again,
)
from remanence.checks import number, whole
from remanence.exceptions import InputError
from remanence.mechanisms.tables.trees import drawn_rows, trees_of


@dataclass(frozen=True)
class Recovered:
    """Records that explain every count of a forest, whether the solver finished, and what training on them gives."""

    features: np.ndarray  # (records, columns), 0 and 1
    labels: np.ndarray  # (records,)
    solved: bool
    reproduced: int = 0  # trees that training on these records gives again, node by node

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

    `records` is the size of the training set. Nothing else is known. Among the sets that explain the counts one is
    sought that trains to the very same forest (`reproduced`); the true one does.
    """
    whole("records", records)
    number("seconds", seconds, above=0)
    trees, classes = trees_of(forest), getattr(forest, "classes_", None)
    if not trees or classes is None or not all(splits_bits(tree.tree_) for tree in trees):
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
    problem, ends = _Problem.of(cp, forest, records), time.monotonic() + seconds
    best = Recovered(
        np.zeros((records, int(forest.n_features_in_)), int), np.full(records, classes[0]), False
    )
    while (left := ends - time.monotonic()) > 0:
        found = problem.solve(left, workers, seed)
        if found is None:
            break
        again = trained_again(forest, *found)
        asked = [problem.prefer(split) for split in other_splits(trees, again)]
        reproduced = len(trees) - len(asked)
        if not best.solved or reproduced >= best.reproduced:
            best = Recovered(*found, solved=True, reproduced=reproduced)
        if not any(asked):
            break
    return best


@dataclass
class _Problem:
    """What is asked of the records: bits and classes, and in which leaf of each tree each record is."""

    cp: Any
    model: Any
    classes: np.ndarray
    x: list[list[Any]]
    z: list[list[Any]]
    times: list[np.ndarray]  # for each tree, how often each record was in its training set
    structures: list[Any]
    there: list[dict[tuple[int, int, int], Any]] = field(
        default_factory=list
    )  # of a tree: record, leaf, class
    gini: bool = False  # and two classes: a split that is better than another can then be asked for

    @classmethod
    def of(cls, cp: Any, forest: Any, records: int) -> _Problem:
        model, width, classes = cp.CpModel(), int(forest.n_features_in_), np.asarray(forest.classes_)
        trees = trees_of(forest)
        x = [[model.new_bool_var(f"x{k},{i}") for i in range(width)] for k in range(records)]
        z = [[model.new_bool_var(f"z{k},{c}") for c in range(len(classes))] for k in range(records)]
        for row in z:
            model.add_exactly_one(row)
        bootstrap = bool(getattr(forest, "bootstrap", False))
        once = np.ones(records, dtype=int)
        times = [drawn_rows(forest, tree, records) if bootstrap else once for tree in trees]
        gini = forest.criterion == "gini" and len(classes) == 2 and forest.class_weight is None
        own = cls(cp, model, classes, x, z, times, [tree.tree_ for tree in trees], gini=gini)
        own.there = [_explain(model, s, t, x, z) for s, t in zip(own.structures, times, strict=True)]
        if not bootstrap:
            _break_symmetry(model, own.structures[0], x, z)
        return own

    def solve(self, seconds: float, workers: int, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Records that meet all that is asked so far; the next search starts from them."""
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        if solver.solve(self.model) not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None
        self.model.clear_hints()
        for bit in (bit for rows in (self.x, self.z) for row in rows for bit in row):
            self.model.add_hint(bit, solver.value(bit))
        features = np.array([[solver.value(bit) for bit in row] for row in self.x])
        labels = self.classes[np.array([[solver.value(bit) for bit in row] for row in self.z]).argmax(1)]
        return features, labels

    def prefer(self, other: OtherSplit) -> bool:
        """Ask that this is no better a split than the one that was chosen there; at a leaf, that it splits nothing.

        False where that cannot be asked.
        """
        if not self.gini or other.column < 0:
            return False
        tree, node, column = other.tree, other.node, other.column
        structure, model = self.structures[tree], self.model
        counts, below = class_counts_of(structure)[node], leaves_below(structure, node)
        sums = []
        for label in range(2):
            terms = []
            for k, row in enumerate(self.x):
                inside = [
                    self.there[tree][place]
                    for leaf in below
                    if (place := (k, leaf, label)) in self.there[tree]
                ]
                if inside:
                    both = model.new_bool_var("")
                    model.add_implication(both, row[column])
                    model.add(both <= sum(inside))
                    model.add(both >= sum(inside) + row[column] - 1)
                    terms.append(int(self.times[tree][k]) * both)
            total = model.new_int_var(0, int(counts[label]), "")
            model.add(total == sum(terms))
            sums.append(total)
        model.add_allowed_assignments(sums, no_better(structure, node, counts, strictly=other.tie))
        return True


def splits_bits(structure: Any) -> bool:
    """Whether every split of a tree is one of 0 and 1."""
    inner = structure.children_left != -1
    return bool((np.abs(structure.threshold[inner] - 0.5) < 1e-6).all())


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


def _explain(
    model: Any, structure: Any, times: np.ndarray, x: list, z: list
) -> dict[tuple[int, int, int], Any]:
    """Every record falls into one leaf, by its bits, and the leaves' counts come out."""
    counts, leaves = class_counts_of(structure), _paths(structure)
    there: dict[tuple[int, int], list] = {}
    found = {}
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
                found[k, int(leaf), int(label)] = here
                there.setdefault((leaf, int(label)), []).append((int(times[k]), here))
        model.add_exactly_one(chosen)
    for (leaf, label), each in there.items():
        model.add(sum(weight * here for weight, here in each) == int(counts[leaf, label]))
    return found


def _break_symmetry(model: Any, structure: Any, x: list, z: list) -> None:
    """Records have no order: the first tree may deal them out, leaf by leaf and class by class."""
    counts, place = class_counts_of(structure), 0
    for leaf, path in _paths(structure).items():
        for label, count in enumerate(counts[leaf]):
            for _ in range(count):
                model.add(z[place][label] == 1)
                for column, bit in path:
                    model.add(x[place][column] == bit)
                place += 1
