"""Hostile .skops files: each is refused by name, and nothing in it runs. Honest ones predict what they did."""

import builtins
import functools
import io
import json
import operator
import os
import warnings
import zipfile

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    StackingRegressor,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, SplineTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from skops.io import dump, dumps, get_untrusted_types

from remanence.core.exceptions import InputError
from remanence.tables.reading import load_estimator

DRAW = np.random.default_rng(0)
NUMBERS = np.abs(DRAW.normal(size=(80, 4)))
CLASSES = (NUMBERS[:, 0] > 0.6).astype(int)
MARK = "opened"


def schema(model, change):
    """The bytes of a model in whose description something was changed."""
    with zipfile.ZipFile(io.BytesIO(dumps(model))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(parts["schema.json"])
    change(document)
    parts["schema.json"] = json.dumps(document).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return packed.getvalue()


def with_node(kind, module, name, **more):
    """A scaler that holds one node of this kind."""

    def change(document):
        plain = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode", "is_json": True}
        words = [{**plain, "content": json.dumps(word)} for word in (MARK, "w")]
        content = {
            "__class__": "tuple",
            "__module__": "builtins",
            "__loader__": "TupleNode",
            "content": words,
        }
        node = {"__loader__": kind, "__module__": module, "__class__": name, "content": content, **more}
        document["content"]["content"]["mean_"] = node

    return schema(StandardScaler().fit(NUMBERS), change)


def forest():
    return RandomForestClassifier(3, random_state=0).fit(NUMBERS, CLASSES)


def hist():
    return HistGradientBoostingClassifier(max_iter=2, random_state=0).fit(NUMBERS, CLASSES)


HOSTILE = {
    "a function": lambda: dumps(FunctionTransformer(os.system)),
    "a function of Python": lambda: dumps(FunctionTransformer(builtins.open)),
    "a function of scikit-learn that is no formula": lambda: with_node(
        "FunctionNode", "sklearn.datasets._base", "load_files"
    ),
    "something that a module of scikit-learn imported": lambda: with_node(
        "FunctionNode", "sklearn.metrics._scorer", "partial"
    ),
    "a method": lambda: dumps(FunctionTransformer(StandardScaler().fit)),
    "a partial": lambda: dumps(FunctionTransformer(functools.partial(np.add, 1))),
    "a ufunc that writes": lambda: dumps(FunctionTransformer(np.frompyfunc)),
    "a caller of methods": lambda: dumps(FunctionTransformer(operator.methodcaller("tofile", MARK))),
    "a getter": lambda: dumps(FunctionTransformer(operator.attrgetter("tofile"))),
    "a constructor": lambda: with_node("ConstructorFromReduceNode", "builtins", "open"),
    "a constructor within scikit-learn": lambda: with_node(
        "ConstructorFromReduceNode", "sklearn.utils.parallel", "Parallel"
    ),
    "a path as a list": lambda: with_node("ListNode", "pathlib", "Path"),
    "a type": lambda: with_node("TypeNode", "subprocess", "Popen"),
    "an array of another class": lambda: with_node("NdArrayNode", "builtins", "open", type="numpy"),
    "a class of joblib": lambda: with_node("ObjectNode", "joblib.memory", "Memory"),
    "a distance of one's own": lambda: with_node(
        "ObjectNode", "sklearn.metrics._dist_metrics", "PyFuncDistance64"
    ),
    "a test's helper": lambda: with_node("ObjectNode", "sklearn.utils._testing", "TempMemmap"),
    "a loader that nobody knows": lambda: with_node("EvilNode", "builtins", "str"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_skops_does_not_trust_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.skops").write_bytes(HOSTILE[kind]())
    with pytest.raises(InputError, match=r"skops does not trust by itself|cannot be read"):
        load_estimator("model.skops")
    assert not (tmp_path / MARK).exists()


def test_a_folder_of_joblibs_is_not_used(tmp_path):
    model = make_pipeline(StandardScaler(), Ridge(), memory=str(tmp_path / "cache")).fit(NUMBERS, CLASSES)
    dump(model, tmp_path / "model.skops")
    assert load_estimator(str(tmp_path / "model.skops")).memory is None


columns = ColumnTransformer(
    [("a", StandardScaler(), [0, 1]), ("b", OneHotEncoder(), [2]), ("c", "passthrough", slice(3, 4))]
)  # fmt: skip
LOSSES = ("squared_error", "quantile", "poisson")
HONEST = [
    LogisticRegression(), Ridge(), SVC(), SGDClassifier(random_state=0), MLPClassifier((4,), max_iter=5),
    DecisionTreeClassifier(), forest(), hist(), HistGradientBoostingClassifier(max_iter=2, categorical_features=[1]),
    *(HistGradientBoostingRegressor(loss, quantile=0.5, max_iter=2) for loss in LOSSES),
    *(GradientBoostingRegressor(loss=loss, n_estimators=2) for loss in ("squared_error", "huber", "quantile")),
    AdaBoostClassifier(n_estimators=3), BaggingClassifier(n_estimators=3, max_features=2),
    BaggingClassifier(DecisionTreeClassifier(), n_estimators=3, max_features=2),
    VotingClassifier([("a", make_pipeline(SplineTransformer(), DecisionTreeClassifier())), ("b", SVC())]),
    StackingRegressor([("a", Ridge())]), CalibratedClassifierCV(),
    GaussianProcessRegressor(ConstantKernel() * RBF() + WhiteKernel()),
    KNeighborsClassifier(), KNeighborsClassifier(algorithm="ball_tree", metric="manhattan"),
    GridSearchCV(Ridge(), {"alpha": [1, 2]}, scoring="r2"),
    GridSearchCV(LogisticRegression(), {"C": [1, 2]}, scoring="roc_auc", cv=StratifiedKFold(3)),
    make_pipeline(columns, SelectKBest(f_classif, k=2), LogisticRegression()),
    make_pipeline(FunctionTransformer(np.log1p), Ridge()),
    TransformedTargetRegressor(Ridge(), func=np.log1p, inverse_func=np.expm1),
]  # fmt: skip


@pytest.mark.parametrize("model", HONEST, ids=lambda model: type(model).__name__)
def test_a_model_whose_types_are_named_predicts_what_it_did(model, tmp_path):
    with warnings.catch_warnings(action="ignore"):
        model.fit(NUMBERS, CLASSES)
    dump(model, tmp_path / "model.skops")
    file = str(tmp_path / "model.skops")
    named = get_untrusted_types(file=file)
    if named:
        with pytest.raises(InputError, match="--trusted"):
            load_estimator(file)
    np.testing.assert_array_equal(load_estimator(file, named).predict(NUMBERS), model.predict(NUMBERS))
