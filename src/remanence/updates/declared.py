"""What the owner of an update says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.updates.local_training import LocalTraining


@final
@dataclass(frozen=True)
class Noise:
    """Gaussian noise that the client is said to have added to a sum of clipped gradients."""

    multiplier: float
    max_grad_norm: float

    def __post_init__(self) -> None:
        number("noise_multiplier", self.multiplier, above=0, hint="--noise-multiplier 1")
        number("max_grad_norm", self.max_grad_norm, above=0, hint="--max-grad-norm 1")


@final
@dataclass(frozen=True)
class Declared:
    """What the owner says about the updates; what is left out is read off them, or unknown."""

    training: LocalTraining = field(default_factory=LocalTraining)
    batch_size: int | None = None
    weights: Path | None = None
    input_shape: tuple[int, ...] | None = None
    noise: Noise | None = None
    candidates: int = 10  # how many a record is among, for ceilings

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, hint="--batch-size 8")
        whole("candidates", self.candidates, least=2, hint="--candidates 10")
        if self.noise is not None and self.batch_size is None:
            raise InputError(
                "How much noise each number has is not known.",
                needs="the batch size that the noised sum was divided by",
                got="--noise-multiplier without --batch-size",
                hint="--batch-size 256",
            )
