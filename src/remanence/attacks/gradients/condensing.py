"""A large first layer in few coordinates: those of the span in which its gradient lies.

The first layer's gradient is G = Σ_m δ_m x_mᵀ. Its rows span no more dimensions than the batch has records, and every
record lies in that span. With an orthonormal basis R of it, the layer W Rᵀ with the gradient G Rᵀ poses the same
problem in coordinates c = R x, of which there are at most a few hundred, however many numbers an input has. One more
coordinate holds what a row has outside the span: G's norm there, and the neuron's weight along it, so that norms,
residuals and the balance of each neuron are what they were. Where that is no more than rounding it counts as nothing.

Where the batch is larger than a few hundred, no basis holds it all. The coordinates are then those of rows that are
multiples of one another, as the rows of a sample with two neurons to itself are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.candidates import twins
from remanence.attacks.gradients.dense_layers import DenseHead
from remanence.attacks.gradients.parts import working

_FEW, _SKETCHED = 16, 144  # directions that are looked for; fewer than these are a low rank
_SHORT = 2 * _SKETCHED  # inputs that are shorter are left as they are
_SMALL = 2**19  # and layers that have fewer weights
_AT_ONCE = 2**19  # numbers that are made double at a time
_GROUPS = 128  # rows with a twin that make a basis
_COARSE = 1e-4  # precisions above are half precision, in which numbers were rounded once
_ROUNDINGS = 8  # rounding errors that a row may lie outside the span, in single and double precision


@final
@dataclass(frozen=True)
class Coordinates:
    """A head whose first layer reads coordinates, the gradients of that layer, and the way back."""

    head: DenseHead
    gradients: list[Tensor]  # (neurons, coordinates) each, as the head's first weight
    basis: Tensor  # (coordinates within the span, numbers), orthonormal rows

    def inputs(self, points: Tensor) -> Tensor:
        """The inputs that have these coordinates."""
        return points[..., : len(self.basis)] @ self.basis


def condensed(
    head: DenseHead,
    gradients: Sequence[tuple[Tensor, Tensor | None]],
    *,
    relative: float,
    absolute: float = 0.0,
) -> Coordinates | None:
    """One or more gradients of a large first layer, weight and bias, in coordinates; None for a small one.

    `relative` and `absolute` say how coarse their numbers are.
    """
    weight = head.weights[0]
    if weight.shape[1] <= _SHORT or weight.numel() <= _SMALL:
        return None
    spans = [_span(own, bias, relative, absolute) for own, bias in gradients]
    basis = spans[0] if len(spans) == 1 else torch.linalg.qr(torch.cat(spans).mT)[0].mT
    basis = basis.to(torch.float64 if relative <= _COARSE else torch.float32)
    inside = torch.cat([part.to(basis) @ basis.mT for part in _blocks(weight)]).double()
    columns, written = [], []
    for own, _ in gradients:
        part, norm, along = _written(weight, own, basis, relative, absolute)
        columns.append(along)
        written.append((part, norm))
    rest = inside.new_zeros(len(inside), len(columns))
    parts = []
    for index, (part, norm) in enumerate(
        written
    ):  # each gradient has a coordinate of its own outside the span
        own_rest = rest.clone()
        own_rest[:, index] = norm
        parts.append(torch.cat([part, own_rest], 1))
    first = torch.cat([inside, torch.stack(columns, 1)], 1)
    return Coordinates(
        replace(head, weights=(first, *head.weights[1:]), numbers=weight.shape[1]), parts, basis.double()
    )


def _span(weight: Tensor, bias: Tensor | None, relative: float, absolute: float) -> Tensor:
    """An orthonormal basis of a gradient's rows, or of those that have a twin."""
    precision = relative + absolute / max(float(weight.abs().max()), 1e-300)
    for width in (_FEW, _SKETCHED) if precision <= _COARSE else (_SKETCHED,):
        generator = torch.Generator().manual_seed(0)
        sketch = torch.randn(weight.shape[1], width, generator=generator).to(weight.device, working(weight))
        seen = torch.cat([part.to(sketch) @ sketch for part in _blocks(weight)]).double()
        within, sizes, _ = torch.linalg.svd(seen, full_matrices=False)
        rank = int((sizes > 0.1 * precision * sizes[0]).sum()) if precision <= _COARSE else len(sizes)
        if rank < width:
            break
    if rank == len(sizes) and bias is not None and precision <= _COARSE:
        tolerance = min(1e-2, max(1e-6, 1e4 * precision))
        live = bias != 0
        place = twins((seen / bias.where(live, 1.0)[:, None])[None], live[None], tolerance)[0]
        some = (place == 0).nonzero().squeeze(1)[:_GROUPS]
        if len(some):
            return torch.linalg.qr(weight[some].double().mT)[0].mT
    # Combinations of the gradient's rows: they span what it spans, however rough the sketch is.
    within = within[:, :rank].to(torch.float64 if precision <= _COARSE else torch.float32)
    combined = within.new_zeros(rank, weight.shape[1])
    for part, rows in zip(_blocks(weight), within.split(_rows(weight)), strict=True):
        combined += rows.mT @ part.to(rows)
    combined = combined.double()
    # Turned at random, so that no coordinate is so small that rounding is all there is of it.
    turn = torch.randn(rank, rank, generator=generator, dtype=torch.float64).to(weight.device)
    return torch.linalg.qr(turn)[0] @ torch.linalg.qr(combined.mT)[0].mT


def _written(
    weight: Tensor, gradient: Tensor, basis: Tensor, relative: float, absolute: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient's rows in coordinates, the norms of what lies outside the span, and the weights along that."""
    inside, norms, along = [], [], []
    for own, part in zip(_blocks(weight), _blocks(gradient), strict=True):
        row = part.to(basis)
        inside.append(row @ basis.mT)
        rest = torch.addmm(row, inside[-1], basis, alpha=-1)
        norm = rest.norm(dim=1)
        allowed = relative * row.norm(dim=1) + absolute * row.shape[1] ** 0.5
        norm = norm.where(norm > (1 if relative > _COARSE else _ROUNDINGS) * allowed, 0.0)
        norms.append(norm)
        along.append((own.to(rest) * rest).sum(1) / norm.where(norm > 0, torch.inf))
    return torch.cat(inside).double(), torch.cat(norms).double(), torch.cat(along).double()


def _rows(weight: Tensor) -> int:
    return max(1, _AT_ONCE // weight.shape[1])


def _blocks(weight: Tensor) -> Iterator[Tensor]:
    yield from weight.split(_rows(weight))
