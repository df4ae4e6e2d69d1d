"""Rows of the first layer's update that are multiples of one another: what survives local steps, dropout and any
weights.

A neuron that one sample alone activates has the row s · (x, 1), where s adds up whatever steps, momentum, masks,
losses and weights did. Several such neurons have parallel rows. Nothing else of the gradient is used, so that
neither the loss nor the number of steps need be known. Neurons that the same several samples share have parallel
rows only if these samples' loss vectors are parallel, which `verification` rules out or does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.updates.candidates import twins
from remanence.updates.dense_layers import DenseHead

Layer = tuple[Tensor, Tensor | None]

_ROUNDINGS = 8
_FINEST = 1e-7  # angles below are not resolved by a product of unit vectors in double precision
_POINTS_ALONG = 0.8  # the cosine of the angle by which a loss vector may turn in the course of the steps
_AT_ONCE = 4096  # rows that are compared, each with each
_SEEN = 64  # how many tolerances a row's size must be


def parallel_rows(
    head: DenseHead, layers: list[Layer], precision: float, slots: int = 64
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the largest groups of parallel rows; `precision` is relative to the largest entry."""
    weight, bias = layers[0]
    if bias is None:
        return weight[:0], torch.zeros(0, dtype=torch.int64, device=weight.device)
    rows = torch.cat([weight, bias[:, None]], 1)
    size = rows.norm(dim=1)
    absolute = precision * rows.abs().max()  # at worst: a difference of weights is rounded on their scale
    angle = (_ROUNDINGS * absolute * rows.shape[1] ** 0.5 / size.clamp(min=1e-300)).clamp(min=_FINEST)
    seen = (angle < 1 / _SEEN) & (bias != 0)
    if (
        int(seen.sum()) > _AT_ONCE
    ):  # of very many rows, those that a few sides of them show to be another's multiple
        sides = torch.randn(rows.shape[1], 4, generator=torch.Generator().manual_seed(0)).to(rows)
        quotients = (rows @ sides) / bias.where(seen, 1.0)[:, None]
        seen = twins(quotients[None], seen[None], float(angle[seen].median()))[0] >= 0
    live = seen.nonzero().squeeze(1)[:_AT_ONCE]
    unit = rows[live] / size[live, None] * bias[live].sign()[:, None]
    same = (2 - 2 * (unit @ unit.mT)).clamp(min=0).sqrt() <= angle[live][:, None] + angle[live]
    inputs, labels = [weight[:0]], [torch.zeros(0, dtype=torch.int64, device=weight.device)]
    while len(inputs) <= slots and len(live):
        counts = same.sum(1)
        best = int(counts.argmax())
        if counts[best] < 2:
            break
        group = live[same[best]]
        x = (weight[group] * bias[group, None]).sum(0) / bias[group].square().sum()
        inputs.append(x[None])
        labels.append(likely_label(head, x, layers[1][0][:, group].to(x).sum(1))[None])
        gone = same[best].clone()
        same[gone] = False
        same[:, gone] = False
    return torch.cat(inputs), torch.cat(labels)


def likely_label(head: DenseHead, x: Tensor, column: Tensor) -> Tensor:
    """The class whose derivative at the second layer points as the column does; −1 where none does, or all point away.

    After several steps it has turned a little. If the update has the wrong sign, no class fits.
    """
    values, logits = head.forward(x)
    classes = torch.eye(head.classes, dtype=x.dtype, device=x.device)
    implied = head.backward(
        [value.unsqueeze(-2) for value in values], logits.softmax(-1) - classes, down_to=1
    )[0]
    cosine = (implied @ column.to(implied)) / (implied.norm(dim=-1) * column.norm()).clamp(min=1e-300)
    best = cosine.nan_to_num(nan=-1.0).max(0)
    return best.indices.where(best.values > _POINTS_ALONG, -1)
