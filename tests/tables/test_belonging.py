"""A model and a table: distinguished by the model's own equations, counts and rows, whatever the model is. What may be
claimed of it: what stands in a file is a fact, and is found by looking for it.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from patients import came_back, game_of, patients, prepared
from sklearn import (
    cluster,
    discriminant_analysis,
    ensemble,
    feature_selection,
    isotonic,
    naive_bayes,
    neighbors,
    svm,
    tree,
)
from sklearn import linear_model as linear
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, QuantileTransformer, StandardScaler, TargetEncoder
from sklearn.random_projection import SparseRandomProjection
from sklearn.semi_supervised import SelfTrainingClassifier

from remanence import audit
from remanence.core.exceptions import InputError, MisfitError
from remanence.results.verdict import Verdict
from remanence.tables.attacks import TreeLeaves
from remanence.tables.belonging import check_belongs
from remanence.tables.parts import Part
from remanence.tables.sklearn import leave_one_out, table_game
from remanence.tables.stored import stored_rows

X, Y = load_breast_cancer(return_X_y=True)
X, Y = X[:400, :8], Y[:400]
D, T = load_diabetes(return_X_y=True)
FRAME, LABELS = patients()
pytestmark = pytest.mark.filterwarnings("ignore")
NUMBERS = FRAME[["age", "income"]] / [10, 10000]
TREES = [
    tree.DecisionTreeClassifier(max_depth=1),
    tree.DecisionTreeClassifier(class_weight="balanced"),
    ensemble.RandomForestClassifier(4, class_weight="balanced"),
    ensemble.RandomForestClassifier(4, class_weight="balanced_subsample", max_samples=0.7),
    ensemble.ExtraTreesClassifier(4, class_weight={0: 1, 1: 3}),
    ensemble.AdaBoostClassifier(n_estimators=6),
    ensemble.GradientBoostingClassifier(n_estimators=4),
]
REGRESSION_TREES = [
    tree.DecisionTreeRegressor(max_depth=2),
    tree.DecisionTreeRegressor(criterion="absolute_error", max_depth=4, random_state=0),
    ensemble.RandomForestRegressor(4),
    ensemble.GradientBoostingRegressor(n_estimators=4, loss="huber"),
    ensemble.GradientBoostingRegressor(n_estimators=4, loss="quantile"),
]
# Of every kind: exact optima, default tolerances, optima that are not reached in the default number of steps, solvers
# that draw at random, models that hold rows, means or counts, models in models.
CLASSIFIERS = [
    *TREES,
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
    CalibratedClassifierCV(linear.LogisticRegression(), cv=2),
    GridSearchCV(linear.LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
    OneVsRestClassifier(linear.LogisticRegression()),
    make_pipeline(StandardScaler(), linear.LogisticRegression()),
    make_pipeline(MinMaxScaler(), PCA(3), svm.SVC()),
    make_pipeline(QuantileTransformer(n_quantiles=50), naive_bayes.GaussianNB()),
    MLPClassifier((3,), max_iter=5, random_state=0),
]
REGRESSORS = [
    *REGRESSION_TREES,
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


def belongs(model, table, labels, weights=None):
    """Whether it is confirmed, and not refused; a test in which it is neither fails."""
    try:
        assert check_belongs(Part("model", model, table, labels, weights)).confirmed
    except MisfitError:
        return False
    return True


def halves(features, seed=0):
    order = np.random.default_rng(seed).permutation(len(features) // 2 * 2)
    return np.array_split(order, 2)


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


@pytest.mark.parametrize("model", [*TREES, *REGRESSION_TREES], ids=str)
def test_trees_belong_to_their_own_labels_and_weights_alone(model):
    """Without a seed no second fit is the same, and yet every node can be recounted: forests publish their draws."""
    features, labels = (D, T) if model in REGRESSION_TREES else (X, Y)
    for seed in (1, 2):
        mine, _ = halves(features, seed)
        draw, own = np.random.default_rng(seed), labels[mine]
        model.fit(features[mine], own)
        assert belongs(model, features[mine], own)
        assert not belongs(model, features[mine], draw.permutation(own))
        if getattr(model, "bootstrap", False):  # the rows were drawn by their places
            assert not belongs(model, features[mine[::-1]], own[::-1])
    weights = draw.integers(1, 4, len(mine)).astype(float)
    model.fit(features[mine], own, sample_weight=weights)
    assert belongs(model, features[mine], own, weights)
    assert not belongs(model, features[mine], own, weights[::-1])


def test_a_replaced_row_is_refused_unless_it_leaves_no_trace():
    def grown(table, labels):
        return tree.DecisionTreeClassifier(max_depth=2, random_state=0).fit(table, labels)

    mine, others = halves(X)
    model, refused = grown(X[mine], Y[mine]), 0
    for place in range(40):
        rows = mine.copy()
        rows[place] = others[place]
        states = (each.tree_.__getstate__() for each in (model, grown(X[rows], Y[rows])))
        own, again = ([state[part].tolist() for part in ("nodes", "values")] for state in states)
        assert belongs(model, X[rows], Y[rows]) == (own == again)
        refused += own != again
    assert 0 < refused < 40


def test_boosting_holds_its_loss_so_that_a_replaced_row_is_refused_though_it_passes_the_same_nodes():
    for place in range(8):
        rows = np.arange(40)
        model = ensemble.GradientBoostingRegressor(n_estimators=3, loss="quantile").fit(D[rows], T[rows])
        assert belongs(model, D[rows], T[rows])
        rows[place] = 400
        assert not belongs(model, D[rows], T[rows])


def test_boosting_whose_targets_are_equal_belongs_to_its_table():
    rows = np.random.default_rng(4).permutation(len(T))[:360]
    model = ensemble.GradientBoostingRegressor(n_estimators=5, loss="quantile", init="zero")
    assert belongs(model.fit(D[rows], T[rows]), D[rows], T[rows])


DRAWN = [
    ensemble.BaggingClassifier(n_estimators=3),
    ensemble.BaggingClassifier(neighbors.KNeighborsClassifier(), 3),
    linear.RANSACRegressor(),
]


@pytest.mark.parametrize("model", DRAWN, ids=str)
def test_rows_are_drawn_from_a_table_of_one_size(model):
    labels = T if isinstance(model, linear.RANSACRegressor) else (T > 140).astype(int)
    model.fit(D[:40], labels[:40])
    for count in (39, 41):
        with pytest.raises(MisfitError, match="40 rows"):
            table_game(model, D[:count], labels[:count])


def test_a_model_that_meets_every_label_belongs_to_all_of_its_rows():
    draw = np.random.default_rng(3)
    table, labels = draw.normal(size=(30, 50)), draw.normal(size=30)
    model = linear.LinearRegression().fit(table, labels)
    assert belongs(model, table, labels)
    assert not belongs(model, table[:15], labels[:15])


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


OTHER_TABLES = [
    (FRAME[:100].rename(columns={"bmi": "weight"}), LABELS[:100], "missing: bmi; unknown: weight"),
    (FRAME.loc[:99, FRAME.columns[::-1]], LABELS[:100], "another order"),
    (FRAME[:99], LABELS[:99], "not fitted on this table"),
    (FRAME[:101], LABELS[:101], "not fitted on this table"),
    (FRAME[:100], np.roll(LABELS[:100], 1), "not fitted on this table"),
]


@pytest.mark.parametrize(("table", "labels", "says"), OTHER_TABLES, ids=range(5))
def test_other_columns_another_order_a_subset_a_superset_and_other_labels_are_other_tables(
    table, labels, says
):
    model = prepared(linear.LogisticRegression()).fit(FRAME[:100], LABELS[:100])
    with pytest.raises(MisfitError, match=says):
        table_game(model, table, labels).fits()


def test_single_precision_is_not_another_table():
    scaled = StandardScaler().fit_transform(X)
    for model in (linear.Ridge(), linear.LogisticRegression()):
        fitted = model.fit(scaled.astype(np.float32), Y)
        assert fitted.coef_.dtype == np.float32
        assert belongs(fitted, scaled, Y)


def test_random_training_and_a_fit_that_went_on_from_an_earlier_one_are_neither_confirmed_nor_accused():
    random = MLPClassifier((3,), max_iter=5).fit(NUMBERS, LABELS)
    went_on = linear.LogisticRegression(warm_start=True, max_iter=3).fit(NUMBERS * 2, LABELS)
    for model, why in ((random, "draws at random"), (went_on.fit(NUMBERS, LABELS), "warm_start")):
        with pytest.raises(MisfitError, match="cannot be tested") as caught:
            table_game(model, NUMBERS, LABELS).fits()
        assert why in str(caught.value)
    sure = linear.LogisticRegression(warm_start=True, tol=1e-10, solver="newton-cholesky")
    game_of(sure, NUMBERS, LABELS).fits()


def test_rows_without_a_label_are_no_accident():
    partly = np.where(np.arange(len(LABELS)) % 5 == 0, -1, (LABELS == "ill").astype(int))
    with pytest.raises(InputError, match="Nothing that SelfTrainingClassifier holds is read here"):
        game_of(SelfTrainingClassifier(naive_bayes.GaussianNB()), NUMBERS, partly).fits()


@pytest.mark.parametrize("make", [table_game, leave_one_out])
def test_lists_are_tables_and_labels_of_several_kinds_and_numbers_that_overflow_are_refused(make):
    model = linear.RidgeClassifier().fit(D, T > 140)
    assert len(make(model, D.tolist(), (T > 140).tolist()).data) == len(D)
    for odd in (None, "ill"):
        with pytest.raises(InputError, match="The labels are"):
            make(model, D, np.array([True, odd] * 221, dtype=object))
    with pytest.raises(MisfitError, match="do not overflow"):
        make(model, D * 1e300, T > 140).fits()


def test_a_search_that_kept_no_model_holds_scores_alone():
    search = GridSearchCV(naive_bayes.GaussianNB(), {"var_smoothing": [1e-9, 0.1]}, cv=2, refit=False)
    with pytest.raises(InputError, match="Nothing that GridSearchCV holds is read here"):
        game_of(search, NUMBERS, LABELS).fits()


def test_a_model_that_writes_over_its_input_leaves_the_table_alone():
    table = D * 100 + 50
    model = make_pipeline(StandardScaler(copy=False), PCA(8, copy=False), linear.Ridge(copy_X=False))
    model.fit(table.copy(), T)
    for game in (table_game, leave_one_out):
        assert len(game(model, table, T).data) == len(table)
        assert (table == D * 100 + 50).all()


WINE, KIND = load_wine(return_X_y=True)
HOLDING = [
    (CalibratedClassifierCV(neighbors.KNeighborsClassifier(), cv=2), 2),
    (CalibratedClassifierCV(svm.SVC(), cv=3), 3),
    (CalibratedClassifierCV(neighbors.KNeighborsClassifier(), cv=StratifiedKFold(3, shuffle=True)), 2),
    (OneVsOneClassifier(neighbors.KNeighborsClassifier()), 3),
    (OneVsOneClassifier(svm.SVC()), 2),
]


@pytest.mark.parametrize(("model", "classes"), HOLDING, ids=str)
def test_a_row_that_stands_in_a_member_is_a_fact(model, classes):
    rows = np.flatnonzero(classes > KIND)[::2]
    game = game_of(model, WINE[rows, :6], KIND[rows])
    result = audit(game, trials=40)
    found = result.strongest
    held = int(game.mechanism.held_rows(game.data)[found.arrays["record"]].sum())
    assert found.proven == held > 10
    assert result.verdict is Verdict.EXPOSED


def test_rows_that_stand_among_others_are_facts_too():
    """Birch keeps far-off rows as they are, beside the means of others."""
    draw = np.random.default_rng(1)
    lone, met = draw.normal(0, 50, (30, 2)), draw.normal(0, 50, (15, 2))
    table = np.vstack([met - 0.01 * draw.random((15, 2)), met + 0.01 * draw.random((15, 2)), lone])
    game = game_of(cluster.Birch(n_clusters=None), table)
    result = audit(game, trials=60)
    assert game.mechanism.held_rows(game.data).tolist() == [False] * 30 + [True] * 30
    assert (result.strongest.proven, result.verdict) == (30, Verdict.EXPOSED)


def test_a_few_rows_of_a_table_with_repeated_values_are_not_a_coincidence():
    table = np.stack([np.arange(48) % 24, np.arange(48) // 6], 1).astype(float)  # 48 of 192 pairs of values
    model = cluster.AffinityPropagation(random_state=0)
    assert audit(game_of(model, table)).strongest.proven == len(model.cluster_centers_)
    assert len(model.cluster_centers_) == 6  # by coincidence once in 4 to the power of 6


def test_clusters_without_a_seed_belong_to_a_table_with_all_of_its_columns():
    table, other = WINE[:, :4], WINE[:, :4].copy()
    model = cluster.KMeans(3, n_init=1).fit(table)
    assert belongs(model, table, None)
    other[:, 2] = np.random.default_rng(0).permutation(other[:, 2])
    assert not check_belongs(Part("model", model, other, None)).confirmed


def test_a_column_that_all_other_rows_share_is_known_and_hides_no_row():
    table, labels = np.column_stack([WINE[:60, :3], np.ones(60)]), WINE[:60, 5]
    steps = feature_selection.VarianceThreshold(0.05), StandardScaler(), linear.Ridge()
    for last, rows in ((1.0, 60), (2.0, 0)):  # of the one row that differs, the others tell the wrong value
        table[7, 3] = last
        assert came_back(game_of(make_pipeline(*steps), table, labels))[0] == rows


def test_a_target_encoder_gives_every_label_and_an_isotonic_fit_its_rows():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"born": [f"day {n:03}" for n in range(60)], "age": draw.integers(20, 90, 60)})
    encoder = TargetEncoder(random_state=0)
    ill = pd.Series(draw.integers(0, 2, 60), name="ill")
    coder = ColumnTransformer([("t", encoder, ["born"])])
    assert came_back(game_of(coder, table, ill))[1] == {"born": 60, "ill": 60}
    paid = pd.Series(draw.normal(100, 20, 60), name="paid")  # numbers have no classes
    assert came_back(game_of(encoder, table[["born"]], paid))[0] == 60
    amount = table[["age"]].to_numpy() + draw.normal(0, 0.1, (60, 1))
    game = game_of(isotonic.IsotonicRegression(), amount, amount[:, 0] + draw.normal(0, 20, 60))
    held = np.isin(amount[:, 0], game.mechanism.estimator.X_thresholds_)
    rows = audit(game).strongest.arrays["succeeded"][:, 0].numpy()
    assert (rows == held).all()
    assert 2 < held.sum() < 60


def test_a_table_of_fewer_digits_is_said_to_be_one():
    table, labels = D[:70] * 20, T[:70]
    model = linear.Ridge().fit(table, labels)
    exact, rounded = (audit(leave_one_out(model, seen, labels)).strongest for seen in (table, table.round(2)))
    assert exact.main.successes == 70
    said = ["table-not-exact" in {caveat.id for caveat in found.caveats} for found in (exact, rounded)]
    assert said == [False, True]
    scaler = StandardScaler().fit(table)
    assert check_belongs(Part("model", scaler, table.round(6), None)).inexact == ("model",)
    assert check_belongs(Part("model", scaler, table, None)).inexact == ()


@pytest.mark.parametrize("make", [table_game, leave_one_out])
def test_of_seven_rows_each_is_proven_by_training_again(make):
    table, labels = D[20:27, [2, 3, 8]], T[20:27]
    result = audit(make(linear.Ridge(alpha=0.5).fit(table, labels), table, labels))
    assert result.verdict is Verdict.EXPOSED
    assert result.strongest.proven == 7
    assert "training with them gives the model again" in result.reason.headline(result.words)


def test_nothing_is_proven_by_training_that_draws():
    model = make_pipeline(StandardScaler(), cluster.KMeans(2, n_init=1, init="random"))
    found = audit(game_of(model, D[:12, :3])).strongest
    assert found.main.successes == 12
    assert not found.proven or found.proven < 12


GENUINE = [
    make_pipeline(neighbors.KNeighborsTransformer(), linear.LogisticRegression()),
    make_pipeline(cluster.FeatureAgglomeration(3), linear.LogisticRegression()),
    linear.LogisticRegression(C=np.inf, max_iter=100),
    make_pipeline(SparseRandomProjection(3, random_state=0), linear.Ridge()),
    linear.RANSACRegressor(),
]


@pytest.mark.parametrize("model", GENUINE, ids=lambda model: repr(model)[:50])
def test_genuine_models_are_accepted_and_their_results_can_be_stored(model, tmp_path):
    result = audit(game_of(model, WINE[::2, :6], (T[:89] if model in GENUINE[3:] else KIND[::2])), trials=20)
    assert json.loads(result.save(tmp_path).read_text())["verdict"] == result.verdict


@pytest.mark.parametrize("weights", ["balanced", "balanced_subsample"])
def test_rows_that_were_drawn_by_class_weights_are_known_from_the_forest(weights):
    model = ensemble.RandomForestClassifier(12, class_weight=weights, random_state=0)
    counts = came_back(game_of(model, WINE[::2, :5], KIND[::2]), TreeLeaves())[1]
    assert max(count for name, count in counts.items() if name != "label") > 10  # and blindly, too


def test_rows_that_a_consensus_left_out_count_too():
    table, labels = D[:120, :5], T[:120]
    model = linear.RANSACRegressor(random_state=0).fit(table, labels)
    outside = np.flatnonzero(~model.inlier_mask_)[0]
    assert belongs(model, table, labels)
    other, moved = table.copy(), labels.copy()
    other[outside], moved[outside] = D[200, :5], float(np.median(labels))
    assert not belongs(model, other, moved)


place = Path(__file__).parents[2] / "benchmarks" / "tables.py"
spec = importlib.util.spec_from_file_location("table_benchmark", place)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

WIDE, CODES = (each[:150] for each in load_breast_cancer(return_X_y=True))


@pytest.mark.parametrize("model", benchmark.HOLDERS, ids=lambda m: repr(m)[:30])
def test_a_model_that_holds_rows_is_named_with_its_attribute(model):
    found = benchmark.held_by(model, WIDE, CODES + 1)
    assert found
    assert all(each.path.startswith("model.") and each.count >= 2 for each in found)


@pytest.mark.parametrize("model", benchmark.OTHERS, ids=lambda m: repr(m)[:30])
def test_a_model_that_holds_none_is_not_named(model):
    assert not benchmark.held_by(model, WIDE, CODES + 1)


def test_rows_are_found_in_objects_that_nobody_listed():
    clusters = cluster.DBSCAN(eps=200).fit(WIDE)
    (found,) = stored_rows(Part("model", clusters, WIDE, None))
    assert (found.path, found.count) == ("model.components_", len(clusters.components_))


def test_a_table_of_few_patterns_is_not_found_in_every_array_of_bits():
    bits = (np.random.default_rng(0).random((200, 2)) < 0.5).astype(float)
    assert not stored_rows(Part("model", naive_bayes.GaussianNB().fit(bits, bits[:, 0]), bits, bits[:, 0]))
