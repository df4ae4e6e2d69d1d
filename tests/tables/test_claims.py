"""What may be claimed of fitted models: artefacts of others are refused, and what stands in a file is a fact."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from patients import came_back
from sklearn import (
    cluster,
    ensemble,
    feature_selection,
    impute,
    isotonic,
    neighbors,
    preprocessing,
    svm,
    tree,
)
from sklearn import linear_model as linear
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_wine
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import make_pipeline
from sklearn.random_projection import SparseRandomProjection

from remanence import audit
from remanence.core.exceptions import MisfitError
from remanence.results.verdict import Verdict
from remanence.tables.attacks import TreeLeaves
from remanence.tables.belonging import check_belongs
from remanence.tables.parts import Part
from remanence.tables.sklearn import leave_one_out, table_game

WINE, KIND = load_wine(return_X_y=True)
PATIENTS, SCORE = load_diabetes(return_X_y=True)
pytestmark = pytest.mark.filterwarnings("ignore")


def belongs(model, table, labels, weights=None):
    try:
        return bool(check_belongs(Part("model", model, table, labels, weights)).confirmed)
    except MisfitError:
        return False


CLASSIFIERS = [
    tree.DecisionTreeClassifier(max_depth=1),
    tree.DecisionTreeClassifier(class_weight="balanced"),
    ensemble.RandomForestClassifier(4, class_weight="balanced"),
    ensemble.RandomForestClassifier(4, class_weight="balanced_subsample", max_samples=0.7),
    ensemble.ExtraTreesClassifier(4, class_weight={0: 1, 1: 3, 2: 2}),
    ensemble.AdaBoostClassifier(n_estimators=6),
    ensemble.GradientBoostingClassifier(n_estimators=4),
]
REGRESSORS = [
    tree.DecisionTreeRegressor(max_depth=2),
    tree.DecisionTreeRegressor(criterion="absolute_error", max_depth=4, random_state=0),
    ensemble.RandomForestRegressor(4),
    ensemble.GradientBoostingRegressor(n_estimators=4, loss="huber"),
    ensemble.GradientBoostingRegressor(n_estimators=4, loss="quantile"),
]


@pytest.mark.parametrize("model", CLASSIFIERS + REGRESSORS, ids=str)
def test_trees_belong_to_their_own_rows_and_labels_alone(model):
    table, labels = (PATIENTS, SCORE) if model in REGRESSORS else (WINE, KIND)
    for seed in range(3):
        even = None if model in REGRESSORS else labels
        mine, other = train_test_split(np.arange(len(table)), test_size=0.5, stratify=even, random_state=seed)
        draw = np.random.default_rng(seed)
        model.fit(table[mine], labels[mine])
        assert belongs(model, table[mine], labels[mine])
        assert not belongs(model, table[other], labels[other])
        assert not belongs(model, table[mine], draw.permutation(labels[mine]))
    weights = draw.integers(1, 4, len(mine)).astype(float)
    model.fit(table[mine], labels[mine], sample_weight=weights)
    assert belongs(model, table[mine], labels[mine], weights)
    assert not belongs(model, table[mine], labels[mine], weights[::-1])


def test_a_replaced_row_is_refused_unless_it_leaves_no_trace():
    model = tree.DecisionTreeClassifier(max_depth=2, random_state=0).fit(WINE[::2], KIND[::2])
    refused = 0
    for place in range(40):
        table, labels = WINE[::2].copy(), KIND[::2].copy()
        table[place], labels[place] = WINE[2 * place + 1], KIND[2 * place + 1]
        again = tree.DecisionTreeClassifier(max_depth=2, random_state=0).fit(table, labels)
        state, own = again.tree_.__getstate__(), model.tree_.__getstate__()
        same = np.array_equal(state["nodes"], own["nodes"]) and np.array_equal(state["values"], own["values"])
        assert belongs(model, table, labels) == same
        refused += not same
    assert 0 < refused < 40


def test_a_model_that_meets_every_label_belongs_to_all_of_its_rows():
    draw = np.random.default_rng(3)
    table, labels = draw.normal(size=(30, 50)), draw.normal(size=30)
    model = linear.LinearRegression().fit(table, labels)
    assert belongs(model, table, labels)
    assert not belongs(model, table[:15], labels[:15])


@pytest.mark.parametrize(
    "model",
    [
        CalibratedClassifierCV(neighbors.KNeighborsClassifier(), cv=2),
        CalibratedClassifierCV(svm.SVC(), cv=3),
        CalibratedClassifierCV(neighbors.KNeighborsClassifier(), cv=StratifiedKFold(3, shuffle=True)),
        OneVsOneClassifier(neighbors.KNeighborsClassifier()),
        OneVsOneClassifier(svm.SVC()),
    ],
    ids=str,
)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_row_that_stands_in_a_member_is_a_fact(model, classes):
    rows = np.flatnonzero(classes > KIND)[::2]
    table, labels = WINE[rows, :6], KIND[rows]
    game = table_game(model.fit(table, labels), table, labels)
    found = audit(game, trials=40).strongest
    held = int(game.mechanism.held_rows(game.data)[found.arrays["record"]].sum())
    assert held > 10
    assert found.proven == held
    assert audit(game, trials=40).verdict is Verdict.EXPOSED


def test_rows_that_stand_among_others_are_facts_too():
    """Birch keeps far-off rows as they are, beside the means of others."""
    draw = np.random.default_rng(1)
    lone, met = draw.normal(0, 50, (30, 2)), draw.normal(0, 50, (15, 2))
    table = np.vstack([met - 0.01 * draw.random((15, 2)), met + 0.01 * draw.random((15, 2)), lone])
    game = table_game(cluster.Birch(n_clusters=None).fit(table), table)
    result = audit(game, trials=60)
    held = game.mechanism.held_rows(game.data)
    assert held[30:].all()
    assert not held[:30].any()
    assert result.strongest.proven == 30
    assert result.verdict is Verdict.EXPOSED


def test_a_few_rows_of_a_table_with_repeated_values_are_not_a_coincidence():
    table = np.stack([np.arange(48) % 24, np.arange(48) // 6], 1).astype(float)  # 48 of 192 pairs of values
    model = cluster.AffinityPropagation(random_state=0).fit(table)
    assert len(model.cluster_centers_) == 6  # by coincidence once in 4 to the power of 6
    assert audit(table_game(model, table)).strongest.proven == len(model.cluster_centers_)


def test_clusters_without_a_seed_belong_to_a_table_with_all_of_its_columns():
    table = WINE[:, :4]
    model = cluster.KMeans(3, n_init=1).fit(table)
    assert belongs(model, table, None)
    other = table.copy()
    other[:, 2] = np.random.default_rng(0).permutation(other[:, 2])
    assert not belongs(model, other, None)


def test_a_column_that_all_other_rows_share_is_known_and_hides_no_row():
    table, labels = np.column_stack([WINE[:60, :3], np.ones(60)]), WINE[:60, 5]
    model = make_pipeline(
        feature_selection.VarianceThreshold(0.05), preprocessing.StandardScaler(), linear.Ridge()
    )
    for last, rows in ((1.0, 60), (2.0, 0)):  # of the one row that differs, the others tell the wrong value
        table[7, 3] = last
        assert came_back(table_game(model.fit(table, labels), table, labels))[0] == rows


def test_a_target_encoder_gives_every_label_and_an_isotonic_fit_its_rows():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"born": [f"day {n:03}" for n in range(60)], "age": draw.integers(20, 90, 60)})
    ill = draw.integers(0, 2, 60)
    encoder = ColumnTransformer([("t", preprocessing.TargetEncoder(random_state=0), ["born"])]).fit(
        table, ill
    )
    assert came_back(table_game(encoder, table, pd.Series(ill, name="ill")))[1] == {"born": 60, "ill": 60}
    paid = pd.Series(draw.normal(100, 20, 60), name="paid")  # numbers have no classes
    encoder = preprocessing.TargetEncoder(random_state=0).fit(table[["born"]], paid)
    assert came_back(table_game(encoder, table[["born"]], paid))[0] == 60
    amount = table[["age"]].to_numpy() + draw.normal(0, 0.1, (60, 1))
    noisy = amount[:, 0] + draw.normal(0, 20, 60)
    fitted = isotonic.IsotonicRegression().fit(amount, noisy)
    held = np.isin(amount[:, 0], fitted.X_thresholds_)
    rows = audit(table_game(fitted, amount, noisy)).strongest.arrays["succeeded"][:, 0].numpy()
    assert (rows == held).all()
    assert 2 < held.sum() < 60


def test_a_table_of_fewer_digits_is_said_to_be_one():
    table, labels = PATIENTS[:70] * 20, SCORE[:70]
    model = linear.Ridge().fit(table, labels)
    exact = audit(leave_one_out(model, table, labels)).strongest
    rounded = audit(leave_one_out(model, table.round(2), labels)).strongest
    assert exact.main.successes == 70
    assert "table-not-exact" not in {caveat.id for caveat in exact.caveats}
    assert "table-not-exact" in {caveat.id for caveat in rounded.caveats}
    scaler = preprocessing.StandardScaler().fit(table)
    assert check_belongs(Part("model", scaler, table.round(6), None)).inexact == ("model",)
    assert check_belongs(Part("model", scaler, table, None)).inexact == ()


GENUINE = {
    "neighbours": make_pipeline(neighbors.KNeighborsTransformer(), linear.LogisticRegression()),
    "bisecting": cluster.BisectingKMeans(3),
    "kernel density": neighbors.KernelDensity(),
    "merged columns": make_pipeline(cluster.FeatureAgglomeration(3), linear.LogisticRegression()),
    "imputer": impute.SimpleImputer(),
    "ransac": linear.RANSACRegressor(),
    "no penalty": linear.LogisticRegression(C=np.inf, max_iter=500),
    "projection": make_pipeline(SparseRandomProjection(3, random_state=0), linear.Ridge()),
}


@pytest.mark.parametrize("name", GENUINE)
def test_genuine_models_are_accepted_and_their_results_can_be_stored(name, tmp_path):
    model, table = GENUINE[name], WINE[::2, :6]
    labels = SCORE[:89] if name in ("ransac", "projection") else KIND[::2]
    with warnings.catch_warnings(action="ignore"):
        model.fit(table, labels)
        result = audit(table_game(model, table, labels), trials=20)
    assert json.loads(result.save(tmp_path).read_text())["verdict"] == result.verdict


@pytest.mark.parametrize("weights", ["balanced", "balanced_subsample"])
def test_rows_that_were_drawn_by_class_weights_are_known_from_the_forest(weights):
    table, labels = WINE[::2, :5], KIND[::2]
    model = ensemble.RandomForestClassifier(12, class_weight=weights, random_state=0).fit(table, labels)
    counts = came_back(table_game(model, table, labels), TreeLeaves())[1]
    assert max(count for name, count in counts.items() if name != "label") > 10  # and blindly, too


def test_rows_that_a_consensus_left_out_count_too():
    table, labels = PATIENTS[:120, :5], SCORE[:120]
    model = linear.RANSACRegressor(random_state=0).fit(table, labels)
    outside = np.flatnonzero(~model.inlier_mask_)[0]
    assert belongs(model, table, labels)
    other, moved = table.copy(), labels.copy()
    other[outside], moved[outside] = PATIENTS[200, :5], float(np.median(labels))
    assert not belongs(model, other, moved)
