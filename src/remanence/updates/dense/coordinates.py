"""A large first layer in few coordinates: those of the span in which its gradient lies.

The rows of G = Σ_m δ_m x_mᵀ span no more dimensions than the batch has records, and every record lies in that span.
With an orthonormal basis R of it, the layer W Rᵀ with the gradient G Rᵀ poses the same problem in coordinates c = R x,
however many numbers an input has. One more coordinate holds a row's component outside the span, so that norms,
residuals and the balance of each neuron are preserved; mere rounding is dropped. If the batch is larger than a few
hundred, the basis is that of rows that are multiples of one another, as those of a sample with two exclusive neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remanence.updates.dense.layers import DenseHead
from remanence.updates.dense.peeling import tolerance_of, twins
from remanence.updates.parts import row_slices, rows_times
from remanence.updates.rounding import Rounding
from remanence.updates.span import sketched, span_of_sketch

_WIDTHS = (16, 144, 288)  # directions that are looked for; fewer than these are a low rank
_SMALL = 2**19  # layers that have fewer weights, or shorter inputs, are left as they are
_GROUPS = 128  # rows with a twin that make a basis
_ROUNDINGS = 8  # rounding errors that a row may lie outside the span, in single and double precision


def condensed(
    head: DenseHead, gradients: Sequence[tuple[Tensor, Tensor | None]], rounding: Rounding
) -> tuple[DenseHead, list[Tensor], Tensor] | None:
    """A head whose first layer reads coordinates, that layer's gradients, `(neurons, coordinates)`, and the basis.

    None for a small layer. The inputs with some coordinates are combinations of the basis, as of orthonormal rows.
    """
    weight = head.weights[0]
    if weight.shape[1] <= _WIDTHS[-1] or weight.numel() <= _SMALL:
        return None
    spans = [_span(own, bias, rounding) for own, bias in gradients]
    basis = spans[0] if len(spans) == 1 else torch.linalg.qr(torch.cat(spans).mT)[0].mT
    inside = rows_times(weight, basis.mT)
    written = [_written(weight, own, basis, rounding) for own, _ in gradients]
    rest = inside.new_zeros(len(inside), len(written))
    parts = []
    for index, (part, norms, _) in enumerate(written):  # each has a coordinate of its own outside the span
        own_rest = rest.clone()
        own_rest[:, index] = norms
        parts.append(torch.cat([part, own_rest], 1))
    first = torch.cat([inside, torch.stack([along for _, _, along in written], 1)], 1)
    return replace(head, weights=(first, *head.weights[1:]), numbers=weight.shape[1]), parts, basis


def _span(weight: Tensor, bias: Tensor | None, rounding: Rounding) -> Tensor:
    """An orthonormal basis of a gradient's rows; of those that have a twin, if all of them have no low rank."""
    rank, width, seen, directions = 0, 1, weight[:, :0], weight[:0]
    for width in _WIDTHS:
        seen = sketched(weight, width)
        part = span_of_sketch(seen, weight, rounding)
        rank, directions = part.rank, part.directions
        if 2 * rank <= width:  # seen from hardly more sides, the smallest of many directions may be hidden
            break
    if rank == width and bias is not None and not rounding.is_coarse:
        live = bias != 0
        tolerance = tolerance_of(rounding.of_largest(weight))
        place = twins(seen / bias.where(live, 1.0)[:, None], live, tolerance)
        own = weight[(place == 0).nonzero().squeeze(1)[:_GROUPS]].double()
        if len(own):
            return torch.linalg.qr(own.mT)[0].mT
    # Combinations of the gradient's rows: they span what it spans, however rough the sketch is. In floating point, a
    # small row is as precise as a large one.
    sizes = seen.norm(dim=1, keepdim=True).clamp(min=1e-300)
    sizes = torch.ones_like(sizes) if rounding.absolute else sizes
    within = torch.linalg.qr(seen / sizes @ directions.mT)[0] / sizes
    combined = within.new_zeros(rank, weight.shape[1])
    for rows in row_slices(weight):
        combined += within[rows].mT @ weight[rows].to(within)
    basis = torch.linalg.qr(combined.mT)[0].mT
    # Rotated at random, so that no coordinate is so small that it is all rounding.
    turn = torch.randn(rank, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(turn.to(basis))[0] @ basis


def _written(
    weight: Tensor, gradient: Tensor, basis: Tensor, rounding: Rounding
) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient's rows in coordinates, the norms of their components outside the span, and the weights along those."""
    inside = basis.new_empty(len(weight), len(basis))
    norms, along = torch.empty_like(inside[:, 0]), torch.empty_like(inside[:, 0])
    for rows in row_slices(weight):
        row = gradient[rows].to(basis)
        inside[rows] = row @ basis.mT
        rest = torch.addmm(row, inside[rows], basis, alpha=-1)
        size = rest.norm(dim=1)
        allowed = rounding.relative * row.norm(dim=1) + rounding.absolute * row.shape[1] ** 0.5
        size = size.where(size > (1 if rounding.is_coarse else _ROUNDINGS) * allowed, 0.0)
        norms[rows] = size
        along[rows] = (weight[rows].to(rest) * rest).sum(1) / size.where(size > 0, torch.inf)
    return inside, norms, along
