import warnings

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn import linear_model as linear
from sklearn.decomposition import PCA
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from conftest import synthetic
from remanence import ClosedForm, InputError, play
from remanence.core.exceptions import MisfitError
from remanence.results.caveats import NO_TRACE, OPTIMISER_NOT_CONVERGED
from remanence.tables.attacks import PipelineEquations
from remanence.tables.caveats import INACTIVE_FEATURES
from remanence.tables.sklearn import leave_one_out

TIGHT = {"tol": 1e-13, "max_iter": 200_000}


def table(classes: int = 2, count: int = 60):
    data = synthetic(count, classes=classes, seed=4)
    return data.features.numpy() * [1, 10, 0.1, 1], data.labels.numpy()


def amounts(count: int = 60):
    features, _ = table(count=count)
    generator = np.random.default_rng(0)
    scores = (features - features.mean(0)) / features.std(0) @ [0.5, 0.2, -0.3, 0.1]
    return features, np.exp(scores) * generator.gamma(5, 0.2, count)


def logistic(**options):
    return linear.LogisticRegression(**{**TIGHT, **options})


CLASSIFIERS = [
    logistic(solver="lbfgs"),
    logistic(solver="newton-cg"),
    logistic(solver="newton-cholesky"),
    logistic(solver="newton-cholesky", C=0.01),
    logistic(solver="newton-cholesky", class_weight="balanced"),
    logistic(solver="newton-cholesky", class_weight={0: 1.0, 1: 4.0}),
]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=repr)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_solver_gives_every_record_away(model, classes):
    features, labels = table(classes)
    features = StandardScaler().fit_transform(features)  # or solvers do not get near their optimum
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tolerance of 1e-13 is more than some solvers reach
        game = leave_one_out(model.fit(features, labels), features, labels)
    evidence = play(game, ClosedForm())
    assert evidence.main.rate == 1, evidence
    assert evidence.label_rate.rate == 1


@pytest.mark.parametrize("intercept_scaling", [1, 7.0])
@pytest.mark.parametrize("solver", ["liblinear", "sag", "saga"])
def test_solvers_that_penalise_the_intercept_and_those_that_stop_early_follow_their_own_convention(
    solver, intercept_scaling
):
    features, labels = table()
    features = StandardScaler().fit_transform(features)
    model = linear.LogisticRegression(
        solver=solver, tol=1e-10, max_iter=100_000, intercept_scaling=intercept_scaling, random_state=0
    )
    game = leave_one_out(model.fit(features, labels), features, labels)
    evidence = play(game, ClosedForm())
    # A wrong convention leaves a gradient of the size of the penalty, about 0.1.
    assert evidence.errors.remaining_gradient < 1e-3
    assert evidence.label_rate.rate == 1


REGRESSORS = [
    linear.LinearRegression(),
    linear.Ridge(alpha=3.0),
    linear.PoissonRegressor(alpha=0.5, solver="newton-cholesky", tol=1e-12),
    linear.GammaRegressor(alpha=0.5, solver="newton-cholesky", tol=1e-12),
    linear.TweedieRegressor(power=1.7, alpha=0.5, solver="newton-cholesky", tol=1e-12),
    linear.TweedieRegressor(power=0, alpha=0.5, solver="newton-cholesky", tol=1e-12),
    linear.Lasso(alpha=1e-3, tol=1e-14, max_iter=100_000),
    linear.ElasticNet(alpha=1e-3, tol=1e-14, max_iter=100_000),
]


@pytest.mark.parametrize("model", REGRESSORS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_regressor_gives_every_record_away(model, weighted):
    features, labels = amounts()
    features = StandardScaler().fit_transform(features)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(labels)) if weighted else None
    game = leave_one_out(model.fit(features, labels, sample_weight=weights), features, labels, weights)
    evidence = play(game, ClosedForm())
    assert evidence.main.rate == 1, evidence
    assert weighted or evidence.label_rate.rate == 1


@pytest.mark.parametrize(
    "lasso", [linear.Lasso(0.1, tol=1e-14, max_iter=100_000), linear.LassoLars(0.1)], ids=repr
)
def test_features_that_an_l1_penalty_switched_off_are_left_out_and_said_to_be(lasso):
    features, labels = amounts()
    features = StandardScaler().fit_transform(
        np.hstack([features, np.random.default_rng(2).normal(size=(60, 4))])
    )
    model = lasso.fit(features, labels)
    active = np.flatnonzero(model.coef_)
    assert 0 < len(active) < 8
    game = leave_one_out(model, features, labels)
    evidence = play(game, ClosedForm())
    assert game.data.example_shape == (len(active),)
    assert evidence.main.rate == 1
    assert INACTIVE_FEATURES in evidence.caveats


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_without_an_intercept_hides_nothing_behind_a_scaler(classes):
    features, labels = table(classes, 120)
    model = make_pipeline(StandardScaler(), logistic(fit_intercept=False, solver="newton-cholesky"))
    game = leave_one_out(model.fit(features + 3, labels), features + 3, labels)
    assert play(game, PipelineEquations()).main.rate > 0.9


