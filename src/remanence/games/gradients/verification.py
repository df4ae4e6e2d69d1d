"""Which proposed records does an update prove? Those from which it can be recomputed, at its own precision.

An attack proposes records and their shares; nothing that it says about itself counts. Every number of the update that a
record has a part in is recomputed in double precision, and held against what was sent, within a tolerance that follows
the rounding errors of the numbers in which it was computed through the network. There are two ways to a proof:

- *The whole update*: all that was sent is explained, with far more equations than unknowns. Then every record whose
  part stands out of the rounding error is proven, and their number is proven too.
  Of a single layer, more is asked for (`blending`).
- *Some of its neurons*: the rest of the batch is unknown, but there are neurons of the first layer whose rows and
  columns the proposed records explain to the last digit. A stranger must not be able to pass for that: the chance that
  noise, or a mixture of several records, meets the same checks is bounded, and must be below one in a million.

For mixtures: samples that share their active neurons and have parallel loss vectors look like one sample in
between, with the sum of their shares. With two classes all loss vectors are parallel; with more, they must differ
by much more than the tolerance. What remains as evidence then is a share that is one over a whole number, where the
scale of the update is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.dense_layers import DenseHead
from remanence.attacks.gradients.parts import norm
from remanence.games.gradients.blending import blended
from remanence.games.gradients.recomputed import BITS, ROUNDINGS, STANDS_OUT, Proposal, Recomputed
from remanence.games.gradients.rounding import Layer, Rounding, loss_spread

_NO_BETTER = 0.1  # a record that is known to a tenth only is not called recovered


@final
@dataclass(frozen=True)
class Proof:
    """What recomputation supports."""

    proposal: Proposal
    proven: Tensor  # (records,)
    error: Tensor  # (records,), the relative error that the residual leaves room for; inf where nothing is proven
    unexplained: Tensor  # (layers,): the share of each layer's update, by norm, that the proven records leave
    explains_all: bool
    batch_size: int | None  # of distinct records; None where nothing proves it

    @property
    def count(self) -> int:
        """How many records are proven."""
        return int(self.proven.sum())


def verify(
    head: DenseHead,
    layers: Sequence[Layer],
    proposal: Proposal,
    *,
    rounding: Rounding,
    scale_is_known: bool = True,
) -> Proof:
    """Recompute one update from proposed records.

    `scale_is_known` says that the update is the mean gradient itself, and not that times some factor.
    """
    usable = proposal.inputs.isfinite().all(-1) & proposal.shares.isfinite() & (proposal.shares > 0)
    kept = usable.nonzero().squeeze(1)
    while len(kept):
        some = Recomputed.of(head, layers, proposal[kept], rounding)
        whole = some.refitted()
        if whole is not None:
            blends = blended(whole, scale_is_known=scale_is_known)
            error = torch.maximum(whole.errors(is_whole=True), blends)
            return _result(proposal, kept, whole, error, is_whole=True, batch_size=whole.distinct())
        if len(layers) == 1:  # its rows have no columns behind them: only the whole is a proof
            break
        proven = some.proven_by_neurons(scale_is_known=scale_is_known)
        if proven.all():
            size = some.batch_size_of_shares() if scale_is_known else None
            return _result(proposal, kept, some, some.errors(is_whole=False), is_whole=False, batch_size=size)
        kept = kept[proven]
    return _nothing(proposal, layers)


def _result(
    proposal: Proposal,
    kept: Tensor,
    some: Recomputed,
    errors: Tensor,
    *,
    is_whole: bool,
    batch_size: int | None,
) -> Proof:
    error = proposal.shares.new_full((len(proposal),), torch.inf)
    error[kept] = errors
    proven = error < _NO_BETTER
    if not proven.any():
        return _nothing(proposal, some.layers)
    shares = proposal.shares.clone()
    shares[kept] = some.proposal.shares
    refined = proposal.with_shares(shares)
    complete = is_whole and bool(proven[kept].all())
    return Proof(
        refined, proven, error.where(proven, torch.inf), some.unexplained(), complete,
        batch_size if complete or not is_whole else None,
    )  # fmt: skip


def _nothing(proposal: Proposal, layers: Sequence[Layer]) -> Proof:
    none = torch.zeros(len(proposal), dtype=torch.bool, device=proposal.labels.device)
    left = torch.tensor([1.0 if norm(weight) > 0 else 0.0 for weight, _ in layers], dtype=torch.float64)
    return Proof(proposal, none, proposal.shares.new_full((len(proposal),), torch.inf), left, False, None)


def verify_rows(
    head: DenseHead, layers: Sequence[Layer], proposal: Proposal, *, rounding: Rounding
) -> tuple[Tensor, Tensor]:
    """Which inputs have several rows of the first layer to themselves, and how far they may be off.

    Such a row is the input times the row's bias, number by number, whatever the loss, the steps and the shares were. A
    mixture of several records would have to keep its proportions in every one of these rows.
    """
    weight, bias = layers[0]
    proven = torch.zeros(len(proposal), dtype=torch.bool, device=weight.device)
    errors = weight.new_full((len(proposal),), torch.inf)
    if bias is None or head.classes < 3 or len(layers) == 1:  # with two classes, proportions never change
        return proven, errors
    spread = loss_spread(head, layers[0], proposal.inputs)
    for index, x in enumerate(proposal.inputs):
        part = bias[:, None] * x
        allowed = ROUNDINGS * (
            rounding.relative * (weight.abs() + part.abs()) + rounding.absolute * (1 + x.abs())
        )
        relative = allowed.norm(dim=1) / weight.norm(dim=1).clamp(min=1e-300)
        rest = weight - part
        rows = (rest.abs() <= allowed).all(1) & (relative < 1 / STANDS_OUT) & (bias != 0)
        if rows.sum() < 2 or not spread or proposal.labels[index] < 0:
            continue
        tolerance = float(relative[rows].median())
        bits = math.log2(max(1.0, spread / tolerance)) * (int(rows.sum()) - 1)
        off = rest[rows].norm() + allowed[rows].norm() / ROUNDINGS
        error = max(float(off / part[rows].norm()), tolerance / spread)
        proven[index] = bits >= BITS and error < _NO_BETTER
        errors[index] = error if proven[index] else torch.inf
    return proven, errors
