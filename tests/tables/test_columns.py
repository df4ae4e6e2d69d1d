"""A row need not come back whole: single columns, and rows that the object holds, decide by themselves."""

import json

import numpy as np
import pytest
import torch
from patients import parts, patients, prepared
from sklearn import ensemble, neighbors, preprocessing, svm
from sklearn import linear_model as linear
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline

from remanence import audit
from remanence.auditing import AuditResult
from remanence.core.exceptions import UnreadableAuditError
from remanence.core.rates import SuccessRate
from remanence.report import words
from remanence.results.findings import Words
from remanence.results.verdict import Policy, Verdict
from remanence.tables.attacks import PublishedStatistics, StoredInObject, WholeObject
from remanence.tables.single_columns import Columns, PartRate, part_rates
from remanence.tables.sklearn import table_game

X, Y = load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def scaler_alone():
    """A pipeline whose model says how many are ill; the scaler in front gives every number of every row."""
    frame, labels = patients()
    game = table_game(prepared(DummyClassifier()).fit(frame, labels), frame, labels)
    return audit(game, [PublishedStatistics()])


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
    none = SuccessRate(0, 40)
    others = [PartRate(str(n), SuccessRate(30, 40), none, 0.1) for n in range(more)]
    found = Columns(
        (*others, PartRate("age", SuccessRate(40, 40), none, 0.25), PartRate("sex", none, none, 0.5))
    )
    assert found.headline(Words(many="records")) == (
        f"The column age came back in 40 of 40 records; a guess finds it 250 times in 1000.{said}"
    )


def test_a_scaler_exposes_columns_though_no_row_comes_back(scaler_alone):
    evidence = scaler_alone.strongest
    assert evidence.main.successes == 0
    assert evidence.main.confidence == pytest.approx(
        0.975
    )  # half of the doubt, and six columns share the other
    assert [part.main.confidence for part in parts(evidence)] == pytest.approx([1 - 0.025 / 6] * 6)
    telling = [part for part in parts(evidence) if part.tells]
    assert {p.name for p in telling} == {"age", "income", "bmi", "label"}
    assert all(p.main.rate == 1 and p.control.rate < 0.5 for p in telling)
    assert scaler_alone.verdict is Verdict.EXPOSED
    said = words.found(scaler_alone)
    assert "limit" in said
    assert "in 120 of 120" in scaler_alone.reason.headline(scaler_alone.words)
    assert not {"no-better-than-control", "no-better-than-guessing"} & {c.id for c in evidence.caveats}


def test_words_that_nothing_holds_are_not_claimed(scaler_alone):
    rates = {p.name: p for p in parts(scaler_alone.strongest)}
    assert rates["sex"].main.rate == rates["region"].main.rate == 0
    assert 0.4 < rates["sex"].guess < 0.7


def test_a_column_that_a_guess_finds_too_exposes_nothing():
    frame, labels = patients()
    frame = frame.assign(member=True)[["member", "sex"]]  # everybody is: a guess is always right
    table = preprocessing.OneHotEncoder(sparse_output=False).fit_transform(frame)
    game = table_game(
        make_pipeline(preprocessing.StandardScaler(), DummyClassifier()).fit(table, labels), table, labels
    )
    found = parts(audit(game, [PublishedStatistics()], policy=Policy(0.99)).strongest)
    assert found[0].main.rate == found[0].guess == 1
    assert not found[0].tells


def test_columns_are_stored_counted_again_and_believed_only_so(scaler_alone, tmp_path):
    path = scaler_alone.save(tmp_path)
    again = AuditResult.load(path)
    assert parts(again.strongest) == parts(scaler_alone.strongest)
    document = json.loads(path.read_text())
    document["evidence"][0]["findings"][0]["columns"][0]["main"]["successes"] -= 1
    path.write_text(json.dumps(document))
    with pytest.raises(UnreadableAuditError, match="age, main"):
        AuditResult.load(path)


def test_one_row_that_the_object_holds_is_a_fact():
    features, labels = X[:200, :6], Y[:200]
    model = svm.OneClassSVM(nu=0.02).fit(features)  # a few support vectors, far below the limit of one in ten
    result = audit(table_game(model, features, labels), [StoredInObject()])
    evidence = result.strongest
    assert 0 < evidence.proven == len(model.support_vectors_) < 20
    assert evidence.main.lower < result.policy.max_success
    assert result.verdict is Verdict.EXPOSED
    assert "the model holds them as they are" in result.reason.headline(result.words)


def test_rows_in_members_that_saw_some_of_the_table_are_told_by_their_own_numbers():
    features, labels = X[:60, :4], Y[:60]
    model = ensemble.BaggingClassifier(
        neighbors.KNeighborsClassifier(), n_estimators=2, max_samples=0.3, random_state=0
    ).fit(features, labels)
    game = table_game(model, features, labels)
    held = game.mechanism.held_rows(game.data)
    assert held is not None
    assert set(held.nonzero()[:, 0].tolist()) == set(np.unique(np.concatenate(model.estimators_samples_)))


def test_a_truth_that_passes_through_comes_back():
    frame, labels = patients()
    frame["smoker"] = frame["age"] % 3 == 0
    columns = ColumnTransformer(
        [("numbers", preprocessing.StandardScaler(), ["age"])], remainder="passthrough"
    )
    frame = frame[["age", "smoker"]]
    model = make_pipeline(columns, linear.LogisticRegression(tol=1e-9)).fit(frame, labels)
    game = table_game(model, frame, labels)
    found = WholeObject().expose(game.mechanism, game.data, game.release)
    assert (game.mechanism.table(found.records[:, 0])[0]["smoker"] == frame["smoker"]).all()


def test_stacked_models_are_opened():
    frame, labels = patients()
    members = [("first", prepared(linear.LogisticRegression())), ("second", prepared(DummyClassifier()))]
    model = ensemble.StackingClassifier(members, cv=3).fit(frame, labels)
    found = audit(table_game(model, frame, labels), [WholeObject()]).strongest
    assert {"age", "income", "sex", "region"} <= {part.name for part in parts(found) if part.tells}
