"""What an API returns: the answers of a trained model to fixed questions, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.checks import instance, one_of, whole
from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Logits, Release

ANSWERS = "logits", "probabilities", "top", "label"
_MOST_DECIMALS = 15  # a double has no more


@final
@dataclass(frozen=True)
class Queried(Mechanism[Logits]):
    """Trains as another mechanism does, and releases only answers to `probes` (Balle et al. 2022, §VI-C).

    `answers` are the "logits", the "probabilities", the "top" ones: the `top` most probable classes with their
    probabilities, the rest withheld; or the "label" alone: which class comes first. Numbers are rounded to
    `decimals`; None leaves them as they are, and rounds those of "top" to two. A top answer says which classes were
    returned (`returned`) beside the probabilities (`answers`), of which a small one may be rounded to 0.

    A training function of your own can be asked too: `looped(train, ask=...)`.
    """

    mechanism: Mechanism[Release]
    probes: Records  # (probes,)
    answers: str = "logits"
    top: int = 3
    decimals: int | None = None
    name: ClassVar[str] = "queries to a trained model"

    def __post_init__(self) -> None:
        one_of("answers", self.answers, ANSWERS)
        whole("top", self.top)
        if self.decimals is not None:
            whole("decimals", self.decimals, least=0, most=_MOST_DECIMALS, hint="decimals=2, or None")
        instance("probes", self.probes, Records, "Records", "Records(inputs, torch.zeros(len(inputs)))")
        if len(self.probes.batch_shape) != 1 or not len(self.probes):
            raise InputError(
                "There is nothing to ask.",
                needs="at least one probe, in a batch (probes,)",
                got=f"probes of batch {self.probes.batch_shape}",
                hint="known_data[:20], or public records of the same kind",
            )
        probes = self._unlabelled()
        probes.require_finite("probes")
        self.mechanism.check_probes(probes)

    def _unlabelled(self) -> Records:
        """The probes as a model sees them; nobody needs to know their labels."""
        return Records(self.probes.features, torch.zeros(len(self.probes)), embedding=self.probes.embedding)

    @property
    def releases(self) -> type[Logits]:
        """Answers."""
        return Logits

    @property
    def _decimals(self) -> int | None:
        return 2 if self.decimals is None and self.answers == "top" else self.decimals

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {"answers": self.answers, "probes": len(self.probes)}
        if self.answers == "top":
            shown["top"] = self.top
        if self._decimals is not None:
            shown["decimals"] = self._decimals
        return {"training": self.mechanism.name, **self.mechanism.settings(), **shown}

    def trials_at_once(self, targets: Records) -> int:
        """As many as the training takes."""
        return self.mechanism.trials_at_once(targets)

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Logits:
        """Train, ask, and forget the model."""
        self.mechanism.check_probes(self.probes, targets)
        return self.ask(self.mechanism.release(known_data, targets, generator))

    def ask(self, trained: Release) -> Logits:
        """What trained models answer."""
        device = next(iter(trained.tensors.values())).device
        logits = self.mechanism.answer(trained, self._unlabelled().to(device))
        if self.answers == "logits":
            return Logits({"answers": self._rounded(logits)})
        if logits.shape[-1] == 1:  # a logistic unit: the second of two classes
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        shares = self._rounded(logits.softmax(-1))
        if self.answers == "probabilities":
            return Logits({"answers": shares})
        count, classes = 1 if self.answers == "label" else self.top, logits.shape[-1]
        whole("top", count, most=classes, hint=f"top={classes}, or answers='probabilities'")
        returned = torch.zeros_like(logits).scatter_(-1, logits.topk(count, -1).indices, 1.0)
        if self.answers == "label":
            return Logits({"answers": returned})
        return Logits({"answers": shares * returned, "returned": returned})

    def _rounded(self, values: Tensor) -> Tensor:
        if self._decimals is None:
            return values
        return ((values.double() * 10**self._decimals).round() / 10**self._decimals).to(values)
