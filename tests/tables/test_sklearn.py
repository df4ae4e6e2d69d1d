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
from remanence import ClosedForm, InputError, audit, play
from remanence.results.caveats import NO_TRACE, OPTIMISER_NOT_CONVERGED
from remanence.tables.attacks import PipelineEquations
from remanence.tables.caveats import INACTIVE_FEATURES
from remanence.tables.sklearn import leave_one_out, table_game

TIGHT = {"tol": 1e-13, "max_iter": 200_000}


def table(classes: int = 2, count: int = 60):
    data = synthetic(count, classes=classes, seed=4)
    return data.features.numpy() * [1, 10, 0.1, 1], data.labels.numpy()


def standard(classes: int = 2, count: int = 60):
    """The same in standard units, without which solvers do not get near their optimum."""
    features, labels = table(classes, count)
    return StandardScaler().fit_transform(features), labels


def amounts():
    features, _ = standard()
    scores = features @ [0.5, 0.2, -0.3, 0.1]
    return features, np.exp(scores) * np.random.default_rng(0).gamma(5, 0.2, len(features))


def logistic(**options):
    return linear.LogisticRegression(**{**TIGHT, "solver": "newton-cholesky", **options})


def exposed(model, features, labels, weights=None, attack=None):
    """What comes back from a model that is fitted on this very table."""
    with warnings.catch_warnings(action="ignore"):  # a tolerance of 1e-13 is more than some solvers reach
        model.fit(features, labels, **({} if weights is None else {"sample_weight": weights}))
    return play(leave_one_out(model, features, labels, weights), attack or ClosedForm())


CLASSIFIERS = [
    logistic(solver="lbfgs"),
    logistic(solver="newton-cg"),
    logistic(),
    logistic(C=0.01),
    logistic(class_weight="balanced"),
    logistic(class_weight={0: 1.0, 1: 4.0}),
]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=repr)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_solver_gives_every_record_away(model, classes):
    features, labels = standard(classes)
    if not isinstance(model.class_weight, dict):
        labels = np.array(["benign", "malignant", "unclear"])[labels]
    evidence = exposed(model, features, labels)
    assert (evidence.main.rate, evidence.label_rate.rate) == (1, 1), evidence


@pytest.mark.parametrize("intercept_scaling", [1, 7.0])
@pytest.mark.parametrize("solver", ["liblinear", "sag", "saga"])
def test_solvers_that_penalise_the_intercept_and_those_that_stop_early_follow_their_own_convention(
    solver, intercept_scaling
):
    settings = {"solver": solver, "intercept_scaling": intercept_scaling, "random_state": 0}
    evidence = exposed(linear.LogisticRegression(tol=1e-10, max_iter=100_000, **settings), *standard())
    # A wrong convention leaves a gradient of the size of the penalty, about 0.1.
    assert evidence.errors.remaining_gradient < 1e-3
    assert evidence.label_rate.rate == 1


EXACT = {"solver": "newton-cholesky", "tol": 1e-12}
REGRESSORS = [
    linear.LinearRegression(),
    linear.Ridge(alpha=3.0),
    linear.PoissonRegressor(alpha=0.5, **EXACT),
    linear.GammaRegressor(alpha=0.5, **EXACT),
    linear.TweedieRegressor(power=1.7, alpha=0.5, **EXACT),
    linear.TweedieRegressor(power=0, alpha=0.5, **EXACT),
    linear.Lasso(alpha=1e-3, tol=1e-14, max_iter=100_000),
    linear.ElasticNet(alpha=1e-3, tol=1e-14, max_iter=100_000),
]


