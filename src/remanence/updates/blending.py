"""Whether a record is one, or several that look like one, or an accident: in a single layer, and with two classes.

The gradient of one layer is G = Σ_m s_m g_m (x_m, 1)ᵀ with loss vectors g = softmax(W x + b) − e_y. Nothing but g says
where x lies:

- *Accidents*. Matrices of rank b have b (K − 1 + d + 1 − b) degrees of freedom, of which records and shares take
  b (d + 1): what is left, b (K − 1 − b), must be met by chance. Shares that are one over the number of records count as
  one more for each record, where the scale is known.
- *Blends*. Records with parallel loss vectors add up to one in between, which explains all that they explain. At
  weights that are zero every record of a class is like that. How much loss vectors turn from one input to another is
  therefore measured, direction by direction, and held against what rounding hides.

What is left of the update along the records, R (X, 1)⁺, is what loss vectors are off by: errors of many numbers cancel
there, so that little is hidden even in half precision.

With two classes all loss vectors are parallel, and records that activate the same neurons blend behind any number of
layers. Narrow layers have few patterns. What tells then is shares that are the same, as blends' are not, and neurons
that other inputs would have switched.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.updates.recomputed import BITS, ROUNDINGS, Recomputed, alike

_DRAWS = 64  # of other inputs for each record
_VARIES = 0.5  # by which each of their numbers differs from the record's, as those of other records do


def blended(some: Recomputed, *, scale_is_known: bool) -> Tensor:
    """How far each record may be off if it is several in one, relatively; inf where that or chance explains it."""
    if len(some.layers) == 1:
        return _single_layer(some, scale_is_known=scale_is_known)
    are_one = some.head.classes > 2 or _told_apart(some, scale_is_known=scale_is_known)
    return torch.full_like(some.proposal.shares, 0.0 if are_one else torch.inf)


def _single_layer(some: Recomputed, *, scale_is_known: bool) -> Tensor:
    records, head = some.proposal, some.head
    inputs, shares, labels = records.inputs, records.shares, records.labels
    (count, numbers), classes, has_bias = inputs.shape, head.classes, head.biases[0] is not None
    left, allowed = _losses_off(some)
    if (left > allowed).any():
        return torch.full_like(shares, torch.inf)
    own, tolerance = some.deltas[0], (allowed / shares[:, None]).clamp(min=1e-300)  # (records, classes)
    size = own.norm(dim=-1)
    off = tolerance.norm(dim=-1) / size  # of shares
    is_mean = scale_is_known and bool(((shares * count - 1).abs() <= off).all())
    losses = head.loss_vectors(head.forward(_others(inputs))[1], labels.expand(_DRAWS, -1))
    unit = own / size[:, None]
    turns = (
        losses - own - ((losses - own) * unit).sum(-1, keepdim=True) * unit
    )  # a share makes up for the rest
    # (records, directions), in tolerances
    spread = torch.linalg.svdvals((turns / tolerance).transpose(0, 1)) / _DRAWS**0.5
    if is_mean:
        spread = torch.cat([spread, _share_of_blends(losses)[:, None] / off[:, None]], 1)
    bits = spread.clamp(min=1).log2().sum(-1)
    free = min(count, numbers + has_bias) * (classes - 1 - count) / count - (not has_bias) + is_mean
    accidents = float(bits.sum()) * free / (classes - 1) - count * math.log2(classes)
    enough = (bits >= BITS) & (accidents >= BITS)
    return (1 / spread.amax(-1).clamp(min=1e-300)).where(enough, torch.inf)


def _told_apart(some: Recomputed, *, scale_is_known: bool) -> bool:
    """Whether all records of an update of two classes are told from blends, and a single one's label from the other."""
    records, head, count = some.proposal, some.head, len(some.proposal)
    shares, fine = records.shares, 64 * some.precision
    is_mean = scale_is_known and alike(torch.cat([shares * count, shares.new_ones(1)]), some.precision)
    if count == 1 and not is_mean:
        return False  # at another scale and sign, the other label explains as much
    off = max(float((shares / (1 / count if is_mean else shares.median()) - 1).abs().max()), fine)
    values, logits = head.forward(_others(records.inputs))
    losses = head.loss_vectors(logits, records.labels.expand(_DRAWS, -1))
    varies = float(_share_of_blends(losses).min())
    bits = max(0.0, math.log2(max(varies / off, 1e-300))) * (count - 1 + is_mean)
    if head.activation.is_kinked:
        pairs = zip(some.values[1:], values[1:], strict=True)
        rates = [((after > 0) != (own > 0)).double().mean(0).clamp(max=0.5) for own, after in pairs]
        return bits + float(-torch.cat(rates, -1).neg().log1p().sum(-1).min()) / math.log(2) >= BITS
    turns = [
        delta / delta.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        for delta in (some.deltas[0], head.backward(values, losses)[0])
    ]
    spread = torch.linalg.svdvals((turns[1] - turns[0]).transpose(0, 1)) / _DRAWS**0.5
    return bits + float((spread / fine).clamp(min=1).log2().sum(-1).min()) >= BITS


def _share_of_blends(losses: Tensor) -> Tensor:
    """How far a blend's share is from the sum of its records', for each record: the second order of what losses vary.

    To the first it is that sum: what enters the loss is then linear.
    """
    sizes = losses.norm(dim=-1)
    return (sizes.std(0) / sizes.mean(0).clamp(min=1e-300)).square()


def _others(inputs: Tensor) -> Tensor:
    """Other inputs than these, as far from them as those of other records are: (draws, records, numbers)."""
    generator = torch.Generator().manual_seed(0)
    moves = torch.randn(_DRAWS, *inputs.shape, generator=generator, dtype=torch.float64).to(inputs)
    return inputs * (1 + _VARIES * moves)


def _losses_off(some: Recomputed) -> tuple[Tensor, Tensor]:
    """How far what is left moves loss vectors times their shares, and how far it may: (records, classes)."""
    inputs, shares, (weight, bias) = some.proposal.inputs, some.proposal.shares, some.layers[0]
    rest, rest_bias = torch.cat([part for _, part in some.left(0)]).double(), some.left_of_bias(0)
    if bias is not None and rest_bias is not None:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        rest, weight = (
            torch.cat([rest, rest_bias[:, None]], 1),
            torch.cat([weight.to(bias), bias[:, None]], 1),
        )
    along = torch.linalg.pinv(inputs)  # (numbers, records)
    once = some.rounding.is_coarse  # of sums that were computed in single precision, terms count
    terms = weight if once else (some.deltas[0].abs() * shares[:, None]).mT @ inputs.abs()
    noise = (some.precision * terms).square() + some.rounding.absolute**2
    errors = some.delta_errors[0]
    if once:  # the loss itself was computed in single precision: what is left is that inputs are off
        chances = some.deltas[0] + one_hot(some.proposal.labels, some.head.classes)
        errors = errors - some.precision * (chances + some.deltas[0].abs())
    allowed = errors * shares[:, None] + (noise @ along.square()).sqrt().mT
    return (rest @ along).abs().mT, (1 if once else ROUNDINGS) * allowed
