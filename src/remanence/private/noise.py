"""Statistics of noise that could not be made again: they may show that it is not what was claimed, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

_FINGERPRINTED = 12  # numbers in a fingerprint; at a sixteenth of a standard deviation they hold 60 bits
_INSIDE = 2**17  # numbers of a step that are compared with each other
_SAME = 1e-5  # standard deviations by which two of them may differ through rounding, and be the same


@final
class NoiseLog:
    """What has to be known about every step's noise, without keeping it.

    A step's noise is given in units of the standard deviation that the optimizer was told, so that schedules do not
    matter. Signs do not matter where noise comes again.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self._sums: list[Tensor] = []  # per step: Σ z², Σ z⁴ by tensor, (2, tensors)
        self._fingerprints: list[np.ndarray] = []  # per compared step, (tensors,)
        self._squares: Tensor | None = None  # of every number over the compared steps
        self._compared = 0
        self._pairs = np.zeros(
            3
        )  # of equal numbers inside steps; as many as chance makes, and their variance
        self._multipliers = np.random.default_rng(0).integers(
            1, 2**63, size=_FINGERPRINTED, dtype=np.uint64
        ) | np.uint64(1)

    @torch.no_grad()
    def add(self, noise: Sequence[Tensor], *, compare: bool = True, precision: float = 1e-7) -> None:
        """Take in one step's noise, one flat tensor after the other."""
        squares = [z.square() for z in noise]
        sums = [torch.stack([s.sum(), s.square().sum()]) for s in squares]
        self._sums.append(torch.stack(sums, 1).double().cpu())
        if not compare:
            return
        every = torch.cat(squares)
        self._squares = every if self._squares is None else self._squares + every
        self._compared += 1
        heads = torch.zeros(len(noise), _FINGERPRINTED)
        for row, z in zip(heads, noise, strict=True):
            row[: min(len(z), _FINGERPRINTED)] = z[:_FINGERPRINTED].abs()
        self._fingerprints.append(self._fingerprint(heads))
        if precision < _SAME / 10:  # half precision has few numbers, and many are the same
            self._count_pairs(every[:_INSIDE].sqrt())

    def _count_pairs(self, sizes: Tensor) -> None:
        ordered, count = sizes[sizes > 100 * _SAME].sort().values, len(sizes)
        near = torch.searchsorted(ordered, ordered + _SAME, right=True)
        pairs = int((near - torch.arange(1, len(ordered) + 1, device=near.device)).sum())
        chance = _SAME * count**2 / math.sqrt(math.pi)
        self._pairs += pairs, chance, chance * (1 + count * _SAME)

    def _fingerprint(self, heads: Tensor) -> np.ndarray:
        """Equal for equal noise, up to rounding; 0 where a tensor has too few numbers to be told apart."""
        cells = (heads.double().numpy() * 16).round().clip(0, 2**30)
        mixed = (cells.astype(np.uint64) * self._multipliers).sum(1, dtype=np.uint64)
        enough = np.array(self.sizes) >= _FINGERPRINTED
        moving = cells.max(1) > 0  # no noise at all is another finding
        return np.where(enough & moving, mixed | np.uint64(1), np.uint64(0))

    def tensors(self) -> dict[str, Tensor]:
        """What an audit reads: sums by step and tensor, and of compared steps how noise came again."""
        marks = np.concatenate([np.zeros(0, np.uint64), *self._fingerprints])
        marks = marks[marks > 0]
        found = {
            "sizes": torch.tensor(self.sizes),
            "sums": torch.stack(self._sums),  # (steps, 2, tensors)
            "compared": torch.tensor(self._compared),
            "repeats": torch.tensor(len(marks) - len(np.unique(marks))),
            "pairs": torch.from_numpy(self._pairs),
        }
        if self._squares is not None:
            parts = self._squares.split(self.sizes)
            found["least"] = torch.stack([part.min() for part in parts]).double().cpu()
        return found
