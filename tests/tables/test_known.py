"""What the adversary knows: no other row, some columns of the missing one.

What a guess achieves with that alone is compared with counts by hand.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from patients import patients, prepared
from sklearn import linear_model as linear
from sklearn import neighbors, preprocessing
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline

from remanence import Criterion, InputError, Policy, Records, audit, mismatch
from remanence.tables.attacks import StoredInObject, WholeObject
from remanence.tables.game import guesses_from_others
from remanence.tables.sklearn import table_game, with_known

EXACT = Criterion(mismatch, threshold=0.5)
TENTHS = [float(i % 10 == 0) for i in range(5000)]


@pytest.mark.parametrize(
    ("values", "labels", "criterion", "value"),
    [
        # Of five 1s and three 0s: whoever misses a 1 sees four 1s and guesses right, whoever misses a 0 guesses wrong.
        ([1.0] * 5 + [0.0] * 3, None, EXACT, 5 / 8),
        ([float(i) for i in range(20)], None, EXACT, 0),
        ([1.0] * 6, [0, 1, 0, 1, 0, 1], EXACT, 1),
        # The others hold more of the other label, so that the commonest is always wrong. The nearest to the mean is the
        # first of them, which has the label 0: right for two more.
        ([1.0] * 6, [0, 1, 0, 1, 0, 1], Criterion(mismatch, 0.5, label_scale=1.0), 2 / 6),
        (
            TENTHS,
            None,
            EXACT,
            pytest.approx(0.9, abs=0.03),
        ),  # 2 standard deviations of the 500 that are drawn
    ],
    ids=["commonest", "all different", "without labels", "with labels", "a sample"],
)
def test_the_best_guess_from_the_others_is_counted(values, labels, criterion, value):
    table = torch.tensor(values, dtype=torch.float64)[:, None]
    data = Records(table, torch.zeros(len(table)) if labels is None else torch.tensor(labels))
    (found,) = guesses_from_others(data, [criterion])
    assert found.value == found.lower == value


def test_words_alone_are_mostly_guessed_and_said_to_be():
    frame, labels = patients(200)
    frame = frame[["sex"]].assign(smoker=np.arange(200) % 6 == 0)
    model = make_pipeline(preprocessing.OneHotEncoder(), linear.LogisticRegression()).fit(frame, labels)
    found = audit(table_game(model, frame, labels), policy=Policy(0.6)).strongest
    both = frame.value_counts(normalize=True)
    assert found.baseline.value == pytest.approx(both.max(), abs=0.01)
    assert found.baseline.value > 0.3


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
    game = with_known(table_game(model, table, labels), columns=["x0", "x1"])
    assert [part.name for part in game.criterion.error.parts] == ["x2", "x3", "label"]
    assert "of the missing one x0, x1" in " ".join(game.knowledge.describe())
    found = audit(
        game, [WholeObject()], policy=Policy(0.9)
    ).strongest  # checked without the row in sight, too
    assert found.main.trials == len(frame)
    with pytest.raises(InputError, match="nothing left"):
        with_known(game, columns=["x0", "x1", "x2", "x3"])


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
