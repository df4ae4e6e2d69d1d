"""Rows out of fitted objects: in original units and words, from clues that the row itself has no part in."""

import numpy as np
import pytest
import torch
from patients import parts, patients, prepared, recovered
from sklearn import discriminant_analysis, ensemble, naive_bayes, neighbors, preprocessing, svm, tree
from sklearn import linear_model as linear
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

from remanence import RetrainAndCompare, audit, play
from remanence.tables.attacks import (
    PipelineEquations,
    PublishedStatistics,
    StoredInObject,
    TreeLeaves,
    WholeObject,
)
from remanence.tables.caveats import DUPLICATE_RECORDS, PART_NOT_CONFIRMED
from remanence.tables.parts import Part
from remanence.tables.sklearn import shortlist_game, table_game
from remanence.tables.trees import read_nodes

X, Y = load_breast_cancer(return_X_y=True)


def columns_found(evidence):
    """The share of rows of which each column came back, but for the label."""
    return {part.name: part.main.rate for part in parts(evidence) if part.name != "label"}


def test_a_pipeline_with_words_and_gaps_gives_every_row_in_original_words():
    frame, labels = patients()
    model = prepared(linear.LogisticRegression()).fit(frame, labels)  # the default tolerance
    game = table_game(model, frame, labels)
    table, names = recovered(game)
    assert (table["sex"] == frame["sex"]).all()
    assert (table["region"] == frame["region"]).all()
    assert (table["age"] == frame["age"]).all()
    assert np.allclose(table["income"], frame["income"], rtol=1e-9)
    assert np.allclose(table["bmi"], frame["bmi"], rtol=1e-9, equal_nan=True)
    assert (names == labels).all()
    evidence = play(game, WholeObject())
    assert evidence.main.rate == 1
    assert evidence.control.rate == 0


BLIND = [  # besides those of tests/test_contracts.py
    (StoredInObject(), make_pipeline(preprocessing.StandardScaler(), svm.SVC())),
    (
        StoredInObject(),
        make_pipeline(preprocessing.QuantileTransformer(n_quantiles=120), linear.RidgeClassifier()),
    ),
    (PublishedStatistics(), discriminant_analysis.LinearDiscriminantAnalysis()),
    (PublishedStatistics(), neighbors.NearestCentroid()),
    (TreeLeaves(), ensemble.ExtraTreesClassifier(4, random_state=0)),
]


@pytest.mark.parametrize(("attack", "model"), BLIND, ids=lambda v: repr(v)[:40])
def test_no_row_has_a_part_in_its_own_reconstruction(attack, model):
    features, labels = X[:120, :4], Y[:120]
    game = table_game(model.fit(features, labels), features, labels)
    everyone = attack.expose(game.mechanism, game.data, game.release).records.flat[:, 0]
    for row in range(0, len(game.data), 30):
        changed = torch.arange(len(game.data))
        changed[row] = (row + 1) % len(game.data)
        blind = attack.expose(game.mechanism, game.data[changed], game.release).records.flat[row, 0]
        assert torch.allclose(everyone[row], blind, rtol=1e-9, equal_nan=True)
    assert not everyone.isnan().all()


def test_counts_of_words_give_every_record():
    frame, labels = patients(200)
    codes = preprocessing.OrdinalEncoder().fit_transform(frame[["sex", "region"]])
    game = table_game(naive_bayes.MultinomialNB().fit(codes, labels), codes, labels)
    assert play(game, PublishedStatistics()).main.rate == 1


def test_thresholds_of_trees_lie_halfway_between_two_rows_and_random_ones_tell_a_box():
    """The value that a threshold tells is the row's own, in single precision."""
    part = Part("model", ensemble.RandomForestClassifier(20, random_state=0).fit(X, Y), X, Y)
    low, high, exact, _ = read_nodes(part)
    told = ~np.isnan(exact)
    assert told.mean() > 0.03
    assert np.allclose(exact[told], X[told], rtol=1e-6)
    single = X.astype(np.float32)
    assert (low < single).all()
    assert (single <= high).all()
    part = Part("model", ensemble.ExtraTreesClassifier(5, random_state=0).fit(X, Y), X, Y)
    low, high, exact, _ = read_nodes(part)
    assert np.isnan(exact).all()
    assert np.isfinite(high - low).any()


def test_labels_follow_from_the_leaves_of_forests_and_of_regression_trees():
    for model, labels in (
        (ensemble.RandomForestClassifier(10, random_state=0), Y),
        (tree.DecisionTreeRegressor(random_state=0), X[:, 0] * 3),
    ):
        game = table_game(model.fit(X[:, 1:5], labels), X[:, 1:5], labels)
        guess = TreeLeaves().expose(game.mechanism, game.data, game.release).records.labels[:, 0]
        assert torch.allclose(guess, game.data.labels, rtol=1e-6)


