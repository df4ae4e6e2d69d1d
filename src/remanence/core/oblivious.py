"""The attack that ignores the release; κ is its best possible success."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.priors import EmpiricalPrior, FinitePrior
from remanence.core.references import BALLE_2022
from remanence.core.releases import Release
from remanence.core.stratified import StratifiedPrior


@final
@dataclass(frozen=True)
class Oblivious(Attack[Release]):
    """Always guess the likeliest candidate or, for a population, one record drawn from it.

    If one guess per class is required, guess a record of each.
    """

    info: ClassVar[AttackInfo] = AttackInfo(
        "oblivious",
        "Guesses the likeliest record without looking at the release.",
        "a shortlist or samples from the population",
        "nothing",
        BALLE_2022.at("§VII"),
    )

    def check(self, knowledge: Knowledge) -> None:
        """Require a prior to guess from."""
        if not isinstance(knowledge.prior, FinitePrior | EmpiricalPrior | StratifiedPrior):
            raise self.refusal(got=knowledge, hint="a FinitePrior, an EmpiricalPrior or a StratifiedPrior")

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Choose the guess."""
        self.check(knowledge)
        prior = knowledge.prior
        if isinstance(prior, FinitePrior):
            guess = prior.candidates[prior.weights.argmax()[None]][None]
        elif isinstance(prior, StratifiedPrior):
            once = tuple(min(1, count) for _, count in prior.sizes)
            guess = StratifiedPrior(prior.records, once).sample(1, generator)
        else:
            guess = prior.sample(1, generator)

        def reconstruct(release: Release) -> Reconstruction:
            index = torch.zeros(len(release), dtype=torch.int64, device=guess.labels.device)
            return Reconstruction(guess[index])

        return reconstruct
