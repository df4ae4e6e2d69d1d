"""More than a head: the last block of a network, or adapters in it, trained on what its frozen part gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release, Weights
from remanence.heads.embedding import embedding_of
from remanence.training.sgd import SGD


@final
@dataclass(frozen=True)
class FineTuning(Mechanism[Weights]):
    """Trains the last part of a network on embeddings: what comes out of the part that stays frozen.

    `training` is what it is for any network, `SGD(AnyModule(last_part, fresh=("head",)), epochs, rate)`: parameters of
    the last part that ask for a gradient are trained, a whole block or LoRA's matrices alone, and submodules in `fresh`
    start anew in every training. All trained numbers are published. `shape` is that of one embedding where the last
    part reads more than a row of numbers, such as channels and sides.
    """

    training: SGD
    shape: tuple[int, ...] | None = None
    name: ClassVar[str] = "fine-tuned last layers"

    @property
    def releases(self) -> type[Weights]:
        """What was trained."""
        return Weights

    def settings(self) -> dict[str, Setting]:
        """Those of the training."""
        return self.training.settings()

    def trials_at_once(self, targets: Records) -> int:
        """As many as train together."""
        return self.training.trials_at_once(self._read(targets))

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train once per trial on that trial's targets (and on known data, where there is some)."""
        known = None if known_data is None else self._read(known_data)
        return self.training.release(known, self._read(targets), generator)

    def answer(self, release: Release, records: Records) -> Tensor:
        """Ask the trained layers."""
        return self.training.answer(release, self._read(records))

    def _read(self, records: Records) -> Records:
        numbers = embedding_of(records)
        if self.shape is not None:
            try:
                numbers = numbers.unflatten(-1, self.shape)
            except RuntimeError:
                raise InputError(
                    "The embeddings have another shape.",
                    needs=f"embeddings that are {self.shape} in a row",
                    got=f"{numbers.shape[-1]} numbers",
                    hint="FineTuning(training, shape=frozen(pictures).shape[1:])",
                ) from None
        return Records(numbers, records.labels, records.weights)
