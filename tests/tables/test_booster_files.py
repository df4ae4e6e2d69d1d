"""LightGBM's and XGBoost's own files, as short as these packages would write them for a small table."""

import json

import numpy as np
import pandas as pd
import pytest

from remanence import audit
from remanence.core.exceptions import InputError, MisfitError
from remanence.tables.from_object import WholeObject
from remanence.tables.model_files import load_estimator
from remanence.tables.sklearn import table_game

TABLE = pd.DataFrame({"age": [18.0, 25, 31, 44, 52, 60, 71, 89], "income": [9.5, 3.25, 7, 8, 2, 6, 5, 4]})
LABELS = pd.Series([0, 0, 0, 1, 0, 1, 1, 0], name="ill")
LIGHTGBM = """tree
version=v4
feature_names=age income
feature_infos=[18:89] [2:9.5]

Tree=0
leaf_count=3 5

end of trees

parameters:
[data_sample_strategy: bagging]
[bagging_fraction: 1]
"""
TREE = {"left_children": [1, -1, -1], "split_indices": [0, 0, 0], "split_conditions": [44.0, 0.1, 0.2]}
XGBOOST = {
    "learner": {
        "feature_names": ["age", "income"],
        "learner_model_param": {"base_score": "[3.75E-1]", "num_feature": "2"},
        "gradient_booster": {"model": {"trees": [TREE]}},
    }
}


@pytest.fixture
def model(tmp_path):
    def load(content, name):
        (tmp_path / name).write_text(content)
        return load_estimator(str(tmp_path / name))

    return load


def test_the_extremes_in_lightgbm_are_the_oldest_persons_and_the_youngests(model):
    found = audit(table_game(model(LIGHTGBM, "model.txt"), TABLE, LABELS), [WholeObject()]).strongest
    told = {part.name: part.main.successes for part in found.parts}
    assert told == {"age": 2, "income": 2, "ill": 0}


def test_where_xgboost_starts_from_tells_every_label(model):
    found = audit(
        table_game(model(json.dumps(XGBOOST), "model.json"), TABLE, LABELS), [WholeObject()]
    ).strongest
    told = {part.name: part.main.successes for part in found.parts}
    assert told == {"age": 1, "income": 0, "ill": 8}


def test_a_booster_of_another_table_is_refused(model):
    with pytest.raises(MisfitError, match="8 rows"):
        table_game(model(LIGHTGBM, "model.txt"), TABLE[:7], LABELS[:7])
    with pytest.raises(MisfitError, match="values of column 1"):
        table_game(model(LIGHTGBM, "model.txt"), TABLE + 1, LABELS)
    with pytest.raises(MisfitError, match="values of column 1"):
        table_game(model(json.dumps(XGBOOST), "model.json"), TABLE + 0.5, LABELS)


BROKEN = [
    (LIGHTGBM.replace("feature_infos=[18:89] [2:9.5]", ""), "model.txt"),
    (LIGHTGBM.replace(" [2:9.5]", ""), "model.txt"),
    (json.dumps(XGBOOST).replace('"split_indices": [0', '"split_indices": [7'), "model.json"),
    (json.dumps(XGBOOST).replace("3.75E-1", "much"), "model.json"),
    (json.dumps(XGBOOST)[:-9], "model.json"),
    ("{}", "model.json"),
    ("a letter", "model.txt"),
    ("", "model.ubj"),
]


@pytest.mark.parametrize(("content", "name"), BROKEN)
def test_a_broken_file_is_a_sentence(model, content, name):
    with pytest.raises(InputError):
        model(content, name)


def test_numbers_of_another_mean_are_no_label_counts(model):
    other = json.dumps(XGBOOST).replace(
        "3.75E-1", "5E-1"
    )  # what earlier versions start from, whatever the table
    found = audit(table_game(model(other, "model.json"), TABLE, LABELS), [WholeObject()]).strongest
    assert found.parts[-1].main.successes == 0
    assert np.mean(LABELS) == 0.375
