"""Guess which canaries were trained on, from what a whole run gave away about each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import MAHLOUJIFAR_2024
from remanence.private.recorded_training import CanaryEvidence, RecordedTraining


@final
@dataclass(frozen=True)
class OneRunCanaries(Attack[CanaryEvidence]):
    """The likeliest choice of each canary: in or out, or one of its shortlist."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "one-run-canaries",
        "Tells which canaries were trained on, from all privatised gradients of one run at once.",
        "a recorded run with canaries; all other training records and their batches",
        "transcript",
        MAHLOUJIFAR_2024.at("with a linear estimate of all canaries at once"),
    )

    def check(self, knowledge: Knowledge) -> None:
        """A recorded run."""
        if not isinstance(knowledge.mechanism, RecordedTraining):
            hint = "record the training: `with record(...)`, then `remanence audit FOLDER`"
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
