"""Signs in an update's numbers that it was compressed before it was sent, and how far off its numbers may be.

An update is called compressed only where no data could have made it so. One-hot and binary records leave few different
numbers too, and zeros all over the first layer; but their numbers are each neuron's own derivative and lie on no grid,
and the last layer, through which every record sends a loss for every class, has no zeros where it has a column at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.updates.rounding import Rounding

_LEVELS = 2**15  # of a grid on either side of zero
_OFF = 1e-4  # of a step, by which a number may be off the grid, beside what float32 rounds off of it
_SIZES = 4  # different sizes that must lie on it: two always do, and further ones by chance once in 1 / (2 · _OFF) each
_FEW = 3  # sizes that a matrix of codes may have where there are no four
_BROAD = 8  # rows and columns that are not zero: in so many, data leave more than a few sizes
_LOOKED_AT = 2**16  # numbers of a matrix
_ZEROS = 0.3  # of the last layer, outside of rows and columns that are zero throughout


@final
@dataclass(frozen=True)
class Compression:
    """What was seen, in words, and how far off the numbers may be where that is known."""

    seen: str
    rounding: Rounding | None = None  # of codes: half a step, tensor by tensor


def compression_of(update: Mapping[str, Tensor], last: str) -> Compression | None:
    """What tells that an update was compressed; None where nothing does. `last` is the weight that makes the logits."""
    matrices = {
        name: value for name, value in update.items() if value.ndim >= 2 and _is_broad(value.flatten(1))
    }
    steps = {name: _step(value) for name, value in matrices.items()}
    known = {name: step for name, step in steps.items() if step is not None}
    if matrices and len(known) == len(steps):
        if not any(known.values()):
            return Compression("the numbers of each matrix have a few sizes only")
        eps = max(torch.finfo(value.dtype).eps for value in update.values())
        half = tuple((name, step / 2) for name, step in known.items())
        return Compression(
            "the numbers of each matrix are multiples of one step",
            Rounding(eps, max(s for _, s in half), half),
        )
    value = update[last].flatten(1)
    inside = value[value.any(1)][:, value.any(0)]
    if inside.numel() and float((inside == 0).double().mean()) > _ZEROS:
        return Compression("zeros are scattered over the last layer, where every record leaves something")
    return None


def _is_broad(matrix: Tensor) -> bool:
    return min(int(matrix.any(1).sum()), int(matrix.any(0).sum())) >= _BROAD


def _step(value: Tensor) -> float | None:
    """The step whose multiples a matrix holds; 0 where it has too few sizes to tell one, None where it has none."""
    sizes = value.flatten()[: 16 * _LOOKED_AT].double().abs()
    sizes = sizes[sizes > 0][:_LOOKED_AT].unique()
    if len(sizes) > _LEVELS:
        return None
    # Two codes that round to the same number in single precision differ by next to nothing.
    sizes = sizes[torch.cat([sizes[:1] * 0 + 1, sizes.diff() / sizes[1:]]) > 1e-6]
    if len(sizes) <= _FEW:
        return 0.0
    step = float(torch.cat([sizes[:1], sizes.diff()]).min())
    for _ in range(2):  # the mean over all codes is more precise than the smallest difference
        codes = (sizes / step).round()
        step = float((sizes * codes).sum() / codes.square().sum())
    codes = (sizes / step).round()
    on_grid = ((sizes / step - codes).abs() <= _OFF + 1e-6 * codes).all() and codes.max() <= _LEVELS
    return step if on_grid and len(sizes) >= _SIZES else None
