"""All tables that explain a forest, as a problem for OR-Tools' CP-SAT: how many records there are of each kind.

A kind is a value for every column and a class. Every leaf says how many records of each class it holds, which are sums
over kinds: no record has a name, and most kinds are in some leaf without a record of that class. With bootstrap,
records that were drawn equally often by every tree have a number of each kind of their own.

What each tree considered and rejected (`forest_draws`) is asked for where a table would have been split otherwise: if
the columns that were drawn before vary as they do in that table, then this column's split is no better than the
published one. All that is asked is true of the training set, so that what holds in every such table holds of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from remanence.tables.forest_draws import class_counts_of, gain, visits
from remanence.tables.trees import drawn_rows, trees_of


@dataclass
class Tables:
    """The numbers of each kind, and what is asked of them."""

    cp: Any
    forest: Any
    records: int
    blocks: Sequence[Sequence[int]] = ()  # columns of which every record has a 1 in exactly one
    model: Any = field(init=False)
    bits: np.ndarray = field(init=False)  # (kinds, columns)
    times: np.ndarray = field(init=False)  # (groups, trees), how often each tree drew a record of the group
    group: np.ndarray = field(init=False)  # (numbers,), whose number it is, and of which kind and class
    kind: np.ndarray = field(init=False)
    label: np.ndarray = field(init=False)
    numbers: list[Any] = field(init=False)
    exhausted: bool = False  # whether no table meets all that is asked
    _made: dict[tuple, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        forest, trees = self.forest, trees_of(self.forest)
        bootstrap = bool(getattr(forest, "bootstrap", False))
        once = np.ones(self.records, dtype=int)
        drawn = [drawn_rows(forest, tree, self.records) if bootstrap else once for tree in trees]
        self.times, self._whose = np.unique(np.stack(drawn, 1), axis=0, return_inverse=True)
        width = int(forest.n_features_in_)
        self.bits = (np.arange(2**width)[:, None] >> np.arange(width) & 1).astype(np.float32)
        fits = np.ones(len(self.bits), dtype=bool)
        for block in self.blocks:
            fits &= self.bits[:, list(block)].sum(1) == 1
        leaves = [tree.tree_.apply(self.bits) for tree in trees]
        possible = [
            (class_counts_of(tree.tree_)[leaf] > 0) & fits[:, None]
            for tree, leaf in zip(trees, leaves, strict=True)
        ]
        found = []
        for times in self.times:
            own = [each for each, often in zip(possible, times, strict=True) if often]
            # Of a record that no tree drew nothing is known: it is any one.
            found.append(np.argwhere(np.logical_and.reduce(own)) if own else np.array([[fits.argmax(), 0]]))
        self.group = np.repeat(np.arange(len(found)), [len(each) for each in found])
        self.kind, self.label = np.concatenate(found).T
        sorts, self._sort = np.unique(self.kind * len(forest.classes_) + self.label, return_inverse=True)
        self._sorts, self._drawn = sorts.tolist(), (self.times.sum(1) > 0)[self.group]
        self.model = self.cp.CpModel()
        sizes = np.bincount(self._whose)
        self.numbers = [self.model.new_int_var(0, int(sizes[group]), "") for group in self.group]
        for group, size in enumerate(sizes):
            self.model.add(self._sum(self.group == group) == int(size))
        for tree, structure in enumerate(self.structures):
            counts = class_counts_of(structure)
            for leaf in np.flatnonzero(structure.children_left == -1).tolist():
                inside = self._inside(tree, leaf)
                self.model.add(self._sum(inside) == int(structure.n_node_samples[leaf]))
                for label in np.flatnonzero(counts[leaf]):
                    here = inside & (self.label == label)
                    self.model.add(self._sum(here, tree) == int(counts[leaf, label]))

    @cached_property
    def structures(self) -> list[Any]:
        """The nodes of each tree."""
        return [tree.tree_ for tree in trees_of(self.forest)]

    @cached_property
    def _paths(self) -> list[np.ndarray]:
        """Through which nodes of each tree a record of each number would fall, `(numbers, nodes)`."""
        kinds, back = np.unique(self.kind, return_inverse=True)
        rows = self.bits[kinds]
        found = [np.asarray(s.decision_path(rows).todense(), dtype=bool)[back] for s in self.structures]
        return [path & (self.times[self.group, tree] > 0)[:, None] for tree, path in enumerate(found)]

    def _inside(self, tree: int, node: int) -> np.ndarray:
        return self._paths[tree][:, node]

    def _sum(self, chosen: np.ndarray, tree: int | None = None) -> Any:
        """How many records these are; with a tree, as often as it drew them."""
        places = np.flatnonzero(chosen)
        weights = np.ones(len(places), int) if tree is None else self.times[self.group[places], tree]
        return self.cp.LinearExpr.weighted_sum([self.numbers[place] for place in places], weights.tolist())

    def solve(self, seconds: float, workers: int, seed: int = 0) -> np.ndarray | None:
        """Some numbers that meet all that is asked so far; None where there are none, or none are found in time."""
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        status = solver.solve(self.model)
        self.exhausted = status == self.cp.INFEASIBLE
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None
        return np.array([solver.value(number) for number in self.numbers])

    def prefer(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Ask for the likeliest table, if records are as common as in this one; unseen ones as their columns are."""
        codes, weights = np.searchsorted(self.forest.classes_, labels), 2 ** np.arange(self.bits.shape[1])
        share = np.zeros(len(self.numbers))
        for label in range(len(self.forest.classes_)):
            public, own = np.asarray(features)[codes == label], self.label == label
            ones = (public.sum(0) + 0.5) / (len(public) + 1)
            apart = np.where(self.bits[self.kind[own]] > 0, ones, 1 - ones).prod(1)
            often = np.bincount((public @ weights).astype(int), minlength=len(self.bits))[self.kind[own]]
            share[own] = (often + apart) / (len(public) + 1) * (len(public) + 1) / (len(codes) + 2)
        costs = np.round(-1000 * np.log(share)).astype(int)
        self.model.minimize(self.cp.LinearExpr.weighted_sum(self.numbers, costs.tolist()))

    def by_kind(self, numbers: np.ndarray) -> np.ndarray:
        """How many records that some tree drew there are of each kind and class, whatever their group."""
        return np.bincount(self._sort, numbers * self._drawn).astype(int)

    def marked(self, numbers: np.ndarray, some: np.ndarray) -> np.ndarray:
        """Which records of a table are these, so many of each kind, in the order of `table`."""
        features, labels = self.table(numbers)
        kinds = (features @ 2 ** np.arange(features.shape[1])).astype(int)
        codes = np.searchsorted(self.forest.classes_, labels)
        left, found = dict(zip(self._sorts, some.tolist(), strict=True)), np.zeros(self.records, dtype=bool)
        for row, each in enumerate((kinds * len(self.forest.classes_) + codes).tolist()):
            found[row], left[each] = left[each] > 0, left[each] - 1
        return found

    def miss_one_of(self, some: np.ndarray) -> None:
        """Ask for a table that has less than so many of some kind."""
        fewer = []
        for sort in np.flatnonzero(some):
            key = ("fewer", int(sort), int(some[sort]))
            if key not in self._made:
                self._made[key] = own = self.model.new_bool_var("")
                self.model.add(
                    self._sum((self._sort == sort) & self._drawn) < int(some[sort])
                ).only_enforce_if(own)
            fewer.append(self._made[key])
        self.model.add_bool_or(fewer)

    def table(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The records, each where one of its group may stand, and their labels."""
        features, labels = np.zeros((self.records, self.bits.shape[1]), int), np.zeros(self.records, int)
        for group in range(len(self.times)):
            own = self.group == group
            rows = np.flatnonzero(self._whose == group)
            features[rows] = np.repeat(self.bits[self.kind[own]], numbers[own], axis=0)
            labels[rows] = np.repeat(self.label[own], numbers[own])
        return features, np.asarray(self.forest.classes_)[labels]

    def ask(self, numbers: np.ndarray) -> int:
        """Ask for tables that are split as published, wherever this one would not be; how often it would not."""
        return sum(self._ask_tree(tree, numbers) for tree in range(len(self.structures)))

    def _ask_tree(self, tree: int, numbers: np.ndarray) -> int:
        structure, asked = self.structures[tree], 0
        paths, often = self._paths[tree], numbers * self.times[self.group, tree]
        counts = class_counts_of(structure)
        ones = self.bits[self.kind] > 0
        held = paths.T @ (ones * numbers[:, None])  # (nodes, columns), records with a 1
        right = np.stack([paths.T @ (ones * (often * (self.label == c))[:, None]) for c in range(2)], -1)
        total = structure.n_node_samples
        before: tuple = (tree,)
        seen = -1
        for visit in visits(trees_of(self.forest)[tree], lambda n, c: held[n, c] in (0, total[n])):
            node, column, chosen = visit.node, visit.column, int(structure.feature[visit.node])
            leaf = structure.children_left[node] == -1
            if column < 0:
                if not leaf and seen != node:  # the published column was never drawn
                    asked += self._require(before, None)
                continue
            if leaf and not visit.constant:
                asked += self._require(before, self._constant(tree, node, column))
            if not self._settled[tree][node, column]:
                before = (*before, (node, column, visit.constant))
            if not leaf and column == chosen:
                seen = node
            elif not leaf and not visit.constant:
                goal, own = self._goal(tree, node), gain(right[node, column], counts[node])
                if own > goal or (own == goal and seen != node):
                    asked += self._require(before, self._no_better(tree, node, column, seen != node))
        return asked

    def _require(self, before: tuple, then: Any) -> int:
        """If all columns before vary as said, then this; once."""
        if (before, then is None or then.index) in self._made:
            return 1
        self._made[before, then is None or then.index] = True
        self.model.add_bool_or([self._as_before(before).negated(), *([] if then is None else [then])])
        return 1

    def _as_before(self, before: tuple) -> Any:
        """True wherever the columns that a tree drew so far vary, or not, as said."""
        if before in self._made:
            return self._made[before]
        self._made[before] = own = self.model.new_bool_var("")
        if len(before) == 1:
            self.model.add(own == 1)
            return own
        tree, (node, column, constant) = before[0], before[-1]
        flag = self._constant(tree, node, column)
        self.model.add_bool_or(
            [self._as_before(before[:-1]).negated(), flag.negated() if constant else flag, own]
        )
        return own

    @cached_property
    def _settled(self) -> list[np.ndarray]:
        """Whether each tree itself tells if a column varies in a node: it was split by before, or is split by below."""
        found = []
        for structure in self.structures:
            before = np.zeros((structure.node_count, self.bits.shape[1]), dtype=bool)
            below = before.copy()
            inner = np.flatnonzero(structure.children_left != -1).tolist()  # a node comes before its children
            for node in inner:
                for child in (structure.children_left[node], structure.children_right[node]):
                    before[child] = before[node]
                    before[child, structure.feature[node]] = True
            for node in reversed(inner):
                below[node] = below[structure.children_left[node]] | below[structure.children_right[node]]
                below[node, structure.feature[node]] = True
            found.append(before | below)
        return found

    def _constant(self, tree: int, node: int, column: int) -> Any:
        """Whether a column is the same in all records of a node."""
        key = ("constant", tree, node, column)
        if key not in self._made:
            own, count = self.model.new_bool_var(""), int(self.structures[tree].n_node_samples[node])
            ones = self._sum(self._inside(tree, node) & (self.bits[self.kind, column] > 0))
            domain = self.cp.Domain.from_values([0, count])
            self.model.add_linear_expression_in_domain(ones, domain).only_enforce_if(own)
            self.model.add_linear_expression_in_domain(ones, domain.complement()).only_enforce_if(
                own.negated()
            )
            self._made[key] = own
        return self._made[key]

    def _goal(self, tree: int, node: int) -> float:
        """How good the published split is."""
        counts, child = class_counts_of(self.structures[tree]), self.structures[tree].children_right[node]
        return gain(counts[child], counts[node])

    def _no_better(self, tree: int, node: int, column: int, strictly: bool) -> Any:
        """Whether a column's split is no better than the published one; `strictly`, not even as good."""
        key = ("no better", tree, node, column, strictly)
        if key not in self._made:
            counts, goal = class_counts_of(self.structures[tree])[node], self._goal(tree, node)
            inside = self._inside(tree, node) & (self.bits[self.kind, column] > 0)
            sums = [self.model.new_int_var(0, int(counts[label]), "") for label in range(2)]
            for label, total in enumerate(sums):
                self.model.add(total == self._sum(inside & (self.label == label), tree))
            gains = {
                (a, b): gain(np.array([a, b]), counts)
                for a in range(counts[0] + 1)
                for b in range(counts[1] + 1)
            }
            own = self.model.new_bool_var("")
            rows = [
                (*pair, int(each < goal or (each == goal and not strictly))) for pair, each in gains.items()
            ]
            self.model.add_allowed_assignments([*sums, own], rows)
            self._made[key] = own
        return self._made[key]
