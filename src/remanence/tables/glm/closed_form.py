"""The missing record of a generalised linear model in closed form."""

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
from remanence.core.references import BALLE_2022
from remanence.core.releases import Release, Weights
from remanence.tables.glm.model import GLM
from remanence.tables.glm.optimality import KnownRecords, exposer, solve

_INSTEAD = "retrain-and-compare, if there is a shortlist of candidates"


@final
@dataclass(frozen=True)
class ClosedForm(ExposesInParts[GLM], Attack[Weights]):
    """Solve the optimality condition for the one record that is missing from it."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "closed-form",
        "Solves the optimality condition of a generalised linear model for the missing record and its label.",
        "a GLM at its optimum; all other training records",
        "weights",
        BALLE_2022.at("Theorem 1"),
    )

    def check(self, knowledge: Knowledge) -> tuple[GLM, Records]:
        """A GLM, all other records, and an intercept or a label with few values."""
        mechanism, known = knowledge.mechanism, knowledge.known_data
        if not isinstance(mechanism, GLM) or known is None:
            raise self.refusal(got=knowledge, hint=_INSTEAD)
        mechanism.check_weights(known)
        weighted = known.weights is not None
        if not mechanism.fit_intercept and (not mechanism.family.classes or weighted):
            raise self.refusal(
                needs="an intercept, or classes and no record weights: without one, x is known up to a "
                "scale that depends on the label and the weight",
                got=f"{mechanism.family.name} without an intercept" + (", with weights" if weighted else ""),
                hint=_INSTEAD,
            )
        return mechanism, known

    def prepare(
        self,
        knowledge: Knowledge,
        generator: torch.Generator,
    ) -> Callable[[Weights], Reconstruction]:
        """Nothing is to be learnt: the release is enough."""
        mechanism, known = self.check(knowledge)
        view = KnownRecords.all_of(known, mechanism)
        return lambda release: solve(
            mechanism, release, view, lambda weights: mechanism.known_gradient(known, release, weights)
        )

    def exposer(self, mechanism: GLM, data: Records, release: Release) -> Callable[[Tensor], Reconstruction]:
        """Any record in turn, from the one release."""
        return exposer(mechanism, data, release)
