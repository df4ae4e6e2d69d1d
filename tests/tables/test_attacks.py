"""Rows out of fitted objects, in original units and words: no column that is dropped, label that is recoded or row that
is dealt out hides what comes back, and no row has a part in its own reconstruction.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from patients import came_back, game_of, parts, patients, prepared, recovered
from sklearn import discriminant_analysis, ensemble, naive_bayes, neighbors, preprocessing, svm, tree
from sklearn import linear_model as linear
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.cross_decomposition import PLSRegression
from sklearn.datasets import load_breast_cancer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from remanence import RetrainAndCompare, audit, play
from remanence.core.exceptions import InputError
from remanence.tables.attacks import (
    PipelineEquations,
    PublishedStatistics,
    StoredInObject,
    TreeLeaves,
    WholeObject,
)
from remanence.tables.belonging import check_belongs
from remanence.tables.caveats import DUPLICATE_RECORDS
from remanence.tables.parts import Part
from remanence.tables.rows import codings
from remanence.tables.sklearn import leave_one_out, shortlist_game, table_game
from remanence.tables.trees import read_nodes
from remanence.testing import check_attack

X, Y = load_breast_cancer(return_X_y=True)
FRAME, LABELS = patients()


def columns_found(evidence):
    """The share of rows of which each column came back, but for the label."""
    return {part.name: part.main.rate for part in parts(evidence) if part.name != "label"}


def test_a_pipeline_with_words_and_gaps_gives_every_row_in_original_words():
    game = game_of(prepared(linear.LogisticRegression()), FRAME, LABELS)  # the default tolerance
    table, names = recovered(game)
    exact, measured = ["sex", "region", "age"], ["income", "bmi"]
    assert (table[exact] == FRAME[exact]).all(axis=None)
    assert np.allclose(table[measured], FRAME[measured], rtol=1e-9, equal_nan=True)
    assert (names == LABELS).all()
    evidence = play(game, WholeObject())
    assert (evidence.main.rate, evidence.control.rate) == (1, 0)


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
    game = game_of(model, X[:120, :4], Y[:120])
    check_attack(attack, game)
    assert not attack.expose(game.mechanism, game.data, game.release).records.flat.isnan().all()


def test_counts_of_words_give_every_record():
    frame, labels = patients(200)
    codes = preprocessing.OrdinalEncoder().fit_transform(frame[["sex", "region"]])
    assert play(game_of(naive_bayes.MultinomialNB(), codes, labels), PublishedStatistics()).main.rate == 1


def test_thresholds_of_trees_lie_halfway_between_two_rows_and_random_ones_tell_a_box():
    """The value that a threshold tells is the row's own, in single precision."""
    part = Part("model", ensemble.RandomForestClassifier(20, random_state=0).fit(X, Y), X, Y)
    low, high, exact, _ = read_nodes(part)
    certain, single = ~np.isnan(exact), X.astype(np.float32)
    assert certain.mean() > 0.03
    assert np.allclose(exact[certain], X[certain], rtol=1e-6)
    assert ((low < single) & (single <= high)).all()
    part = Part("model", ensemble.ExtraTreesClassifier(5, random_state=0).fit(X, Y), X, Y)
    low, high, exact, _ = read_nodes(part)
    assert np.isnan(exact).all()
    assert np.isfinite(high - low).any()


def test_labels_follow_from_the_leaves_of_forests_and_of_regression_trees():
    for model, labels in (
        (ensemble.RandomForestClassifier(10, random_state=0), Y),
        (tree.DecisionTreeRegressor(random_state=0), X[:, 0] * 3),
    ):
        game = game_of(model, X[:, 1:5], labels)
        guess = TreeLeaves().expose(game.mechanism, game.data, game.release).records.labels[:, 0]
        assert torch.allclose(guess, game.data.labels, rtol=1e-6)


def test_histogram_boosting_stores_halfway_points_between_all_values_of_a_number_but_no_word():
    frame = pd.DataFrame(X[:120, :4], columns=list("abcd")).assign(sex=FRAME["sex"].astype("category"))
    frame = frame[["a", "sex", "b", "c", "d"]]  # its own order puts the words first
    found = columns_found(
        play(game_of(ensemble.HistGradientBoostingClassifier(max_iter=2), frame, LABELS), StoredInObject())
    )
    single = {name: (frame[name].value_counts() == 1).sum() / 120 for name in "abcd"}
    assert found == pytest.approx({**single, "sex": 0})


def test_selected_features_come_back_and_the_others_are_not_claimed():
    model = make_pipeline(SelectKBest(k=3), linear.LogisticRegression(solver="newton-cholesky", tol=1e-12))
    found = columns_found(play(game_of(model, X, Y), WholeObject()))
    chosen = {f"x{i}" for i in np.flatnonzero(model[0].get_support())}
    assert all((rate > 0.9) if name in chosen else (rate == 0) for name, rate in found.items())


def test_a_mean_imputer_tells_values_and_gaps_by_itself():
    numbers = FRAME[["bmi", "age"]]
    model = make_pipeline(SimpleImputer(), ensemble.HistGradientBoostingClassifier(max_iter=1))
    table, _ = recovered(game_of(model, numbers, LABELS), PublishedStatistics())
    assert np.allclose(table["bmi"], numbers["bmi"], equal_nan=True)


def test_words_come_back_from_behind_their_codes_and_truths_that_pass_through():
    words, numbers = preprocessing.OrdinalEncoder(), preprocessing.StandardScaler()
    columns = [("words", words, ["sex", "region"]), ("numbers", numbers, ["age"])]
    model = make_pipeline(
        ColumnTransformer(columns, remainder="passthrough"), linear.LogisticRegression(tol=1e-9)
    )
    frame = FRAME[["sex", "region", "age"]].assign(smoker=FRAME["age"] % 3 == 0)
    assert (recovered(game_of(model, frame, LABELS))[0] == frame).all(axis=None)


@pytest.mark.parametrize("strategy", ["mean", "most_frequent", "constant"])
def test_gaps_come_back_as_gaps_whatever_they_were_filled_with(strategy):
    model = prepared(linear.LogisticRegression(tol=1e-10), SimpleImputer(strategy=strategy))
    table, _ = recovered(game_of(model, FRAME, LABELS))
    assert table["bmi"].isna()[FRAME["bmi"].isna()].all()


@pytest.mark.parametrize("kind", [neighbors.KNeighborsClassifier, svm.SVC])
def test_rows_that_were_cast_to_single_precision_are_found_in_the_table_itself(kind):
    table, labels = X[::3], Y[::3]
    single, double = (
        play(table_game(kind().fit(seen, labels), table, labels), StoredInObject()).main
        for seen in (table.astype(np.float32), table)
    )
    assert single.rate == double.rate > 0.1


@pytest.mark.parametrize("game", [table_game, leave_one_out])
def test_twins_are_counted_and_said_whatever_their_labels(game):
    rows = [0, 0, *range(len(FRAME))]
    frame, labels = FRAME.iloc[rows][["age", "income"]].reset_index(drop=True), LABELS[rows] == "ill"
    labels[0] = not labels[1]
    model = linear.LogisticRegression(tol=1e-10, solver="newton-cholesky").fit(frame, labels)
    caveats = audit(game(model, frame, labels)).strongest.caveats
    said = next(caveat.seen for caveat in caveats if caveat.id == DUPLICATE_RECORDS.id)
    assert said == "2 of the 122 records equal an earlier one, labels aside."


def test_a_default_tolerance_is_no_defence_against_training_again():
    features, model = preprocessing.StandardScaler().fit_transform(X[:, :6]), linear.LogisticRegression()
    solved = play(game_of(model, features, Y), PipelineEquations())
    assert solved.main.rate < 0.5  # the equations hold too loosely
    evidence = play(shortlist_game(model, features, Y, candidates=5), RetrainAndCompare(), trials=10)
    assert (evidence.main.rate, evidence.baseline.value) == (1, 0.2)


FEW, WORDS = patients(80)
NUMBERS = FEW[["age", "income"]]
AMOUNT = FEW["age"] * 0.7 + np.random.default_rng(1).normal(0, 5, 80)
THREE = np.where(FEW["age"] < 40, "young", np.where(FEW["age"] < 65, "grown", "old"))
scaled = StandardScaler


def test_columns_that_the_model_drops_are_not_asked_for():
    columns = [("n", scaled(), ["age", "income"]), ("w", OneHotEncoder(), ["sex"])]
    model = make_pipeline(ColumnTransformer(columns), linear.LogisticRegression())
    rows, found, evidence = came_back(game_of(model, FEW, WORDS))
    assert (rows, found.keys()) == (80, {"age", "income", "sex", "label"})
    said = next(caveat.seen for caveat in evidence.caveats if caveat.id == "columns-not-read")
    assert said == "Not read: region, bmi."


@pytest.mark.parametrize(
    "labels", [WORDS == "ill", (WORDS == "ill").astype(int), (WORDS == "ill") * 2.0 - 1, WORDS]
)
def test_numbers_alone_behind_a_scaler_and_labels_of_any_type(labels):
    game = game_of(make_pipeline(scaled(), linear.LogisticRegression()), NUMBERS, labels)
    assert came_back(game)[:2] == (80, {"age": 80, "income": 80, "label": 80})


WRAPPED = [TransformedTargetRegressor(linear.Ridge(), transformer=scaled()), PLSRegression(1)]


@pytest.mark.parametrize("model", WRAPPED, ids=lambda m: type(m).__name__)
def test_a_number_that_the_model_recodes_comes_back_in_its_own_unit(model):
    rows, found, _ = came_back(game_of(model, NUMBERS, AMOUNT))
    assert (rows, set(found.values())) == (80, {80})


