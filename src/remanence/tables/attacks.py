"""Reconstruct every row in turn from one fitted object: clues from its parts, mapped back to the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch

from remanence.core.attack import Attack, ExposesInParts, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records, concatenate
from remanence.core.references import BALLE_2022, REMANENCE
from remanence.core.releases import Release
from remanence.tables.linear import Objective
from remanence.tables.mechanism import FittedModel
from remanence.tables.parts import Part
from remanence.tables.recovery import recover
from remanence.tables.rows import UNKNOWN
from remanence.tables.statistics import Counts, LabelSum, Published
from remanence.tables.stored import StoredRows, StoredValues
from remanence.tables.trees import Bins, Leaves


@dataclass(frozen=True)
class FromObject(ExposesInParts[FittedModel], Attack[Release]):
    """Reads the missing row off a fitted object, by some kinds of clues or by all."""

    kinds: ClassVar[tuple[type, ...]]

    def check(self, knowledge: Knowledge) -> FittedModel:
        """A fitted object with such a clue, and all other rows."""
        mechanism = knowledge.mechanism
        if not isinstance(mechanism, FittedModel) or not self._plans(mechanism):
            hint = "remanence.tables.sklearn.leave_one_out(model, table, labels)"
            raise self.refusal(got=knowledge, hint=hint)
        return mechanism

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """As `expose`, with a placeholder in the missing row's place: no row says anything about itself."""
        mechanism, others = self.check(knowledge), knowledge.known_data
        assert others is not None
        given = knowledge.given
        instead = others[:1] if given is None or given.record is None else given.record
        place = len(others) if knowledge.place is None else knowledge.place
        table = concatenate([others[:place], instead, others[place:]])
        return lambda _release: Reconstruction(self._found(mechanism, table)[place : place + 1])

    def exposer(
        self, mechanism: FittedModel, data: Records, release: Release
    ) -> Callable[[torch.Tensor], Reconstruction]:
        """Every row of the table at once."""
        found = self._found(mechanism, data)
        return lambda places: Reconstruction(found[places])

    def _found(self, mechanism: FittedModel, data: Records) -> Records:
        """What comes back of each row, `(rows, 1)`."""
        table, labels = mechanism.table(data)
        weights = None if data.weights is None else data.weights.numpy()
        whole = Part("model", mechanism.estimator, table, labels, weights)
        clue = recover(whole, None, self._plans(mechanism))
        if not mechanism.others_known:  # only the other rows tell whether a value was a gap
            clue.values[np.array([[value is None for value in row] for row in clue.values])] = UNKNOWN
        found = mechanism.records(clue.values, clue.labels)
        for column in mechanism.rows.columns:
            features, true = found.features[:, column.places], data.flat[:, column.places].double()
            if column.name in mechanism.given:
                features[:] = true
            elif mechanism.others_known:
                features[:] = _shared_by_others(true).where(features.isnan().any(1, keepdim=True), features)
        return found[:, None]

    def read_off(self, mechanism: FittedModel, data: Records) -> Records | None:
        """The rows of the table that are stored in the object, read without knowing any other, `(rows, 1)`."""
        alone = replace(mechanism, others_known=False)
        return self._found(alone, data) if self._plans(alone) else None

    def _plans(self, mechanism: FittedModel) -> list[tuple[str, Any]]:
        """The clues that it uses; if the other rows are unknown, only rows stored in the object."""
        wanted = [(path, plan) for path, plan in mechanism.fitting.plans if isinstance(plan, self.kinds)]
        if mechanism.others_known:
            return wanted
        return [(path, replace(plan, alone=True)) for path, plan in wanted if isinstance(plan, StoredRows)]


def _shared_by_others(values: torch.Tensor) -> torch.Tensor:
    """For each row the value that all other rows have in a column, NaN where they differ: known without any model."""
    found = torch.full_like(values, torch.nan)
    kinds, which, counts = torch.unique(values, dim=0, return_inverse=True, return_counts=True)
    if len(kinds) == 1:
        found[:] = kinds
    elif len(kinds) == 2 and counts.min() == 1:  # the one row that differs is not known to differ
        found[which == counts.argmin()] = kinds[counts.argmax()]
    return found


@final
@dataclass(frozen=True)
class StoredInObject(FromObject):
    """Looks for rows and values that the object holds verbatim."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "stored-in-object",
        "Looks for rows and values that a fitted object holds verbatim: support vectors, quantiles, extremes.",
        "a fitted scikit-learn object that holds some; all other rows of its table",
        "the fitted object",
        REMANENCE,
    )
    kinds: ClassVar[tuple[type, ...]] = (StoredRows, StoredValues, Bins)


@final
@dataclass(frozen=True)
class PublishedStatistics(FromObject):
    """Subtracts the known rows from the means, sums and counts in the object."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "published-statistics",
        "Subtracts the known rows from the means, sums and counts that scalers, imputers and classifiers hold.",
        "a fitted scikit-learn object that holds some; all other rows of its table",
        "the fitted object",
        REMANENCE,
    )
    kinds: ClassVar[tuple[type, ...]] = (Published, Counts, LabelSum)


@final
@dataclass(frozen=True)
class PipelineEquations(FromObject):
    """Solves a linear model's equations, and carries the solution back through its pipeline."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "pipeline-equations",
        "Solves a linear model's optimality condition and maps the solution back through its pipeline.",
        "a linear model at its optimum, alone or behind transformers; all other rows of its table",
        "the fitted object",
        BALLE_2022.at("Theorem 1, with a pipeline in front"),
    )
    kinds: ClassVar[tuple[type, ...]] = (Objective,)


@final
@dataclass(frozen=True)
class TreeLeaves(FromObject):
    """Follows the missing row through the nodes of trees, whose thresholds lie halfway between two rows."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "tree-leaves",
        "Follows the missing row through the nodes of trees, whose thresholds lie halfway between two rows.",
        "decision trees, forests or boosted trees; all other rows of their table",
        "the fitted object",
        REMANENCE,
    )
    kinds: ClassVar[tuple[type, ...]] = (Leaves,)


@final
@dataclass(frozen=True)
class WholeObject(FromObject):
    """Combines all clues, the surest first."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "whole-object",
        "Combines all clues that a fitted object holds about a row, the surest first.",
        "a fitted scikit-learn object; all other rows of its table",
        "the fitted object",
        REMANENCE,
    )
    kinds: ClassVar[tuple[type, ...]] = (object,)
