"""Which proposed records does an update prove? Those from which it can be recomputed, at its own precision.

An attack proposes records and their shares; its own confidence does not count. Every number of the update to which a
record contributes is recomputed in double precision, and compared with the number sent, within a tolerance that
propagates the client's rounding errors through the network. There are two ways to a proof:

- *The whole update* is explained, with far more equations than unknowns. Then every record whose part stands out of the
  rounding error is proven, and so is their number. Of a single layer, more is asked for (below).
- *Some of its neurons*: the records explain rows and columns of the first layer to the last digit. The chance that
  noise, or a mixture of several records, passes the same checks must be below one in a million.

Samples that share their active neurons and have parallel loss vectors look like one blended sample. With two classes
all loss vectors are parallel; with more, they must differ by much more than the tolerance. Otherwise the evidence is a
share that is one over a whole number, at a known scale, or equal shares and neurons that other inputs would switch.

A label is a separate claim. If only two classes matter, the opposite of an update is the gradient of other labels at
the same inputs: labels are left open if nothing distinguishes the two signs.

*A single layer* has the gradient G = Σ_m s_m g_m (x_m, 1)ᵀ, and nothing but g = softmax(W x + b) − e_y locates x:

- *Accidents*. Matrices of rank b have b (K − 1 + d + 1 − b) degrees of freedom, of which records and shares take
  b (d + 1): the remaining b (K − 1 − b) must be met by chance. The shares of a mean count as one more for each record.
- *Blends*. At zero weights all records of a class look like one. How much loss vectors turn from one input to another
  is therefore measured, direction by direction, and compared with their error: the residual of the update along the
  records, R (X, 1)⁺, in which errors of many numbers cancel, so that little is hidden even in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from remanence.updates.declared import LocalTraining, Parameters, gradient_at
from remanence.updates.dense.belonging import balanced
from remanence.updates.dense.layers import DenseHead, Layer, doubled, has_one_logit, product
from remanence.updates.dense.peeling import Proposal, residual_size, residuals
from remanence.updates.parts import backwards, forwards, norm, working
from remanence.updates.rounding import Explained, Rounding

# Propagated rounding errors are deviations of sums, which are nearly normal: one number in 10^15 is off by 8 of them.
ROUNDINGS = 8
# How many of them the residual of a whole layer may be. True records leave at most 0.20 of them in single precision and
# 0.05 in half, in which only what is sent was rounded (`python benchmarks/span_fit.py --sizes half --sent float16`).
_WHOLE, _WHOLE_IN_HALF = 2.0, 0.5
_LEFT = 1e-2  # the largest relative residual of an explained update, whatever the rounding
BITS = 20  # of evidence that a stranger would have to meet by chance: once in a million
_NEAR_A_WHOLE = 0.05  # how far one over a share may be from the size of a larger batch that it then implies
STANDS_OUT = 30  # tolerances that a record's part in a neuron must exceed: it is then known to a thirtieth


@dataclass(frozen=True)
class Recomputed:
    """An update, records that may be behind it, and the values that follow from them."""

    head: DenseHead
    layers: Sequence[Layer]
    proposal: Proposal
    rounding: Rounding
    values: list[Tensor]  # what enters each layer, (records, width)
    deltas: list[Tensor]  # the loss's derivative in what each layer puts out, (records, width)
    value_errors: list[Tensor]  # their possible rounding errors
    delta_errors: list[Tensor]
    sizes: Tensor  # (layers,), norms of the update

    @classmethod
    def of(
        cls, head: DenseHead, layers: Sequence[Layer], proposal: Proposal, rounding: Rounding
    ) -> Recomputed:
        """All that follows from records behind an update."""
        values, logits = head.forward(proposal.inputs)
        deltas = head.backward(values, head.loss_vectors(logits, proposal.labels))
        off = rounding.relative * proposal.inputs.abs()
        if rounding.absolute:  # inputs were solved for from rows with these errors
            inverse = torch.linalg.pinv((deltas[0] * proposal.shares.unsqueeze(-1)).mT)  # (records, neurons)
            off = off + rounding.absolute * inverse.norm(dim=-1, keepdim=True)
        value_errors, delta_errors = rounding_errors(head, values, logits, deltas, off, rounding.relative)
        sizes = torch.stack([norm(weight) for weight, _ in layers])
        return cls(head, layers, proposal, rounding, values, deltas, value_errors, delta_errors, sizes)

    @property
    def precision(self) -> float:
        """Relative to each number."""
        return self.rounding.relative

    def left(self, index: int) -> Iterator[tuple[slice, Tensor]]:
        """The residual of a layer's update, some rows at a time: a large layer is never copied."""
        weighted = self.deltas[index] * self.proposal.shares.unsqueeze(-1)
        yield from residuals(self.layers[index][0], self.values[index], weighted)

    def left_of_bias(self, index: int) -> Tensor | None:
        """The same for its bias."""
        bias = self.layers[index][1]
        made = (self.deltas[index] * self.proposal.shares.unsqueeze(-1)).sum(0)
        return None if bias is None else bias - made

    def tolerance(self, index: int, rows: slice) -> Tensor:
        """The tolerance between recomputed and sent numbers, for rounding alone."""
        weight, shares = self.layers[index][0][rows], ROUNDINGS * self.proposal.shares.unsqueeze(-1)
        weight = weight.to(working(weight))
        delta, off = self.deltas[index][:, rows].abs() * shares, self.delta_errors[index][:, rows] * shares
        both = torch.cat([off, delta]).to(weight)
        apart = torch.cat([self.values[index].abs(), self.value_errors[index]]).to(weight)
        within = torch.addmm(weight.abs(), both.mT, apart, beta=ROUNDINGS * self.precision)
        return within.add_(ROUNDINGS * self.rounding.absolute)

    def unexplained(self) -> Tensor:
        """The relative residual of each layer's update, by norm."""
        weighted = [delta * self.proposal.shares[:, None] for delta in self.deltas]
        parts = zip(self.layers, self.values, weighted, strict=True)
        left = self.sizes.new_tensor([residual_size(weight, *own) for (weight, _), *own in parts])
        return (left / self.sizes).where(self.sizes > 0, 0.0)

    def refitted(self) -> Recomputed | None:
        """The same with the best-fitting shares; None if they do not explain the whole update."""
        records, numbers = self.proposal.inputs.shape
        if len(self.layers) > 1 and records * (numbers + 2) > 0.8 * independent_numbers(self.layers):
            return None
        shares = self._best_shares()
        if shares is None or not (shares > 0).all():
            return None
        fitted = replace(self, proposal=self.proposal.with_shares(shares))
        times, most = (_WHOLE_IN_HALF, 2 * self.precision) if self.rounding.is_coarse else (_WHOLE, _LEFT)
        sizes = dict(zip(self.head.names, self.sizes.tolist(), strict=True))
        found = {name: fitted.residual(index) for index, name in enumerate(sizes)}
        off = {name: left for name, (left, _) in found.items()}
        allowed = {name: min(times * within, most * sizes[name]) for name, (_, within) in found.items()}
        if not Explained(1.0, off, sizes, allowed, most).is_all:
            return None
        may_differ = self.head.classes > 2 or len(self.layers) == 1
        return fitted if may_differ or alike(shares, self.precision) else None

    def residual(self, index: int) -> tuple[float, float]:
        """The norm of a layer's residual, and that of the rounding errors that follow from the network."""
        decided, rest, within = ~self.undecided(index), 0.0, 0.0
        for rows, part in self.left(index):
            rest += float(part[decided[rows]].square().sum())
            within += float((self.tolerance(index, rows)[decided[rows]] / ROUNDINGS).square().sum())
        return rest**0.5, within**0.5

    def undecided(self, index: int) -> Tensor:
        """Neurons that lie so near to zero for some record that rounding decides whether they are active."""
        if index == len(self.layers) - 1 or not self.head.activation.is_kinked:
            return torch.zeros(len(self.layers[index][0]), dtype=torch.bool, device=self.sizes.device)
        weight, before = self.head.weights[index], self.head.before(self.values, index)
        off = forwards(
            self.value_errors[index] + self.precision * self.values[index].abs(), weight, torch.abs
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
            along = (backwards(delta, weight) * value).sum(-1) + (0 if bias is None else delta @ bias)
            right += along / size**2
        found, failed = torch.linalg.solve_ex(gram, right)
        return None if failed or not found.isfinite().all() else found

    def errors(self, *, is_whole: bool) -> Tensor:
        """How far each input may be from the truth, relatively.

        Inputs solve Σ_m (share δ)_m x_mᵀ = G₀ over the neurons that support them: the residual of these rows, and
        their rounding, propagates to the inputs, the more the less the records' derivatives differ.
        """
        rest_bias = self.left_of_bias(0)
        rows = ~self.undecided(0) if is_whole else self.support[0].any(0)
        derivatives, sizes = (
            (self.deltas[0] * self.proposal.shares.unsqueeze(-1))[:, rows],
            self.proposal.inputs.norm(dim=-1),
        )
        inverse, failed = torch.linalg.inv_ex(derivatives @ derivatives.mT)
        if is_whole and self.rounding.is_coarse:
            off = self._rounded_once(rows, inverse @ derivatives)
        else:
            sent = self.layers[0][0][rows]
            off = self._left_of(rows).norm() + self.precision * sent.norm()
            off = off + self.rounding.absolute * sent.numel() ** 0.5
            if rest_bias is not None:
                # a share that is off shows here, and an input that makes up for it does not above
                off = off + rest_bias[rows].norm() * sizes
            off = off * inverse.diagonal().clamp(min=0).sqrt()
        return (off / sizes).where((failed == 0) & (inverse.diagonal() > 0), torch.inf)

    def _rounded_once(self, rows: Tensor, solution: Tensor) -> Tensor:
        """The error of a solution of these rows, (records, rows), due to their residual and their rounding errors.

        Numbers that were rounded on being sent have independent errors, of which squares add up. Where more is left
        than these would leave, they count as so much larger.
        """
        rest, rest_bias, (sent, bias) = self._left_of(rows), self.left_of_bias(0), self.layers[0]
        off = (solution @ rest).norm(dim=-1)
        if rest_bias is not None and bias is not None:
            off = off + (solution @ rest_bias[rows]).abs() * self.proposal.inputs.norm(dim=-1)
            sent = torch.cat([sent, bias[:, None] * self.proposal.inputs.norm(dim=-1).max()], 1)
        noise = self.precision * sent[rows].norm(dim=-1) + self.rounding.absolute * sent.shape[1] ** 0.5
        times = (rest.norm() / noise.norm().clamp(min=1e-300)).clamp(min=1)
        return off + times * (solution.square() @ noise.square()).sqrt()

    def _left_of(self, rows: Tensor) -> Tensor:
        """The residual of some rows of the first layer."""
        return torch.cat([rest[rows[some]] for some, rest in self.left(0)])

    @cached_property
    def support(self) -> tuple[Tensor, Tensor]:
        """Which neurons support each record: explained, with a significant contribution of it; and how precisely.

        Both are (records, neurons); the precision is that of the neuron's column, relative to the contribution.
        """
        fits, allowed_rows, squares = ~self.undecided(0), [], self.sizes.new_zeros(())
        for rows, rest in self.left(0):
            allowed = self.tolerance(0, rows)
            fits[rows] &= (rest.abs() <= allowed).all(-1)
            allowed_rows.append(allowed.norm(dim=-1))
        for rows, rest in self.left(1):
            allowed = self.tolerance(1, rows)
            fits &= (rest.abs() <= allowed).all(0)
            squares = squares + allowed.square().sum(0)
        shares, bias, rest_bias = self.proposal.shares.unsqueeze(-1), self.layers[0][1], self.left_of_bias(0)
        if bias is not None and rest_bias is not None:
            off = (
                (self.delta_errors[0] * shares).sum(0) + self.precision * bias.abs() + self.rounding.absolute
            )
            fits &= rest_bias.abs() <= ROUNDINGS * off
        parts = self.deltas[0].abs() * shares * self.proposal.inputs.norm(dim=-1, keepdim=True)
        columns = self.values[1] * shares * self.deltas[1].norm(dim=-1, keepdim=True)
        stands_out = (parts > STANDS_OUT * torch.cat(allowed_rows)) & (columns > STANDS_OUT * squares.sqrt())
        return stands_out & fits, squares.sqrt() / columns.clamp(min=1e-300)

    def proven_by_neurons(self, *, scale_is_known: bool) -> Tensor:
        """Records with neurons whose rows and columns no stranger would meet."""
        support, relative = self.support
        finest = relative.where(support, 1.0).amin(-1).clamp(min=1e-300)  # (records,)
        rows = support.sum(-1)
        classes, deep = self.head.classes, len(self.head.weights) > 2 and self.head.classes > 2
        tried = math.log2(max(1, self.layers[0][0].shape[0]) * classes)
        checks = classes - 1 - (self.head.biases[0] is None)
        numbers = min(64, self.proposal.inputs.shape[1])
        noise = -finest.log2() * (checks + (rows - 1).clamp(min=0) * (numbers + checks)) - tried
        spread = loss_spread(self.head, self.layers[0], self.proposal.inputs)
        mixture = (spread / finest).clamp(min=1).log2() * max(0, checks - 1 + deep)
        if scale_is_known:
            mixture = mixture + self._bits_of_whole_sizes(finest)
        enough = (noise >= BITS) & (mixture >= BITS)
        return (rows > 0) & enough

    def _bits_of_whole_sizes(self, tolerance: Tensor) -> Tensor:
        """The bits of evidence in a share that is one over a whole number: few if the tolerance is wide."""
        size = 1 / self.proposal.shares
        off = (size - size.round()).abs()
        room = (2 * tolerance * size).clamp(min=1e-15)
        return (-room.log2()).clamp(min=0).where((off <= tolerance * size) & (size.round() >= 1), 0.0)

    def distinct(self) -> int | None:
        """How many records there are, if all have the same share; class weights have one for each label.

        None where the share is that of a larger batch: a record that the network is certain about leaves no trace.
        In half precision that happens so often that the share must be that of this one.
        """
        shares, labels, coarse = self.proposal.shares, self.proposal.labels, self.rounding.is_coarse
        if not alike(shares, self.precision):
            groups = [shares[labels == y] for y in labels.unique()]
            return None if coarse or not all(alike(one, self.precision) for one in groups) else len(shares)
        whole = 1 / float(shares.median())
        more, near = round(whole) - len(shares), abs(whole - round(whole)) < _NEAR_A_WHOLE
        return None if (more != 0 if coarse else 0 < more <= len(shares) and near) else len(shares)


def alike(shares: Tensor, precision: float) -> bool:
    """Whether shares are the same."""
    return bool((shares / shares.median() - 1).abs().max() < max(1e-4, 64 * precision))


_DRAWS = 64  # of other inputs for each record
_VARIES = 0.5  # by which each of their numbers differs from the record's, as those of other records do


def blended(some: Recomputed, *, scale_is_known: bool) -> Tensor:
    """How far each record may be off if it is several in one, relatively; inf where that or chance explains it."""
    if len(some.layers) == 1:
        return _single_layer(some, scale_is_known=scale_is_known)
    # Loss vectors add up to zero and have an unknown share, and without a bias they must also tell the input's scale:
    # what is left over of the classes must agree with a label by chance. Where nothing is, shares must tell.
    spare = some.head.classes - 2 - (some.head.biases[0] is None)
    are_one = spare > 0 or (spare == 0 and _told_apart(some, scale_is_known=scale_is_known))
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
    # A share makes up for the rest.
    turns = losses - own - ((losses - own) * unit).sum(-1, keepdim=True) * unit
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
    """Whether records of two classes can be distinguished from blends, and a single record's label from the other.

    With three classes and no bias: from records of another size whose labels were smoothed or mixed.
    """
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
    if head.biases[0] is None:
        return bits >= BITS  # inputs of any size switch the same neurons
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
    """How far the residual moves loss vectors times their shares, and the tolerance: (records, classes)."""
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
        chances = some.head.sign * some.deltas[0] + one_hot(some.proposal.labels, some.head.classes)
        errors = errors - some.precision * (chances + some.deltas[0].abs())
    allowed = errors * shares[:, None] + (noise @ along.square()).sqrt().mT
    return (rest @ along).abs().mT, (1 if once else ROUNDINGS) * allowed


_NO_BETTER = 0.1  # a record known only to a tenth does not count as recovered


@final
@dataclass(frozen=True)
class Proof:
    """The proof of proposed records by recomputation."""

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
        """Numbers to store about one update."""
        left = {f"unexplained {index}": float(value) for index, value in enumerate(self.unexplained)}
        return left | {"tells_sign": float(self.tells_sign)}

    @property
    def tells_sign(self) -> bool:
        """Whether a label is proven, and with it that the update goes along the gradient and not against it."""
        return bool((self.proposal.labels[self.proven] >= 0).any())

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The key by which proofs are ranked."""
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
            return _result(proposal, kept, whole, is_whole=True, scale_is_known=scale_is_known)
        if len(layers) == 1:  # its rows have no columns behind them: only the whole is a proof
            break
        proven = some.proven_by_neurons(scale_is_known=scale_is_known)
        if proven.all():
            return _result(proposal, kept, some, is_whole=False, scale_is_known=scale_is_known)
        kept = kept[proven]
    return _nothing(proposal, layers)


def _result(
    proposal: Proposal, kept: Tensor, some: Recomputed, *, is_whole: bool, scale_is_known: bool
) -> Proof:
    """The proof of the records that were `kept`, which explain the whole update or have neurons of their own."""
    errors = some.errors(is_whole=is_whole)
    if is_whole:
        errors = torch.maximum(errors, blended(some, scale_is_known=scale_is_known))
    error = torch.full_like(proposal.shares, torch.inf)
    error[kept] = errors.where(errors < _NO_BETTER, torch.inf)
    proven, complete = error < torch.inf, is_whole and bool((errors < _NO_BETTER).all())
    if not proven.any():
        return _nothing(proposal, some.layers)
    size = some.distinct() if complete else None
    told = _with_labels(proposal, kept, some, scale_is_known=scale_is_known)
    shares = proposal.shares.clone()
    shares[kept] = some.proposal.shares
    return Proof(told.with_shares(shares), proven, error, some.unexplained(), complete, size)


def _with_labels(proposal: Proposal, kept: Tensor, some: Recomputed, *, scale_is_known: bool) -> Proposal:
    """The same with labels left open where the update's opposite is explained as well, by other labels.

    One record whose derivative points along none of these tells the sign for all. Otherwise their shares must: those
    of a mean, or the same for all.
    """
    layer = min(1, len(some.layers) - 1)
    own, error, records = some.deltas[layer], some.delta_errors[layer], some.proposal
    each = torch.eye(some.head.classes).to(own)
    sign = some.head.sign
    others = sign * some.deltas[-1] + each[records.labels] - each[:, None]  # (classes, records, classes)
    turned = -sign * some.head.backward(some.values, others, down_to=layer)[0]
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
    head: DenseHead, layers: Sequence[Layer], proposal: Proposal, *, rounding: Rounding, is_one_step: bool
) -> tuple[Proposal, Tensor]:
    """Records whose inputs have several rows of the first layer to themselves, and how far they may be off.

    Such a row is the input times the row's bias, whatever the loss, the steps and the shares were. A mixture of several
    records would have to keep its proportions in all of these rows, as it does where their loss vectors are the same
    (`unmixed`). After one step these neurons must balance too: rows from which a filter took the same small numbers are
    parallel. Labels are left open.
    """
    weight, bias = layers[0]
    proven = torch.zeros(len(proposal), dtype=torch.bool, device=weight.device)
    errors = weight.new_full((len(proposal),), torch.inf)
    if bias is None or head.classes < 3 or len(layers) == 1:  # with two classes, proportions never change
        return proposal[proven], errors[proven]
    spread = loss_spread(head, layers[0], proposal.inputs)
    usable = (bias != 0) & weight.any(1)
    if is_one_step:
        usable &= balanced(head, layers, rounding)
    for index, x in enumerate(proposal.inputs):
        part = bias[:, None] * x
        allowed = ROUNDINGS * (
            rounding.relative * (weight.abs() + part.abs()) + rounding.absolute * (1 + x.abs())
        )
        relative = allowed.norm(dim=1) / weight.norm(dim=1).clamp(min=1e-300)
        rest = weight - part
        rows = (rest.abs() <= allowed).all(1) & (relative < 1 / STANDS_OUT) & usable
        if rows.sum() < 2 or not spread or proposal.labels[index] < 0:
            continue
        tolerance = float(relative[rows].median())
        bits = math.log2(max(1.0, spread / tolerance)) * (int(rows.sum()) - 1)
        off = rest[rows].norm() + allowed[rows].norm() / ROUNDINGS
        error = max(float(off / part[rows].norm()), tolerance / spread)
        proven[index] = bits >= BITS and error < _NO_BETTER
        errors[index] = error
    open_labels = torch.full_like(proposal.labels, -1)
    return Proposal(proposal.inputs, open_labels, proposal.shares)[proven], errors[proven]


def unmixed(head: DenseHead, layers: Sequence[Layer], proof: Proof, rounding: Rounding) -> Proof:
    """The proof without records that rows alone prove, if other neurons have the same loss vector in their columns.

    A loss whose derivative takes few values (hinge, absolute error) gives many records of a class one loss vector. Rows
    of neurons that two of them share are then multiples of one another, and their mean looks like one record. Neurons
    that only one of the two activates give it away: their columns are parallel to these, their rows are not.
    """
    (weight, bias), proven = layers[0], proof.proven.clone()
    if proof.explains_all or bias is None or head.classes < 3 or len(layers) == 1:
        return proof
    columns, relative, absolute = layers[1][0], rounding.relative, rounding.absolute
    size, long = weight.norm(dim=1).clamp(min=1e-300), columns.norm(dim=0).clamp(min=1e-300)
    allowed = ROUNDINGS * (relative + absolute * len(columns) ** 0.5 / long)
    for index in (proven & (proof.proposal.labels < 0)).nonzero().squeeze(1):
        x = proof.proposal.inputs[index]
        off = (weight - bias[:, None] * x).norm(dim=1) / size
        close = 2 * ROUNDINGS * (relative + absolute * len(x) ** 0.5 * (1 + x.abs().max()) / size)
        largest = (long * (off <= close)).argmax()
        unit = columns[:, largest] / long[largest]
        turned = (columns - unit[:, None] * (unit @ columns)).norm(dim=0) / long
        others = (turned <= 2 * allowed) & (allowed < 1 / STANDS_OUT) & (off > STANDS_OUT * close)
        proven[index] = others.sum() < 2
    return replace(proof, proven=proven)


def independent_numbers(layers: Sequence[Layer]) -> int:
    """The number of independent numbers in an update's weights: the logits' rows sum to zero."""
    counts = [int(weight.count_nonzero()) for weight, _ in layers]
    return sum(counts) - counts[-1] // len(layers[-1][0])


def rounding_errors(
    head: DenseHead,
    values: Sequence[Tensor],
    logits: Tensor,
    deltas: Sequence[Tensor],
    inputs_off: Tensor,
    precision: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """A running error analysis: the effect of rounding, and of errors in the inputs, on each value and derivative."""
    off, before = [inputs_off], []
    for index, (weight, value) in enumerate(zip(head.weights, values, strict=True)):
        # Errors of many terms are independent: their squares add up, not their sizes.
        both = forwards(torch.stack([off[-1].square(), value.square()]), weight, torch.square)
        spread, rounded = both.sqrt()
        after = logits if index == len(values) - 1 else values[index + 1]
        before.append(spread + precision * (rounded + after.abs()))
        off.append(before[-1])  # none of the functions between is much steeper than 1
    chances = logits.softmax(-1)
    off.pop()
    back = [chances * (1 - chances) * before.pop() + precision * chances + precision * deltas[-1].abs()]
    for index in range(len(values) - 1, 0, -1):
        weight, source, slope = head.weights[index], deltas[index], head.slopes(values, index)
        spread = backwards(back[-1].square() + (precision * source).square(), weight, torch.square).sqrt()
        error = (spread + precision * deltas[index - 1].abs()) * slope.abs()
        if not head.activation.is_kinked:  # the slope itself moves, by no more than what enters it does
            error = error + product(source, weight).abs() * before[index - 1]
        back.append(error)
    return off, back[::-1]


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


def update_of(head: DenseHead, records: Proposal, training: LocalTraining) -> list[Layer]:
    """The update from a client's training of a dense head, with all steps on the whole batch."""
    names = [[f"{name}.{part}".removeprefix(".") for name in head.names] for part in ("weight", "bias")]
    start = dict(zip((*names[0], *names[1]), (*head.weights, *head.biases), strict=True))
    # Of two logits that are made from one, only its own row is trained.
    single = [kind[-1] for kind in names] if has_one_logit(head) else []

    def loss(now: Parameters) -> Tensor:
        both = {name: doubled(value) if name in single else value for name, value in now.items()}
        weights, biases = (tuple(map(both.get, kind)) for kind in names)
        logits = replace(head, weights=weights, biases=biases).forward(records.inputs)[1]
        return cross_entropy(logits, records.labels, reduction="none") @ records.shares

    trained = {n: v[1:] if n in single else v for n, v in start.items() if v is not None}
    made = head.layers_of(training.along(trained, lambda now: gradient_at(now, loss)))
    return [(head.sign * weight, None if bias is None else head.sign * bias) for weight, bias in made]
