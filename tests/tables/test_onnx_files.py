"""ONNX files: rows that they hold, scalers and linear models, made here byte by byte as the format describes."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from remanence.core.exceptions import InputError, MisfitError
from remanence.game import play
from remanence.tables.from_object import WholeObject
from remanence.tables.model_files import load_estimator
from remanence.tables.sklearn import table_game

TABLE, LABELS = load_wine(return_X_y=True)


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def field(number: int, value) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def node(kind: str, inputs=(), **settings) -> bytes:
    own = b"".join(field(1, name) for name in inputs) + field(4, kind)
    for name, value in settings.items():
        if isinstance(value, list):
            packed = field(8, b"".join(map(varint, value)))
        else:
            packed = field(7, np.asarray(value, dtype=np.float32).tobytes())
        own += field(5, field(1, name) + packed)
    return field(1, own)


def tensor(name: str, values: np.ndarray) -> bytes:
    dims = b"".join(field(1, size) for size in values.shape)
    return field(5, dims + field(2, 1) + field(8, name) + field(9, values.astype(np.float32).tobytes()))


def written(folder: Path, *parts: bytes) -> str:
    shape = field(1, b"") + field(1, field(1, TABLE.shape[1]))
    given = field(11, field(1, "X") + field(2, field(1, field(2, shape))))
    (folder / "model.onnx").write_bytes(field(1, 9) + field(7, b"".join(parts) + given))
    return str(folder / "model.onnx")


def scaled(table):
    scaler = StandardScaler().fit(table)
    return node("Scaler", offset=scaler.mean_, scale=1 / scaler.scale_), scaler.transform(table)


def support(table, labels):
    model = SVC().fit(table, labels)
    settings = {"classlabels_ints": [0, 1, 2], "vectors_per_class": model.n_support_.tolist()}
    return node("SVMClassifier", support_vectors=model.support_vectors_.ravel(), **settings), model.support_


@pytest.mark.parametrize("behind_a_scaler", [False, True])
def test_support_vectors_are_rows_of_the_table(tmp_path, behind_a_scaler):
    first, seen = scaled(TABLE) if behind_a_scaler else (b"", TABLE)
    model, held = support(seen, LABELS)
    found = play(table_game(load_estimator(written(tmp_path, first, model)), TABLE, LABELS), WholeObject())
    assert found.proven == len(held)
    assert found.main.successes == (
        len(TABLE) if behind_a_scaler else len(held)
    )  # a scaler's mean gives the others
    with pytest.raises(MisfitError, match="not fitted on this table"):
        table_game(load_estimator(written(tmp_path, first, model)), TABLE[::-1] * 1.01, LABELS)


def test_neighbours_stand_in_the_file(tmp_path):
    file = written(tmp_path, node("Scan", ["rows", "X"]), tensor("rows", TABLE))
    found = play(table_game(load_estimator(file), TABLE, LABELS), WholeObject())
    assert found.proven == len(TABLE)
    other = written(tmp_path, node("Scan", ["rows", "X"]), tensor("rows", TABLE * 1.01))
    with pytest.raises(MisfitError, match="can tell"):
        table_game(load_estimator(other), TABLE, LABELS)


def test_a_linear_model_is_solved_behind_its_scaler(tmp_path):
    amounts = TABLE @ np.linspace(-1, 1, TABLE.shape[1]) / 100 + np.random.default_rng(0).normal(
        size=len(TABLE)
    )
    first, seen = scaled(TABLE)
    model = Ridge().fit(seen, amounts)
    last = node("LinearRegressor", coefficients=model.coef_, intercepts=np.array([model.intercept_]))
    made = load_estimator(written(tmp_path, first, last))
    found = play(table_game(made, TABLE, amounts), WholeObject())
    assert found.main.successes == len(TABLE)
    (label,) = (part for part in found.parts if part.name == "label")
    assert label.main.rate > 0.9


def test_trees_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="not the counts of its nodes"):
        load_estimator(written(tmp_path, node("TreeEnsembleClassifier", nodes_values=[1])))
    whole = Path(written(tmp_path, scaled(TABLE)[0], support(TABLE, LABELS)[0])).read_bytes()
    for end in range(0, len(whole), 97):
        (tmp_path / "model.onnx").write_bytes(whole[:end])
        with pytest.raises(InputError):
            load_estimator(str(tmp_path / "model.onnx"))