SCALED_RIDGE = make_pipeline(scaled(), linear.RidgeClassifier())
DEALT = [
    (CalibratedClassifierCV(make_pipeline(scaled(), linear.LogisticRegression()), ensemble=False), 80),
    (ensemble.BaggingClassifier(naive_bayes.GaussianNB(), 6, random_state=1), 70),
    (RFE(SCALED_RIDGE, importance_getter="named_steps.ridgeclassifier.coef_"), 0),
]


@pytest.mark.parametrize(("model", "least"), DEALT, ids=lambda m: type(m).__name__)
def test_rows_come_back_from_members_that_saw_some_of_them(model, least):
    """The audit itself refuses an attack that finds a row only with it in sight."""
    rows, found, _ = came_back(game_of(model, NUMBERS, THREE))
    assert rows >= least
    assert found["label"] >= 40


def test_a_label_that_only_a_model_inside_a_step_learned_from_comes_back():
    model = make_pipeline(SelectFromModel(linear.Lasso(0.01)), scaled())
    assert came_back(game_of(model, NUMBERS, AMOUNT))[1]["label"] > 70


def test_a_rare_category_hides_no_other():
    towns = FEW[["age"]].assign(town=["Aix"] * 40 + ["Brno"] * 34 + ["Cork"] * 3 + ["Delft"] * 3)
    columns = [("w", OneHotEncoder(min_frequency=10), ["town"]), ("n", scaled(), ["age"])]
    model = make_pipeline(ColumnTransformer(columns), linear.LogisticRegression())
    assert came_back(game_of(model, towns, WORDS))[1]["town"] == 74


SAID = ["Anna", "Bert", "Cora", "ill", "well", "fell", "cut", "burn", "rash"]
NOTES = pd.Series([" ".join(np.random.default_rng(i).choice(SAID, 4)) for i in range(80)])


def test_texts_are_not_claimed_and_their_vectorizer_is_named():
    model = make_pipeline(CountVectorizer(), naive_bayes.MultinomialNB()).fit(NOTES, WORDS)
    rows, found, evidence = came_back(table_game(model, NOTES.to_frame("note"), WORDS))
    assert (rows, found["note"]) == (0, 0)
    (said,) = (caveat.seen for caveat in evidence.caveats if caveat.id == "part-not-read")
    assert "model.countvectorizer" in said


def test_a_model_of_sparse_words_belongs_to_its_texts():
    model = make_pipeline(TfidfVectorizer(), linear.SGDClassifier(random_state=0)).fit(NOTES, WORDS)
    assert check_belongs(Part("model", model, NOTES.to_frame("note"), WORDS)).confirmed


def test_labels_are_matched_by_text_by_alphabet_and_by_any_order():
    model = linear.LogisticRegression().fit(NUMBERS, (WORDS == "ill").astype(int))
    assert list(codings(model, pd.Series(WORDS))) == [{"ill": 0, "well": 1}, {"ill": 1, "well": 0}]
    assert list(codings(model, pd.Series(["0", "1"]))) == [{"0": 0, "1": 1}]
    assert list(codings(model, pd.Series([0, 1]))) == [None]
    trees, codes = sorted(["ash", "beech", "cedar", "elm", "fir"]), np.tile(np.arange(5), 16)
    five = naive_bayes.GaussianNB().fit(NUMBERS, codes)  # of these no other order is tried
    assert list(codings(five, pd.Series(trees * 16))) == [dict(zip(trees, range(5), strict=True))]


def test_several_outputs_are_not_called_another_table():
    both = np.stack([WORDS == "ill", THREE == "old"], 1).astype(int)
    model = MultiOutputClassifier(linear.LogisticRegression()).fit(NUMBERS, both)
    with pytest.raises(InputError, match="several outputs"):
        table_game(model, NUMBERS, both[:, 0])


@pytest.mark.parametrize("labels", [WORDS, (WORDS == "ill").astype(int)], ids=["words", "codes"])
def test_a_part_that_no_attack_reads_is_named(labels):
    """Not even if its classes, 0 and 1, equal the mean 0 of a scaled column."""
    game = game_of(make_pipeline(scaled(), linear.SGDClassifier(random_state=0)), NUMBERS, labels)
    caveats = game.caveats()
    assert [c.seen for c in caveats if c.id == "part-not-read"] == ["Without a finding: model.sgdclassifier."]


def test_what_stands_behind_a_target_encoder_is_not_used():
    columns = [("n", scaled(), ["age"]), ("t", preprocessing.TargetEncoder(), ["region"])]
    model = make_pipeline(ColumnTransformer(columns), linear.LogisticRegression())
    game = game_of(model, FEW, WORDS == "ill")
    read = {path.rpartition(".")[2] for path, _ in game.mechanism.fitting.plans}
    assert read == {"n", "t"}  # before it, and its own mean
    assert "part-not-confirmed" in {caveat.id for caveat in game.caveats()}
