"""Fitted models and tables: who holds rows, who belongs, and what comes back.

python benchmarks/tables.py holders      every estimator that stores rows is named, and no other
python benchmarks/tables.py belonging    models of this table and of other people's, of every kind, from files
python benchmarks/tables.py large [rows] leave-one-out on a million rows of 100 columns: time and memory
python benchmarks/tables.py sacro        beside SACRO-ML on the same fitted models (needs sacroml)
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import (
    calibration,
    cluster,
    covariance,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    kernel_approximation,
    kernel_ridge,
    mixture,
    model_selection,
    multiclass,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    semi_supervised,
    svm,
    tree,
)
from sklearn import linear_model as linear
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_regression
from sklearn.pipeline import make_pipeline

from remanence.core.exceptions import MisfitError, RemanenceError
from remanence.tables.command import TableOptions, load_table_game
from remanence.tables.parts import Part
from remanence.tables.sklearn import table_game
from remanence.tables.stored import stored_rows

scaled = preprocessing.StandardScaler
HOLDERS = [
    svm.SVC(),
    svm.SVR(),
    svm.NuSVC(nu=0.2),
    svm.NuSVR(),
    svm.OneClassSVM(),
    neighbors.KNeighborsClassifier(),
    neighbors.RadiusNeighborsRegressor(radius=1e3),
    gaussian_process.GaussianProcessRegressor(),
    gaussian_process.GaussianProcessClassifier(),
    kernel_ridge.KernelRidge(),
    semi_supervised.LabelPropagation(kernel="knn"),
    semi_supervised.LabelSpreading(kernel="knn"),
    neighbors.LocalOutlierFactor(novelty=True),
    make_pipeline(scaled(), decomposition.KernelPCA(5, kernel="rbf"), linear.LogisticRegression()),
    make_pipeline(
        scaled(), kernel_approximation.Nystroem(n_components=20, random_state=0), linear.LogisticRegression()
    ),
]
OTHERS = [
    linear.LogisticRegression(max_iter=20),
    linear.LinearRegression(),
    linear.Ridge(),
    linear.RidgeCV(),
    linear.RidgeClassifier(),
    linear.Lasso(),
    linear.LassoCV(cv=3),
    linear.ElasticNet(),
    linear.BayesianRidge(),
    linear.ARDRegression(),
    linear.HuberRegressor(),
    linear.SGDClassifier(),
    linear.SGDRegressor(),
    linear.Perceptron(),
    linear.Lars(),
    linear.LassoLars(),
    linear.OrthogonalMatchingPursuit(),
    linear.PoissonRegressor(),
    linear.GammaRegressor(),
    svm.LinearSVC(),
    svm.LinearSVR(),
    naive_bayes.GaussianNB(),
    naive_bayes.MultinomialNB(),
    naive_bayes.BernoulliNB(),
    discriminant_analysis.LinearDiscriminantAnalysis(),
    discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=0.1),
    neighbors.NearestCentroid(),
    tree.DecisionTreeClassifier(),
    tree.ExtraTreeRegressor(),
    ensemble.RandomForestClassifier(5),
    ensemble.ExtraTreesClassifier(5),
    ensemble.GradientBoostingClassifier(n_estimators=3),
    ensemble.HistGradientBoostingClassifier(max_iter=3),
    ensemble.AdaBoostClassifier(n_estimators=3),
    ensemble.BaggingClassifier(n_estimators=3),
    ensemble.IsolationForest(n_estimators=3),
    neural_network.MLPClassifier((5,), max_iter=3),
    decomposition.PCA(5),
    decomposition.FactorAnalysis(3),
    decomposition.NMF(max_iter=50),
    cluster.KMeans(3),
    mixture.GaussianMixture(2),
    covariance.EmpiricalCovariance(),
    cross_decomposition.PLSRegression(),
    preprocessing.StandardScaler(),
    preprocessing.MinMaxScaler(),
    preprocessing.KBinsDiscretizer(quantile_method="averaged_inverted_cdf"),
    feature_selection.SelectKBest(k=5),
    kernel_approximation.RBFSampler(),
    make_pipeline(scaled(), linear.LogisticRegression()),
]


def fitted_on(model, features, labels) -> Any:
    fresh: Any = clone(model)
    return fresh.fit(features, labels)


def held_by(model, features, labels) -> list:
    """The arrays of a fitted model that hold rows of its table."""
    fitted = fitted_on(model, features, labels)
    return [
        found for part in Part("model", fitted, features, labels).innermost() for found in stored_rows(part)
    ]


def holders() -> None:
    features, labels = bunch(load_breast_cancer)
    labels = labels + 1  # some regressions want amounts above 0
    named = falsely = 0
    for model in HOLDERS:
        found = held_by(model, features, labels)
        named += bool(found)
        shown = ", ".join(f"{each.path} ({each.count} rows)" for each in found)
        print(f"{type(model[-2] if hasattr(model, 'steps') else model).__name__:28} {shown}")
    for model in OTHERS:
        found = held_by(model, features, labels)
        falsely += bool(found)
        if found:
            print("falsely:", model, [each.path for each in found])
    print(f"{named} of {len(HOLDERS)} that hold rows are named; {falsely} of {len(OTHERS)} others are")


CLASSIFIERS = [
    linear.LogisticRegression(),
    linear.LogisticRegression(solver="liblinear"),
    linear.LogisticRegression(solver="saga"),
    linear.LogisticRegression(solver="newton-cholesky"),
    linear.LogisticRegression(C=100),
    linear.LogisticRegression(class_weight="balanced"),
    linear.RidgeClassifier(),
    linear.RidgeClassifierCV(),
    svm.LinearSVC(),
    linear.SGDClassifier(random_state=0, loss="log_loss"),
    linear.Perceptron(random_state=0),
    svm.SVC(),
    neighbors.KNeighborsClassifier(),
    neighbors.NearestCentroid(),
    naive_bayes.GaussianNB(),
    naive_bayes.BernoulliNB(),
    tree.DecisionTreeClassifier(),
    tree.ExtraTreeClassifier(),
    ensemble.RandomForestClassifier(10),
    ensemble.ExtraTreesClassifier(10),
    ensemble.GradientBoostingClassifier(n_estimators=10),
    ensemble.HistGradientBoostingClassifier(max_iter=10),
    ensemble.AdaBoostClassifier(n_estimators=5),
    ensemble.BaggingClassifier(n_estimators=5),
    discriminant_analysis.LinearDiscriminantAnalysis(),
    discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=0.1),
    neural_network.MLPClassifier(max_iter=20, random_state=0),
    semi_supervised.LabelSpreading(kernel="knn"),
    calibration.CalibratedClassifierCV(linear.LogisticRegression()),
    model_selection.GridSearchCV(linear.LogisticRegression(), {"C": [0.1, 1]}, cv=3),
    multiclass.OneVsRestClassifier(linear.LogisticRegression()),
    ensemble.VotingClassifier([("a", linear.LogisticRegression()), ("b", naive_bayes.GaussianNB())]),
    make_pipeline(scaled(), linear.LogisticRegression()),
    make_pipeline(preprocessing.MinMaxScaler(), decomposition.PCA(3), linear.LogisticRegression()),
    make_pipeline(preprocessing.QuantileTransformer(n_quantiles=50), svm.SVC()),
    make_pipeline(scaled(), feature_selection.SelectKBest(k=4), linear.LogisticRegression()),
    make_pipeline(preprocessing.PolynomialFeatures(2), scaled(), linear.RidgeClassifier()),
]
REGRESSORS = [
    linear.LinearRegression(),
    linear.Ridge(),
    linear.RidgeCV(),
    linear.Lasso(0.1),
    linear.LassoCV(),
    linear.ElasticNetCV(),
    linear.BayesianRidge(),
    linear.ARDRegression(),
    linear.HuberRegressor(max_iter=1000),
    linear.PoissonRegressor(),
    linear.GammaRegressor(),
    linear.LassoLars(0.1),
    linear.QuantileRegressor(),
    svm.SVR(),
    svm.LinearSVR(random_state=0),
    neighbors.KNeighborsRegressor(),
    kernel_ridge.KernelRidge(),
    gaussian_process.GaussianProcessRegressor(),
    tree.DecisionTreeRegressor(),
    ensemble.RandomForestRegressor(10),
    ensemble.GradientBoostingRegressor(n_estimators=10),
    ensemble.HistGradientBoostingRegressor(max_iter=10),
    ensemble.BaggingRegressor(n_estimators=5),
    cross_decomposition.PLSRegression(),
    make_pipeline(scaled(), linear.Ridge()),
]


def bunch(load) -> Any:
    return load(return_X_y=True)


def tables() -> Iterator[Any]:
    wide, labels = bunch(load_breast_cancer)
    yield wide, labels, CLASSIFIERS
    yield preprocessing.scale(wide)[:, :6], np.array(["no", "yes"])[labels], CLASSIFIERS
    yield (*bunch(load_wine), CLASSIFIERS)
    yield preprocessing.scale(wide)[:, 10:22], labels, CLASSIFIERS
    yield preprocessing.scale(wide)[:, 22:], labels, CLASSIFIERS
    yield (*bunch(load_diabetes), REGRESSORS)
    for seed in range(4):
        made: Any = make_regression(240, 7, noise=20, random_state=seed)
        features, amounts = made
        yield features, np.abs(amounts) + 1, REGRESSORS


def answer_of(model: Path, table: Path) -> str:
    """What the command says of a model's file and a table's before it attacks."""
    from skops.io import get_untrusted_types  # pyright: ignore[reportMissingImports]

    try:
        named = ",".join(get_untrusted_types(file=model))
        load_table_game(str(model), TableOptions(data=table, label="outcome", trusted=named))
    except MisfitError as error:
        return "cannot be told" if "cannot be tested" in error.summary else "not fitted on this table"
    except RemanenceError as error:
        return (
            "fitted, and nothing to read" if "is read here" in error.summary else f"refused: {error.summary}"
        )
    return "fitted on this table"


def belonging() -> None:
    import pandas as pd
    from skops.io import dump  # pyright: ignore[reportMissingImports]

    counts, started = {"own": Counter(), "other": Counter()}, time.perf_counter()
    folder = Path(tempfile.mkdtemp())
    for features, labels, models in tables():
        order = np.random.default_rng(0).permutation(len(features) // 2 * 2)
        halves = dict(zip(("own", "other"), np.array_split(order, 2), strict=True))
        names = [f"c{place}" for place in range(features.shape[1])]
        frame = pd.DataFrame(features, columns=names).assign(outcome=labels)
        for whose, rows in halves.items():
            frame.iloc[rows].to_csv(folder / f"{whose}.csv", index=False)
        mine = pd.read_csv(folder / "own.csv")
        for model in models:
            try:
                dump(fitted_on(model, mine[names], mine["outcome"]), folder / "model.skops")
            except ValueError:
                continue  # liblinear takes two classes only
            for whose in halves:
                answer = answer_of(folder / "model.skops", folder / f"{whose}.csv")
                counts[whose][answer] += 1
                if (whose == "own") != answer.startswith("fitted"):
                    print("wrong:", whose, answer, repr(model)[:80], flush=True)
    for whose, found in counts.items():
        print(f"{whose:6} table, {sum(found.values())} models: {dict(found)}")
    print(f"{time.perf_counter() - started:.0f} s")


def many_numbers(rows: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    table = draw.normal(50, 10, (rows, 100))
    return table, table @ draw.normal(size=100) + draw.normal(size=rows)


def fitted_on_many(rows: int) -> Any:
    return linear.Ridge().fit(*many_numbers(rows))


def large() -> None:
    import resource
    from concurrent.futures import ProcessPoolExecutor

    from remanence.auditing import audit
    from remanence.report.writing import write_report
    from remanence.tables.glm.closed_form import ClosedForm
    from remanence.tables.sklearn import leave_one_out

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 10**6
    with ProcessPoolExecutor(1) as elsewhere:  # what fitting copies does not count
        model = elsewhere.submit(fitted_on_many, rows).result()
    nothing = peak()
    table, amounts = many_numbers(rows)
    started = time.perf_counter()
    game = leave_one_out(model, table, amounts)
    made = time.perf_counter() - started
    result = audit(game, [ClosedForm()])
    played, folder = time.perf_counter() - started - made, Path(tempfile.mkdtemp())
    result.save(folder)
    write_report(result, folder)
    told = time.perf_counter() - started - made - played
    print(f"{rows:,} rows of 100 columns: {result.strongest.main}")
    print(f"does it belong {made:.0f} s, attack {played:.0f} s, files and report {told:.0f} s")
    print(f"peak {peak() / 2**30:.1f} GiB: {(peak() - nothing) / table.nbytes:.2f} tables, this one included")


def sacro() -> None:
    from sacroml.attacks.structural_attack import StructuralAttack  # pyright: ignore[reportMissingImports]
    from sacroml.attacks.target import Target  # pyright: ignore[reportMissingImports]

    features, labels = bunch(load_breast_cancer)
    half = len(features) // 2
    seen, unseen = (features[:half], labels[:half]), (features[half:], labels[half:])
    models = [
        linear.LogisticRegression(solver="newton-cholesky"),
        make_pipeline(scaled(), linear.LogisticRegression()),
        naive_bayes.GaussianNB(),
        svm.SVC(),
        neighbors.KNeighborsClassifier(),
        tree.DecisionTreeClassifier(random_state=0),
        ensemble.RandomForestClassifier(20, random_state=0),
    ]
    for model in models:
        fitted = fitted_on(model, *seen)
        started = time.perf_counter()
        try:
            target = Target(
                model=fitted,
                dataset_name="breast-cancer",
                X_train=seen[0],
                y_train=seen[1],
                X_test=unseen[0],
                y_test=unseen[1],
            )
            found = StructuralAttack(output_dir="remanence-runs/sacro").attack(target)
            logged = found["attack_experiment_logger"]["attack_instance_logger"] if found else {}
            flags = logged.get("instance_0", {})
            shown = ", ".join(f"{name}={value}" for name, value in flags.items() if "risk" in name)
        except Exception as error:  # noqa: BLE001
            shown = f"{type(error).__name__}: {error}"[:120]
        theirs = time.perf_counter() - started
        started = time.perf_counter()
        try:
            from remanence.game import play
            from remanence.tables.attacks import WholeObject

            ours = str(play(table_game(fitted, *seen), WholeObject()).main)
        except RemanenceError as error:
            ours = error.summary
        print(
            f"{type(model[-1] if hasattr(model, 'steps') else model).__name__:24} SACRO-ML {theirs:.2f} s: {shown}"
        )
        print(f"{'':24} here     {time.perf_counter() - started:.2f} s: {ours}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    commands = {"holders": holders, "belonging": belonging}
    commands |= {"large": large, "sacro": sacro}
    commands[sys.argv[1]]()
