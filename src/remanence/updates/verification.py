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

A label is a claim of its own. An update that goes against the gradient looks like the gradient of other labels where
all that matters lies in two classes, as with two classes it always does: the inputs are the same, and the labels are
left open where nothing tells which of the two was sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.updates.blending import blended
from remanence.updates.dense_layers import DenseHead
from remanence.updates.parts import norm
from remanence.updates.recomputed import BITS, ROUNDINGS, STANDS_OUT, Proposal, Recomputed, alike
from remanence.updates.rounding import Layer, Rounding, loss_spread

_ALIKE = 1e-3  # by how much shares may differ that are the same
_NO_BETTER = 0.1  # a record that is known to a tenth only is not called recovered


@final
@dataclass(frozen=True)
class Proof:
    """What recomputation supports."""

    proposal: Proposal  # with the label −1 where a proven record's is not told
    proven: Tensor  # (records,)
    error: Tensor  # (records,), the relative error that the residual leaves room for; inf where nothing is proven
    unexplained: Tensor  # (layers,): the share of each layer's update, by norm, that the proven records leave
    explains_all: bool
    batch_size: int | None  # of distinct records; None where nothing proves it

    @property
    def count(self) -> int:
        """How many records are proven."""
        return int(self.proven.sum())

    def numbers(self) -> dict[str, float]:
        """What is stored about one update."""
        shares = self.proposal.shares[self.proven] if self.explains_all else self.proposal.shares[:0]
        middle = shares.median() if len(shares) else shares.new_zeros(())
        equal = bool(len(shares)) and bool((shares / middle - 1).abs().max() < _ALIKE)
        left = {f"unexplained {index}": float(value) for index, value in enumerate(self.unexplained)}
        told = {"share_sum": float(shares.sum()), "equal_share": float(middle) if equal else 0.0}
        return told | left | {"tells_sign": float(self.tells_sign)}

    @property
    def tells_sign(self) -> bool:
        """Whether a label is told, and with it that the update goes along the gradient and not against it."""
        return bool((self.proposal.labels[self.proven] >= 0).any())

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """What makes one proof better than another."""
        return self.explains_all, self.count, self.tells_sign


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
            told = _with_labels(proposal, kept, whole, scale_is_known=scale_is_known)
            return _result(told, kept, whole, error, is_whole=True, batch_size=whole.distinct())
        if len(layers) == 1:  # its rows have no columns behind them: only the whole is a proof
            break
        proven = some.proven_by_neurons(scale_is_known=scale_is_known)
        if proven.all():
            size = _with_room(some, some.batch_size_of_shares()) if scale_is_known else None
            told = _with_labels(proposal, kept, some, scale_is_known=scale_is_known)
            return _result(told, kept, some, some.errors(is_whole=False), is_whole=False, batch_size=size)
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


def _with_room(some: Recomputed, size: int | None) -> int | None:
    """A batch size that shares imply, if the first layer spans as many dimensions, or all that it can.

    So many records are needed at least: a factor of a tenth, which nobody declared, makes shares those of ten times as
    many.
    """
    weight, rounding = some.layers[0][0].double(), some.rounding
    if size is None:
        return None
    most = min(size, *weight.shape)
    sides = torch.randn(weight.shape[1], most, generator=torch.Generator().manual_seed(0)).to(weight)
    seen = torch.linalg.svdvals(weight @ sides / weight.shape[1] ** 0.5)
    noise = ROUNDINGS * (rounding.relative * seen[0] + rounding.absolute * len(weight) ** 0.5)
    return size if seen[most - 1] > noise else None


def _with_labels(proposal: Proposal, kept: Tensor, some: Recomputed, *, scale_is_known: bool) -> Proposal:
    """The same with labels left open where the update's opposite is explained as well, by other labels.

    One record whose derivative points along none of these tells the sign for all. Otherwise their shares must: those
    of a mean, or the same for all.
    """
    layer = min(1, len(some.layers) - 1)
    own, error, records = some.deltas[layer], some.delta_errors[layer], some.proposal
    each = torch.eye(some.head.classes).to(own)
    others = some.deltas[-1] + each[records.labels] - each[:, None]  # (classes, records, classes)
    turned = -some.head.backward(some.values, others, down_to=layer)[0]
    along = (turned * own).sum(-1) / own.square().sum(-1).clamp(min=1e-300)  # (classes, records)
    off = (turned - along[..., None] * own).norm(dim=-1) / turned.norm(dim=-1).clamp(min=1e-300)
    room = 2 * ROUNDINGS * error.norm(dim=-1) / own.norm(dim=-1).clamp(min=1e-300)
    fits = (off <= room) & (along > 0)
    if not fits.any(0).all():
        return proposal
    instead = records.shares / along.where(fits, -torch.inf).amax(0)

    def are_a_means(shares: Tensor) -> bool:
        size = 1 / shares
        whole = scale_is_known and bool(((size - size.round()).abs() <= room * size).all())
        return (whole and float((room * size).max()) < 1e-3) or (
            len(size) > 1 and alike(size, some.precision)
        )

    if are_a_means(records.shares) and not are_a_means(instead):
        return proposal
    labels = proposal.labels.clone()
    labels[kept] = -1
    return Proposal(proposal.inputs, labels, proposal.shares)


