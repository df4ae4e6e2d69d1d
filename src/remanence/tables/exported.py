"""A model out of a file that another program wrote: numbers in single precision, and nothing that fits it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from scipy.spatial import KDTree
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from remanence.core.exceptions import MisfitError


class Exported(BaseEstimator):
    """Arrays by name, of which `rows` is known to hold rows of the training table."""

    def __init__(self, arrays: Mapping[str, np.ndarray], width: int, rows: str = "") -> None:
        self.arrays_ = dict(arrays)
        self.n_features_in_ = width
        self.rows_ = rows

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """None that could be set."""
        return {}

    def fit(self, *_: Any) -> NoReturn:
        """A file is not fitted again."""
        raise NotImplementedError

    def check(self, features: Any) -> bool | None:
        """Refuse a table that lacks rows which the file holds; None where it is not known to hold any."""
        matrix = np.asarray(features, dtype=np.float64)
        alike = [
            values
            for values in self.arrays_.values()
            if values.ndim == 2 and values.shape[1] == matrix.shape[1]
        ]
        if any(len(values) > 1 and (nearest_rows(values, matrix) >= 0).all() for values in alike):
            return True
        if self.rows_:
            off = int((nearest_rows(self.arrays_[self.rows_], matrix) < 0).sum())
            raise MisfitError(
                "This model was not fitted on this table.",
                needs="a table with the rows that the model holds",
                got=f"{off} of the {len(self.arrays_[self.rows_])} rows in {self.rows_} are not there",
                hint="the table and the rows that it was trained on",
            )
        return None


class ExportedClassifier(ClassifierMixin, Exported):
    """One that tells classes apart."""


class ExportedRegressor(RegressorMixin, Exported):
    """One that predicts a number."""


def nearest_rows(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """For each row the row of a table that is the same in single precision, −1 where there is none."""
    unit = np.nanstd(matrix, 0) + 1e-5 * np.abs(matrix).max(0) + 1e-300
    if np.isnan(matrix).any() or not np.isfinite(rows).all():
        return np.full(len(rows), -1)
    off, found = KDTree(matrix / unit).query(rows.astype(np.float64) / unit, p=np.inf)
    rounding = np.finfo(np.float32).eps * (np.abs(rows) / unit).max(1) + 1e-6
    return np.where(off <= 8 * rounding, found, -1)
