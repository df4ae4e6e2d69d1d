"""Sparse directions of a column space by the ℓ₁-norm alone: for updates of several steps, whose weights have moved.

A column of A is zero wherever its sample activates a neuron at no step, and no other direction of the column space is
anything like as sparse. Directions are minima of the ℓ₁-norm on the sphere, found from many random starts at once by
iteratively reweighted inverse iteration. `sparse_columns` finds more where the weights are known.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

_STEPS = 100
_COOLING = 0.92  # per step; slower cooling finds more: 16 of 100 starts at batch 32, where 0.85 finds 10
_ZERO = 1e-3  # relative to the mean entry: an entry below counts as zero until the direction is polished
_NUMBERS_AT_ONCE = 2**26
_STARTS = 1024
_HOPELESS = (
    (48, 1 / 8),
    (256, 1 / 2),
)  # starts after which a search that has found less than this share is given up


def whole_sets(level: Tensor, precision: float, generator: torch.Generator) -> Iterator[Tensor]:
    """Sets of as many independent sparse directions as the space has dimensions, `(rank, rank)`; fewer are none.

    `level` has orthonormal columns that span the space, and rows of about one size.
    """
    rank = level.shape[1]
    found = level.new_zeros(0, rank)
    largest = max(16, _NUMBERS_AT_ONCE // max(level.shape[0], rank**2))
    count, tried = min(16, largest), 0
    while tried < _STARTS:
        tried, at_once, count = tried + count, count, min(2 * count, largest)
        found = _distinct(
            torch.cat([found, _sparse_directions(level, at_once, found, precision, generator)]), level
        )
        chosen = _independent(found, rank)
        if len(chosen) == rank:
            yield chosen
        elif any(tried >= most and len(chosen) < share * rank for most, share in _HOPELESS):
            return


def _sparse_directions(
    level: Tensor, count: int, known: Tensor, precision: float, generator: torch.Generator
) -> Tensor:
    """Local minima of ‖level · q‖₁ on the sphere, polished to the null vector of the rows that vanish."""
    rank = level.shape[1]
    q = torch.randn(count, rank, generator=generator, device=generator.device, dtype=torch.float64).to(level)
    if 0 < len(known) < rank:
        frame = torch.linalg.qr(known.mT)[0]  # look first where nothing has been found
        q[::2] -= q[::2] @ frame @ frame.mT
    q = normalize(q, dim=1)
    products = (level.unsqueeze(2) * level.unsqueeze(1)).flatten(1)  # (neurons, rank²)
    floor = 1.0
    for _ in range(_STEPS):
        size = (q @ level.mT).abs()
        weights = 1 / (size / size.mean(1, keepdim=True)).clamp(min=floor)
        system = (weights @ products).view(count, rank, rank)
        q = normalize(torch.linalg.solve(system, q), dim=1)
        floor *= _COOLING
    for threshold in (_ZERO, _ZERO / 10, max(_ZERO / 10, 1e3 * precision)):
        size = (q @ level.mT).abs()
        vanish = (size < threshold * size.mean(1, keepdim=True)).to(level)
        enough = vanish.sum(1) >= rank - 1
        q = torch.linalg.eigh((vanish @ products).view(count, rank, rank)).eigenvectors[..., 0]
        q = q[enough]
        count = len(q)
    return q


def _distinct(q: Tensor, level: Tensor) -> Tensor:
    """Each direction once, the sparsest first."""
    size = (q @ level.mT).abs()
    zeros = (size < _ZERO * size.mean(1, keepdim=True)).sum(1)
    q = q[zeros.argsort(descending=True, stable=True)]
    same = (q @ q.mT).abs() > 1 - 1e-6
    return q[~same.tril(-1).any(1)]


def _independent(q: Tensor, rank: int) -> Tensor:
    """Greedily the sparsest directions that are linearly independent: a mixture of chosen ones adds nothing."""
    chosen, frame = [], q.new_zeros(q.shape[1], 0)
    for direction in q:
        rest = direction - frame @ (frame.mT @ direction)
        if rest.norm() > 1e-3:
            chosen.append(direction)
            frame = torch.cat([frame, (rest / rest.norm()).unsqueeze(1)], 1)
        if len(chosen) == rank:
            break
    return torch.stack(chosen) if chosen else q[:0]
