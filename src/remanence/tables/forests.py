"""A whole training set out of a random forest: every node says how many records of each class went through it.

After Ferry et al. 2024 (DRAFT), for columns of 0 and 1, by OR-Tools' CP-SAT. Three things go beyond the paper. The
published seeds (`tree.random_state`) tell which rows a bootstrap drew. They tell as well which columns each node drew
and rejected, so that the table which comes out trains to the very same forest, node by node. And the solver goes on to
ask whether any other table does: records that all of them hold are proven, without the training set. What the others
lack is not determined, by this forest or by any attack on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from remanence.core.checks import extra, few, number, whole
from remanence.core.exceptions import InputError
from remanence.tables.forest_draws import draws_are_known, trees_given_again
from remanence.tables.forest_tables import Tables
from remanence.tables.trees import trees_of

MOST_COLUMNS = 21  # a kind of record is a value for each: two million kinds


@dataclass(frozen=True)
class Recovered:
    """Records that explain every count of a forest, whether the solver finished, and what training on them gives."""

    features: np.ndarray  # (records, columns), 0 and 1
    labels: np.ndarray  # (records,)
    solved: bool
    reproduced: int = 0  # trees that training on these records gives again, node by node
    proven: np.ndarray | None = None  # (records,), those that every table has that gives this forest
    shared: int | None = (
        None  # records that all tables have which were found; None if no other was looked for in time
    )
    second: tuple[np.ndarray, np.ndarray] | None = None  # another table that gives this very forest

    def matched(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The columns of each true record that its partner has wrong, under the best pairing of equal labels."""
        off = np.abs(np.asarray(features)[:, None] - self.features[None]).sum(-1)
        cost = off + 1000 * (np.asarray(labels)[:, None] != self.labels[None])
        rows, partners = linear_sum_assignment(cost)
        return off[rows, partners] + (np.asarray(labels)[rows] != self.labels[partners])


def records_of_forest(
    forest: Any,
    records: int,
    *,
    seconds: float = 120.0,
    workers: int = 2,
    seed: int = 0,
    public: tuple[np.ndarray, np.ndarray] | None = None,
    blocks: Sequence[Sequence[int]] = (),
) -> Recovered:
    """Records that, trained on, give every node of the forest the counts that it states.

    `records` is the size of the training set. Nothing else is known, unless `blocks` names columns that encode a word:
    every record has a 1 in one of them. Where several tables give the very same forest, the likeliest is taken if there
    are `public` records and labels to judge by, and otherwise any.
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
    few("columns", forest.n_features_in_, MOST_COLUMNS, "fewer columns; what is not solved is not protected")
    cp = extra("ortools.sat.python.cp_model", "forests", "OR-Tools, an exact solver")
    search = _Search(
        partial(Tables, cp, forest, records, blocks), forest, time.monotonic() + seconds, workers, seed
    )
    return search.found(public)


@dataclass(frozen=True)
class _Common:
    """How many records of each kind all tables have that were found, and one of these tables."""

    common: np.ndarray
    other: np.ndarray | None
    finished: bool  # whether there is no further table that lacks one of them

    @property
    def proven(self) -> np.ndarray:
        """What every table has, found or not."""
        return self.common if self.finished else np.zeros_like(self.common)


@dataclass
class _Search:
    """A table that gives a forest, and what all such tables have in common."""

    tables: Callable[[], Tables]
    forest: Any
    ends: float
    workers: int
    seed: int

    def found(self, public: tuple[np.ndarray, np.ndarray] | None) -> Recovered:
        """The table, with what is proven about it."""
        tables, exact = self.tables(), draws_are_known(self.forest)
        if public is not None:
            tables.prefer(*public)
        numbers, explained = self._next(tables, self.ends, exact=exact)
        if numbers is None:
            nothing = np.zeros((tables.records, int(self.forest.n_features_in_)), int)
            return Recovered(nothing, np.full(tables.records, self.forest.classes_[0]), solved=False)
        features, labels = tables.table(numbers)
        again = trees_given_again(self.forest, features, labels)
        half = (self.ends + time.monotonic()) / 2
        every = self._common(self.tables(), numbers, half, exact=False)
        proven, shared, second = every.proven, None, None
        # What training rejected is asked for as it is understood here: where training does otherwise, it is not.
        if explained and again == len(trees_of(self.forest)):
            every = self._common(tables, numbers, self.ends, exact=True)
            proven = np.maximum(proven, every.proven)
            shared = int(every.common.sum()) if every.finished or every.other is not None else None
            second = None if every.other is None else tables.table(every.other)
        return Recovered(features, labels, True, again, tables.marked(numbers, proven), shared, second)

    def _common(self, tables: Tables, numbers: np.ndarray, ends: float, *, exact: bool) -> _Common:
        """What all tables have in common: each new one must lack something of what the others share."""
        common, first = tables.by_kind(numbers), None
        tables.model.clear_objective()
        while common.any():
            tables.miss_one_of(common)
            other, explained = self._next(tables, ends, exact=exact)
            if tables.exhausted or other is None or explained != exact:
                break
            if exact and trees_given_again(self.forest, *tables.table(other)) < len(trees_of(self.forest)):
                return _Common(common, first, finished=False)
            first = other if first is None else first
            common = np.minimum(common, tables.by_kind(other))
        return _Common(common, first, finished=tables.exhausted)

    def _next(self, tables: Tables, ends: float, *, exact: bool) -> tuple[np.ndarray | None, bool]:
        """A table, and where that is `exact`, whether training on it gives the forest; None where none is found."""
        found = None
        while (left := ends - time.monotonic()) > 0:
            numbers = tables.solve(left, self.workers, self.seed)
            if numbers is None:
                break
            found = numbers
            if not exact or not tables.ask(numbers):
                return numbers, exact
        return found, False


def splits_bits(structure: Any) -> bool:
    """Whether every split of a tree is one of 0 and 1."""
    inner = structure.children_left != -1
    return bool((np.abs(structure.threshold[inner] - 0.5) < 1e-6).all())
