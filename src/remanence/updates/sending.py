"""Signs in a file that an update was compressed before it was sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from remanence.updates.rounding import Rounding

Update = Mapping[str, Tensor]

_CODES = 256  # different numbers that a tensor of 8-bit codes has at most
_FEWEST = 15  # and at least: those of 4 bits
_ZEROS = 0.3  # of a matrix outside of rows and columns that are zero throughout: what ReLU does not explain
_GRID = 1e-3  # of a step, by which a number may be off the grid


def codes_of(update: Update) -> Rounding | None:
    """How coarse an update is whose matrices hold few different numbers on a grid; None for others, and for signs."""
    steps, most = [], 0
    for value in update.values():
        if value.ndim < 2 or value.numel() < 4 * _CODES:
            continue
        different = value.double().unique()
        most = max(most, len(different))
        if not 1 < len(different) <= _CODES:
            return None
        places = (different - different[0]) / different.diff().min()
        if (places.round() - places).abs().max() > _GRID * len(different):
            return None
        steps.append(float(different.diff().min()))
    if most < _FEWEST:
        return None
    return Rounding(max(torch.finfo(v.dtype).eps for v in update.values()), max(steps) / 2)


def looks_compressed(update: Update) -> str | None:
    """What is to be seen of a compression in an update's numbers, in words; None where nothing is."""
    matrices = [value for value in update.values() if value.ndim >= 2 and value.numel() >= 4 * _CODES]
    most = max((len(value.unique()) for value in matrices), default=_CODES + 1)
    if most <= _CODES:
        return f"its matrices hold at most {most} different numbers"
    shares = []
    for value in update.values():
        if value.ndim == 2 and value.numel() >= 4 * _CODES:
            inside = value[value.any(1)][:, value.any(0)]
            shares.append(float((inside == 0).double().mean()) if inside.numel() else 0.0)
    if shares and min(shares) > _ZEROS:
        return f"{min(shares):.0%} or more of each matrix are zeros, scattered over rows and columns"
    return None
