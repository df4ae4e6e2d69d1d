"""Sampling without replacement, for many sets at once."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_sets(n: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """n sets of `count` distinct numbers below `size`, `(n, count)` (Floyd's algorithm)."""
    chosen = torch.empty(n, 0, dtype=torch.int64, device=generator.device)
    for last in range(size - count, size):
        drawn = torch.randint(last + 1, (n, 1), generator=generator, device=generator.device)
        drawn = drawn.masked_fill((chosen == drawn).any(1, keepdim=True), last)
        chosen = torch.cat([chosen, drawn], 1)
    return chosen


def draw_others(index: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """For each row of `index`, the same number of distinct numbers below `size`, none of them in that row."""
    n, count = index.shape
    drawn = draw_sets(n, size - count, count, generator).to(index.device)
    for taken in index.sort(1).values.T:  # the drawn numbers are ranks among the remaining ones
        drawn = drawn + (drawn >= taken[:, None])
    return drawn
