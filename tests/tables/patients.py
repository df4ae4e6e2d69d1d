"""A table of people who do not exist: numbers, words, gaps, and an outcome that depends on them."""

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from remanence import audit
from remanence.tables.attacks import WholeObject
from remanence.tables.single_columns import Columns
from remanence.tables.sklearn import table_game


def patients(count: int = 120, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.integers(18, 90, count),
            "income": draw.lognormal(10, 0.5, count).round(2),
            "sex": draw.choice(["female", "male"], count),
            "region": draw.choice(["north", "south", "east"], count),
            "bmi": np.where(draw.random(count) < 0.1, np.nan, draw.normal(25, 4, count).round(1)),
        }
    )
    score = frame["age"] / 90 + 0.3 * (frame["sex"] == "male") + draw.normal(0, 0.3, count)
    return frame, np.where(score > 0.7, "ill", "well")


def prepared(model, imputer=None):
    """The usual pipeline in front of a model."""
    numbers = make_pipeline(imputer or SimpleImputer(strategy="median"), StandardScaler())
    columns = [("numbers", numbers, ["age", "income", "bmi"]), ("words", OneHotEncoder(), ["sex", "region"])]
    return make_pipeline(ColumnTransformer(columns), model)


def game_of(model, table, labels=None):
    """The game of a model that is fitted on this very table."""
    return table_game(model.fit(table, labels), table, labels)


def parts(evidence):
    """How often each column came back."""
    return next((found.parts for found in evidence.findings if isinstance(found, Columns)), ())


def came_back(game, attack=None):
    """How many rows came back, and how many values of each column; and the evidence."""
    evidence = audit(game, [attack or WholeObject()]).strongest
    return evidence.main.successes, {part.name: part.main.successes for part in parts(evidence)}, evidence


def recovered(game, attack=None):
    """The table and the labels that come back."""
    found = (attack or WholeObject()).expose(game.mechanism, game.data, game.release)
    return game.mechanism.table(found.records[:, 0])
