"""A model and a table: told apart by the model's own equations, counts and rows, whatever the model is."""

import numpy as np
import pytest
from patients import patients, prepared
from scipy.sparse import csr_matrix
from sklearn import discriminant_analysis, ensemble, naive_bayes, neighbors, svm
from sklearn import linear_model as linear
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, QuantileTransformer, StandardScaler, TargetEncoder
from sklearn.semi_supervised import SelfTrainingClassifier

from remanence.core.exceptions import InputError, MisfitError
from remanence.tables.belonging import check_belongs
from remanence.tables.parts import Part
from remanence.tables.sklearn import leave_one_out, table_game

X, Y = load_breast_cancer(return_X_y=True)
X = X[:, :8]
D, T = load_diabetes(return_X_y=True)
# Of every kind but trees, which test_claims.py has: exact optima, default tolerances, optima that are not reached in
# the default number of steps, solvers that draw at random, models that hold rows, means or counts, models in models.
CLASSIFIERS = [
    linear.LogisticRegression(),
    linear.LogisticRegression(solver="newton-cholesky", tol=1e-10),
    linear.LogisticRegression(solver="saga"),
    linear.LogisticRegression(solver="liblinear", class_weight="balanced"),
    linear.RidgeClassifier(),
    svm.LinearSVC(),
    svm.SVC(),
    neighbors.KNeighborsClassifier(),
    naive_bayes.GaussianNB(),
    discriminant_analysis.LinearDiscriminantAnalysis(),
    ensemble.HistGradientBoostingClassifier(max_iter=3),
    ensemble.BaggingClassifier(n_estimators=3),
    CalibratedClassifierCV(linear.LogisticRegression()),
    GridSearchCV(linear.LogisticRegression(), {"C": [0.1, 1.0]}, cv=3),
    OneVsRestClassifier(linear.LogisticRegression()),
    make_pipeline(StandardScaler(), linear.LogisticRegression()),
    make_pipeline(MinMaxScaler(), PCA(3), svm.SVC()),
    make_pipeline(QuantileTransformer(n_quantiles=50), naive_bayes.GaussianNB()),
    MLPClassifier((3,), max_iter=5, random_state=0),
]
REGRESSORS = [
    linear.LinearRegression(),
    linear.Ridge(),
    linear.RidgeCV(),
    linear.BayesianRidge(),
    linear.LassoCV(cv=3),
    linear.ElasticNet(0.01),
    linear.LassoLars(0.1),
    linear.HuberRegressor(max_iter=1000),
    svm.SVR(),
]


