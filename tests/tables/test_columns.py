"""A row need not come back whole: single columns, rows that the object holds, and what the adversary knows beforehand.

What a guess achieves with that alone is compared with counts by hand.
"""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from patients import game_of, parts, patients, prepared
from sklearn import ensemble, neighbors, preprocessing, svm
from sklearn import linear_model as linear
from sklearn.datasets import load_breast_cancer
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline

from remanence import Criterion, InputError, Policy, Records, audit, mismatch
from remanence.auditing import AuditResult
from remanence.core.exceptions import UnreadableAuditError
from remanence.core.rates import SuccessRate
from remanence.report import words
from remanence.results.findings import Words
from remanence.results.verdict import Verdict
from remanence.tables.attacks import PublishedStatistics, StoredInObject, WholeObject
from remanence.tables.game import guesses_from_others
from remanence.tables.single_columns import Columns, PartRate, part_rates
from remanence.tables.sklearn import with_known

X, Y = load_breast_cancer(return_X_y=True)
FRAME, LABELS = patients()
NONE = SuccessRate(0, 40)


@pytest.fixture(scope="module")
def scaler_alone():
    """A pipeline whose model says how many are ill; the scaler in front gives every number of every row."""
    return audit(game_of(prepared(DummyClassifier()), FRAME, LABELS), [PublishedStatistics()])


def test_each_of_five_columns_has_a_fifth_of_the_doubt():
    errors = {f"{which}column {name}": torch.zeros(40) for which in ("", "control ") for name in "abcde"}
    errors["control column a"] = torch.tensor([0.0] * 3 + [9.0] * 37)
    found = part_rates(errors, dict.fromkeys("abcde", 0.25), 0.5, confidence=0.95)
    assert found[0] == PartRate("a", SuccessRate(40, 40, 0.99), SuccessRate(3, 40, 0.99), 0.25)
    assert found[0].main.lower == pytest.approx(0.005 ** (1 / 40))  # all of 40, in one of 200 cases by chance
    assert [part.control.successes for part in found] == [3, 40, 40, 40, 40]


@pytest.mark.parametrize(("control", "guess", "tells"), [(0, 0.1, True), (900, 0.1, False), (0, 0.9, False)])
def test_a_column_tells_something_above_its_control_and_above_a_guess(control, guess, tells):
    found = Columns((PartRate("age", SuccessRate(900, 1000), SuccessRate(control, 1000), guess),))
    assert found.tells is found.exposes(Policy(0.1)) is tells


@pytest.mark.parametrize(
    ("more", "said"), [(0, ""), (1, " So did one more."), (2, " 2 more columns came back, too.")]
)
def test_the_surest_column_is_the_headline(more, said):
    others = [PartRate(str(n), SuccessRate(30, 40), NONE, 0.1) for n in range(more)]
    surest = PartRate("age", SuccessRate(40, 40), NONE, 0.25)
    assert Columns((*others, surest, PartRate("sex", NONE, NONE, 0.5))).headline(Words(many="records")) == (
        f"The column age came back in 40 of 40 records; a guess finds it 250 times in 1000.{said}"
    )


def test_a_scaler_exposes_columns_though_no_row_comes_back(scaler_alone):
    evidence = scaler_alone.strongest
    assert evidence.main.successes == 0
    # Half of the doubt is for whole rows, and six columns share the other.
    doubts = [1 - rate.confidence for rate in (evidence.main, *(part.main for part in parts(evidence)))]
    assert doubts == pytest.approx([0.025] + [0.025 / 6] * 6)
    telling = {part.name: part for part in parts(evidence) if part.tells}
    assert telling.keys() == {"age", "income", "bmi", "label"}
    assert all(part.main.rate == 1 and part.control.rate < 0.5 for part in telling.values())
    assert scaler_alone.verdict is Verdict.EXPOSED
    assert "limit" in words.found(scaler_alone)
    assert "in 120 of 120" in scaler_alone.reason.headline(scaler_alone.words)
    assert not {"no-better-than-control", "no-better-than-guessing"} & {c.id for c in evidence.caveats}
    missed = {part.name: part for part in parts(evidence) if not part.tells}
    assert [part.main.rate for part in missed.values()] == [0, 0]  # words that nothing holds
    assert 0.4 < missed["sex"].guess < 0.7


