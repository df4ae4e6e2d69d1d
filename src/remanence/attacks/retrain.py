"""Train on every candidate and compare: exact for deterministic training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.adversary import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import RETRAIN, AttackInfo
from remanence.exceptions import IncompatibleGameError
from remanence.priors import FinitePrior
from remanence.releases import Release


@final
@dataclass(frozen=True)
class RetrainAndCompare(Attack[Release]):
    """Pick the candidate whose release is closest to the one that was published.

    Balle et al. 2022, §II-D and §IV-A. Exact where training is deterministic; with Gaussian noise of
    equal size on every published number it is the likeliest candidate under a uniform prior.
    """

    info: ClassVar[AttackInfo] = RETRAIN

    def check(self, knowledge: Knowledge) -> None:
        """A shortlist, and all other records."""
        if not isinstance(knowledge.prior, FinitePrior) or knowledge.known_data is None:
            raise IncompatibleGameError(
                "RetrainAndCompare cannot attack this game.",
                needs=RETRAIN.needs,
                got=f"{knowledge.prior.describe()}; an adversary who is {knowledge.adversary}",
                hint="a FinitePrior of the records that the target could be",
            )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Train once on each candidate."""
        self.check(knowledge)
        prior = knowledge.prior
        assert isinstance(prior, FinitePrior)
        shadows = knowledge.mechanism.release(
            knowledge.known_data, prior.candidates[:, None], generator
        ).flat()

        def reconstruct(release: Release) -> Reconstruction:
            # Differences one by one: the fast expansion of the square loses the small ones.
            distances = torch.cdist(release.flat(), shadows, compute_mode="donot_use_mm_for_euclid_dist")
            return Reconstruction(prior.candidates[distances.argmin(1)[:, None]])

        return reconstruct
