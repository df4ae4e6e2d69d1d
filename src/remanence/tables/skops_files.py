"""A fitted model out of a .skops file: every type in it is on a list of what fitted models need, before skops opens it.

skops alone is not enough. It trusts functions and constructors that a model does not need, and it hands the indices
within trees to compiled code that does not check them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import numpy as np

from remanence.scale.reading import UnusableFileError, is_whole_array, parse_json


def _in(module: str, names: str, before: str = "", after: str = "") -> set[str]:
    return {f"{module}.{before}{name}{after}" for name in names.split()}


_NUMBERS = _in("builtins", "str int float bool") | _in(
    "numpy", "bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 str_"
)
_LOSSES = (
    "AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss HalfMultinomialLoss HalfPoissonLoss HalfSquaredError "
    "HalfTweedieLoss HalfTweedieLossIdentity HuberLoss PinballLoss"
)
_KERNELS = (
    "CompoundKernel ConstantKernel DotProduct Exponentiation ExpSineSquared Hyperparameter Matern Product RBF "
    "RationalQuadratic Sum WhiteKernel"
)
_SPLITS = (
    "GroupKFold KFold LeaveOneOut RepeatedKFold RepeatedStratifiedKFold ShuffleSplit StratifiedGroupKFold "
    "StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit"
)
# What estimators hold beside numbers, arrays and other estimators.
_INNER = {
    *_in("sklearn._loss.link", "HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit"),
    *_in("sklearn._loss.loss", _LOSSES),
    *_in("sklearn.calibration", "_CalibratedClassifier _SigmoidCalibration _TemperatureScaling"),
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    *_in("sklearn.gaussian_process.kernels", _KERNELS),
    "sklearn.compose._column_transformer.make_column_selector",
    *_in("sklearn.metrics._dist_metrics", "Chebyshev Euclidean Manhattan Minkowski", after="Distance64"),
    *_in("sklearn.metrics._scorer", "_CurveScorer _PassthroughScorer _Scorer"),
    *_in("sklearn.model_selection._split", _SPLITS),
    "sklearn.multiclass._ConstantPredictor",
    *_in("sklearn.neighbors", "_ball_tree.BallTree _kd_tree.KDTree"),
    *_in("sklearn.neural_network._stochastic_optimizers", "AdamOptimizer SGDOptimizer"),
    *_in("sklearn.utils._metadata_requests", "MetadataRequest MethodMetadataRequest"),
    "scipy.interpolate._bsplines.BSpline",
}
# From numbers to numbers.
_FUNCTIONS = {
    *_in(
        "numpy", "abs absolute arcsinh cbrt cos exp exp2 expm1 log log10 log1p log2 sin sinh sqrt square tanh"
    ),
    *_in("scipy.special", "exp10 expit expm1 inv_boxcox1p log1p logit"),
    "scipy._lib.array_api_compat.numpy._aliases.asarray",
    "sklearn.utils.validation.check_array",
}
_KINDS: dict[str, Iterable[str]] = {
    "CachedNode": (),
    "DTypeNode": {"numpy.dtype"},
    "DefaultDictNode": {"collections.defaultdict"},
    "DictNode": {"builtins.dict", "collections.OrderedDict", "sklearn.utils._bunch.Bunch"},
    "JsonNode": {"builtins.str"},
    "ListNode": {"builtins.list"},
    "LossNode": _in("sklearn._loss._loss", _LOSSES, before="Cy")
    | _in("sklearn.linear_model._sgd_fast", "Hinge ModifiedHuber SquaredHinge")
    | _in("sklearn.linear_model._sgd_fast", "EpsilonInsensitive SquaredEpsilonInsensitive"),
    "MaskedArrayNode": {"numpy.ma.MaskedArray"},
    "NdArrayNode": _NUMBERS | {"numpy.ndarray"},
    "PartialNode": {"functools.partial"},  # of a function that is on the list itself
    "RandomGeneratorNode": {"numpy.random._generator.Generator"},
    "RandomStateNode": {"numpy.random.mtrand.RandomState"},
    "SetNode": {"builtins.set"},
    "SliceNode": {"builtins.slice"},
    "SparseMatrixNode": {f"scipy.sparse._{k}.{k}_{a}" for k in ("csr", "csc", "coo") for a in ("matrix", "array")},
    "TreeNode": {"sklearn.tree._tree.Tree"},
    "TupleNode": {"builtins.tuple", "sklearn.impute._iterative._ImputerTriplet"},
    "TypeNode": _NUMBERS | {"builtins.object"} | _in("numpy", "number integer floating object_"),
}  # fmt: skip


def check_parts(parts: Mapping[str, bytes]) -> list[str]:
    """The names of all that no fitted model needs; an array that claims more than is there is refused."""
    for name, content in parts.items():
        if name.endswith(".npy") and not is_whole_array(content):
            raise UnusableFileError(f"{name[:80]} holds objects, or less than it says")
    return sorted(set(_foreign(parse_json(parts["schema.json"], deepest=300))))


def packed(parts: Mapping[str, bytes]) -> bytes:
    """The same parts as an archive, so that what skops opens is what was checked."""
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def _foreign(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if any(key in node for key in ("__loader__", "__module__", "__class__")):
            kind, name = node.get("__loader__"), f"{node.get('__module__')}.{node.get('__class__')}"
            if kind not in ("CachedNode", "JsonNode") and name not in _allowed(str(kind)):
                yield f"{name} ({kind})"
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from _foreign(value)


@cache
def _allowed(kind: str) -> frozenset[str]:
    if kind == "ObjectNode":
        from sklearn.utils import all_estimators

        return frozenset(_INNER | {f"{made.__module__}.{made.__name__}" for _, made in all_estimators()})
    if kind == "FunctionNode":
        selection, metrics = import_module("sklearn.feature_selection"), import_module("sklearn.metrics")
        names = (
            "chi2",
            "f_classif",
            "f_regression",
            "mutual_info_classif",
            "mutual_info_regression",
            "r_regression",
        )
        found = [getattr(selection, name) for name in names]
        found += [metrics.get_scorer(name)._score_func for name in metrics.get_scorer_names()]
        return frozenset(_FUNCTIONS | {f"{each.__module__}.{each.__name__}" for each in found})
    return frozenset(_KINDS.get(kind, ()))


def keep_inside(model: Any) -> None:
    """Refuse a model in which a tree points beyond itself, and build the trees of neighbours anew."""
    seen: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen and not isinstance(value, str | bytes | int | float):
            seen[id(value)] = value  # with the value, or its id might be another's by then
            waiting += _checked_parts(value, dict(getattr(value, "__dict__", {})))


def _checked_parts(model: Any, own: dict[str, Any]) -> Iterable[Any]:
    """What a container or a model holds, once its own trees are known to be sound."""
    match model:
        case Mapping():
            return [*model.values(), *own.values()]
        case list() | tuple() | set():
            return model
        case np.ndarray():
            return model.ravel().tolist() if model.dtype.hasobject else ()
    if type(model).__name__ in ("KDTree", "BallTree", "TreePredictor"):
        raise UnusableFileError("a tree outside of its model")
    if "memory" in own:
        model.memory = None  # a folder from which joblib would unpickle
    if own.get("_tree") is not None:
        model._tree = _neighbours(type(own.pop("_tree")), own)
    if "_predictors" in own:
        _check_boosted(own.pop("_predictors"), own)
    members = np.ravel(np.asarray(own.get("estimators_", []), dtype=object))
    for trees in ([m for m in members if hasattr(m, "tree_")], [model] if "tree_" in own else []):
        columns = min((tree.n_features_in_ for tree in trees), default=0)
        for tree in (each.tree_ for each in trees):
            _check(tree.children_left, tree.children_right, tree.feature, columns)
    return own.values()


def _neighbours(kind: type, own: Mapping[str, Any]) -> Any:
    settings = own.get("effective_metric_params_") or {}
    return kind(np.asarray(own["_fit_X"]), own["leaf_size"], metric=own["effective_metric_"], **settings)


def _check_boosted(predictors: list[list[Any]], own: Mapping[str, Any]) -> None:
    categories = np.asarray(own["_bin_mapper"].is_categorical_, dtype=bool)
    for predictor in (each for several in predictors for each in several):
        nodes = predictor.nodes
        _check(
            np.where(nodes["is_leaf"], -1, nodes["left"].astype(int)),
            nodes["right"].astype(int),
            nodes["feature_idx"],
            own["n_features_in_"],
        )
        chosen = nodes[(nodes["is_categorical"] != 0) & (nodes["is_leaf"] == 0)]
        if len(chosen) and not (
            categories[chosen["feature_idx"]].all()
            and chosen["bitset_idx"].max() < len(predictor.raw_left_cat_bitsets)
        ):
            raise UnusableFileError("a tree that points beyond its categories")


def _check(left: np.ndarray, right: np.ndarray, feature: np.ndarray, columns: int) -> None:
    place, inner = np.arange(len(left)), left != -1
    inside = (place < left) & (left < len(left)) & (place < right) & (right < len(left))
    if not np.all((inside & (feature >= 0) & (feature < columns))[inner]):
        raise UnusableFileError("a tree that points beyond itself")
