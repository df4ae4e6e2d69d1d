"""A model and a table from files, in one command; and files that are not opened."""

import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import joblib
import pandas as pd
import pytest
from patients import patients

from remanence.tables.reading import read_table

OWN = "model.py:fitted --data train.csv --label outcome"
MODEL = """
import pandas as pd
from patients import prepared
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

table = pd.read_csv("train.csv")
numbers, ill = pd.read_csv("numbers.csv")[["age", "income"]], (table["outcome"] == "ill").astype(int)

def fitted():
    return prepared(LogisticRegression()).fit(table.drop(columns=["outcome", "id"]), table["outcome"])

def plain():
    return LogisticRegression().fit(table[["age"]].fillna(40), table["outcome"])

def number():
    return 3

def coded():
    model = LogisticRegression(solver="newton-cholesky", tol=1e-8)
    return model.fit(numbers, ill, sample_weight=1.0 + (table["age"] > 50))

def clusters():
    return KMeans(3, random_state=0).fit(numbers)

def read_as(kind):
    people = pd.read_csv("people.csv", dtype={"code": kind})
    return people[["code", "age"]], people["rate"]

def of_numbers():
    return Ridge().fit(*read_as(int))

def of_text():
    columns = [("words", OneHotEncoder(), ["code"]), ("numbers", StandardScaler(), ["age"])]
    return make_pipeline(ColumnTransformer(columns), Ridge()).fit(*read_as(str))
"""


@pytest.fixture
def folder(tmp_path):
    frame, labels = patients(150)
    frame.assign(outcome=labels, id=range(150)).to_csv(tmp_path / "train.csv", index=False)
    numbers = (frame[["age", "income"]] / [10, 10000]).assign(outcome=labels, w=1 + (frame["age"] > 50))
    numbers.to_csv(tmp_path / "numbers.csv", index=False)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


@pytest.fixture
def table(folder, run):
    """The command in that folder: its exit code, and what it printed on each side."""
    return lambda arguments: run("table", *arguments.split())


def test_one_command_gives_rows_columns_and_groups(folder, table):
    code, said, err = table(f"{OWN} --by sex --show-reconstructions --out out")
    assert (code, "EXPOSED" in said) == (1, True)
    assert "Not used by the model, and left out: id" in err
    out = folder / "out"
    found = json.loads((out / "columns.json").read_text())
    columns = {row["column"]: row for row in found["columns"]}
    whole = {name for name, row in columns.items() if row["recovered"] == 150}
    assert whole >= {"age", "income", "sex", "region", "outcome"} == columns.keys() - {"bmi"}
    assert 0.4 < columns["sex"]["guess"] < 0.7
    groups = found["by"]["sex"]
    assert sum(row["rows"] for row in groups) == 150
    ages = [c["recovered"] for row in groups for c in row["columns"] if c["column"] == "age"]
    assert (len(ages), sum(ages)) == (2, 150)
    first = groups[0]["columns"][0]  # all of them; two groups, each with its rows and six columns
    assert first["lower"] == pytest.approx((0.025 / 14) ** (1 / first["rows"]))
    rows, train = (pd.read_csv(path) for path in (out / "rows.csv", folder / "train.csv"))
    exact = ["age", "sex", "region", "outcome"]
    assert (rows.rename(columns={"label": "outcome"})[exact] == train[exact]).all(axis=None)
    assert (out / "rows.csv").stat().st_mode & 0o077 == 0
    assert str(train["income"][0]) not in (out / "audit.json").read_text() + (out / "report.html").read_text()