def halves(features):
    order = np.random.default_rng(0).permutation(len(features) // 2 * 2)
    return np.array_split(order, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [*CLASSIFIERS, *REGRESSORS], ids=lambda m: repr(m)[:50])
def test_a_model_belongs_to_its_own_table_and_not_to_other_peoples(model):
    features, labels = (D, T) if model in REGRESSORS else (X, Y)
    mine, others = halves(features)
    fitted = clone(model).fit(features[mine], labels[mine])
    found = check_belongs(Part("model", fitted, features[mine], labels[mine]))
    assert found.confirmed
    assert not found.unconfirmed
    with pytest.raises(MisfitError) as caught:
        check_belongs(Part("model", fitted, features[others], labels[others]))
    assert all(caught.value.__dict__[part] for part in ("needs", "got", "hint"))


def test_one_record_too_many_is_worth_about_one_record():
    # A record's worth is one on average over the records, so that the mean over many left out is near 1.
    model, worths = linear.Ridge(1e-6), []
    for left_out in range(0, len(D), 40):
        kept = np.arange(len(D)) != left_out
        try:
            check_belongs(Part("model", model.fit(D[kept], T[kept]), D, T))
            worths.append(0.0)  # too little to be noticed
        except MisfitError as error:
            worths.append(float(error.got.split("worth ")[1].split(" of")[0]))
    assert 0.4 < np.mean(worths) < 2.5
    assert not check_belongs(Part("model", model.fit(D, T), D, T)).inexact


def test_other_columns_and_another_order_are_named():
    frame, labels = patients()
    model = prepared(linear.LogisticRegression()).fit(frame, labels)
    with pytest.raises(MisfitError, match=r"missing: bmi; unknown: weight"):
        table_game(model, frame.rename(columns={"bmi": "weight"}), labels)
    with pytest.raises(MisfitError, match="another order"):
        table_game(model, frame[frame.columns[::-1]], labels)


def test_a_subset_a_superset_and_other_labels_are_other_tables():
    frame, labels = patients()
    model = prepared(linear.LogisticRegression()).fit(frame[:100], labels[:100])
    for rows in (slice(0, 99), slice(0, 101)):
        with pytest.raises(MisfitError):
            table_game(model, frame[rows], labels[rows]).fits()
    with pytest.raises(MisfitError):
        table_game(model, frame[:100], np.roll(labels[:100], 1)).fits()


def test_single_precision_is_not_another_table():
    scaled = StandardScaler().fit_transform(X)
    for model in (linear.Ridge(), linear.LogisticRegression()):
        fitted = model.fit(scaled.astype(np.float32), Y)
        assert fitted.coef_.dtype == np.float32
        assert check_belongs(Part("model", fitted, scaled, Y)).confirmed


def test_a_forest_publishes_which_rows_each_tree_saw():
    # Without a fixed random_state no second fit is the same, and yet every leaf can be recounted.
    forest = ensemble.RandomForestClassifier(5).fit(X, Y)
    assert check_belongs(Part("model", forest, X, Y)).confirmed == ("model",)
    with pytest.raises(MisfitError, match="nodes hold others"):
        check_belongs(Part("model", forest, X[::-1], Y[::-1]))  # the rows were drawn by their places


def test_training_that_draws_at_random_is_neither_confirmed_nor_accused():
    for mine in halves(X):
        model = MLPClassifier((3,), max_iter=5).set_params(random_state=None)
        with pytest.warns(UserWarning, match="reached"):
            model.fit(X[mine], Y[mine])
        with pytest.raises(MisfitError, match="cannot be tested"):
            table_game(model, X[mine], Y[mine]).fits()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_target_encoder_leaves_what_follows_unconfirmed():
    frame, labels = patients()
    words = frame[["sex", "region"]]
    model = make_pipeline(TargetEncoder(), linear.LogisticRegression()).fit(words, labels)
    found = check_belongs(Part("model", model, words, labels))
    assert found.unconfirmed == ("model.logisticregression",)
    assert "model.targetencoder" in found.confirmed


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_that_went_on_from_an_earlier_one_is_neither_confirmed_nor_accused():
    frame, labels = patients()
    numbers = frame[["age", "income"]] / [10, 10000]
    model = (
        linear.LogisticRegression(warm_start=True, max_iter=3).fit(numbers * 2, labels).fit(numbers, labels)
    )
    with pytest.raises(MisfitError, match="cannot be tested") as caught:
        table_game(model, numbers, labels).fits()
    assert "warm_start" in str(caught.value)
    sure = linear.LogisticRegression(warm_start=True, tol=1e-10, solver="newton-cholesky").fit(
        numbers, labels
    )
    table_game(sure, numbers, labels).fits()


def test_rows_without_a_label_and_sparse_tables_are_no_accident():
    frame, labels = patients()
    numbers = frame[["age", "income"]] / [10, 10000]
    partly = np.where(np.arange(len(labels)) % 5 == 0, -1, (labels == "ill").astype(int))
    model = SelfTrainingClassifier(naive_bayes.GaussianNB()).fit(numbers, partly)
    with pytest.raises(InputError, match="Nothing that SelfTrainingClassifier holds"):
        table_game(model, numbers, partly).fits()
    table = csr_matrix(numbers.to_numpy())
    with pytest.raises(InputError, match="sparse matrix"):
        table_game(linear.Ridge().fit(table, frame["age"]), table, frame["age"])


def test_a_model_that_writes_over_its_input_leaves_the_table_alone():
    table, amounts = D.copy() * 100 + 50, T
    model = make_pipeline(StandardScaler(copy=False), PCA(8, copy=False), linear.Ridge(copy_X=False))
    model.fit(table.copy(), amounts)
    for game in (table_game, leave_one_out):
        held = game(model, table, amounts)
        assert len(held.data) == len(table)
        assert (table == D * 100 + 50).all()
