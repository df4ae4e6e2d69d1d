"""Models and tables from the files that the extra `tables` reads."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import skops.io
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "tables"))
from patients import patients, prepared


def remanence(folder, *arguments):
    command = [sys.executable, "-m", "remanence", "table", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


MODELS = [
    prepared(LogisticRegression()),
    prepared(RandomForestClassifier(20, random_state=0)),
    prepared(SVC()),
    prepared(KNeighborsClassifier()),
    prepared(HistGradientBoostingClassifier(max_iter=3)),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m[-1]).__name__)
def test_a_skops_model_and_a_parquet_table(model, tmp_path):
    frame, labels = patients(150)
    skops.io.dump(model.fit(frame, labels), tmp_path / "model.skops")
    frame.assign(outcome=labels).to_parquet(tmp_path / "train.parquet")
    named = ",".join(skops.io.get_untrusted_types(file=tmp_path / "model.skops"))
    asked = ["model.skops", "--data", "train.parquet", "--label", "outcome", "--by", "region"]
    found = remanence(tmp_path, *asked, "--trusted", named)
    assert found.returncode in (1, 3), found.stderr
    assert "Whose values came back" in found.stdout
    assert all(name in found.stdout for name in frame.columns)


def test_functions_within_a_skops_file_are_refused(tmp_path):
    frame, labels = patients(80)
    numbers = frame[["age", "income"]]
    model = make_pipeline(FunctionTransformer(os.path.abspath), StandardScaler(), LogisticRegression())
    model.steps[1:] = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, labels).steps
    skops.io.dump(model, tmp_path / "model.skops")
    numbers.assign(outcome=labels).to_csv(tmp_path / "train.csv", index=False)
    found = remanence(tmp_path, "model.skops", "--data", "train.csv", "--label", "outcome")
    assert found.returncode == 2
    assert "abspath" in found.stderr
    assert pd.read_csv(tmp_path / "train.csv").shape == (80, 3)
