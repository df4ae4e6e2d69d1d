"""What the adversary knows: no other row, some columns of the missing one, totals that a design fixes."""

import numpy as np
import pandas as pd
import pytest
import torch
from patients import parts, patients, prepared
from sklearn import linear_model as linear
from sklearn import neighbors, preprocessing
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline

from remanence import audit
from remanence.core.exceptions import InputError
from remanence.results.verdict import Policy
from remanence.tables.attacks import PublishedStatistics, StoredInObject, WholeObject
from remanence.tables.sklearn import table_game, with_fixed_totals, with_known


def rates(result):
    return {part.name: part for part in parts(result.strongest)}


def test_rows_in_the_object_need_no_knowledge():
    frame, labels = patients()
    model = prepared(neighbors.KNeighborsClassifier()).fit(frame, labels)
    result = audit(with_known(table_game(model, frame, labels), others=False), [StoredInObject()])
    assert result.threat_model["adversary"] == "weak"
    full = frame["bmi"].notna().sum()  # whether a filled value was a gap is told by the others alone
    assert result.strongest.main.successes == result.strongest.proven == full


def test_means_need_the_other_rows():
    frame, labels = patients()
    model = prepared(DummyClassifier()).fit(frame, labels)
    with pytest.raises(InputError, match="without the other rows"):
        with_known(table_game(model, frame, labels), others=False)


def test_known_columns_are_not_asked_for_and_help_to_find_the_others():
    frame, labels = patients()
    frame = frame.drop(columns="bmi")
    scaled = preprocessing.MinMaxScaler().fit(frame[["age", "income"]])
    table = np.hstack(
        [scaled.transform(frame[["age", "income"]]), pd.get_dummies(frame["sex"]).to_numpy(float)]
    )
    model = linear.LogisticRegression().fit(table, labels)
    game = with_known(table_game(model, table, labels), columns=["column 0", "column 1"])
    assert [part.name for part in game.criterion.error.parts] == ["column 2", "column 3", "label"]
    assert "of the missing one column 0, column 1" in " ".join(game.knowledge.describe())
    found = audit(
        game, [WholeObject()], policy=Policy(0.9)
    ).strongest  # checked without the row in sight, too
    assert found.main.trials == len(frame)
    with pytest.raises(InputError, match="nothing left"):
        with_known(game, columns=["column 0", "column 1", "column 2", "column 3"])


def test_a_guess_uses_what_is_given():
    frame, labels = patients()
    frame = frame.assign(twin=frame["income"] * 2)[["income", "twin"]]
    frame = pd.concat([frame, frame], ignore_index=True)
    labels = np.concatenate([labels, labels])
    game = table_game(
        make_pipeline(preprocessing.StandardScaler(), DummyClassifier()).fit(frame, labels), frame, labels
    )
    assert game.baseline().value < 0.1
    assert with_known(game, columns=["income"]).baseline().value == 1  # somebody else has the same income


def test_totals_that_a_design_fixes_are_no_leak():
    frame, labels = patients()
    model = prepared(DummyClassifier()).fit(frame, labels)
    game = with_fixed_totals(table_game(model, frame, labels), ["age"])
    assert torch.isnan(game.totals).sum() == len(game.totals) - 1
    found = rates(audit(game, [PublishedStatistics()]))
    assert found["age"].main.rate == found["age"].guess == 1
    assert not found["age"].tells
    assert found["income"].tells
