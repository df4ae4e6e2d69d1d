"""What needs no solver: which forests are solved, and what is said where the solver is missing."""

import sys

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from remanence.attacks.tables.forests import Recovered, records_of_forest
from remanence.exceptions import InputError

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


def test_records_are_matched_whatever_their_order():
    order = np.random.default_rng(1).permutation(30)
    found = Recovered(TABLE[order], LABELS[order], solved=True)
    assert (found.matched(TABLE, LABELS) == 0).all()
    wrong = TABLE[order].copy()
    wrong[0, 0] ^= 1
    assert Recovered(wrong, LABELS[order], solved=True).matched(TABLE, LABELS).sum() >= 1
