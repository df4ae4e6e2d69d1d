"""A public table as what the adversary believes: guesses come from it."""

from dataclasses import replace

import pytest
import torch
from patients import patients, prepared
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from remanence import Criterion, InputError, Records, audit, mismatch
from remanence.tables.attacks import WholeObject
from remanence.tables.guesses import guesses_from_others
from remanence.tables.sklearn import table_game, with_known, with_public


def test_the_commonest_public_record_is_guessed():
    # Five who all differ tell nothing about each other, but the public table has mostly 3s.
    each = Records(torch.tensor([[0.0], [1.0], [3.0], [20.0], [40.0]]), torch.zeros(5))
    public = Records(torch.tensor([[3.0]] * 4 + [[9.0]]), torch.full((5,), torch.nan))
    exact = Criterion(mismatch, threshold=0.5)
    assert guesses_from_others(each, [exact])[0].value == 0
    (found,) = guesses_from_others(each, [exact], public=public)
    assert found.value == 1 / 5
    assert "public" in found.note


def test_the_public_record_nearest_in_what_is_given_is_guessed():
    frame, labels = patients(60)
    frame = frame[["age", "income"]]
    model = make_pipeline(StandardScaler(), DummyClassifier()).fit(frame, labels)
    game = table_game(model, frame, labels)
    known = with_known(game, columns=["income"])
    assert known.baseline().value < 0.1
    assert with_known(with_public(game, frame), columns=["income"]).baseline().value > 0.9


def test_rows_that_were_trained_on_are_said_to_be_in_the_public_table():
    frame, labels = patients(60)
    game = table_game(prepared(LogisticRegression()).fit(frame[:30], labels[:30]), frame[:30], labels[:30])
    for people, expected in ((frame[20:50], True), (frame[30:], False)):
        caveats = {caveat.id for caveat in with_public(game, people.reset_index(drop=True)).caveats()}
        assert ("targets-known" in caveats) is expected


def test_what_is_believed_is_said_and_stored():
    frame, labels = patients(60)
    others, _ = patients(80, seed=1)
    game = table_game(prepared(DummyClassifier()).fit(frame, labels), frame, labels)
    known = with_public(game, others.assign(region=["west", *others["region"][1:]]))
    assert "79 rows of a public table" in known.knowledge.describe()  # nobody here is from the west
    result = audit(known, [WholeObject()], trials=5)
    assert "79 rows of a public table" in result.threat_model["knows"]
    assert result.subject["sha256"].keys() == {"data", "prior", "release"}
    assert replace(known, prior=game.prior).fingerprints()["data"] == known.fingerprints()["data"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "sex"}, "missing: sex"),
        ({"age": "old"}, "No row of the public table"),
        ({"region": "west"}, "No row of the public table"),
    ],
)
def test_a_public_table_that_cannot_be_used_is_refused(change, message):
    frame, labels = patients(60)
    game = table_game(prepared(LogisticRegression()).fit(frame, labels), frame, labels)
    public = frame.drop(columns=change["drop"]) if "drop" in change else frame.assign(**change)
    with pytest.raises(InputError, match=message):
        with_public(game, public)
