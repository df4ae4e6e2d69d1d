"""Which proposed records does an update prove? Those from which it can be recomputed, at its own precision.

An attack proposes records and their shares; nothing that it says about itself counts. Every number of the update that a
record has a part in is recomputed in double precision, and held against what was sent, within a tolerance that follows
the rounding errors of the numbers in which it was computed through the network. There are two ways to a proof:

- *The whole update*: all that was sent is explained, with far more equations than unknowns. Then every record whose
  part stands out of the rounding error is proven, and their number is proven too.
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
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.dense_layers import DenseHead

Layer = tuple[Tensor, Tensor | None]  # weight and bias gradient of one layer of one update

_ROUNDINGS = 8  # rounding errors that one number of the update may be off by
_WHOLE = 2.0  # how many times the rounding errors, as they follow from the network, the whole residual may be
_WHOLE_IN_HALF = 0.5  # the same in half precision, in which only what is sent was rounded
_LEFT = 1e-2  # the share of an update that may be left where it is explained, whatever rounding may have done
_HALF = 1e-4  # precisions above are half precision
_BITS = 20  # of evidence that a stranger would have to meet by chance
_STANDS_OUT = 30  # how many tolerances a record's part in a neuron must exceed to be seen there
_NO_BETTER = 0.1  # a record that is known to a tenth only is not called recovered


@final
@dataclass(frozen=True)
class Rounding:
    """How coarse an update's numbers are: relative to each; for a difference of weights, on the weights' scale too."""

    relative: float  # 1.2e-7 for float32
    absolute: float = 0.0

    def of_largest(self, values: Tensor) -> float:
        """Relative to the largest of these numbers: what an attack may expect."""
        return self.relative + self.absolute / max(float(values.abs().max()), 1e-300)

    def times(self, factor: float) -> Rounding:
        """The rounding of numbers that were multiplied."""
        return Rounding(self.relative, self.absolute * abs(factor))


@final
@dataclass(frozen=True)
class Proposal:
    """Records that an attack names, and the share of the update that it gives each (1 / batch size in a plain mean)."""

    inputs: Tensor  # (records, numbers), what enters the first dense layer
    labels: Tensor  # (records,)
    shares: Tensor  # (records,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Proposal:
        return Proposal(self.inputs[index], self.labels[index], self.shares[index])

    def with_shares(self, shares: Tensor) -> Proposal:
        """The same records with other shares."""
        return Proposal(self.inputs, self.labels, shares)


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
        some = _Recomputed.of(head, layers, proposal[kept], rounding)
        whole = some.refitted()
        if whole is not None:
            return _result(proposal, kept, whole, layers, is_whole=True, batch_size=whole.distinct())
        proven = some.proven_by_neurons(scale_is_known=scale_is_known)
        if proven.all():
            size = some.batch_size_of_shares() if scale_is_known else None
            return _result(proposal, kept, some, layers, is_whole=False, batch_size=size)
        kept = kept[proven]
    return _nothing(proposal, layers)


def _result(
    proposal: Proposal,
    kept: Tensor,
    some: _Recomputed,
    layers: Sequence[Layer],
    *,
    is_whole: bool,
    batch_size: int | None,
) -> Proof:
    error = proposal.shares.new_full((len(proposal),), torch.inf)
    error[kept] = some.errors(is_whole=is_whole)
    proven = error < _NO_BETTER
    if not proven.any():
        return _nothing(proposal, layers)
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
    left = torch.tensor([1.0 if weight.any() else 0.0 for weight, _ in layers], dtype=torch.float64)
    return Proof(proposal, none, proposal.shares.new_full((len(proposal),), torch.inf), left, False, None)


@dataclass(frozen=True)
class _Recomputed:
    """An update, records that may be behind it, and all that follows from them."""

    head: DenseHead
    layers: Sequence[Layer]
    proposal: Proposal
    rounding: Rounding
    values: list[Tensor]  # what enters each layer, (records, width)
    deltas: list[Tensor]  # the loss's derivative in what each layer puts out, (records, width)
    value_errors: list[Tensor]  # what rounding may have done to them
    delta_errors: list[Tensor]
    sizes: Tensor  # (layers,), norms of the update

    @classmethod
    def of(
        cls, head: DenseHead, layers: Sequence[Layer], proposal: Proposal, rounding: Rounding
    ) -> _Recomputed:
        values, logits = head.forward(proposal.inputs)
        deltas = head.backward(values, head.loss_vectors(logits, proposal.labels))
        off = rounding.relative * proposal.inputs.abs()
        if rounding.absolute:  # inputs were solved for from rows with these errors
            inverse = torch.linalg.pinv((deltas[0] * proposal.shares.unsqueeze(-1)).mT)  # (records, neurons)
            off = off + rounding.absolute * inverse.norm(dim=-1, keepdim=True)
        value_errors, delta_errors = _rounding(head, values, logits, deltas, off, rounding.relative)
        sizes = torch.stack([weight.norm() for weight, _ in layers])
        return cls(head, layers, proposal, rounding, values, deltas, value_errors, delta_errors, sizes)

    @property
    def precision(self) -> float:
        """Relative to each number."""
        return self.rounding.relative

    def left(self, index: int) -> Layer:
        """What the records leave of a layer's update."""
        weight, bias = self.layers[index]
        weighted = self.deltas[index] * self.proposal.shares.unsqueeze(-1)
        rest = weight - weighted.mT @ self.values[index]
        return rest, None if bias is None else bias - weighted.sum(0)

    def tolerance(self, index: int) -> Layer:
        """How far a recomputed number may be from what was sent, if nothing but rounding lies between them."""
        weight, bias = self.layers[index]
        shares = self.proposal.shares.unsqueeze(-1)
        delta, off = self.deltas[index].abs() * shares, self.delta_errors[index] * shares
        value, apart = self.values[index].abs(), self.value_errors[index]
        within = off.mT @ value + delta.mT @ apart + self.precision * weight.abs() + self.rounding.absolute
        return _ROUNDINGS * within, None if bias is None else _ROUNDINGS * (
            off.sum(0) + self.precision * bias.abs() + self.rounding.absolute
        )

    def unexplained(self) -> Tensor:
        """The share of each layer's update that is left, by norm."""
        left = torch.stack([self.left(index)[0].norm() for index in range(len(self.layers))])
        return (left / self.sizes).where(self.sizes > 0, 0.0)

    def refitted(self) -> _Recomputed | None:
        """The same with the shares that explain the update best; None where they do not explain all of it."""
        records, numbers = self.proposal.inputs.shape
        equations = sum(int((weight != 0).sum()) for weight, _ in self.layers)
        if records * (numbers + 2) > 0.8 * equations:
            return None
        shares = self._best_shares()
        if shares is None or not (shares > 0).all():
            return None
        fitted = replace(self, proposal=self.proposal.with_shares(shares))
        times, most = (_WHOLE_IN_HALF, 2 * self.precision) if self.precision > _HALF else (_WHOLE, _LEFT)
        for index in range(len(self.layers)):
            decided = ~fitted.undecided(index)
            rest, allowed = fitted.left(index)[0][decided], fitted.tolerance(index)[0][decided] / _ROUNDINGS
            if rest.norm() > times * allowed.norm() or rest.norm() > most * self.layers[index][0].norm():
                return None
        if self.head.classes == 2 and len(self.head.weights) == 2 and not _equal(shares, self.precision):
            return None
        return fitted

    def undecided(self, index: int) -> Tensor:
        """Neurons that lie so near to zero for some record that rounding decides whether they are active."""
        if index == len(self.layers) - 1:
            return torch.zeros(len(self.layers[index][0]), dtype=torch.bool, device=self.sizes.device)
        weight, bias = self.head.weights[index], self.head.biases[index]
        before = self.values[index] @ weight.mT + (0 if bias is None else bias)
        off = self.value_errors[index] @ weight.abs().mT + self.precision * (
            self.values[index].abs() @ weight.abs().mT
        )
        return (before.abs() < 2 * off).any(0)

    def _best_shares(self) -> Tensor | None:
        """Least squares over all numbers of the update."""
        gram = self.sizes.new_zeros(len(self.proposal), len(self.proposal))
        right = self.sizes.new_zeros(len(self.proposal))
        for (weight, bias), value, delta, size in zip(
            self.layers, self.values, self.deltas, self.sizes, strict=True
        ):
            if size == 0:
                continue
            inner = value @ value.mT + (0 if bias is None else 1)
            gram += (delta @ delta.mT) * inner / size**2  # every layer counts alike
            along = ((delta @ weight) * value).sum(-1) + (0 if bias is None else delta @ bias)
            right += along / size**2
        found, failed = torch.linalg.solve_ex(gram, right)
        return None if failed or not found.isfinite().all() else found

    def errors(self, *, is_whole: bool) -> Tensor:
        """How far each input may be from the truth, relatively.

        Inputs solve Σ_m (share δ)_m x_mᵀ = G₀ over the neurons that speak for them: what is left of these rows, and
        their rounding, comes back in the inputs, the more the less the records' derivatives differ.
        """
        rest, rest_bias = self.left(0)
        rows = ~self.undecided(0) if is_whole else self._support(self._worst()).any(0)
        derivatives = (self.deltas[0] * self.proposal.shares.unsqueeze(-1))[:, rows]
        inverse, failed = torch.linalg.inv_ex(derivatives @ derivatives.mT)
        sent, sizes = self.layers[0][0][rows], self.proposal.inputs.norm(dim=-1)
        off = rest[rows].norm() + self.precision * sent.norm() + self.rounding.absolute * sent.numel() ** 0.5
        if (
            rest_bias is not None
        ):  # a share that is off shows here, and an input that makes up for it does not above
            off = off + rest_bias[rows].norm() * sizes
        error = off * inverse.diagonal().clamp(min=0).sqrt() / sizes
        return error.where((failed == 0) & (inverse.diagonal() > 0), torch.inf)

    def _worst(self) -> Tensor:
        """For each neuron of the first layer: what is left of its row and its column, over the tolerance, at worst."""
        rest, rest_bias = self.left(0)
        allowed, allowed_bias = self.tolerance(0)
        ratio = (rest.abs() / allowed.clamp(min=1e-300)).amax(-1)
        if rest_bias is not None and allowed_bias is not None:
            ratio = torch.maximum(ratio, rest_bias.abs() / allowed_bias.clamp(min=1e-300))
        columns, allowed_columns = self.left(1)[0].mT, self.tolerance(1)[0].mT
        return torch.maximum(ratio, (columns.abs() / allowed_columns.clamp(min=1e-300)).amax(-1))

    def _support(self, ratio: Tensor) -> Tensor:
        """Which neurons speak for each record, (records, neurons): explained, and the record's part stands out."""
        allowed_rows = self.tolerance(0)[0].norm(dim=-1)
        allowed_columns = self.tolerance(1)[0].mT.norm(dim=-1)
        shares = self.proposal.shares.unsqueeze(-1)
        rows = self.deltas[0].abs() * shares * self.proposal.inputs.norm(dim=-1, keepdim=True)
        columns = self.values[1] * shares * self.deltas[1].norm(dim=-1, keepdim=True)
        stands_out = (rows > _STANDS_OUT * allowed_rows) & (columns > _STANDS_OUT * allowed_columns)
        return stands_out & (ratio <= 1) & ~self.undecided(0)

    def proven_by_neurons(self, *, scale_is_known: bool) -> Tensor:
        """Records with neurons whose rows and columns no stranger would meet."""
        support = self._support(self._worst())
        shares = self.proposal.shares.unsqueeze(-1)
        columns = self.values[1] * shares * self.deltas[1].norm(dim=-1, keepdim=True)
        relative = self.tolerance(1)[0].mT.norm(dim=-1) / columns.clamp(min=1e-300)
        finest = relative.where(support, 1.0).amin(-1).clamp(min=1e-300)  # (records,)
        rows = support.sum(-1)
        classes, deep = self.head.classes, len(self.head.weights) > 2
        tried = math.log2(max(1, self.layers[0][0].shape[0]) * classes)
        checks = classes - 1 - (self.head.biases[0] is None)
        numbers = min(64, self.proposal.inputs.shape[1])
        noise = -finest.log2() * (checks + (rows - 1).clamp(min=0) * (numbers + checks)) - tried
        spread = loss_spread(self.head, self.layers[0], self.proposal.inputs)
        mixture = (spread / finest).clamp(min=1).log2() * max(0, checks - 1 + deep)
        if scale_is_known:
            mixture = mixture + self._bits_of_whole_sizes(finest)
        enough = (noise >= _BITS) & (mixture >= _BITS)
        return (rows > 0) & enough

    def _bits_of_whole_sizes(self, tolerance: Tensor) -> Tensor:
        """What a share that is one over a whole number proves: little where the tolerance is as wide."""
        size = 1 / self.proposal.shares
        off = (size - size.round()).abs()
        room = (2 * tolerance * size).clamp(min=1e-15)
        return (-room.log2()).clamp(min=0).where((off <= tolerance * size) & (size.round() >= 1), 0.0)

    def batch_size_of_shares(self) -> int | None:
        """The batch size that the shares imply, where that is no accident; None otherwise."""
        size = 1 / self.proposal.shares
        middle = size.median()
        off = (size / middle - 1).abs().max() if len(size) > 1 else self._share_error()
        off = max(float(off), self._share_error())
        whole = int(middle.round())
        chance = 2 * off * whole
        agrees = abs(float(middle) - whole) <= 2 * off * whole
        return whole if agrees and chance < 1e-3 and whole >= len(self.proposal) else None

    def _share_error(self) -> float:
        return 64 * self.precision

    def distinct(self) -> int | None:
        """How many records there are, if all have the same share; class weights have one for each label."""
        shares, labels = self.proposal.shares, self.proposal.labels
        groups = (
            [shares] if _equal(shares, self.precision) else [shares[labels == y] for y in labels.unique()]
        )
        return len(shares) if all(_equal(group, self.precision) for group in groups) else None


