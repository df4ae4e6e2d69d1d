"""A model that somebody fitted on a table, as a mechanism: what is trained is the very same estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import FittedObject, Release
from remanence.tables.parts import arrays_in, final_estimator
from remanence.tables.rows import Rows


@final
@dataclass(frozen=True)
class FittedModel(Mechanism[Release]):
    """A fitted estimator or pipeline, and how rows of its table become records and back.

    `classes` are the labels' words, none for numbers. `plans` say what each part of the object gives away, by its path:
    they are found by looking at the object and its table once, and known to all who have read the estimator's manual.
    """

    estimator: Any
    rows: Rows
    classes: tuple[Any, ...] = ()
    plans: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    given: tuple[str, ...] = ()  # columns of the missing row that the adversary knows
    others_known: bool = True  # whether they know the other rows
    unread: tuple[str, ...] = ()  # columns that no part of the model was given
    name: ClassVar[str] = "fitted model"

    @property
    def releases(self) -> type[Release]:
        """The object itself."""
        return FittedObject

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        model = final_estimator(self.estimator)
        plain = {
            name: value
            for name, value in model.get_params(deep=False).items()
            if isinstance(value, str | int | float | bool | None)
        }
        return {"model": type(model).__name__, "columns": len(self.rows.columns), **plain}

    def table(self, records: Records) -> tuple[Any, np.ndarray]:
        """Records as the table that they came from, and labels in their own words."""
        labels = records.labels.cpu().numpy()
        if self.classes:
            labels = np.array(
                [None if np.isnan(code) else self.classes[int(code)] for code in labels.astype(float)]
            )
        return self.rows.decode(records.flat.cpu().numpy()), labels

    def records(self, table: Any, labels: np.ndarray) -> Records:
        """A table as records."""
        return Records(torch.from_numpy(self.rows.encode(table)), torch.from_numpy(self.codes(labels)))

    def codes(self, labels: np.ndarray) -> np.ndarray:
        """Labels as numbers; NaN for one that the table has not."""
        if not self.classes:
            return np.array(labels, dtype=np.float64)  # a copy: torch wants to be able to write
        places = {label: float(place) for place, label in enumerate(self.classes)}
        return np.array([places.get(label, np.nan) for label in np.asarray(labels).tolist()])

    def held_rows(self, data: Records) -> Tensor | None:
        """Rows that stand in an array of the object, as the pipeline in front of it made them."""
        held = torch.zeros(len(data), dtype=torch.bool)
        for _, plan in self.plans:
            if (rows := getattr(plan, "rows", None)) is not None:
                held[torch.from_numpy(rows)] = True
        return held if held.any() else None

    def release(
        self, known_data: Records | None, targets: Records, generator: torch.Generator
    ) -> FittedObject:
        """Fit the same estimator again, once per trial; every number that it then holds."""
        found = []
        for trial in range(len(targets)):
            data = targets[trial] if known_data is None else concatenate([known_data, targets[trial]])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fresh: Any = clone(self.estimator)
                found.append(numbers_in(fresh.fit(*self.table(data))))
        if len({len(each) for each in found}) > 1:
            raise InputError(
                "Fits of this model do not have the same number of parameters.",
                needs="a model whose size does not depend on the data",
                got=type(final_estimator(self.estimator)).__name__,
                hint="a linear model",
            )
        return FittedObject({"numbers": torch.from_numpy(np.stack(found))})


def numbers_in(estimator: Any) -> np.ndarray:
    """Every number in an object, as one vector."""
    parts = [
        values.astype(np.float64).ravel() for _, values in arrays_in(estimator) if values.dtype.kind in "fiu"
    ]
    return np.nan_to_num(np.concatenate(parts)) if parts else np.zeros(1)
