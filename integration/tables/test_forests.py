"""Whole training sets out of forests, by an exact solver."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from remanence.core.exceptions import InputError
from remanence.tables.forest_draws import trees_given_again
from remanence.tables.forests import records_of_forest


def people(count, columns, seed=0):
    draw = np.random.default_rng(seed)
    table = draw.integers(0, 2, (count, columns))
    return table, (table[:, 0] ^ (draw.random(count) < 0.2)).astype(int)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_the_records_explain_every_leaf(bootstrap):
    table, labels = people(30, 6)
    forest = RandomForestClassifier(6, bootstrap=bootstrap, random_state=0).fit(table, labels)
    found = records_of_forest(forest, 30, seconds=100)
    assert found.solved
    again = RandomForestClassifier(6, bootstrap=bootstrap, random_state=0).fit(found.features, found.labels)
    for mine, tree in zip(forest.estimators_, again.estimators_, strict=True):
        counted = np.bincount(mine.apply(found.features.astype(np.float32)), minlength=mine.tree_.node_count)
        leaves = mine.tree_.children_left == -1
        if not bootstrap:
            assert (counted[leaves] == mine.tree_.n_node_samples[leaves]).all()
        assert mine.random_state == tree.random_state


def kinds(table, labels):
    return Counter(map(tuple, np.column_stack([table, labels]).tolist()))


@pytest.mark.parametrize("bootstrap", [False, True])
def test_what_every_table_has_is_proven_and_true(bootstrap):
    for seed, trees in ((0, 6), (1, 6), (2, 2)):  # of two trees, some rows are drawn by none
        table, labels = people(30, 6, seed)
        forest = RandomForestClassifier(trees, bootstrap=bootstrap, random_state=0).fit(table, labels)
        found = records_of_forest(forest, 30, seconds=60)
        assert trees_given_again(forest, found.features, found.labels) == found.reproduced == trees
        proven = kinds(found.features[found.proven], found.labels[found.proven])
        assert proven <= kinds(table, labels)
        assert proven.total() == found.shared  # what is not proven, another table has not
        if found.shared < 30:
            assert trees_given_again(forest, *found.second) == trees
            assert kinds(*found.second) != kinds(found.features, found.labels)


def test_many_trees_leave_one_set_only():
    table, labels = people(40, 6)
    forest = RandomForestClassifier(40, bootstrap=False, random_state=0).fit(table, labels)
    found = records_of_forest(forest, 40, seconds=100)
    assert (found.matched(table, labels) == 0).all()
    assert found.proven.all()
    assert found.second is None
    strangers = people(40, 6, seed=1)
    assert (found.matched(*strangers) == 0).mean() < 0.9


def test_the_likeliest_table_is_taken_where_several_give_the_forest():
    right = []
    for seed in range(6):
        table, labels = people(40, 7, seed)
        forest = RandomForestClassifier(3, bootstrap=False, random_state=0).fit(table, labels)
        found = [records_of_forest(forest, 40, public=public) for public in (None, (table, labels))]
        right.append([int((each.matched(table, labels) == 0).sum()) for each in found])
    without, public = np.array(right).T
    assert (public >= without).all()
    assert public.sum() > without.sum()


def test_the_command_solves_a_forest_from_its_file(tmp_path):
    table, labels = people(30, 5)
    frame = pd.DataFrame(table, columns=list("abcde"))
    skops.io.dump(
        RandomForestClassifier(20, bootstrap=False, random_state=0).fit(frame, labels), tmp_path / "f.skops"
    )
    frame.assign(ill=labels).to_csv(tmp_path / "t.csv", index=False)
    options = ["--data", "t.csv", "--label", "ill", "--known", "none", "--max-success", "0.6", "--out", "out"]
    command = [sys.executable, "-m", "remanence", "audit", "f.skops", *options]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    evidence = json.loads((tmp_path / "out" / "audit.json").read_text())["evidence"][0]
    assert evidence["attack"] == "forest-solver"
    assert evidence["main"]["successes"] >= evidence["proven"] >= 25 > evidence["control"]["successes"]


def test_other_trees_are_refused():
    table, labels = people(30, 3)
    with pytest.raises(InputError, match="columns of 0 and 1"):
        records_of_forest(DecisionTreeClassifier().fit(table * 7, labels), 30)
