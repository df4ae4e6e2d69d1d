"""Stands in for your own files: a table, and a file with a function that returns the model fitted on it.

The table is scikit-learn's breast cancer data: 569 patients. With `pip install '.[tables]'` a model.skops does as well.
"""

from pathlib import Path

from sklearn.datasets import load_breast_cancer

MODEL = """import pandas as pd
from sklearn.ensemble import RandomForestClassifier


def load():
    table = pd.read_csv("train.csv")
    return RandomForestClassifier(8, random_state=0).fit(table.drop(columns="outcome"), table["outcome"])
"""


def main() -> None:
    patients, outcome = load_breast_cancer(return_X_y=True, as_frame=True)
    patients.assign(outcome=outcome).to_csv("train.csv", index=False)
    Path("model.py").write_text(MODEL)


main()
