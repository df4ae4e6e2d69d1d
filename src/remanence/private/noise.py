"""The noise of a whole run, tensor by tensor: is there as much as claimed, is it Gaussian, is it new every time?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

_KEPT = 64  # numbers of each tensor and step that are compared with those of other tensors and steps
_MOST_KEPT = 2**24  # numbers that are kept in all; beyond them, repeats are still found by their fingerprints
_FINGERPRINTED = 12  # numbers in a fingerprint; at a sixteenth of a standard deviation they hold 72 bits
_COMPARED = 2000  # steps, each with each; steps further on are compared with the first and the one before


@final
class NoiseLog:
    """What has to be known about every step's noise, without keeping it.

    A step's noise is given in units of the standard deviation that the optimizer was told, so that schedules do not
    matter. Sums are kept per tensor; the first numbers of each are kept to see them come again in another step or
    tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.steps = 0
        self._sums: list[Tensor] = []  # per step: Σ z, Σ z², Σ z⁴ by tensor, (3, tensors)
        self._fingerprints: list[np.ndarray] = []  # per step, (tensors,)
        self._kept: list[Tensor] = []  # per step, the first numbers of each tensor, (tensors, _KEPT)
        self._multipliers = np.random.default_rng(0).integers(
            1, 2**63, size=_FINGERPRINTED, dtype=np.uint64
        ) | np.uint64(1)
        self._between = torch.zeros(len(self.sizes), len(self.sizes), dtype=torch.float64)
        self._successive = torch.zeros(len(self.sizes), dtype=torch.float64)
        self._with_first = torch.zeros(len(self.sizes), dtype=torch.float64)
        self._first: Tensor | None = None
        self._last: Tensor | None = None

    @torch.no_grad()
    def add(self, noise: Sequence[Tensor]) -> None:
        """Take in one step's noise, one flat tensor after the other."""
        sums = [torch.stack([z.sum(), z.square().sum(), z.pow(4).sum()]) for z in noise]
        self._sums.append(torch.stack(sums, 1).double().cpu())
        heads = torch.zeros(len(noise), _KEPT)
        for row, z in zip(heads, noise, strict=True):
            row[: min(len(z), _KEPT)] = z[:_KEPT]
        self._fingerprints.append(self._fingerprint(heads))
        self._between += heads.double() @ heads.double().mT
        if self._last is not None and self._first is not None:
            self._successive += (heads * self._last).sum(1)
            self._with_first += (heads * self._first).sum(1)
        if self._first is None:
            self._first = heads
        self._last = heads
        if len(self._kept) < _COMPARED and (self.steps + 1) * heads.numel() <= _MOST_KEPT:
            self._kept.append(heads)
        self.steps += 1

    def _fingerprint(self, heads: Tensor) -> np.ndarray:
        """Equal for equal noise, up to rounding; 0 where a tensor has too few numbers to be told apart."""
        cells = (heads[:, :_FINGERPRINTED].double().numpy() * 16).round().clip(-(2**30), 2**30)
        mixed = (cells.astype(np.int64).view(np.uint64) * self._multipliers).sum(1, dtype=np.uint64)
        enough = np.array(self.sizes) >= _FINGERPRINTED
        moving = np.abs(cells).max(1) > 0  # no noise at all is another finding
        return np.where(enough & moving, mixed | np.uint64(1), np.uint64(0))

    def tensors(self) -> dict[str, Tensor]:
        """What an audit reads: sums by step and tensor, correlations, and how often noise came again."""
        marks = np.stack(self._fingerprints).ravel()
        marks = marks[marks > 0]
        numbers = torch.tensor([compared_numbers(size) for size in self.sizes], dtype=torch.float64)
        power = (self._between.diagonal() / (self.steps * numbers)).clamp(min=1e-30)
        shared = self.steps * torch.minimum(numbers[:, None], numbers[None])
        between = self._between / (shared * (power[:, None] * power[None]).sqrt())
        pairs = max(self.steps - 1, 1) * numbers * power
        return {
            "sizes": torch.tensor(self.sizes),
            "sums": torch.stack(self._sums),  # (steps, 3, tensors)
            "repeats": torch.tensor(len(marks) - len(np.unique(marks))),
            "between_tensors": between.fill_diagonal_(0),
            "with_the_step_before": self._successive / pairs,
            "with_the_first_step": self._with_first / pairs,
            "largest_between_steps": self._largest_between_steps(),
        }

    def _largest_between_steps(self) -> Tensor:
        """For each tensor, the largest correlation between its noise in two of the steps that were kept."""
        kept = torch.stack(self._kept, 1)  # (tensors, steps, numbers)
        found = torch.zeros(len(kept), dtype=torch.float64)
        for place, one in enumerate(kept):
            unit = one / one.norm(dim=1, keepdim=True).clamp(min=1e-30)
            if len(unit) > 1:
                found[place] = float((unit @ unit.mT).abs().fill_diagonal_(0).max())
        return found


def compared_numbers(size: int) -> int:
    """How many numbers of a tensor are compared with those of other steps and tensors."""
    return min(size, _KEPT)


def compared_steps(steps: int, tensors: int) -> int:
    """How many steps are compared each with each."""
    return max(1, min(steps, _COMPARED, _MOST_KEPT // (tensors * _KEPT)))
