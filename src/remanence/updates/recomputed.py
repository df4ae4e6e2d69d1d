"""An update recomputed from proposed records: every number that they have a part in, and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.updates.dense_layers import DenseHead
from remanence.updates.parts import backwards, forwards, norm, row_slices, working
from remanence.updates.rounding import (
    Layer,
    Rounding,
    independent_numbers,
    loss_spread,
    rounding_errors,
)

ROUNDINGS = 8  # rounding errors that one number of the update may be off by
_WHOLE = 2.0  # how many times the rounding errors, as they follow from the network, the whole residual may be
_WHOLE_IN_HALF = 0.5  # the same in half precision, in which only what is sent was rounded
_LEFT = 1e-2  # the share of an update that may be left where it is explained, whatever rounding may have done
BITS = 20  # of evidence that a stranger would have to meet by chance
_NEAR_A_WHOLE = 0.05  # how far one over a share may be from the size of a larger batch that it then implies
STANDS_OUT = 30  # how many tolerances a record's part in a neuron must exceed to be seen there


@final
@dataclass(frozen=True)
class Proposal:
    """Records that an attack names, and the share of the update that it gives each (1 / batch size in a plain mean)."""

    inputs: Tensor  # (records, numbers), what enters the first dense layer
    labels: Tensor  # (records,)
    shares: Tensor  # (records,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Proposal:
        return Proposal(self.inputs[index], self.labels[index], self.shares[index])

    def with_shares(self, shares: Tensor) -> Proposal:
        """The same records with other shares."""
        return Proposal(self.inputs, self.labels, shares)


@dataclass(frozen=True)
class Recomputed:
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
        """What the records leave of a layer's update, some rows at a time: a large layer is never there twice."""
        weight = self.layers[index][0]
        values = self.values[index].to(working(weight))
        weighted = (self.deltas[index] * self.proposal.shares.unsqueeze(-1)).to(values)
        for rows in row_slices(weight):
            yield rows, torch.addmm(weight[rows].to(values), weighted[:, rows].mT, values, alpha=-1)

    def left_of_bias(self, index: int) -> Tensor | None:
        """The same for its bias."""
        bias = self.layers[index][1]
        made = (self.deltas[index] * self.proposal.shares.unsqueeze(-1)).sum(0)
        return None if bias is None else bias - made

    def tolerance(self, index: int, rows: slice) -> Tensor:
        """How far recomputed numbers may be from what was sent, if nothing but rounding lies between them."""
        weight, shares = self.layers[index][0][rows], ROUNDINGS * self.proposal.shares.unsqueeze(-1)
        weight = weight.to(working(weight))
        delta, off = self.deltas[index][:, rows].abs() * shares, self.delta_errors[index][:, rows] * shares
        both = torch.cat([off, delta]).to(weight)
        apart = torch.cat([self.values[index].abs(), self.value_errors[index]]).to(weight)
        within = torch.addmm(weight.abs(), both.mT, apart, beta=ROUNDINGS * self.precision)
        return within.add_(ROUNDINGS * self.rounding.absolute)

    def tolerance_of_bias(self, index: int) -> Tensor | None:
        """The same for its bias."""
        bias, off = self.layers[index][1], self.delta_errors[index] * self.proposal.shares.unsqueeze(-1)
        if bias is None:
            return None
        return ROUNDINGS * (off.sum(0) + self.precision * bias.abs() + self.rounding.absolute)

    def unexplained(self) -> Tensor:
        """The share of each layer's update that is left, by norm."""
        squares = [
            sum(float(rest.norm()) ** 2 for _, rest in self.left(index)) for index in range(len(self.layers))
        ]
        left = torch.tensor(squares, dtype=torch.float64, device=self.sizes.device).sqrt()
        return (left / self.sizes).where(self.sizes > 0, 0.0)

    def refitted(self) -> Recomputed | None:
        """The same with the shares that explain the update best; None where they do not explain all of it."""
        records, numbers = self.proposal.inputs.shape
        if len(self.layers) > 1 and records * (numbers + 2) > 0.8 * independent_numbers(self.layers):
            return None
        shares = self._best_shares()
        if shares is None or not (shares > 0).all():
            return None
        fitted = replace(self, proposal=self.proposal.with_shares(shares))
        times, most = (_WHOLE_IN_HALF, 2 * self.precision) if self.rounding.is_coarse else (_WHOLE, _LEFT)
        for index in range(len(self.layers)):
            decided = ~fitted.undecided(index)
            rest = allowed = 0.0
            for rows, part in fitted.left(index):
                rest += float(part[decided[rows]].square().sum())
                allowed += float((fitted.tolerance(index, rows)[decided[rows]] / ROUNDINGS).square().sum())
            if rest > times**2 * allowed or rest > (most * self.sizes[index]) ** 2:
                return None
        may_differ = self.head.classes > 2 or len(self.layers) == 1
        return fitted if may_differ or alike(shares, self.precision) else None

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

        Inputs solve Σ_m (share δ)_m x_mᵀ = G₀ over the neurons that speak for them: what is left of these rows, and
        their rounding, comes back in the inputs, the more the less the records' derivatives differ.
        """
        rest_bias = self.left_of_bias(0)
        rows = ~self.undecided(0) if is_whole else self.support().any(0)
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
        """What a solution of these rows, (records, rows), makes of what is left of them and of their rounding errors.

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
        """What is left of some rows of the first layer."""
        return torch.cat([rest[rows[some]] for some, rest in self.left(0)])

    def _worst(self) -> Tensor:
        """For each neuron of the first layer: what is left of its row and its column, over the tolerance, at worst."""
        rest_bias, allowed_bias = self.left_of_bias(0), self.tolerance_of_bias(0)
        ratio = torch.cat([_over(rest, self.tolerance(0, rows)).amax(-1) for rows, rest in self.left(0)])
        if rest_bias is not None and allowed_bias is not None:
            ratio = torch.maximum(ratio, _over(rest_bias, allowed_bias))
        for rows, rest in self.left(1):
            ratio = torch.maximum(ratio, _over(rest, self.tolerance(1, rows)).amax(0))
        return ratio

    def _allowed_columns(self) -> Tensor:
        """The norm of what each column of the second layer may be off by."""
        return (
            torch.stack([self.tolerance(1, rows).square().sum(0) for rows, _ in self.left(1)]).sum(0).sqrt()
        )

    def support(self) -> Tensor:
        """Which neurons speak for each record, (records, neurons): explained, and the record's part stands out."""
        ratio = self._worst()
        allowed_rows = torch.cat([self.tolerance(0, rows).norm(dim=-1) for rows, _ in self.left(0)])
        allowed_columns = self._allowed_columns()
        shares = self.proposal.shares.unsqueeze(-1)
        rows = self.deltas[0].abs() * shares * self.proposal.inputs.norm(dim=-1, keepdim=True)
        columns = self.values[1] * shares * self.deltas[1].norm(dim=-1, keepdim=True)
        stands_out = (rows > STANDS_OUT * allowed_rows) & (columns > STANDS_OUT * allowed_columns)
        return stands_out & (ratio <= 1) & ~self.undecided(0)

    def proven_by_neurons(self, *, scale_is_known: bool) -> Tensor:
        """Records with neurons whose rows and columns no stranger would meet."""
        support = self.support()
        shares = self.proposal.shares.unsqueeze(-1)
        columns = self.values[1] * shares * self.deltas[1].norm(dim=-1, keepdim=True)
        relative = self._allowed_columns() / columns.clamp(min=1e-300)
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
        """What a share that is one over a whole number proves: little where the tolerance is as wide."""
        size = 1 / self.proposal.shares
        off = (size - size.round()).abs()
        room = (2 * tolerance * size).clamp(min=1e-15)
        return (-room.log2()).clamp(min=0).where((off <= tolerance * size) & (size.round() >= 1), 0.0)

    def batch_size_of_shares(self) -> int | None:
        """The batch size that the shares imply, where that is no accident; None otherwise."""
        size = 1 / self.proposal.shares
        middle = size.median()
        off = max(float((size / middle - 1).abs().max()), 64 * self.precision)
        whole = int(middle.round())
        chance = 2 * off * whole
        agrees = abs(float(middle) - whole) <= 2 * off * whole
        return whole if agrees and chance < 1e-3 and whole >= len(self.proposal) else None

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


def _over(rest: Tensor, allowed: Tensor) -> Tensor:
    return rest.abs() / allowed.clamp(min=1e-300)


def alike(shares: Tensor, precision: float) -> bool:
    """Whether shares are the same."""
    return bool((shares / shares.median() - 1).abs().max() < max(1e-4, 64 * precision))