def _nothing(proposal: Proposal, layers: Sequence[Layer]) -> Proof:
    none = torch.zeros(len(proposal), dtype=torch.bool, device=proposal.labels.device)
    left = torch.tensor([1.0 if norm(weight) > 0 else 0.0 for weight, _ in layers], dtype=torch.float64)
    return Proof(proposal, none, proposal.shares.new_full((len(proposal),), torch.inf), left, False, None)


def verify_rows(
    head: DenseHead, layers: Sequence[Layer], proposal: Proposal, *, rounding: Rounding
) -> tuple[Proposal, Tensor]:
    """Records whose inputs have several rows of the first layer to themselves, and how far they may be off.

    Such a row is the input times the row's bias, number by number, whatever the loss, the steps and the shares were. A
    mixture of several records would have to keep its proportions in every one of these rows. A label is told where one
    class, and no other, makes their columns: not after several steps, nor of labels that were smoothed or mixed.
    """
    (weight, bias), labels = layers[0], proposal.labels.clone()
    proven = torch.zeros(len(proposal), dtype=torch.bool, device=weight.device)
    errors = weight.new_full((len(proposal),), torch.inf)
    if bias is None or head.classes < 3 or len(layers) == 1:  # with two classes, proportions never change
        return proposal[proven], errors[proven]
    spread = loss_spread(head, layers[0], proposal.inputs)
    for index, x in enumerate(proposal.inputs):
        part = bias[:, None] * x
        allowed = ROUNDINGS * (
            rounding.relative * (weight.abs() + part.abs()) + rounding.absolute * (1 + x.abs())
        )
        relative = allowed.norm(dim=1) / weight.norm(dim=1).clamp(min=1e-300)
        rest = weight - part
        rows = (rest.abs() <= allowed).all(1) & (relative < 1 / STANDS_OUT) & (bias != 0) & weight.any(1)
        if rows.sum() < 2 or not spread or proposal.labels[index] < 0:
            continue
        tolerance = float(relative[rows].median())
        bits = math.log2(max(1.0, spread / tolerance)) * (int(rows.sum()) - 1)
        off = rest[rows].norm() + allowed[rows].norm() / ROUNDINGS
        error = max(float(off / part[rows].norm()), tolerance / spread)
        proven[index] = bits >= BITS and error < _NO_BETTER
        errors[index] = error
        labels[index] = _label_of_columns(head, x, layers[1][0][:, rows], rounding)
    return Proposal(proposal.inputs, labels, proposal.shares)[proven], errors[proven]


def _label_of_columns(head: DenseHead, x: Tensor, columns: Tensor, rounding: Rounding) -> int:
    """The one class whose derivative all columns `(outputs, neurons)` are multiples of, in either sign; −1 for none."""
    values, logits = head.forward(x)
    each = torch.eye(head.classes, dtype=x.dtype, device=x.device)
    implied = head.backward([value.unsqueeze(-2) for value in values], logits.softmax(-1) - each, down_to=1)[
        0
    ]
    unit = implied / implied.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    sent = columns.to(x)
    along = unit @ sent  # (classes, neurons)
    left = (sent.square().sum(0) - along.square()).clamp(min=0).sqrt()
    # A loss that is nearly zero was rounded before it was sent.
    loss = (logits.softmax(-1) - each).norm(dim=-1, keepdim=True).clamp(min=1e-300)
    allowed = ROUNDINGS * (
        rounding.relative * (1 + 1 / loss) * sent.norm(dim=0) + rounding.absolute * len(sent) ** 0.5
    )
    fits = (left <= allowed).all(1)
    (fitting,) = fits.nonzero(as_tuple=True)
    return int(fitting[0]) if len(fitting) == 1 and bool((along[fitting[0]] > 0).all()) else -1