def test_data_that_were_centred_tell_a_record_from_its_mirror_image():
    features, labels = table(2, 120)
    features = StandardScaler().fit_transform(features)
    game = leave_one_out(
        logistic(fit_intercept=False, solver="newton-cholesky").fit(features, labels), features, labels
    )
    guess = ClosedForm().expose(game.mechanism, game.data, game.release).records.features[:, 0].numpy()
    right = np.linalg.norm(guess - features, axis=1) < 1e-6
    mirrored = np.linalg.norm(guess + features, axis=1) < 1e-6
    assert right.mean() > 0.9
    assert not mirrored.any()


@pytest.mark.parametrize("rare", [1, 2])
def test_the_only_record_of_a_class_comes_back_under_balanced_weights(rare):
    features, labels = table(2, 80)
    labels = np.where(np.arange(80) < rare, 2, labels)
    model = logistic(solver="newton-cholesky", class_weight="balanced").fit(features, labels)
    assert play(leave_one_out(model, features, labels), ClosedForm()).main.rate == 1


def test_a_record_that_the_model_explains_exactly_is_out_of_reach_and_said_to_be():
    features, _ = table()
    game = leave_one_out(linear.Ridge().fit(features, np.ones(60)), features, np.ones(60))
    caveats = play(game, ClosedForm()).caveats
    assert NO_TRACE in caveats
    assert OPTIMISER_NOT_CONVERGED not in caveats


def test_labels_may_be_strings():
    features, labels = table()
    names = np.array(["benign", "malignant"])[labels]
    game = leave_one_out(logistic(solver="newton-cholesky").fit(features, names), features, names)
    assert play(game, ClosedForm()).label_rate.rate == 1


def test_a_model_of_other_data_is_refused_in_records_worth():
    features, labels = amounts()
    with pytest.raises(MisfitError, match=r"worth .* of 60 records"):
        leave_one_out(linear.Ridge().fit(features, labels), features * 1.1, labels).fits()


def fitted(model, features=None, labels=None):
    known, known_labels = table()
    return model.fit(known if features is None else features, known_labels if labels is None else labels)


X, Y = table()
WITH_NAN = np.where(np.arange(60)[:, None] == 7, np.nan, X)
REFUSED = [
    (lambda: leave_one_out(fitted(LinearSVC(random_state=0)), X, Y).fits(), "Nothing that LinearSVC holds"),
    (lambda: leave_one_out(fitted(logistic(fit_intercept=False, class_weight="balanced")), X, Y), "weigh"),
    (lambda: leave_one_out(fitted(make_pipeline(PCA(), logistic())), X[:, :3], Y), "4 columns"),
    (lambda: leave_one_out(fitted(logistic()), X[:, :3], Y), "4 columns"),
    (lambda: leave_one_out(fitted(logistic()), WITH_NAN, Y), "the first is number 7"),
    (lambda: leave_one_out(fitted(logistic()), X.astype(str) + "x", Y), "not all numbers"),
    (lambda: leave_one_out(fitted(logistic()), X, Y + 5), "labels among 0, 1"),
    (lambda: leave_one_out(fitted(logistic()), X, np.stack([Y, Y], 1)), "one label per row"),
    (lambda: leave_one_out(fitted(GaussianNB()), X, Y[:5]), "60"),
    (lambda: leave_one_out(fitted(linear.Ridge(positive=True)), X, Y), "positive"),
    (lambda: leave_one_out(fitted(linear.Lars()), X, Y).fits(), "Nothing that Lars holds"),
    (lambda: leave_one_out(linear.LinearRegression().fit(X[:3], Y[:3]), X[:3], Y[:3]), "no penalty"),
    (lambda: leave_one_out(fitted(logistic(solver="liblinear", l1_ratio=1)), X, Y), "saga"),
    (lambda: leave_one_out(linear.PoissonRegressor().fit(X, Y), X, -Y), "at least 0"),
    (
        lambda: leave_one_out(linear.TweedieRegressor(power=1, link="identity").fit(X, Y + 20), X, Y + 20),
        "link",
    ),
    (lambda: leave_one_out(fitted(linear.Lasso(alpha=99)), X, Y), "too little"),
    (lambda: leave_one_out(linear.LinearRegression().fit(X[:5], Y[:5]), X[:5], Y[:5]), "more records than"),
    (lambda: leave_one_out(fitted(logistic(class_weight="balanced")), X, Y, np.ones(60)), "as a dict"),
    (lambda: leave_one_out(fitted(logistic()), X, Y, np.arange(60.0)), "above 0"),
    (lambda: leave_one_out(linear.Ridge().fit(X, np.stack([Y, Y], 1)), X, Y), "one output"),
    (lambda: leave_one_out(fitted(logistic()), csr_matrix(X), Y), "dense"),
    (lambda: leave_one_out(logistic(), X, Y), "has not been fitted"),
    (lambda: leave_one_out(None, X, Y), "no model"),
    (lambda: leave_one_out(linear.Ridge, X, Y), "the class Ridge"),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED, ids=[message for _, message in REFUSED])
@pytest.mark.filterwarnings("ignore")
def test_what_the_theory_does_not_cover_is_refused_in_a_sentence(attempt, message):
    with pytest.raises(InputError, match=message) as caught:
        attempt()
    assert all(caught.value.__dict__[part] for part in ("needs", "got", "hint"))