MISTAKES = {
    "model.py:fitted --data train.csv --label result": "--label id",
    "model.py:fitted --data train.csv": "The label is missing",
    "model.py:number --data train.csv --label outcome": "no model to audit",
    "model.py:fitted --data no.csv --label outcome": "no such table",
    "model.py:fitted --data other.csv --label outcome": "missing: bmi",
    "model.py:fitted --data semicolons.csv --label outcome": "semicolons between",
    "model.py:fitted --data strangers.csv --label outcome": "not fitted on this table",
    "model.py:fitted --data words.csv --label outcome": "cannot read this table",
    "model.py:fitted --data west.csv --label outcome": "unknown categories ['west']",
    "model.py:plain --data gap.csv --label outcome": "1 of 150 rows with an empty",
    "no.skops --data train.csv --label outcome": "no such model",
    "model.py --data train.csv --label outcome": "model.py:function",
    "model.onnx --data train.csv --label outcome": "a .skops file, which holds data only",
    "model.skops": "--data train.csv",
    f"{OWN} --by star": "no such column for --by",
    f"{OWN} --known some": "--known columns:age",
    f"{OWN} --known columns:": "--known columns:age",
    f"{OWN} --known columns:star": "no such column for --known",
    f"{OWN} --known none": "No attack is known that recovers a row",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_end_with_needs_got_and_try(table, arguments):
    train = pd.read_csv("train.csv")
    Path("model.onnx").touch()
    train.drop(columns="bmi").to_csv("other.csv", index=False)
    train.to_csv("semicolons.csv", sep=";", index=False)
    train.assign(age="old").to_csv("words.csv", index=False)
    train.assign(region=train["region"].where(train.index != 90, "west")).to_csv("west.csv", index=False)
    gap = train[["age", "outcome"]].fillna(40)
    gap.assign(age=gap["age"].where(gap.index != 3)).to_csv("gap.csv", index=False)
    strangers, labels = patients(150, seed=1)
    strangers.assign(outcome=labels).to_csv("strangers.csv", index=False)
    code, _, said = table(arguments)
    assert (code, MISTAKES[arguments] in said) == (2, True), said
    assert all(f"{part}:" in said for part in ("needs", "got", "try"))


class LeavesAMark:
    """What an attacker puts into a pickle."""

    def __reduce__(self):
        return Path.touch, (Path("marked"),)


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.skops", "model.bin"])
def test_nothing_is_unpickled(table, name):
    with Path(name).open("wb") as file:
        joblib.dump(LeavesAMark(), file) if name == "model.joblib" else pickle.dump(LeavesAMark(), file)
    pickle.loads(pickle.dumps(LeavesAMark()))  # noqa: S301 - the file would leave a mark
    assert Path("marked").exists()
    Path("marked").unlink()
    code, _, said = table(f"{name} --data train.csv --label outcome")
    assert not Path("marked").exists()
    assert (code, "executes code" in said, f"load('{name}')" in said) == (2, True, True)


class Reader:
    """skops, of a file with this content."""

    get_untrusted_types = staticmethod(lambda file: [])
    load = staticmethod(lambda file, trusted: {"weights": 1})


@pytest.mark.parametrize(("reader", "says"), [(None, "'.[tables]'"), (Reader, "no model to audit")])
def test_a_missing_extra_and_a_file_without_a_model_are_named(table, monkeypatch, reader, says):
    monkeypatch.setitem(sys.modules, "skops", reader and SimpleNamespace(io=reader))
    monkeypatch.setitem(sys.modules, "skops.io", reader)
    with ZipFile("model.skops", "w") as archive:
        archive.writestr("schema.json", "{}")
    code, _, said = table("model.skops --data train.csv --label outcome")
    assert (code, says in said) == (2, True)


def test_weights_and_coded_labels_are_matched_and_clusters_need_no_label(folder, table):
    options = "model.py:coded --data numbers.csv --label outcome --out weighted"
    code, out, err = table(f"{options} --weights w")
    assert (code, "EXPOSED" in out) == (1, True)
    assert "Taken: ill for 1, well for 0" in err
    code, _, err = table(options)  # without them it is another model's table
    assert (code, "not fitted on this table" in err) == (2, True)
    assert table("model.py:clusters --data numbers.csv --out clusters")[0] == 1
    found = json.loads((folder / "clusters" / "columns.json").read_text())["columns"]
    assert {row["column"]: row["recovered"] for row in found}["income"] == 150


def test_a_postcode_keeps_its_zero(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("code,age,rate\n01234,30,0.5\n98765,40,0\n00007,,1.25\n")
    found = read_table(file)
    assert found["code"].tolist() == ["01234", "98765", "00007"]
    assert found["age"].dtype.kind == found["rate"].dtype.kind == "f"


@pytest.mark.parametrize("model", ["of_numbers", "of_text"])
def test_codes_are_read_as_the_model_read_them(folder, table, model):
    ages = pd.read_csv("train.csv")["age"]
    codes = [["01234", "98765", "00007"][age % 3] for age in ages]
    people = pd.DataFrame({"code": codes, "age": ages, "rate": [f"{age**2 % 70:02}" for age in ages]})
    people.to_csv("people.csv", index=False)
    assert table(f"model.py:{model} --data people.csv --label rate --out codes")[0] == 1
    found = json.loads((folder / "codes" / "columns.json").read_text())["columns"]
    assert {row["column"]: row["recovered"] for row in found} == {"code": 150, "age": 150, "rate": 150}
