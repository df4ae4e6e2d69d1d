"""Columns that a model drops, labels that it recodes, rows that it deals out: none of it hides what comes back."""

import numpy as np
import pandas as pd
import pytest
from patients import came_back, patients
from sklearn import ensemble, naive_bayes, preprocessing
from sklearn import linear_model as linear
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.cross_decomposition import PLSRegression
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from remanence.core.exceptions import InputError
from remanence.tables.belonging import check_belongs
from remanence.tables.parts import Part
from remanence.tables.rows import codings
from remanence.tables.sklearn import table_game

FRAME, WORDS = patients(80)
NUMBERS = FRAME[["age", "income"]]
AMOUNT = FRAME["age"] * 0.7 + np.random.default_rng(1).normal(0, 5, 80)
THREE = np.where(FRAME["age"] < 40, "young", np.where(FRAME["age"] < 65, "grown", "old"))
scaled = StandardScaler


def test_columns_that_the_model_drops_are_not_asked_for():
    columns = [("n", scaled(), ["age", "income"]), ("w", OneHotEncoder(), ["sex"])]
    model = make_pipeline(ColumnTransformer(columns), linear.LogisticRegression()).fit(FRAME, WORDS)
    rows, found, evidence = came_back(table_game(model, FRAME, WORDS))
    assert rows == 80
    assert found.keys() == {"age", "income", "sex", "label"}
    said = next(caveat.seen for caveat in evidence.caveats if caveat.id == "columns-not-read")
    assert said == "Not read: region, bmi."


@pytest.mark.parametrize(
    "labels", [WORDS == "ill", (WORDS == "ill").astype(int), (WORDS == "ill") * 2.0 - 1, WORDS]
)
def test_numbers_alone_behind_a_scaler_and_labels_of_any_type(labels):
    model = make_pipeline(scaled(), linear.LogisticRegression()).fit(NUMBERS, labels)
    assert came_back(table_game(model, NUMBERS, labels))[:2] == (80, {"age": 80, "income": 80, "label": 80})


WRAPPED = [TransformedTargetRegressor(linear.Ridge(), transformer=scaled()), PLSRegression(1)]


@pytest.mark.parametrize("model", WRAPPED, ids=lambda m: type(m).__name__)
def test_a_number_that_the_model_recodes_comes_back_in_its_own_unit(model):
    model.fit(NUMBERS, AMOUNT)
    rows, found, _ = came_back(table_game(model, NUMBERS, AMOUNT))
    assert (rows, set(found.values())) == (80, {80})


DEALT = [
    (CalibratedClassifierCV(make_pipeline(scaled(), linear.LogisticRegression()), ensemble=False), 80),
    (ensemble.BaggingClassifier(naive_bayes.GaussianNB(), 6, random_state=1), 70),
    (
        RFE(
            make_pipeline(scaled(), linear.RidgeClassifier()),
            importance_getter="named_steps.ridgeclassifier.coef_",
        ),
        0,
    ),
]


@pytest.mark.parametrize(("model", "least"), DEALT, ids=lambda m: type(m).__name__)
def test_rows_come_back_from_members_that_saw_some_of_them(model, least):
    """The audit itself refuses an attack that finds a row only with it in sight."""
    model.fit(NUMBERS, THREE)
    rows, found, _ = came_back(table_game(model, NUMBERS, THREE))
    assert rows >= least
    assert found["label"] >= 40


def test_a_label_that_only_a_model_inside_a_step_learned_from_comes_back():
    model = make_pipeline(SelectFromModel(linear.Lasso(0.01)), scaled()).fit(NUMBERS, AMOUNT)
    assert came_back(table_game(model, NUMBERS, AMOUNT))[1]["label"] > 70


def test_a_rare_category_hides_no_other():
    towns = pd.DataFrame(
        {"town": ["Aix"] * 40 + ["Brno"] * 34 + ["Cork"] * 3 + ["Delft"] * 3, "age": FRAME["age"]}
    )
    columns = [("w", OneHotEncoder(min_frequency=10), ["town"]), ("n", scaled(), ["age"])]
    model = make_pipeline(ColumnTransformer(columns), linear.LogisticRegression()).fit(towns, WORDS)
    assert came_back(table_game(model, towns, WORDS))[1]["town"] == 74


SAID = ["Anna", "Bert", "Cora", "ill", "well", "fell", "cut", "burn", "rash"]
NOTES = pd.Series([" ".join(np.random.default_rng(i).choice(SAID, 4)) for i in range(80)])


def test_texts_are_not_claimed_and_their_vectorizer_is_named():
    model = make_pipeline(CountVectorizer(), naive_bayes.MultinomialNB()).fit(NOTES, WORDS)
    rows, found, evidence = came_back(table_game(model, NOTES.to_frame("note"), WORDS))
    assert (rows, found["note"]) == (0, 0)
    (caveat,) = (caveat for caveat in evidence.caveats if caveat.id == "part-not-read")
    assert "model.countvectorizer" in caveat.seen


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
    model = make_pipeline(scaled(), linear.SGDClassifier(random_state=0)).fit(NUMBERS, labels)
    caveats = table_game(model, NUMBERS, labels).caveats()
    assert [c.seen for c in caveats if c.id == "part-not-read"] == ["Without a finding: model.sgdclassifier."]


def test_what_stands_behind_a_target_encoder_is_not_used():
    columns = [("n", scaled(), ["age"]), ("t", preprocessing.TargetEncoder(), ["region"])]
    model = make_pipeline(ColumnTransformer(columns), linear.LogisticRegression()).fit(FRAME, WORDS == "ill")
    game = table_game(model, FRAME, WORDS == "ill")
    assert {path.rpartition(".")[2] for path, _ in game.mechanism.fitting.plans} == {
        "n",
        "t",
    }  # before it, and its own mean
    assert "part-not-confirmed" in {caveat.id for caveat in game.caveats()}
