"""A model that was fitted on a table, as a mechanism: training fits the same estimator again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import get_tags
from torch import Tensor

from remanence.core.exceptions import InputError, MisfitError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import FittedObject, Release
from remanence.results.caveats import Caveat
from remanence.tables.belonging import Belonging, check_belongs
from remanence.tables.caveats import PART_NOT_CONFIRMED, PART_NOT_READ, TABLE_NOT_EXACT
from remanence.tables.linear import equations
from remanence.tables.parts import Part, arrays_in, final_estimator
from remanence.tables.rows import RowColumn, Rows
from remanence.tables.statistics import label_statistics, published
from remanence.tables.stored import stored_rows, stored_values
from remanence.tables.trees import bins, leaves

# The surest first: if two of them give the same value, the first one counts.
_LOOKS = (stored_rows, published, stored_values, bins, equations, leaves, label_statistics)


@final
@dataclass(frozen=True)
class Fitting:
    """A fitted object and the table that it was declared to be fitted on; this is tested once."""

    whole: Part
    taken_apart: bool = True  # whether its parts are read, or only the equations of one linear model

    @cached_property
    def belonging(self) -> Belonging:
        """Which parts were fitted on the table. Raises `MisfitError` where one certainly was not."""
        return check_belongs(self.whole)

    @cached_property
    def _read(self) -> tuple[tuple[str, bool, list], ...]:
        """Each part that belongs to the table: its path, whether it learned from the rows, what it gives away."""
        return tuple(
            (part.path, _holds_numbers(part), [plan for look in _LOOKS for plan in look(part)])
            for part in self.whole.innermost()
            if part.path in self.belonging.confirmed
        )

    @property
    def plans(self) -> tuple[tuple[str, Any], ...]:
        """What each part that belongs to the table gives away, by its path."""
        return tuple((path, plan) for path, _, plans in self._read for plan in plans)

    def check(self) -> None:
        """Refuse an object of another table, or one that reveals nothing about single rows."""
        model = final_estimator(self.whole.estimator)
        name, confirmed = type(model).__name__, self.belonging.confirmed
        if not self.taken_apart:
            return
        if not confirmed:
            went_on = "which continued from an earlier fit (warm_start)"
            why = went_on if getattr(model, "warm_start", False) else "whose training draws at random"
            raise MisfitError(
                "Whether this model was fitted on this table cannot be tested.",
                needs="a part of the model that can be recomputed from the table",
                got=f"{name}, {why}",
                hint="the .skops file of an estimator that was fitted in one go, with random_state=0",
            )
        if not self.plans:
            raise InputError(
                f"Nothing that {name} holds is read here.",
                needs="stored rows or values, means, sums, counts, a linear model's equations, or decision trees",
                got=name + (f" with loss={model.loss!r}" if hasattr(model, "loss") else ""),
                hint="in Python, wrap its training in remanence.looped() and attack it with retrain-and-compare; "
                "knowing no attack does not prove that none exists",
            )

    def caveats(self) -> Iterator[Caveat]:
        """Caveats about the parts of the object."""
        if self.belonging.unconfirmed:
            yield PART_NOT_CONFIRMED
        if self.belonging.inexact:
            yield replace(TABLE_NOT_EXACT, seen=f"Nearly the same: {', '.join(self.belonging.inexact)}.")
        if not self.taken_apart:
            return
        if silent := [path for path, learned, plans in self._read if learned and not plans]:
            yield replace(PART_NOT_READ, seen=f"Without a finding: {', '.join(silent)}.")


def _holds_numbers(part: Part) -> bool:
    arrays = arrays_in(part.estimator)
    texts = get_tags(part.estimator).input_tags.string
    return texts or any(values.dtype.kind == "f" and values.size for _, values in arrays)


@final
@dataclass(frozen=True)
class FittedModel(Mechanism[Release]):
    """A fitted estimator or pipeline, and how rows of its table become records and back.

    `label` is the labels' column. `fitting` says which parts belong to the table, and what each of
    them gives away: it is determined once, and is public knowledge about the estimator.
    """

    estimator: Any
    rows: Rows
    fitting: Fitting = field(compare=False, repr=False)
    label: RowColumn
    given: tuple[str, ...] = ()  # columns of the missing row that the adversary knows
    others_known: bool = True  # whether the adversary knows the other rows
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
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in model.get_params(deep=False).items()
            if isinstance(value, str | int | float | bool | None)
        }
        return {"model": type(model).__name__, "columns": len(self.rows.columns), **plain}

    def table(self, records: Records) -> tuple[Any, np.ndarray]:
        """Records as the table that they came from, and labels in their own words."""
        labels = self.label.decode(records.labels.cpu().numpy()[:, None])
        return self.rows.decode(records.flat.cpu().numpy()), np.array(labels.tolist())

    def records(self, table: Any, labels: np.ndarray) -> Records:
        """A table as records; labels missing from it are NaN."""
        features, codes = self.rows.encode(table), self.label.encode(labels)[:, 0]
        return Records(torch.from_numpy(features), torch.from_numpy(codes))

    def held_rows(self, data: Records) -> Tensor | None:
        """Rows stored in an array of the object, as the pipeline in front of it transformed them."""
        held = torch.zeros(len(data), dtype=torch.bool)
        for _, plan in self.fitting.plans:
            if (rows := getattr(plan, "rows", None)) is not None:
                held[torch.from_numpy(rows)] = True
        return held if held.any() else None

    def release(
        self, known_data: Records | None, targets: Records, generator: torch.Generator
    ) -> FittedObject:
        """Fit the same estimator again, once per trial; every number that it then holds."""
        found, known = [], [] if known_data is None else [known_data]
        for trial in range(len(targets)):
            data = concatenate([*known, targets[trial]])
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
    parts = (values for _, values in arrays_in(estimator) if values.dtype.kind in "fiu")
    found = [values.astype(np.float64).ravel() for values in parts]
    return np.nan_to_num(np.concatenate(found)) if found else np.zeros(1)
