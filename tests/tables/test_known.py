"""What the adversary knows: no other row, some columns of the missing one, totals that a design fixes."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from patients import patients, prepared
from sklearn import linear_model as linear
from sklearn import neighbors, preprocessing
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import make_pipeline

from remanence import audit
from remanence.core.exceptions import InputError
from remanence.results.verdict import Policy
from remanence.tables.from_object import PublishedStatistics, StoredInObject, WholeObject
from remanence.tables.identifiers import identifiers_in
from remanence.tables.objects import arrays_in
from remanence.tables.parts import Part
from remanence.tables.sklearn import table_game
from remanence.tables.stored import stored_values
from remanence.tables.table_knowledge import with_fixed_totals, with_known


def rates(result):
    return {part.name: part for part in result.strongest.parts}


def test_rows_in_the_object_need_no_knowledge():
    frame, labels = patients()
    model = prepared(neighbors.KNeighborsClassifier()).fit(frame, labels)
    result = audit(with_known(table_game(model, frame, labels), others=False), [StoredInObject()])
    assert result.threat_model["adversary"] == "weak"
    full = frame["bmi"].notna().sum()  # whether a filled value was a gap is told by the others alone
    assert result.strongest.main.successes == result.strongest.proven == full


def test_means_need_the_other_rows():
    frame, labels = patients()
    model = prepared(DummyClassifier()).fit(frame, labels)
    with pytest.raises(InputError, match="knows no other row"):
        with_known(table_game(model, frame, labels), others=False)


def test_known_columns_are_not_asked_for_and_help_to_find_the_others():
    frame, labels = patients()
    frame = frame.drop(columns="bmi")
    scaled = preprocessing.MinMaxScaler().fit(frame[["age", "income"]])
    table = np.hstack(
        [scaled.transform(frame[["age", "income"]]), pd.get_dummies(frame["sex"]).to_numpy(float)]
    )
    model = linear.LogisticRegression().fit(table, labels)
    game = with_known(table_game(model, table, labels), columns=["column 0", "column 1"])
    assert [part.name for part in game.criterion.error.parts] == ["column 2", "column 3", "label"]
    assert "of the missing one column 0, column 1" in " ".join(game.knowledge.describe())
    found = audit(
        game, [WholeObject()], policy=Policy(0.9)
    ).strongest  # checked without the row in sight, too
    assert found.main.trials == len(frame)
    with pytest.raises(InputError, match="nothing left"):
        with_known(game, columns=["column 0", "column 1", "column 2", "column 3"])


def test_a_guess_uses_what_is_given():
    frame, labels = patients()
    frame = frame.assign(twin=frame["income"] * 2)[["income", "twin"]]
    frame = pd.concat([frame, frame], ignore_index=True)
    labels = np.concatenate([labels, labels])
    game = table_game(
        make_pipeline(preprocessing.StandardScaler(), DummyClassifier()).fit(frame, labels), frame, labels
    )
    assert game.baseline().value < 0.1
    assert with_known(game, columns=["income"]).baseline().value == 1  # somebody else has the same income


def test_totals_that_a_design_fixes_are_no_leak():
    frame, labels = patients()
    model = prepared(DummyClassifier()).fit(frame, labels)
    game = with_fixed_totals(table_game(model, frame, labels), ["age"])
    assert torch.isnan(game.totals).sum() == len(game.totals) - 1
    found = rates(audit(game, [PublishedStatistics()]))
    assert found["age"].main.rate == found["age"].guess == 1
    assert not found["age"].tells
    assert found["income"].tells


@dataclass
class Booster:
    """As LightGBM's, or as XGBoost's."""

    text: str

    def model_to_string(self):
        return self.text


@dataclass
class RawBooster:
    trees: list

    def save_raw(self, _kind):
        return json.dumps({"learner": {"gradient_booster": {"model": {"trees": self.trees}}}}).encode()


class Boosted:
    def __init__(self, booster):
        self._Booster = booster


TABLE = np.array([[1.5, 10.1], [2.5, 20.2], [4.25, 30.3], [9.0, 40.4]])


def test_extremes_and_splits_of_boosters_are_values_of_the_table():
    text = "tree\nfeature_infos=[1.5:9] [10.1:40.4]\nTree=0\nthreshold=2 3\n\nparameters:\n[alpha: 0.9]"
    part = Part("model", Boosted(Booster(text)), TABLE, None)
    held = {(each.name, each.column): set(each.values) for each in stored_values(part)}
    assert held == {("model.feature_infos", 0): {1.5, 9.0}, ("model.feature_infos", 1): {10.1, 40.4}}
    assert dict(arrays_in(part.estimator))["model._Booster.text.0.threshold"].tolist() == [2.0, 3.0]
    tree = {
        "left_children": [1, -1, -1],
        "split_indices": [1, 0, 0],
        "split_conditions": [float(np.float32(20.2)), 7.0, 7.0],
    }
    (found,) = stored_values(Part("model", Boosted(RawBooster([tree])), TABLE, None))
    assert (found.name, found.column, set(found.values)) == ("model.split_conditions", 1, {20.2})
    assert found.clue(Part("model", None, TABLE, None)).values[1, 1] == 20.2
    assert found.clue(Part("model", None, TABLE, None)).values[0, 1] is ...


def test_names_and_numbers_of_people_are_found_wherever_they_stand():
    frame, labels = patients(40)
    draw = np.random.default_rng(0)
    people = frame.assign(
        name=[f"person {number:03}" for number in range(40)], number=draw.choice(10**6, 40, False)
    )
    wide = pd.DataFrame(
        draw.normal(size=(40, 2)), columns=["visits of person 007", "age"], index=people["number"]
    )
    model = linear.Ridge().fit(wide, draw.normal(size=40))
    vars(model)["kept_"] = wide  # somebody's own attribute, with its index
    found = {(each.path, each.column): each.count for each in identifiers_in(model, people)}
    assert found[("model.feature_names_in_", "name")] == 1
    assert found[("model.kept_.index", "number")] == 40
    plain = prepared(linear.LogisticRegression()).fit(frame, labels)
    assert identifiers_in(plain, people) == []
    coded = preprocessing.OneHotEncoder().fit(people[["name"]])
    assert [each.count for each in identifiers_in(coded, people)] == [40]
