"""ONNX files of linear models and of models that hold their rows, as estimators; read without the package onnx."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from remanence.core.exceptions import InputError
from remanence.scale.reading import GIB, UnusableFileError, read_bytes
from remanence.tables.exported import Exported, ExportedClassifier, ExportedRegressor

_KINDS = {1: np.float32, 6: np.int32, 7: np.int64, 11: np.float64}  # of a tensor's numbers
_PLAIN = ("Cast", "Identity", "Concat", "ZipMap", "Normalizer")  # which change no number of a row
_ROWS = ("Scan", "CDist", "Shape", "Transpose", "MatMul", "Gemm")  # with which neighbours and kernels begin


@dataclass(frozen=True)
class _Node:
    kind: str
    inputs: list[str]
    settings: dict[str, Any]


def read_onnx(file: Path) -> BaseEstimator:
    """What an ONNX file holds, as a scaler and a model with numbers in single precision."""
    try:
        graph = _fields(dict(_fields_of(read_bytes(file, GIB)))[7])
        nodes = [_node(part) for part in graph.get(1, [])]
        held = dict(_tensor(part) for part in graph.get(5, []))
        names, width = _columns(graph, set(held))
        made = _chain(nodes, held, width)
    except (
        UnusableFileError,
        KeyError,
        ValueError,
        IndexError,
        TypeError,
        struct.error,
        UnicodeDecodeError,
    ) as error:
        raise InputError(
            "The model cannot be read.",
            needs="an ONNX file of a scaler, a linear model, support vectors, neighbours or a Gaussian process",
            got=f"{file.name}: {error if isinstance(error, UnusableFileError) else 'not such a file, or cut short'}",
            hint="skops.io.dump(model, 'model.skops'), the estimator that it was made from",
        ) from None
    first = made[0]
    if len(names) == width > 1:
        vars(first)["feature_names_in_"] = np.array(names, dtype=object)
    return make_pipeline(*made) if len(made) > 1 else first


def _chain(nodes: list[_Node], held: dict[str, np.ndarray], width: int) -> list[Any]:
    """Scalers in front, and the first model behind them."""
    made: list[Any] = []
    waiting = [node for node in nodes if node.kind not in _PLAIN]
    while waiting:
        node = waiting.pop(0)
        said = node.settings
        if node.kind == "Scaler":
            offset, scale = (np.broadcast_to(np.float64(said[name]), width) for name in ("offset", "scale"))
            made.append(_scaler(offset, 1 / scale))
        elif node.kind == "Mul" and waiting and waiting[0].kind == "Add":
            scale, offset = (held[_own(each, held)].astype(np.float64) for each in (node, waiting.pop(0)))
            made.append(_range(scale, offset))
        elif node.kind in ("LinearClassifier", "LinearRegressor"):
            return [*made, _linear(said, width)]
        elif node.kind in ("SVMClassifier", "SVMRegressor"):
            return [*made, _support(said, width)]
        elif node.kind in _ROWS or (not made and node.kind == "Div"):
            arrays = {name: values for name, values in held.items() if values.size > 1}
            return [*made, Exported(arrays, width)]
        else:
            counts = (
                " A tree's thresholds are there, but not the counts of its nodes."
                * node.kind.startswith("Tree")
            )
            raise InputError(
                f"This ONNX file begins with steps that are not read.{counts}",
                needs="a scaler, a linear model, support vectors, neighbours or a Gaussian process",
                got=node.kind,
                hint="skops.io.dump(model, 'model.skops'): what the estimator gives away, its export may give away too",
            )
    if not made:
        raise ValueError
    return made


def _own(node: _Node, held: dict[str, np.ndarray]) -> str:
    return next(name for name in node.inputs if name in held)


def _scaler(mean: np.ndarray, scale: np.ndarray) -> StandardScaler:
    made: Any = StandardScaler()
    made.mean_ = mean.astype(np.float32)  # how exact it is, its type says
    made.scale_, made.var_ = scale.copy(), scale**2
    made.n_features_in_ = len(mean)
    return made


def _range(scale: np.ndarray, offset: np.ndarray) -> MinMaxScaler:
    made: Any = MinMaxScaler()
    made.scale_, made.min_ = scale, offset
    made.data_min_, made.data_range_ = -offset / scale, 1 / scale
    made.data_max_ = made.data_min_ + made.data_range_
    made.n_features_in_ = len(scale)
    return made


def _classes(said: dict[str, Any]) -> np.ndarray | None:
    for name in ("classlabels_ints", "classlabels_int64s", "classlabels_strings"):
        if len(said.get(name, ())):
            return np.array(said[name])
    return None


def _linear(said: dict[str, Any], width: int) -> Exported:
    coefficient = np.asarray(said["coefficients"], dtype=np.float64).reshape(-1, width)
    intercept = np.asarray(said.get("intercepts", np.zeros(len(coefficient))), dtype=np.float64)
    classes = _classes(said)
    if classes is None:
        made: Any = ExportedRegressor({}, width)
        coefficient, intercept = (
            (coefficient[0], intercept[0]) if len(coefficient) == 1 else (coefficient, intercept)
        )
    else:
        made = ExportedClassifier({}, width)
        made.classes_ = classes
        if len(classes) == 2:  # the first class has the negative of the second's
            coefficient, intercept = coefficient[-1:], intercept[-1:]
    made.coef_, made.intercept_ = coefficient, intercept
    return made


def _support(said: dict[str, Any], width: int) -> Exported:
    vectors = np.asarray(said["support_vectors"], dtype=np.float32).reshape(-1, width)
    classes = _classes(said)
    if classes is None or len(classes) < 2:
        return Exported({"support_vectors": vectors}, width, rows="support_vectors")
    made: Any = ExportedClassifier({"support_vectors": vectors}, width, rows="support_vectors")
    made.classes_, made.n_support_ = classes, np.array(said["vectors_per_class"])
    return made


def _columns(graph: dict[int, list[Any]], held: set[str]) -> tuple[list[str], int]:
    """The names of the inputs, and how many columns these are."""
    names, width = [], 0
    for part in graph.get(11, []):
        value = _fields(part)
        name = value[1][0].decode()
        if name in held:
            continue
        shape = _fields(_fields(_fields(value[2][0])[1][0])[2][0]).get(1, [])
        names.append(name)
        width += _fields(shape[-1]).get(1, [1])[0] if len(shape) > 1 else 1
    return names, width


def _node(part: bytes) -> _Node:
    own = _fields(part)
    settings = dict(_setting(each) for each in own.get(5, []))
    return _Node(own[4][0].decode(), [name.decode() for name in own.get(1, [])], settings)


def _setting(part: bytes) -> tuple[str, Any]:
    own = _fields(part)
    name = own[1][0].decode()
    if 7 in own:
        return name, _numbers(own[7], np.float32)
    if 8 in own:
        return name, _varints(own[8])
    if 9 in own:
        return name, [text.decode() for text in own[9]]
    return name, next((own[place][0] for place in (2, 3, 4) if place in own), None)


def _tensor(part: bytes) -> tuple[str, np.ndarray]:
    own = _fields(part)
    kind = _KINDS.get(own.get(2, [0])[0])
    shape, name = _varints(own.get(1, [])), own[8][0].decode()
    if kind is None:
        return name, np.zeros(0)
    if 9 in own:
        values = np.frombuffer(own[9][0], kind)
    elif kind in (np.float32, np.float64):
        values = _numbers(own.get(4 if kind is np.float32 else 10, []), kind)
    else:
        values = np.array(_varints(own.get(5 if kind is np.int32 else 7, [])), dtype=kind)
    return name, values.reshape(shape)


def _numbers(parts: list[Any], kind: Any) -> np.ndarray:
    """Numbers that stand together, or one by one."""
    return np.frombuffer(b"".join(parts), kind)


def _varints(parts: list[Any]) -> list[int]:
    found: list[int] = []
    for part in parts:
        if isinstance(part, int):
            found.append(part)
            continue
        place = 0
        while place < len(part):
            value, place = _varint(part, place)
            found.append(value)
    return [value - 2**64 if value >= 2**63 else value for value in found]


def _fields(content: bytes) -> dict[int, list[Any]]:
    """A message of protocol buffers: all values of each field."""
    found: dict[int, list[Any]] = {}
    for field, value in _fields_of(content):
        found.setdefault(field, []).append(value)
    return found


def _fields_of(content: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(content, place)
        else:
            if kind == 2:
                size, place = _varint(content, place)
            else:
                size = {1: 8, 5: 4}[kind]
            if place + size > len(content):
                raise ValueError
            value, place = content[place : place + size], place + size
        yield key >> 3, value


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value, place, shift = value | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError
