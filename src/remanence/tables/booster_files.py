"""LightGBM's and XGBoost's own model files, text and JSON, read without either package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from remanence.core.checks import refusing
from remanence.core.exceptions import MisfitError
from remanence.scale.reading import GIB, UnusableFileError, parse_json, read_bytes
from remanence.tables.boosters import SINGLE, lines_of, values_in_state


class BoosterFile(RegressorMixin, BaseEstimator):
    """A booster as its file describes it: columns, values of the training table, the mean that it starts from."""

    def __init__(self, state: Mapping[str, Any], names: list[str], rows: int | None = None) -> None:
        self.state = state
        self.n_features_in_ = len(names)
        self.rows_ = rows  # that it was fitted on, where it says so
        if len(set(names)) == len(names) and not names[0].startswith("Column_"):
            self.feature_names_in_ = np.array(names, dtype=object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """None that could be set."""
        return {}

    def fit(self, *_: Any) -> NoReturn:
        """A file is not fitted again."""
        raise NotImplementedError

    @property
    def _Booster(self) -> Self:
        return self

    def check(self, features: Any) -> bool | None:
        """Refuse a table that lacks values which the file holds; None where it holds none."""
        matrix = np.asarray(features, dtype=np.float64)
        told = list(values_in_state(self.state))
        if self.rows_ not in (None, len(matrix)):
            raise MisfitError(
                "This model was not fitted on this table.",
                needs=f"a table of {self.rows_} rows, as many as the leaves of a tree hold",
                got=f"{len(matrix)} rows",
                hint="the table and the rows that it was trained on",
            )
        for name, column, values in told:
            own = np.unique(matrix[:, column][~np.isnan(matrix[:, column])])
            ends = own[[0, -1]] if name == "feature_infos" and len(own) else own
            near = np.isclose(np.asarray(values)[:, None], ends[None], rtol=2 * SINGLE, atol=1e-30).any(1)
            if not near.all():
                raise MisfitError(
                    "This model was not fitted on this table.",
                    needs="a table with the values that the model holds",
                    got=f"{name}: {int((~near).sum())} of {len(values)} values of column {column + 1} are not there",
                    hint="the table and the rows that it was trained on",
                )
        return True if told else None


def read_booster(file: Path) -> BoosterFile | None:
    """A booster out of its file; None for a file of another kind."""
    needs = "a file as booster.save_model writes it"
    hint = "LightGBM: save_model('model.txt'); XGBoost: save_model('model.json')"
    kinds = (UnusableFileError, KeyError, TypeError, ValueError, IndexError)
    with refusing(kinds, "The model cannot be read.", needs=needs, got=file.name, hint=hint):
        content = read_bytes(file, GIB)
        if content.startswith(b"tree\n"):
            return _lightgbm(content.decode())
        if content.lstrip().startswith(b"{"):
            document = parse_json(content)
            return _xgboost(document) if "learner" in document else None
    return None


def _lightgbm(text: str) -> BoosterFile:
    state = lines_of(text)
    names = [str(name) for name in state["feature_names"]]
    if len(state["feature_infos"]) != len(names):
        raise ValueError
    every = all(f"[{said}]" in text for said in ("bagging_fraction: 1", "data_sample_strategy: bagging"))
    rows = int(sum(state["0.leaf_count"])) if every and "0.leaf_count" in state else None
    return BoosterFile({"text": state}, names, rows)


def _xgboost(document: Mapping[str, Any]) -> BoosterFile:
    learner = document["learner"]
    settings = learner["learner_model_param"]
    count = int(settings["num_feature"])
    names = learner.get("feature_names") or [f"Column_{place}" for place in range(count)]
    columns = [column for _, column, _ in values_in_state(document)]
    if len(names) != count or not all(0 <= column < count for column in columns):
        raise ValueError
    start = float(str(settings["base_score"]).strip("[]").split(",")[0])
    return BoosterFile({**document, "base_score": np.array([start])}, names)
