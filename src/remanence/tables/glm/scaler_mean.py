"""A published mean gives the missing record away: x = n·mean − Σ known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, ExposesInParts, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import REMANENCE
from remanence.core.releases import Release, Weights
from remanence.tables.glm.model import GLM
from remanence.tables.glm.optimality import KnownRecords, exposer, solve


@final
@dataclass(frozen=True)
class ScalerMean(ExposesInParts[GLM], Attack[Weights]):
    """Subtract the known records from n times the scaler's mean; whatever the model's tolerance.

    With x known, the label follows from the part of the left-over gradient along (1, x).
    """

    info: ClassVar[AttackInfo] = AttackInfo(
        "scaler-mean",
        "Takes n times a published mean, less the known records.",
        "a GLM behind a StandardScaler; all other training records",
        "weights",
        REMANENCE,
    )

    def check(self, knowledge: Knowledge) -> tuple[GLM, Records]:
        """A GLM with a scaler, and all other records."""
        mechanism, known = knowledge.mechanism, knowledge.known_data
        if isinstance(mechanism, GLM) and mechanism.scaler == "mean" and known is not None:
            return mechanism, known
        raise self.refusal(got=knowledge, hint="closed-form, which needs no scaler")

    def prepare(
        self,
        knowledge: Knowledge,
        generator: torch.Generator,
    ) -> Callable[[Weights], Reconstruction]:
        """Sum the known records once."""
        mechanism, known = self.check(knowledge)
        view = KnownRecords.all_of(known, mechanism)
        return lambda release: solve(
            mechanism,
            release,
            view,
            lambda weights: mechanism.known_gradient(known, release, weights),
            features=(len(known) + 1) * release["mean"] - view.whole,
        )

    def exposer(self, mechanism: GLM, data: Records, release: Release) -> Callable[[Tensor], Reconstruction]:
        """Any record in turn, from the one mean."""
        return exposer(mechanism, data, release, lambda others: len(data) * release["mean"] - others.whole)
