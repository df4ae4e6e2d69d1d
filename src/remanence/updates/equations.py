"""The solver for dense layers and patches: records within the span of a layer's gradient.

A layer's gradient with its bias gradient beside it is G = s Σ δ (x, 1)ᵀ, over records and the positions that it reads:
one of each record for a dense layer, one for each patch of a picture. Its rank is the number of different x, so every
(x, 1) is a combination c of as many known directions, however long x is. The derivatives δ follow from c and the label
by one pass through the network, so that

    G Rᵀ = s Σ δ(c, y) cᵀ,    c · r = 1,

with the directions in the rows of R and their last column r, has far more equations than unknowns. Gauss–Newton with
damping solves it from random points. It either ends at a residual of rounding errors, or the batch is not found:
recomputation tells which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor

from remanence.scale.progress import track

_STARTING = 0.5  # the spread of the first points, relative to what the outputs' quotients have
_DAMPING, _EASED, _RAISED, _LEAST, _HOPELESS = 1e-2, 1 / 5, 4.0, 1e-12, 1e8
_SETTLED = 0.999  # a step that leaves more than this share of the residual is the last
_NOTHING = 1e-32  # a residual (a square) below is zero in double precision


@final
@dataclass(frozen=True)
class Solution:
    """The open coordinates of each record, its label, a factor, and the squared residual of the gradient."""

    points: Tensor  # (records, positions, unknowns of a position)
    labels: Tensor
    scale: float  # of the gradient of a mean
    left: float


@dataclass(frozen=True, kw_only=True)
class Equations(ABC):
    """One gradient in coordinates of its span, and what is known about the coordinates of each position."""

    directions: Tensor  # (rank, numbers and the bias's column, if there is one)
    rows: Tensor  # (outputs, rank): the gradient in coordinates
    ones: Tensor | None  # (rank,), the bias's column
    offset: Tensor  # (positions, rank): what is known of the coordinates of each
    free: Tensor  # (unknowns, rank): orthonormal directions in which they are open
    count: int  # records
    scale_is_known: bool = True  # the gradient is that of a mean, and not this times some factor

    @abstractmethod
    def said(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the records, and the last bias's gradient."""

    @abstractmethod
    def made(self, points: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the mean over these records, in one row, in the units of `target`."""

    @abstractmethod
    def products(self, points: Tensor, labels: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """JᵀJ, and Jᵀ times a vector, where J is the derivative of `made` in the points."""

    @cached_property
    def target(self) -> Tensor:
        """The gradient sent, in one row and relative to its size."""
        return (self.rows / self.rows.norm()).flatten()

    @property
    def rank(self) -> int:
        """How many inputs are independent."""
        return len(self.directions)

    @property
    def unknowns(self) -> int:
        """How many numbers are open."""
        return self.count * len(self.offset) * len(self.free)

    def coordinates(self, points: Tensor) -> Tensor:
        """Of what is open, in the span."""
        return self.offset + points @ self.free

    def start(self, generator: torch.Generator) -> Tensor:
        """Random points around the mean input that the outputs agree on best."""
        shape = self.count, len(self.offset), len(self.free)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.rows)
        if self.ones is None:
            return noise
        height = self.rows @ self.ones
        middle = (height @ self.rows) / height.square().sum()
        live = height.abs() > 1e-6 * height.abs().max()
        reach = (self.rows[live] / height[live, None] - middle).norm(dim=1).median()
        return (middle - self.offset) @ self.free.mT + _STARTING * reach / self.rank**0.5 * noise

    def labels(self, points: Tensor, labels: Tensor | None = None) -> Tensor:
        """By counts: the last bias's gradient is the mean of predictions less the share of each class."""
        logits, last = self.said(points)
        expected = logits.softmax(-1).sum(0)
        # At an unknown scale, some class is assumed to be absent.
        share = 1 / self.count if self.scale_is_known else float((last / expected).max())
        labels = torch.full_like(logits[:, 0], -1, dtype=torch.int64) if labels is None else labels
        return _relabelled(labels, expected - last / max(share, 1e-300), logits)

    def descend(
        self,
        points: Tensor,
        labels: Tensor,
        *,
        steps: int,
        give_up: Callable[[int, float], bool] = lambda *_: False,
    ) -> Solution:
        """Damped Gauss–Newton steps in the points and an unknown scale, until none improves; `give_up` sees each."""
        made = self.made(points, labels)
        scale = float(self.target @ made / made.square().sum().clamp(min=1e-300))
        scale = scale if scale > 0 and not self.scale_is_known else 1.0

        def value(at: Tensor) -> float:
            made = self.made(at[:-1].view_as(points), labels)
            return float((self.target - at[-1] * made).square().sum())

        at, damping = torch.cat([points.flatten(), points.new_tensor([scale])]), _DAMPING
        left = value(at)
        for number in range(steps):
            matrix, slope = self._normal(at[:-1].view_as(points), labels, at[-1])
            while damping < _HOPELESS:
                damped = matrix + torch.diag(damping * (matrix.diagonal() + 1e-12))
                factor, failed = torch.linalg.cholesky_ex(damped)
                moved = at - torch.cholesky_solve(slope[:, None], factor).squeeze(1)
                after = value(moved)
                if not failed and after < left:
                    break
                damping *= _RAISED
            else:
                break
            is_last = after > _SETTLED * left or after < _NOTHING
            at, left, damping = moved, after, max(damping * _EASED, _LEAST)
            if give_up(number, left) or is_last:
                break
        return Solution(at[:-1].view_as(points), labels, float(at[-1]), left)

    def _normal(self, points: Tensor, labels: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """JᵀJ and Jᵀ times the residual, where J is the derivative in the points and the scale."""
        made, (gram, along) = self.made(points, labels), self.products(points, labels)
        rest, cross = self.target - scale * made, scale * along(made)
        slope = -torch.cat([scale * along(rest), made @ rest[:, None]])
        if self.scale_is_known:
            cross, slope[-1] = torch.zeros_like(cross), 0.0
        last = torch.cat([cross, made @ made[:, None]])
        return torch.cat([torch.cat([scale**2 * gram, cross[:, None]], 1), last[None]]), slope

    def best_of(
        self, starts: int, solve: Callable[[Self], Solution], *, fits: float, what: str
    ) -> tuple[Self, Solution]:
        """The best of several starts, every other one at an unknown scale; the first that leaves less than `fits`."""
        best: tuple[Self, Solution] | None = None
        for attempt in track(range(starts), total=starts, what=what):
            tried = replace(self, scale_is_known=not attempt % 2)
            found = solve(tried)
            best = (tried, found) if best is None or found.left < best[1].left else best
            if best[1].left < fits or (attempt and not self.unknowns):
                break
        assert best is not None
        return best


def solved(known: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates c with c · known = values, one for each row of `values`, and the directions left open."""
    free = torch.linalg.svd(known.mT, full_matrices=True)[2][known.shape[1] :]
    return values @ torch.linalg.pinv(known), free


def _relabelled(labels: Tensor, counts: Tensor, logits: Tensor) -> Tensor:
    """Labels of which each class has as many as were counted, to the largest remainder; −1 is no label yet.

    A point whose class has too many gives its label up for one of which there are too few, where it leans to that.
    """
    wanted, labels = torch.zeros_like(counts), labels.clone()
    for _ in range(len(labels)):
        wanted[(counts - wanted).argmax()] += 1
    for label in range(len(counts)):
        own = (labels == label).nonzero().squeeze(1)
        surplus = len(own) - int(wanted[label])
        if surplus > 0:
            labels[own[logits[own, label].argsort()[:surplus]]] = -1
    for label in range(len(counts)):
        free = (labels < 0).nonzero().squeeze(1)
        missing = int(wanted[label]) - int((labels == label).sum())
        if missing > 0:
            labels[free[logits[free, label].argsort(descending=True)[:missing]]] = label
    return labels