def test_histogram_boosting_stores_halfway_points_between_all_values():
    model = ensemble.HistGradientBoostingClassifier(max_iter=2).fit(X[:200, :6], Y[:200])
    game = table_game(model, X[:200, :6], Y[:200])
    evidence = play(game, StoredInObject())
    single = {
        f"x{i}": (np.unique(c, return_counts=True)[1] == 1).sum() / 200 for i, c in enumerate(X[:200, :6].T)
    }
    assert columns_found(evidence) == pytest.approx(single)


def test_histogram_boosting_stores_numbers_that_stand_beside_words():
    frame, labels = patients(80)
    frame = frame[["sex", "income"]].astype({"sex": "category"})
    model = ensemble.HistGradientBoostingClassifier(max_iter=2).fit(frame, labels)
    found = columns_found(play(table_game(model, frame, labels), StoredInObject()))
    assert found["income"] > 0.9
    assert found["sex"] == 0


def test_selected_features_come_back_and_the_others_are_not_claimed():
    model = make_pipeline(
        SelectKBest(k=3), linear.LogisticRegression(solver="newton-cholesky", tol=1e-12)
    ).fit(X, Y)
    found = columns_found(play(table_game(model, X, Y), WholeObject()))
    chosen = {f"x{i}" for i in np.flatnonzero(model[0].get_support())}
    assert all((rate > 0.9) if name in chosen else (rate == 0) for name, rate in found.items())


def test_a_mean_imputer_tells_values_and_gaps_by_itself():
    frame, labels = patients()
    numbers = frame[["bmi", "age"]]
    model = make_pipeline(SimpleImputer(), ensemble.HistGradientBoostingClassifier(max_iter=1)).fit(
        numbers, labels
    )
    table, _ = recovered(table_game(model, numbers, labels), PublishedStatistics())
    assert np.allclose(table["bmi"], numbers["bmi"], equal_nan=True)


def test_words_come_back_from_behind_their_codes():
    frame, labels = patients()
    frame = frame.drop(columns="bmi")
    columns = [("words", preprocessing.OrdinalEncoder(), ["sex", "region"])]
    coder = ColumnTransformer(columns, remainder=preprocessing.StandardScaler())
    game = table_game(make_pipeline(coder, linear.LogisticRegression()).fit(frame, labels), frame, labels)
    table, _ = recovered(game)
    assert (table[["sex", "region"]] == frame[["sex", "region"]]).all(axis=None)


@pytest.mark.parametrize("strategy", ["mean", "most_frequent", "constant"])
def test_gaps_come_back_as_gaps_whatever_they_were_filled_with(strategy):
    frame, labels = patients()
    model = prepared(linear.LogisticRegression(tol=1e-10), SimpleImputer(strategy=strategy))
    game = table_game(model.fit(frame, labels), frame, labels)
    table, _ = recovered(game)
    assert table["bmi"].isna()[frame["bmi"].isna()].all()


@pytest.mark.parametrize("kind", [neighbors.KNeighborsClassifier, svm.SVC])
def test_rows_that_were_cast_to_single_precision_are_found_in_the_table_itself(kind):
    single, double = (
        play(table_game(kind().fit(table, Y), X, Y), StoredInObject()).main
        for table in (X.astype(np.float32), X)
    )
    assert single.rate == double.rate > 0.1


def test_twins_are_counted_and_said():
    frame, labels = patients()
    frame, labels = (
        frame.iloc[[0, 0, *range(len(frame))]].reset_index(drop=True),
        np.r_[labels[:1], labels[:1], labels],
    )
    result = audit(table_game(prepared(linear.LogisticRegression()).fit(frame, labels), frame, labels))
    said = next(c for c in result.strongest.caveats if c.id == DUPLICATE_RECORDS.id)
    assert said.seen == "2 of the 122 records equal an earlier one."


def test_a_part_that_draws_at_random_is_left_alone_and_named():
    model = make_pipeline(preprocessing.StandardScaler(), linear.SGDClassifier()).fit(X, Y)
    game = table_game(model, X, Y)
    assert {path for path, _ in game.mechanism.fitting.plans} == {"model.standardscaler"}
    assert PART_NOT_CONFIRMED in game.caveats()


def test_a_default_tolerance_is_no_defence_against_training_again():
    features, labels = preprocessing.StandardScaler().fit_transform(X[:, :6]), Y
    model = linear.LogisticRegression().fit(features, labels)
    solved = play(table_game(model, features, labels), PipelineEquations())
    assert solved.main.rate < 0.5  # the equations hold too loosely
    evidence = play(shortlist_game(model, features, labels, candidates=5), RetrainAndCompare(), trials=10)
    assert evidence.main.rate == 1
    assert evidence.baseline.value == 0.2
