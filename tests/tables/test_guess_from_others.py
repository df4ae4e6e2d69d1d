"""What a guess achieves without the model, against counts by hand."""

import numpy as np
import pytest
import torch
from patients import patients
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from remanence import Criterion, InputError, Policy, Records, audit, mismatch
from remanence.tables.guesses import guesses_from_others
from remanence.tables.sklearn import table_game


def records(rows, labels=None):
    table = torch.tensor(rows, dtype=torch.float64)
    return Records(table, torch.zeros(len(table)) if labels is None else torch.tensor(labels))


def guess(data, criterion, totals=None):
    return guesses_from_others(data, [criterion], totals)[0]


EXACT = Criterion(mismatch, threshold=0.5)


def test_the_commonest_record_is_guessed_and_counted():
    # Of five 1s and three 0s: whoever misses a 1 sees four 1s and guesses right, whoever misses a 0 guesses wrong.
    found = guess(records([[1.0]] * 5 + [[0.0]] * 3), EXACT)
    assert found.value == found.lower == 5 / 8
    assert "commonest" in found.note


def test_records_that_all_differ_are_not_guessed():
    assert guess(records([[float(i)] for i in range(20)]), EXACT).value == 0


def test_a_label_must_be_right_where_the_criterion_asks_for_it():
    data = records([[1.0]] * 6, [0, 1, 0, 1, 0, 1])
    assert guess(data, EXACT).value == 1
    # The others hold more of the other label, so that the commonest is always wrong. The nearest to the mean is the
    # first of them, which has the label 0: right for two more.
    assert guess(data, Criterion(mismatch, 0.5, label_scale=1.0)).value == 2 / 6


def test_totals_that_a_design_fixes_tell_what_is_missing():
    draw = np.random.default_rng(0)
    data = records(draw.permutation([[1.0, 0.0]] * 8 + [[0.0, 1.0]] * 8).tolist())
    assert guess(data, EXACT).value == 0  # the others always hold one more of the other kind
    assert guess(data, EXACT, torch.tensor([8.0, 8.0, torch.nan])).value == 1
    assert guess(data, EXACT, torch.tensor([8.0, torch.nan, torch.nan])).value == 0
    with pytest.raises(InputError, match="totals do not fit"):
        guess(data, EXACT, torch.tensor([8.0]))


def test_many_records_are_guessed_from_a_sample():
    data = records((torch.arange(5000.0) % 10 == 0).double()[:, None].tolist())
    assert guess(data, EXACT).value == pytest.approx(0.9, abs=0.03)  # 2 standard deviations of 500 records


def test_words_alone_are_mostly_guessed_and_said_to_be():
    frame, labels = patients(200)
    frame = frame[["sex"]].assign(smoker=np.arange(200) % 6 == 0)
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame, labels)
    found = audit(table_game(model, frame, labels), policy=Policy(0.6)).strongest
    both = frame.value_counts(normalize=True)
    assert found.baseline.value == pytest.approx(both.max(), abs=0.01)
    assert found.baseline.value > 0.3
