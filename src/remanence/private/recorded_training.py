"""DP-SGD that has run already, as its canaries see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release


@final
@dataclass(frozen=True)
class CanaryEvidence(Release):
    """`log_odds` that a canary, or each candidate of its shortlist, was trained on, `(trials, candidates)`."""

    sees: ClassVar[str] = "every privatised gradient"


@final
@dataclass(frozen=True)
class RecordedTraining(Mechanism[CanaryEvidence]):
    """A recorded run by its claim. Released anew, it is what the claim gives away of ideal canaries.

    Ideal canaries have orthogonal gradients of the clipping norm: none hides another. A target is the place of the
    candidate that was trained on, or −1 for none.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    max_grad_norm: float = 1.0
    candidates: int = 1
    framework: str = "any"
    name: ClassVar[str] = "DP-SGD, recorded"

    @property
    def releases(self) -> type[Release]:
        """Log odds."""
        return CanaryEvidence

    def release(
        self, known_data: Records | None, targets: Records, generator: torch.Generator
    ) -> CanaryEvidence:
        """One ideal canary per trial: every step adds the log-likelihood ratio of what it shows."""
        del known_data  # whose part is subtracted
        chosen = targets.features.reshape(len(targets), 1)
        inside = (torch.arange(self.candidates, device=chosen.device) == chosen).double()
        variance, rate, shape = self.noise_multiplier**2, self.sample_rate, inside.shape
        found = torch.zeros(shape, dtype=torch.float64, device=chosen.device)
        absent = torch.tensor(math.log1p(-rate) if rate < 1 else -math.inf, dtype=torch.float64)
        for _ in range(self.steps):
            coin = torch.rand(shape, generator=generator, device=chosen.device) < rate
            noise = torch.randn(shape, generator=generator, device=chosen.device, dtype=torch.float64)
            shown = inside * coin + self.noise_multiplier * noise
            found += torch.logaddexp(absent.to(found), math.log(rate) + (shown - 0.5) / variance)
        return CanaryEvidence({"log_odds": found})

    def settings(self) -> dict[str, Setting]:
        """What was claimed, and by whom."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "max_grad_norm": self.max_grad_norm,
            "framework": self.framework,
        }
