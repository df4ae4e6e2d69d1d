"""What is published of a head may be less than what was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from remanence.core.checks import is_number, is_whole
from remanence.core.exceptions import InputError
from remanence.core.releases import Weights

_AT_LEAST = 1e-30


@final
@dataclass(frozen=True)
class Published:
    """`release_noise` is the deviation of normal noise on every number; `bits` rounds each tensor to 2^bits levels.

    Levels lie between a tensor's largest value and less than that.
    """

    release_noise: float = 0.0
    bits: int | None = None

    def __post_init__(self) -> None:
        noise = self.release_noise
        if not (is_number(noise) and noise >= 0) or not (self.bits is None or is_whole(self.bits, 1)):
            raise InputError(
                "This head cannot be published.",
                needs="a deviation of at least 0, and at least one bit per number",
                got=f"release_noise {self.release_noise}, bits {self.bits}",
                hint="Published(release_noise=0.01) or Published(bits=8)",
            )

    def of(self, trained: Weights, generator: torch.Generator) -> Weights:
        """The same numbers with noise on them, or rounded."""
        shown = dict(trained.tensors)
        for name, values in shown.items():
            if self.release_noise:
                noise = torch.randn(values.shape, generator=generator, device=generator.device).to(values)
                values = values + self.release_noise * noise
            if self.bits is not None:
                largest = values.abs().flatten(1).amax(1).clamp(min=_AT_LEAST)
                largest = largest.view(-1, *[1] * (values.ndim - 1))
                step = 2 * largest / (2**self.bits - 1)
                values = ((values + largest) / step).round() * step - largest
            shown[name] = values
        return Weights(shown)
