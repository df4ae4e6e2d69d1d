"""Hostile .skops and .parquet files: every one is read or refused with a sentence, and nothing is waited for."""

import os
import random
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from skops.io import dump

from remanence.core.exceptions import RemanenceError
from remanence.tables import reading as tables
from remanence.tables.reading import load_estimator, read_table

INPUTS = int(os.environ.get("REMANENCE_INPUTS", "300"))


@pytest.fixture
def table(tmp_path):
    frame = pd.DataFrame({"age": np.arange(50.0), "sex": ["f", "m"] * 25})
    frame.to_parquet(tmp_path / "train.parquet")
    return tmp_path / "train.parquet"


@pytest.fixture
def model(tmp_path):
    dump(Ridge().fit(np.eye(4), np.arange(4)), tmp_path / "model.skops")
    return tmp_path / "model.skops"


@pytest.mark.parametrize(
    ("made", "read"), [("table", read_table), ("model", lambda path: load_estimator(str(path)))]
)
def test_a_mutated_file_is_read_or_refused(made, read, request):
    path = request.getfixturevalue(made)
    original, draw, refused = path.read_bytes(), random.Random(0), 0  # noqa: S311
    read(path)
    for _ in range(INPUTS):
        content = bytearray(original)
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(content))
            edit = draw.choice(["flip", "cut", "repeat"])
            if edit == "flip":
                content[place] ^= draw.randint(1, 255)
            elif edit == "cut":
                del content[place : place + draw.randint(1, 40)]
            else:
                content[place:place] = content[place : place + draw.randint(1, 40)]
        path.write_bytes(content)
        try:
            read(path)
        except RemanenceError:
            refused += 1
    print(f"{INPUTS} mutated {path.suffix} files, {refused} refused")
    assert refused > INPUTS // 4


def test_a_table_that_unpacks_into_too_much_is_refused(table, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_CELLS", 60)
    with pytest.raises(RemanenceError, match="100 cells"):
        read_table(table)


def test_a_model_that_unpacks_into_too_much_is_no_model(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", "{}")
        with archive.open("array.npy", "w", force_zip64=True) as file:
            for _ in range(2**10 + 1):
                file.write(b"\0" * 2**24)
    with pytest.raises(RemanenceError):
        load_estimator(str(tmp_path / "bomb.skops"))


@pytest.mark.parametrize("name", ["pipe.parquet", "pipe.csv", "pipe.skops"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(RemanenceError):
        (read_table if "skops" not in name else load_estimator)(
            tmp_path / name if "skops" not in name else str(tmp_path / name)
        )
