"""DP-SGD that has run already, as its canaries see it, and the guess which of them were trained on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.references import MAHLOUJIFAR_2024
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


@final
@dataclass(frozen=True)
class OneRunCanaries(Attack[CanaryEvidence]):
    """The likeliest choice of each canary: in or out, or one of its shortlist."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "one-run-canaries",
        "Infers which canaries were trained on, from all privatised gradients of one run at once.",
        "a recorded run with canaries; all other training records and their batches",
        "transcript",
        MAHLOUJIFAR_2024.at("with a linear estimate of all canaries at once"),
    )

    def check(self, knowledge: Knowledge) -> None:
        """A recorded run."""
        if not isinstance(knowledge.mechanism, RecordedTraining):
            hint = "record the training: `with record(...)`, then `remanence run FOLDER`"
            raise self.refusal(got=knowledge, hint=hint)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[CanaryEvidence], Reconstruction]:
        """Nothing: each canary speaks for itself."""
        self.check(knowledge)

        def reconstruct(release: CanaryEvidence) -> Reconstruction:
            guess, sureness = guesses(release["log_odds"])
            labels = torch.zeros(len(guess), 1, device=guess.device)
            records = Records(guess.double()[:, None, None], labels)
            return Reconstruction(records, diagnostics={"guess": guess, "sureness": sureness})

        return reconstruct


def guesses(log_odds: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest choice of each canary (−1 for out) and how sure it is, `(canaries,)` each.

    >>> guesses(torch.tensor([[2.0], [-3.0]]))
    (tensor([ 0, -1]), tensor([2., 3.]))
    """
    if log_odds.shape[1] == 1:
        return (log_odds[:, 0] > 0).long() - 1, log_odds[:, 0].abs()
    best = log_odds.topk(2, dim=1)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]
