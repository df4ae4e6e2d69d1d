"""What needs no solver: which forests are solved, and what is said where the solver is missing."""

import sys

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from remanence.core.exceptions import InputError
from remanence.tables.forest_draws import class_counts_of, gain, trees_given_again, visits
from remanence.tables.forests import Recovered, records_of_forest
from remanence.tables.trees import drawn_rows

DRAW = np.random.default_rng(0)
TABLE, LABELS = DRAW.integers(0, 2, (30, 4)), DRAW.integers(0, 2, 30)


def test_the_solver_is_an_extra_that_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    forest = RandomForestClassifier(3, random_state=0).fit(TABLE, LABELS)
    with pytest.raises(InputError, match=r"remanence\[forests\]"):
        records_of_forest(forest, 30)


def test_numbers_that_are_not_bits_are_refused():
    forest = RandomForestClassifier(3, random_state=0).fit(TABLE * 5.0, LABELS)
    with pytest.raises(InputError, match="columns of 0 and 1"):
        records_of_forest(forest, 30)


def test_too_many_columns_are_refused():
    wide = DRAW.integers(0, 2, (30, 22))
    forest = RandomForestClassifier(3, random_state=0).fit(wide, LABELS)
    with pytest.raises(InputError, match="at most 21"):
        records_of_forest(forest, 30)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_the_seeds_tell_which_splits_every_node_considered(bootstrap):
    table, labels = DRAW.integers(0, 2, (60, 8)), DRAW.integers(0, 2, 60)
    table[30:40], labels[30:40] = (
        table[30],
        np.arange(10) % 2,
    )  # twins with other labels: a leaf that is not pure
    forest = RandomForestClassifier(5, bootstrap=bootstrap, random_state=3).fit(table, labels)
    for tree in forest.estimators_:
        times = drawn_rows(forest, tree, 60) if bootstrap else np.ones(60, int)
        inside = tree.tree_.decision_path(table.astype(np.float32)).toarray() * times[:, None]
        right = [(inside * (labels == c)[:, None]).T @ table for c in (0, 1)]
        varies = [
            [len(set(table[inside[:, n] > 0, c])) > 1 for c in range(8)] for n in range(inside.shape[1])
        ]
        counts, best, searched = class_counts_of(tree.tree_), (-np.inf, -2), set()
        for visit in visits(tree, lambda node, column, varies=varies: not varies[node][column]):
            if visit.column >= 0 and not visit.constant:
                ones = np.array([each[visit.node, visit.column] for each in right])
                best = max(best, (gain(ones, counts[visit.node]), visit.column), key=lambda each: each[0])
            elif visit.column < 0:
                assert best[1] == tree.tree_.feature[visit.node]
                best, searched = (-np.inf, -2), searched | {visit.node}
        assert set(np.flatnonzero(tree.tree_.children_left != -1)) <= searched


def test_trees_come_out_again_on_their_own_records_alone():
    forest = RandomForestClassifier(6, bootstrap=True, random_state=0).fit(TABLE, LABELS)
    assert trees_given_again(forest, TABLE, LABELS) == 6
    changed = TABLE.copy()
    changed[:10, 0] ^= 1
    assert trees_given_again(forest, changed, LABELS) < 6


def test_records_are_matched_whatever_their_order():
    order = np.random.default_rng(1).permutation(30)
    found = Recovered(TABLE[order], LABELS[order], solved=True)
    assert (found.matched(TABLE, LABELS) == 0).all()
    wrong = TABLE[order].copy()
    wrong[0, 0] ^= 1
    assert Recovered(wrong, LABELS[order], solved=True).matched(TABLE, LABELS).sum() >= 1
