"""A large first layer in few coordinates: those of the span in which its gradient lies.

The first layer's gradient is G = Σ_m δ_m x_mᵀ. Its rows span no more dimensions than the batch has records, and every
record lies in that span. With an orthonormal basis R of it, the layer W Rᵀ with the gradient G Rᵀ poses the same
problem in coordinates c = R x, of which there are at most a few hundred, however many numbers an input has. One more
coordinate holds a row's component outside the span: G's norm there, and the neuron's weight along it, so that norms,

residuals and the balance of each neuron are preserved. If that component is mere rounding it is dropped.
If the batch is larger than a few hundred, no such basis spans it. The coordinates are then those of rows that are
multiples of one another, such as the rows of a sample with two exclusive neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.updates.dense.candidates import twins
from remanence.updates.dense.layers import LARGE, DenseHead
from remanence.updates.parts import largest, norm, row_slices, rows_times, working

_FEW, _SKETCHED = 16, 144  # directions that are looked for; fewer than these are a low rank
_SHORT = 2 * _SKETCHED  # the same for large batches; inputs that are shorter are left as they are
_SMALL = 2**19  # and layers that have fewer weights
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
    inside = rows_times(weight, basis.mT).double()
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
    precision = relative + absolute / max(largest(weight), 1e-300)
    is_coarse, rounded = precision > _COARSE, relative * float(norm(weight))
    # The singular values of a sketch of independent rounding errors are not far above their norm.
    noise = (rounded if is_coarse else 0.0) + absolute * weight.numel() ** 0.5
    is_large = weight.numel() > LARGE and not is_coarse
    for width in (_FEW, _SKETCHED, _SHORT):
        generator = torch.Generator().manual_seed(0)
        sketch = torch.randn(weight.shape[1], width, generator=generator).to(weight.device, working(weight))
        seen = rows_times(weight, sketch).double()
        within, sizes, _ = torch.linalg.svd(seen, full_matrices=False)
        least = 0.0 if is_coarse else 0.1 * precision * float(sizes[0])
        rank = int((sizes > max(noise, least)).sum())
        # Of a large layer, the errors of the sketch itself fill every width: what stands out of them is the rank.
        clear = int((sizes > noise + _ROUNDINGS * rounded).sum()) if is_large else width
        if min(rank, clear) < width or (is_coarse and width == _SKETCHED):
            break
    own = weight[:0].double()  # rows with a twin: in floating point a small one is as precise as a large one
    if rank == len(sizes) and bias is not None and not is_coarse:
        tolerance = min(1e-2, max(1e-6, 1e4 * precision))
        live = bias != 0
        place = twins((seen / bias.where(live, 1.0)[:, None])[None], live[None], tolerance)[0]
        own = weight[(place == 0).nonzero().squeeze(1)[:_GROUPS]].double()
        if len(own) and clear >= width:
            return torch.linalg.qr(own.mT)[0].mT
    # Combinations of the gradient's rows: they span what it spans, however rough the sketch is.
    rank = len(sizes) if is_coarse else min(rank, clear)
    within = within[:, :rank].to(torch.float32 if is_coarse else torch.float64)
    combined = within.new_zeros(rank, weight.shape[1])
    for rows in row_slices(weight):
        combined += within[rows].mT @ weight[rows].to(within)
    basis = torch.linalg.qr(combined.double().mT)[0].mT
    outside = (own - own @ basis.mT @ basis).norm(dim=1) > _ROUNDINGS * relative * own.norm(dim=1)
    if outside.any():
        basis = torch.linalg.qr(torch.cat([basis, own[outside]]).mT)[0].mT
    # Rotated at random, so that no coordinate is so small that it is all rounding.
    turn = torch.randn(len(basis), len(basis), generator=generator, dtype=torch.float64).to(weight.device)
    return torch.linalg.qr(turn)[0] @ basis


def _written(
    weight: Tensor, gradient: Tensor, basis: Tensor, relative: float, absolute: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient's rows in coordinates, the norms of their components outside the span, and the weights along those."""
    inside = basis.new_empty(len(weight), len(basis))
    norms, along = torch.empty_like(inside[:, 0]), torch.empty_like(inside[:, 0])
    for rows in row_slices(weight):
        row = gradient[rows].to(basis)
        inside[rows] = row @ basis.mT
        rest = torch.addmm(row, inside[rows], basis, alpha=-1)
        size = rest.norm(dim=1)
        allowed = relative * row.norm(dim=1) + absolute * row.shape[1] ** 0.5
        size = size.where(size > (1 if relative > _COARSE else _ROUNDINGS) * allowed, 0.0)
        norms[rows] = size
        along[rows] = (weight[rows].to(rest) * rest).sum(1) / size.where(size > 0, torch.inf)
    return inside.double(), norms.double(), along.double()
