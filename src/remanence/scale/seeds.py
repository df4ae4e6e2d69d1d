"""Independent random streams from one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from remanence.core.checks import whole


def unit_seed(entropy: Sequence[int], unit: int) -> int:
    """The seed of a unit's stream: units draw from independent children of one seed.

    >>> unit_seed([0], 1) == unit_seed([0], 2)
    False
    """
    sequence = np.random.SeedSequence(entropy, spawn_key=(unit,) if unit else ())
    words = sequence.generate_state(2, np.uint32)
    return (int(words[0]) << 32) | int(words[1])


def stream_seed(seed: int, purpose: str, unit: int = 0) -> int:
    """The seed of a stream.

    >>> stream_seed(0, "training") == stream_seed(0, "training", 1)
    False
    """
    return unit_seed([seed, *purpose.encode()], unit)


def stream(seed: int, purpose: str, device: torch.device | str, unit: int = 0) -> torch.Generator:
    """A generator of its own for each purpose and unit: no draw ever shifts those of another attack or unit."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, purpose, unit))


@final
@dataclass(frozen=True)
class Draws:
    """All the randomness of a game: one seed, and the device that the draws are made on."""

    seed: int
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        whole("seed", self.seed, least=0, hint="0")

    def stream(self, purpose: str, unit: int = 0) -> torch.Generator:
        """The generator for a purpose, in a unit of trials."""
        return stream(self.seed, purpose, self.device, unit)

    def streams(self, purposes: str, unit: int = 0) -> Iterator[torch.Generator]:
        """A generator for each of several purposes."""
        return (self.stream(purpose, unit) for purpose in purposes.split())
