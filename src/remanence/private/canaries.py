"""Canaries: records put into a training set by a coin that only the auditor sees, and guesses about that coin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import MAHLOUJIFAR_2024
from remanence.core.releases import Release
from remanence.scale.seeds import stream

MOST_CANDIDATES = 2000  # finding them solves one system of this size in every step


class Design(StrEnum):
    """Where canaries come from; a report says which."""

    REAL = "real records"
    MISLABELLED = "real records with a wrong label"
    CRAFTED = "crafted records with nearly orthogonal gradients"


@final
@dataclass(frozen=True)
class Canaries:
    """m canaries, each in the training set or out of it, or one of the n candidates of its own shortlist.

    `chosen` is the auditor's secret: for each canary which candidate was trained on, and −1 for none.
    No attack receives it.
    """

    shortlists: Records  # (canaries, candidates)
    chosen: Tensor  # (canaries,)
    design: Design

    def __post_init__(self) -> None:
        if self.shortlists.labels.ndim != 2 or not 1 <= self.shortlists.labels.numel() <= MOST_CANDIDATES:
            raise InputError(
                "There are too many canaries, or none.",
                needs=f"records with batch (canaries, candidates), 1 to {MOST_CANDIDATES} in all",
                got=f"batch {tuple(self.shortlists.labels.shape)}",
                hint="500 canaries that are in or out",
            )
        self.shortlists.require_finite("canaries")

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def candidates(self) -> int:
        """The length of each shortlist; 1 means in or out."""
        return self.shortlists.labels.shape[1]

    @property
    def inserted(self) -> Records:
        """The records to train on, in the order of the canaries; append them to the training data."""
        inside = self.chosen >= 0
        return self.shortlists[inside, self.chosen[inside]]


def real(records: Records, *, candidates: int = 1, seed: int) -> Canaries:
    """Held-out records, unchanged: they measure what an ordinary person's record gives away.

    >>> people = Records(torch.randn(40, 3), torch.zeros(40))
    >>> canaries = real(people, seed=0)
    >>> len(canaries), 0 < len(canaries.inserted) < 40
    (40, True)
    """
    return _canaries(records, candidates, seed, Design.REAL)


def mislabelled(records: Records, classes: int, *, candidates: int = 1, seed: int) -> Canaries:
    """Held-out records with a wrong label: their gradients stay large, as an outlier's would."""
    generator = stream(seed, "labels", "cpu")
    shift = torch.randint(1, classes, records.labels.shape, generator=generator)
    wrong = Records(records.features, (records.labels.long() + shift) % classes)
    return _canaries(wrong, candidates, seed, Design.MISLABELLED)


def crafted(
    count: int, shape: tuple[int, ...], classes: int, *, size: float = 10.0, candidates: int = 1, seed: int
) -> Canaries:
    """Records of zeros with a few random spikes, and random labels.

    Two such records barely overlap, so that the gradients of the layers that read them are nearly orthogonal, and
    a random label keeps the gradient large. The strongest canaries, and of no other use.
    """
    generator = stream(seed, "crafted", "cpu")
    everything = (count * candidates, *shape)
    draws = torch.rand(everything, generator=generator).flatten(1)
    spikes = draws <= draws.min(1, keepdim=True).values.clamp(min=0.05)  # at least one
    heights = size * torch.randn(everything, generator=generator)
    labels = torch.randint(classes, everything[:1], generator=generator)
    return _canaries(Records(heights * spikes.view(everything), labels), candidates, seed, Design.CRAFTED)


def _canaries(records: Records, candidates: int, seed: int, design: Design) -> Canaries:
    if candidates < 1 or len(records) % candidates:
        raise InputError(
            "The records cannot be dealt into shortlists.",
            needs="a number of records that the length of the shortlists divides",
            got=f"{len(records)} records, {candidates} candidates each",
            hint="candidates=1: each record is in the training set or out of it",
        )
    count = len(records) // candidates
    order = torch.arange(len(records)).view(count, candidates)
    return Canaries(records[order], draw(count, candidates, stream(seed, "canaries", "cpu")), design)


def draw(count: int, candidates: int, generator: torch.Generator) -> Tensor:
    """The secret of this many canaries; a second draw serves as the control."""
    if candidates == 1:
        return torch.randint(2, (count,), generator=generator) - 1  # −1 out, 0 in
    return torch.randint(candidates, (count,), generator=generator)


@final
@dataclass(frozen=True)
class CanaryEvidence(Release):
    """`log_odds` that a canary, or each candidate of its shortlist, was trained on, `(trials, candidates)`."""

    sees: ClassVar[str] = "every privatised gradient"


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
        if knowledge.mechanism.releases is not CanaryEvidence:
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
