"""What an API returns: the answers of a trained model to fixed questions, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.exceptions import InputError
from remanence.mechanisms.mechanism import Mechanism, Setting
from remanence.records import Records
from remanence.releases import Logits, Release

ANSWERS = "logits", "probabilities", "top"


@final
@dataclass(frozen=True)
class Queried(Mechanism[Logits]):
    """Trains as another mechanism does, and releases only answers to `probes` (Balle et al. 2022, §VI-C).

    `answers` are the "logits", the "probabilities", or the "top" probabilities: the `top` largest of each
    answer, rounded to `decimals`, the rest withheld.
    """

    mechanism: Mechanism[Release]
    probes: Records  # (probes,)
    answers: str = "logits"
    top: int = 3
    decimals: int = 2
    name: ClassVar[str] = "queries to a trained model"

    def __post_init__(self) -> None:
        if self.answers not in ANSWERS or self.top < 1:
            raise InputError(
                "There is no such answer.",
                needs=f"one of {', '.join(ANSWERS)}, and at least one class in a top answer",
                got=f"{self.answers!r}, top {self.top}",
                hint="Queried(mechanism, probes, answers='probabilities')",
            )

    @property
    def releases(self) -> type[Logits]:
        """Answers."""
        return Logits

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown = {"answers": self.answers, "probes": len(self.probes)}
        if self.answers == "top":
            shown |= {"top": self.top, "decimals": self.decimals}
        return {"training": self.mechanism.name, **self.mechanism.settings(), **shown}

    def trials_at_once(self, targets: Records) -> int:
        """As many as the training takes."""
        return self.mechanism.trials_at_once(targets)

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Logits:
        """Train, ask, and forget the model."""
        return self.ask(self.mechanism.release(known_data, targets, generator))

    def ask(self, trained: Release) -> Logits:
        """What trained models answer."""
        device = next(iter(trained.tensors.values())).device
        logits = self.mechanism.answer(trained, self.probes.to(device))
        if self.answers == "logits":
            return Logits({"answers": logits})
        shares = logits.softmax(-1)
        if self.answers == "top":
            best = shares.topk(min(self.top, shares.shape[-1]), dim=-1)
            shares = torch.zeros_like(shares).scatter_(-1, best.indices, best.values)
            shares = (shares * 10**self.decimals).round() / 10**self.decimals
        return Logits({"answers": shares})