def test_a_column_that_a_guess_finds_too_exposes_nothing():
    frame = FRAME.assign(member=True)[["member", "sex"]]  # everybody is: a guess is always right
    table = preprocessing.OneHotEncoder(sparse_output=False).fit_transform(frame)
    game = game_of(make_pipeline(preprocessing.StandardScaler(), DummyClassifier()), table, LABELS)
    found = parts(audit(game, [PublishedStatistics()], policy=Policy(0.99)).strongest)
    assert found[0].main.rate == found[0].guess == 1
    assert not found[0].tells


def test_columns_are_stored_counted_again_and_believed_only_so(scaler_alone, tmp_path):
    path = scaler_alone.save(tmp_path)
    assert parts(AuditResult.load(path).strongest) == parts(scaler_alone.strongest)
    document = json.loads(path.read_text())
    document["evidence"][0]["findings"][0]["columns"][0]["main"]["successes"] -= 1
    path.write_text(json.dumps(document))
    with pytest.raises(UnreadableAuditError, match="age, main"):
        AuditResult.load(path)


def test_one_row_that_the_object_holds_is_a_fact():
    model = svm.OneClassSVM(nu=0.02)  # a few support vectors, far below the limit of one in ten
    result = audit(game_of(model, X[:200, :6]), [StoredInObject()])
    assert 0 < result.strongest.proven == len(model.support_vectors_) < 20
    assert result.strongest.main.lower < result.policy.max_success
    assert result.verdict is Verdict.EXPOSED
    assert "the model holds them as they are" in result.reason.headline(result.words)


def test_rows_in_members_that_saw_some_of_the_table_are_told_by_their_own_numbers():
    some = {"n_estimators": 2, "max_samples": 0.3, "random_state": 0}
    model = ensemble.BaggingClassifier(neighbors.KNeighborsClassifier(), **some)
    game = game_of(model, X[:60, :4], Y[:60])
    held = game.mechanism.held_rows(game.data).nonzero()[:, 0].tolist()
    assert held == np.unique(np.concatenate(model.estimators_samples_)).tolist()


def test_stacked_models_are_opened():
    members = [("first", prepared(linear.LogisticRegression())), ("second", prepared(DummyClassifier()))]
    game = game_of(ensemble.StackingClassifier(members, cv=3), FRAME, LABELS)
    found = audit(game, [WholeObject()]).strongest
    assert {"age", "income", "sex", "region"} <= {part.name for part in parts(found) if part.tells}


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
        # Of a sample of 500, within 2 standard deviations.
        (TENTHS, None, EXACT, pytest.approx(0.9, abs=0.03)),
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
    model = make_pipeline(preprocessing.OneHotEncoder(), linear.LogisticRegression())
    found = audit(game_of(model, frame, labels), policy=Policy(0.6)).strongest
    assert 0.3 < found.baseline.value == pytest.approx(frame.value_counts(normalize=True).max(), abs=0.01)


def test_rows_in_the_object_need_no_knowledge():
    game = game_of(prepared(neighbors.KNeighborsClassifier()), FRAME, LABELS)
    result = audit(with_known(game, others=False), [StoredInObject()])
    assert result.threat_model["adversary"] == "weak"
    full = FRAME["bmi"].notna().sum()  # whether a filled value was a gap is told by the others alone
    assert result.strongest.main.successes == result.strongest.proven == full


def test_known_columns_are_not_asked_for_and_help_to_find_the_others():
    numbers = preprocessing.MinMaxScaler().fit_transform(FRAME[["age", "income"]])
    table = np.hstack([numbers, pd.get_dummies(FRAME["sex"]).to_numpy(float)])
    game = with_known(game_of(linear.LogisticRegression(), table, LABELS), columns=["x0", "x1"])
    assert [part.name for part in game.criterion.error.parts] == ["x2", "x3", "label"]
    assert "of the missing one x0, x1" in " ".join(game.knowledge.describe())
    found = audit(game, [WholeObject()], policy=Policy(0.9)).strongest
    assert found.main.trials == len(table)  # checked without the row in sight, too
    with pytest.raises(InputError, match="nothing left"):
        with_known(game, columns=["x0", "x1", "x2", "x3"])


def test_a_guess_uses_what_is_given():
    frame = FRAME.assign(twin=FRAME["income"] * 2)[["income", "twin"]]
    frame, labels = pd.concat([frame, frame], ignore_index=True), np.tile(LABELS, 2)
    game = game_of(make_pipeline(preprocessing.StandardScaler(), DummyClassifier()), frame, labels)
    assert game.baseline().value < 0.1
    assert with_known(game, columns=["income"]).baseline().value == 1  # somebody else has the same income