def loss_spread(head: DenseHead, first: Layer, inputs: Tensor) -> float:
    """How far apart loss vectors of one label lie, as the derivatives that they put into the columns: a median.

    Inputs are taken from all rows of the first layer; where neurons are shared these are mixtures, which lie closer
    together.
    """
    weight, bias = first
    points = inputs
    if bias is not None:
        live = (bias != 0).nonzero().squeeze(1)
        live = live[:: max(1, len(live) // 64)][:64]
        points = torch.cat([weight[live] / bias[live, None], inputs])
    points = points[points.isfinite().all(-1)]
    norms = points.norm(dim=-1)
    points = points[norms < 2 * norms.median()] if len(points) else points
    if len(points) < 2:
        return 0.0
    values, logits = head.forward(points)
    loss = head.loss_vectors(logits, torch.zeros(len(points), dtype=torch.int64, device=points.device))
    delta = head.backward(values, loss, down_to=1)[0]
    delta = delta / delta.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    apart = torch.cdist(delta, delta)
    pairs = torch.triu_indices(len(points), len(points), 1)
    return float(apart[pairs[0], pairs[1]].median())


def _equal(shares: Tensor, precision: float) -> bool:
    return bool((shares / shares.median() - 1).abs().max() < max(1e-4, 64 * precision))


def _rounding(
    head: DenseHead,
    values: Sequence[Tensor],
    logits: Tensor,
    deltas: Sequence[Tensor],
    inputs_off: Tensor,
    precision: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """A running error analysis: what rounding, and inputs that are off, may do to each value and each derivative."""
    off = [inputs_off]
    for weight, value, after in zip(head.weights, values, [*values[1:], logits], strict=True):
        # Errors of many terms are independent: their squares add up, not their sizes.
        spread = (off[-1].square() @ weight.square().mT).sqrt()
        rounded = precision * (value.square() @ weight.square().mT).sqrt() + precision * after.abs()
        off.append(spread + rounded)
    chances = logits.softmax(-1)
    slope = off.pop()
    back = [chances * (1 - chances) * slope + precision * chances + precision * deltas[-1].abs()]
    for weight, value, delta in zip(head.weights[:0:-1], values[:0:-1], list(deltas)[-2::-1], strict=True):
        source = list(deltas)[len(deltas) - len(back)]
        spread = ((back[-1].square() + (precision * source).square()) @ weight.square()).sqrt()
        back.append((spread + precision * delta.abs()) * (value > 0))
    return off, back[::-1]


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
    if bias is None or head.classes < 3:  # with two classes, proportions never change
        return proven, errors
    spread = loss_spread(head, layers[0], proposal.inputs)
    for index, x in enumerate(proposal.inputs):
        part = bias[:, None] * x
        allowed = _ROUNDINGS * (
            rounding.relative * (weight.abs() + part.abs()) + rounding.absolute * (1 + x.abs())
        )
        relative = allowed.norm(dim=1) / weight.norm(dim=1).clamp(min=1e-300)
        rest = weight - part
        rows = (rest.abs() <= allowed).all(1) & (relative < 1 / _STANDS_OUT) & (bias != 0)
        if rows.sum() < 2 or not spread or proposal.labels[index] < 0:
            continue
        tolerance = float(relative[rows].median())
        bits = math.log2(max(1.0, spread / tolerance)) * (int(rows.sum()) - 1)
        off = rest[rows].norm() + allowed[rows].norm() / _ROUNDINGS
        error = max(float(off / part[rows].norm()), tolerance / spread)
        proven[index] = bits >= _BITS and error < _NO_BETTER
        errors[index] = error if proven[index] else torch.inf
    return proven, errors
