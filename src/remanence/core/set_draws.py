"""Sets of different numbers, many at once."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_sets(n: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """n sets of `count` different numbers below `size`, `(n, count)` (Floyd's algorithm)."""
    chosen = torch.empty(n, 0, dtype=torch.int64, device=generator.device)
    for last in range(size - count, size):
        drawn = torch.randint(last + 1, (n, 1), generator=generator, device=generator.device)
        drawn = drawn.masked_fill((chosen == drawn).any(1, keepdim=True), last)
        chosen = torch.cat([chosen, drawn], 1)
    return chosen


def draw_others(index: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """As many different numbers below `size`, none of them in the same row of `index`."""
    n, count = index.shape
    drawn = draw_sets(n, size - count, count, generator).to(index.device)
    for taken in index.sort(1).values.T:  # the drawn are ranks among those that are left
        drawn = drawn + (drawn >= taken[:, None])
    return drawn