@pytest.mark.parametrize("model", REGRESSORS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_regressor_gives_every_record_away(model, weighted):
    features, labels = amounts()
    weights = np.random.default_rng(1).uniform(0.5, 2, len(labels)) if weighted else None
    evidence = exposed(model, features, labels, weights)
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
    game = leave_one_out(lasso.fit(features, labels), features, labels)
    evidence = play(game, ClosedForm())
    assert 0 < np.count_nonzero(lasso.coef_) == game.data.example_shape[0] < 8
    assert evidence.main.rate == 1
    assert INACTIVE_FEATURES in evidence.caveats


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_without_an_intercept_hides_nothing_behind_a_scaler(classes):
    features, labels = table(classes, 120)
    model = make_pipeline(StandardScaler(), logistic(fit_intercept=False))
    assert exposed(model, features + 3, labels, attack=PipelineEquations()).main.rate > 0.9


@pytest.mark.parametrize("game", [leave_one_out, table_game])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("intercept_scaling", [1, 5.0])
def test_a_squared_hinge_gives_every_record_within_its_margin_away(game, classes, intercept_scaling):
    features, labels = standard(classes)
    model = LinearSVC(intercept_scaling=intercept_scaling, random_state=0, **TIGHT).fit(features, labels)
    scores = model.decision_function(features).reshape(len(features), -1)
    own = labels[:, None] == (1 if classes == 2 else np.arange(classes))
    within = (np.where(own, scores, -scores) < 1).any(1)
    evidence = audit(game(model, features, labels)).strongest
    assert evidence.arrays["succeeded"][:, 0].tolist() == within.tolist()
    assert within.mean() > 0.9


@pytest.mark.parametrize("rare", [1, 2])
def test_the_only_record_of_a_class_comes_back_under_balanced_weights(rare):
    features, labels = table(2, 80)
    labels = np.where(np.arange(80) < rare, 2, labels)
    assert exposed(logistic(class_weight="balanced"), features, labels).main.rate == 1


def test_a_record_that_the_model_explains_exactly_is_out_of_reach_and_said_to_be():
    caveats = exposed(linear.Ridge(), table()[0], np.ones(60)).caveats
    assert NO_TRACE in caveats
    assert OPTIMISER_NOT_CONVERGED not in caveats


X, Y = table()
WITH_NAN = np.where(np.arange(60)[:, None] == 7, np.nan, X)
BOTH = np.stack([Y, Y], 1)
LINEAR = linear.LinearRegression()
UNLINKED = linear.TweedieRegressor(power=1, link="identity")


def attempt(model, *given, fitted_on=(X, Y), game=leave_one_out):
    """Audit a model of `fitted_on` on what is given; its own table, if nothing is."""
    return game(model.fit(*fitted_on), *(given or fitted_on))


REFUSED = [
    (lambda: attempt(LinearSVC(loss="hinge")), "margin"),
    (lambda: attempt(logistic(fit_intercept=False, class_weight="balanced")), "weigh"),
    (lambda: attempt(make_pipeline(PCA(), logistic()), X[:, :3], Y), "4 columns"),
    (lambda: attempt(logistic(), X[:, :3], Y), "4 columns"),
    (lambda: attempt(logistic(), WITH_NAN, Y), "the first is number 7"),
    (lambda: attempt(logistic(), X.astype(str) + "x", Y), "not all numbers"),
    (lambda: attempt(logistic(), X, Y + 5), "labels among 0, 1"),
    (lambda: attempt(logistic(), X, BOTH), "one label per row"),
    (lambda: attempt(GaussianNB(), X, Y[:5]), "60"),
    (lambda: attempt(linear.Ridge(positive=True)), "positive"),
    (lambda: attempt(linear.Lars()).fits(), "Nothing that Lars holds is read here"),
    (lambda: attempt(LINEAR, fitted_on=(X[:3], Y[:3])), "no penalty"),
    (lambda: attempt(LINEAR, fitted_on=(X[:5], Y[:5])), "more records than"),
    (lambda: attempt(logistic(solver="liblinear", l1_ratio=1)), "saga"),
    (lambda: attempt(linear.PoissonRegressor(), X, -Y), "at least 0"),
    (lambda: attempt(UNLINKED, fitted_on=(X, Y + 20)), "link"),
    (lambda: attempt(linear.Lasso(alpha=99)), "too little"),
    (lambda: attempt(logistic(class_weight="balanced"), X, Y, np.ones(60)), "as a dict"),
    (lambda: attempt(logistic(), X, Y, np.arange(60.0)), "above 0"),
    (lambda: attempt(linear.Ridge(), X, Y, fitted_on=(X, BOTH)), "one output"),
    (lambda: attempt(logistic(), csr_matrix(X), Y), "dense"),
    (lambda: attempt(logistic(), csr_matrix(X), Y, game=table_game), "dense"),
    (lambda: leave_one_out(logistic(), X, Y), "has not been fitted"),
    (lambda: leave_one_out(None, X, Y), "no model"),
    (lambda: leave_one_out(linear.Ridge, X, Y), "the class Ridge"),
]


@pytest.mark.parametrize(("refused", "message"), REFUSED, ids=[message for _, message in REFUSED])
@pytest.mark.filterwarnings("ignore")
def test_what_the_theory_does_not_cover_is_refused_in_a_sentence(refused, message):
    with pytest.raises(InputError, match=message) as caught:
        refused()
    assert all(caught.value.__dict__[part] for part in ("needs", "got", "hint"))
