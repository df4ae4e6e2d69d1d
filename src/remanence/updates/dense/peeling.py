"""Exact reconstruction of a batch from its average gradient, sample by sample, with a residual that proves it.

*Rows that come from a single sample.* An exclusive neuron j of the first layer has the gradient row G₀[j] = δ_j x / M,
and in the next layer the column G₁[:, j] = δ₁ h_j / M. With a bias, x = G₀[j] / G_b₀[j]. Without hidden biases the
logits are linear in its scale t, so that log(g_c / g_c') = t (f_c − f_c') gives it. Either way x implies δ₁ and h_j,
hence the column up to the batch size M, which must come out as a whole number. Shared neurons fail that test.
(Pan et al. 2022, §5, fix the scale at 2/3 of its range; see `remanence_papers.gradients.printed`.)

*Neurons that are switched off make inputs more precise.* With a bias, (G₀, G_b) = A X̃: column m of A is zero on every
neuron that record m switches off, and row m of X̃ is (x_m, 1). If as many records are known as the gradient has
dimensions, V spans its rows and B = G Vᵀ, one combination u_m of B's columns is zero there: A = B U, and X̃ = U⁻¹ V.
That uses thousands of neurons instead of the few that an input was read off, and no layer behind, where one gate on the
wrong side would move every derivative. Differences of weights, which have few digits, need this.

*Rows that are multiples of one another survive local steps, dropout and any weights.* The row of a neuron that one
sample alone activates is s · (x, 1), whatever steps, momentum, masks, losses and weights add up to s. Neurons that the
same samples share have parallel rows only if the loss vectors are parallel, which `proofs` rules out or does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.updates.dense.layers import LARGE, DenseHead, Layers, product
from remanence.updates.parts import norm, row_slices, working
from remanence.updates.rounding import HALF

_AT_ONCE = 2**20  # numbers in the largest tensor of a chunk
_CLEARLY_NEGATIVE = 1e-3
_SIDES = 4  # from which implied inputs are looked at, to see which are the same
_OF_A_KIND = 3  # neurons that imply the same input: at most this many are tested
_AFFORDED, _FEWEST = 2**33, 64  # multiplications for neurons without a twin, and how many are tested at least


@dataclass(frozen=True)
class Candidates:
    """Neurons that may be exclusive, one entry each."""

    neuron: Tensor
    signal: Tensor  # δ_j / M: the row of the gradient is this times the input
    label: Tensor
    batch_size: Tensor  # M as this neuron implies it, not yet a whole number
    deviation: Tensor  # of the column of the gradient from the one that the input implies, relative
    slack: Tensor  # the effect of rounding on the batch size: large if the label is nearly certain

    def __getitem__(self, index: Tensor) -> Candidates:
        return Candidates(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def worth_testing(
    head: DenseHead,
    first: tuple[Tensor, Tensor | None],
    live: Tensor,
    tolerance: float,
    *,
    only_twins: bool = True,
) -> Tensor:
    """Live neurons whose rows imply the same input as another's, as all of one sample's own do.

    In a large network every test is a forward pass, and most neurons are shared: these are tested first, and
    without `only_twins` as many others as the budget allows. In a small one, or without a bias, all are.
    """
    rows, signal = first
    weights = sum(weight.numel() for weight in head.weights)
    if signal is None or weights < LARGE:  # passes are cheap
        return live
    if not only_twins:
        return live & (live.cumsum(0) <= max(_FEWEST, _AFFORDED // weights))
    generator = torch.Generator().manual_seed(0)
    sides = torch.randn(rows.shape[-1], _SIDES, generator=generator, dtype=torch.float64).to(rows)
    # (neurons, sides), of the implied inputs
    groups = twins((rows @ sides) / signal.where(live, 1.0)[:, None], live, tolerance)
    return (groups >= 0) & (groups < _OF_A_KIND)


def twins(seen: Tensor, live: Tensor, tolerance: float) -> Tensor:
    """For each implied input, `(neurons, sides)`, how many earlier neurons imply the same one.

    0 for the first neuron of each group, 1 for the next; −1 for neurons whose input is unique.
    """
    seen = seen[:, :_SIDES].where(live[:, None], torch.nan)
    size = seen.abs().nanmedian(0).values
    order = seen[:, 0].nan_to_num(nan=torch.inf).argsort()
    ordered = (seen / size)[order]
    twin, begins = torch.zeros_like(live), torch.ones_like(live)
    for apart in (1, 2):
        same = ((ordered[apart:] - ordered[:-apart]).abs() <= tolerance).all(-1)  # NaN is near nothing
        twin[apart:] |= same
        twin[:-apart] |= same
        begins[apart:] &= ~same
    place = torch.arange(len(live), device=live.device)
    before = place - place.where(begins, 0).cummax(0).values
    return torch.zeros_like(order).scatter(0, order, before.where(twin, -1))


def find_candidates(head: DenseHead, left: Remainder, live: Tensor, precision: float) -> Candidates:
    """Test every live neuron of the first layer.

    `precision` is the rounding error of the numbers that the gradient was computed in.
    """
    rows, signal = left.first
    bias = head.biases[0]
    if signal is not None and bias is not None:
        # h_j of the input that row j implies
        own = (rows * head.weights[0]).sum(-1) / signal + bias
        live = live & (own > 0)
    else:
        own = (rows * head.weights[0]).sum(-1)
        live = live & (own != 0)
    if len(head.weights) == 2 and left.second is not None:
        # columns are multiples of loss vectors, which have one negative entry
        columns = head.sign * left.second.mT
        floor = _CLEARLY_NEGATIVE * columns.abs().amax(-1, keepdim=True)
        live = live & ((columns < -floor).sum(-1) == 1)
    neuron = live.nonzero().squeeze(1)
    if not len(neuron):
        empty = rows.new_zeros(0)
        return Candidates(neuron, empty, neuron, empty, empty, empty)
    if signal is not None and len(head.weights) > 2:  # one pass for all labels, before one for each
        parts = neuron.split(max(1, _AT_ONCE // max(head.widths)))
        neuron = neuron[torch.cat([_silent_outside(head, left, some, precision) for some in parts])]
    labels = 1 if len(head.weights) == 2 and signal is not None else head.classes
    largest = max(rows.shape[-1], *(width * head.classes for width in head.widths[1:]), head.classes * labels)
    parts = []
    for j in neuron.split(max(1, _AT_ONCE // largest)):
        columns = head.sign * left.columns(j).to(rows)
        if signal is None:
            found = _without_bias(head, head.sign * rows[j], columns, head.sign * own[j], j, precision)
        else:
            found = _with_bias(head, rows[j] / signal[j, None], columns, signal[j], own[j], precision)
        parts.append(Candidates(j, *found))
    return Candidates(
        *(torch.cat([getattr(p, name) for p in parts]) for name in Candidates.__dataclass_fields__)
    )


def _silent_outside(head: DenseHead, left: Remainder, neuron: Tensor, precision: float) -> Tensor:
    """Which of these neurons have a column that is zero where the implied input activates nothing, whatever its label.

    The excluded neurons would deviate by more than `tolerance_of`, even allowing for rounding.
    """
    rows, signal = left.first
    assert signal is not None
    columns = left.columns(neuron).to(rows)
    inputs, logits = head.forward(rows[neuron] / signal[neuron, None])
    outside = (columns * (inputs[2] <= 0)).norm(dim=-1) / columns.norm(dim=-1)
    chances = logits.softmax(-1).topk(2).values
    loss = torch.maximum(1 - chances[:, 0], chances[:, 1])  # of the likeliest label, which is the least
    return outside < tolerance_of(precision) + 4 * precision / loss.clamp(min=precision)


def tolerance_of(precision: float) -> float:
    """How far a column may deviate from the one that an input implies."""
    return min(1e-2, max(1e-6, 1e4 * precision))


def _with_bias(
    head: DenseHead, x: Tensor, columns: Tensor, signal: Tensor, own: Tensor, precision: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The label whose implied column lies closest, the batch size and the deviation."""
    inputs, logits = head.forward(x)
    labels = torch.arange(head.classes, device=x.device).expand(len(x), -1)
    if len(head.weights) == 2:  # the column is a loss vector itself, and only its label's entry is negative
        labels = columns.argmin(-1, keepdim=True)
    losses = logits.softmax(-1).unsqueeze(-2) - one_hot(labels, head.classes)  # (candidates, labels, classes)
    implied = head.backward([values.unsqueeze(-2) for values in inputs], losses, down_to=1)[0]
    implied = implied * own[:, None, None]
    sizes = implied.norm(dim=-1)
    # A probability within rounding of 1 leaves a loss vector that is itself rounding: allow for that much.
    slack = 4 * precision * implied.abs().amax(-1) / losses.abs().amax(-1).clamp(min=precision)
    unit = columns / columns.norm(dim=-1, keepdim=True)
    deviations = ((implied / sizes.unsqueeze(-1) - unit.unsqueeze(-2)).norm(dim=-1) - slack / sizes).clamp(
        min=0
    )
    deviation, place = deviations.nan_to_num(nan=torch.inf).min(-1)
    chosen = implied.gather(1, place[:, None, None].expand(-1, 1, implied.shape[-1])).squeeze(1)
    label = labels.gather(1, place[:, None]).squeeze(1)
    batch_size = chosen.square().sum(-1) / (chosen * columns).sum(-1)
    return signal, label, batch_size, deviation, (slack / sizes).gather(1, place[:, None]).squeeze(1)


def _without_bias(
    head: DenseHead, rows: Tensor, columns: Tensor, own: Tensor, neuron: Tensor, precision: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The scale of the input by a linear fit, sharpened by the batch size being a whole number."""
    side = own.sign()
    direction = rows * side.unsqueeze(-1)  # an input with h_j > 0
    scale, label, deviation = fit_scales(head, direction, columns, down_to=1)
    logits, offset, spread = _by_class(head, direction, down_to=1)
    classes = torch.eye(head.classes).to(spread)
    own_weights = head.weights[1][:, neuron].to(spread)
    weight_back = torch.einsum("nko,on->nk", spread, own_weights)  # δ_j of each class

    def implied(scale: Tensor) -> tuple[Tensor, Tensor]:
        """t δ_j(t), which is M, and its derivative."""
        p = (scale.unsqueeze(-1) * logits + offset).softmax(-1)
        delta = (weight_back * (p - classes[label])).sum(-1)
        slope = (weight_back * p * (logits - (p * logits).sum(-1, keepdim=True))).sum(-1)
        return scale * delta * side, (delta + scale * slope) * side

    batch_size, _ = implied(scale)
    whole = batch_size.round().clamp(min=1)
    for _ in range(4):
        value, derivative = implied(scale)
        largest = 0.1 * scale.abs()
        scale = scale - ((value - whole) / derivative).clamp(-largest, largest)
    certain = (scale.unsqueeze(-1) * logits + offset).softmax(-1).gather(1, label[:, None]).squeeze(1)
    slack = 4 * precision / (1 - certain).clamp(min=precision)
    return head.sign * side / scale, label, batch_size.nan_to_num(nan=0.0), deviation, slack


def fit_scales(
    head: DenseHead, directions: Tensor, columns: Tensor, *, down_to: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The scale t of inputs t · direction whose derivative at layer `down_to` is parallel to a column.

    Without hidden biases the pattern of activations does not depend on t, so that the derivative is a known
    matrix times the loss vector, and log(g_c / g_c') = t (f_c − f_c') for classes other than the label.
    Returns the scale, the label and how far the column is from any such derivative.
    """
    logits, offset, spread = _by_class(head, directions, down_to)
    if down_to == len(head.weights) - 1:
        losses, misfit = columns, torch.zeros_like(columns[:, 0])
    else:
        gram = spread @ spread.mT  # singular if too few neurons are active to distinguish the classes
        losses = torch.linalg.solve_ex(gram, (spread @ columns.unsqueeze(-1))).result.squeeze(-1)
        fitted = (spread.mT @ losses.unsqueeze(-1)).squeeze(-1)
        misfit = (fitted - columns).norm(dim=-1) / columns.norm(dim=-1)
    label = losses.argmin(-1)
    others = torch.ones_like(losses).scatter(-1, label.unsqueeze(-1), 0.0)
    heights = (losses.clamp(min=1e-300).log() - offset) * others
    level, rise = _centred(logits * others, others), _centred(heights, others)
    scale = (level * rise).sum(-1) / level.square().sum(-1)
    fit = (rise - scale.unsqueeze(-1) * level).norm(dim=-1) / others.sum(-1).sqrt()
    deviation = torch.maximum(misfit, fit).where(scale > 0, torch.inf).nan_to_num(nan=torch.inf)
    return scale, label, deviation


def _by_class(head: DenseHead, inputs: Tensor, down_to: int) -> tuple[Tensor, Tensor, Tensor]:
    """The logits without the last bias, that bias, and the derivative of each logit at layer `down_to`."""
    values, logits = head.forward(inputs)
    last = head.biases[-1]
    offset = torch.zeros_like(logits[0]) if last is None else last
    basis = torch.eye(head.classes).to(logits).expand(len(inputs), -1, -1)
    return logits - offset, offset, head.backward([one.unsqueeze(-2) for one in values], basis, down_to)[0]


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """The values minus their mean, both over the mask only."""
    return (values - values.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)) * mask


def is_whole(sizes: Tensor, tolerance: float) -> Tensor:
    """Whether sizes are whole numbers; False if the tolerance is too wide to decide."""
    return ((sizes / sizes.round().clamp(min=1) - 1).abs() < tolerance) & (tolerance * sizes < 0.05)


def mode(values: Tensor, tolerance: float) -> tuple[float, int]:
    """The centre of the densest cluster of values, and its size."""
    if not len(values):
        return 0.0, 0
    ordered = values.sort().values
    first = torch.searchsorted(ordered, ordered * (1 - tolerance))
    count = torch.searchsorted(ordered, ordered * (1 + tolerance), right=True) - first
    best = int(count.argmax())
    return float(ordered[first[best] : first[best] + count[best]].median()), int(count[best])


@final
@dataclass(frozen=True)
class Proposal:
    """Records that an attack names, and the share of the update that it gives each (1 / batch size in a plain mean)."""

    inputs: Tensor  # (records, numbers), what enters the first dense layer
    labels: Tensor  # (records,)
    shares: Tensor  # (records,)

    @classmethod
    def nothing(cls, layers: Layers) -> Proposal:
        """No record of an update."""
        none = layers[0][0][:0].double()
        return cls(none, none[:, 0].long(), none[:, 0])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Proposal:
        return Proposal(self.inputs[index], self.labels[index], self.shares[index])

    def __add__(self, other: Proposal) -> Proposal:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Proposal(*(torch.cat(pair) for pair in pairs))

    def with_shares(self, shares: Tensor) -> Proposal:
        """The same records with other shares."""
        return Proposal(self.inputs, self.labels, shares)

    @property
    def batch_size(self) -> int:
        """The batch size implied by the shares; 0 if it is not a whole number. A hint, not a proof."""
        size = float((1 / self.shares).median()) if len(self) else 0.0
        return round(size) if abs(size - round(size)) <= 1e-2 * min(size, 25) else 0


@final
@dataclass(frozen=True)
class Remainder:
    """The residual of an update after subtracting records."""

    whole: Layers
    records: Proposal
    first: tuple[Tensor, Tensor | None]  # the residual of the first layer
    second: Tensor | None  # and of the second; None of a large one, of which only columns are made
    parts: list[tuple[Tensor, Tensor]]  # what enters each layer and the loss's derivative in what it puts out
    sizes: Tensor  # (layers,), norms of the gradients

    @classmethod
    def of(cls, head: DenseHead, layers: Layers, records: Proposal, sizes: Tensor | None = None) -> Self:
        """The residual given records."""
        if sizes is None:
            sizes = torch.stack([norm(weight) for weight, _ in layers])
        parts = head.parts(records.inputs, records.labels, records.shares)
        (weight, bias), after = layers[0], layers[1:2]
        first = _less(weight, *parts[0]), None if bias is None else bias - parts[0][1].sum(0)
        is_made = after and (len(layers) == 2 or after[0][0].numel() <= LARGE)
        second = _less(after[0][0], *parts[1]) if is_made else None
        return cls(layers, records, first, second, parts, sizes)

    def by(self, head: DenseHead, records: Proposal) -> Self:
        """The residual of the same gradients given other records."""
        return self.of(head, self.whole, records, self.sizes)

    def columns(self, neuron: Tensor) -> Tensor:
        """The residual of some columns of the second layer, `(columns, outputs)`."""
        if self.second is not None:
            return self.second[:, neuron].mT
        values, delta = self.parts[1]
        return self.whole[1][0][:, neuron].mT.to(delta) - values[:, neuron].mT @ delta

    @cached_property
    def unexplained(self) -> Tensor:
        """The relative residual of each layer's gradient, by norm: `(layers,)`."""
        pairs = zip(self.whole, self.parts, strict=True)
        left = self.sizes.new_tensor([residual_size(own, *parts) for (own, _), parts in pairs])
        return (left / self.sizes).where(self.sizes > 0, 0.0)

    def is_complete(self, precision: float) -> bool:
        """Whether the residual is mere rounding."""
        rounding = 2 * precision if precision > HALF else max(1e-6, 1e2 * precision)
        return len(self.records) > 0 and bool(self.unexplained.max() < rounding)


def _less(weight: Tensor, values: Tensor, delta: Tensor) -> Tensor:
    own = weight.to(working(weight))
    return torch.addmm(own, delta.mT.to(own), values.to(own), alpha=-1)


def residuals(weight: Tensor, values: Tensor, delta: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """A layer's residual gradient, some rows at a time: a large layer is never copied."""
    for rows in row_slices(weight):
        yield rows, _less(weight[rows], values, delta[:, rows])


def residual_size(weight: Tensor, values: Tensor, delta: Tensor) -> float:
    """Its norm."""
    return sum(float(rest.norm()) ** 2 for _, rest in residuals(weight, values, delta)) ** 0.5


_ROUGHLY = 0.1  # the share of the gradient that may be unexplained for this to make sense
_CLEARLY = 1e-2  # of the usual size of what a neuron puts out: so far below zero it must be to count as off


def sharpened(head: DenseHead, left: Remainder, nearly: float) -> Remainder:
    """The same with refined records, if these explain much, but not `nearly` all, of the gradient.

    It is unchanged where they still do not explain nearly all.
    """
    (weight, bias), records = left.whole[0], left.records
    if not nearly <= float(left.unexplained.max()) < _ROUGHLY:
        return left
    sharp = _by_what_is_off(head, (weight, bias), records.inputs)
    if sharp is None:
        return left
    after = left.by(head, Proposal(sharp, records.labels, _shares(head, bias, sharp, records.labels)))
    return after if after.unexplained.max() < nearly else left


def _by_what_is_off(head: DenseHead, first: tuple[Tensor, Tensor | None], inputs: Tensor) -> Tensor | None:
    """The inputs of one gradient, `(records, numbers)`; None if their inactive neurons do not determine them."""
    (weight, bias), shift, records = first, head.biases[0], len(inputs)
    if bias is None or shift is None or not head.activation.is_relu or not 1 < records < weight.shape[1]:
        return None
    both = torch.cat([weight, bias[:, None]], 1).double()  # (neurons, numbers + 1)
    span = torch.linalg.svd(both, full_matrices=False)[2][:records]
    within = both @ span.mT  # (neurons, records)
    before = product(inputs, head.weights[0].mT) + shift
    off = before < -_CLEARLY * before.abs().median()
    if int(off.sum(1).min()) < 2 * records:
        return None
    mixing = torch.stack([torch.linalg.svd(within[own], full_matrices=False)[2][-1] for own in off], 1)
    mixed, failed = torch.linalg.solve_ex(mixing, span)
    sharp = mixed[:, :-1] / mixed[:, -1:]
    return None if failed or not sharp.isfinite().all() else sharp


def _shares(head: DenseHead, bias: Tensor | None, inputs: Tensor, labels: Tensor) -> Tensor:
    """The share of each sample in the first layer's bias, by least squares."""
    assert bias is not None
    values, logits = head.forward(inputs)
    deltas = head.backward(values, head.loss_vectors(logits, labels))[0]
    return torch.linalg.lstsq(deltas.mT, bias.to(deltas)[:, None]).solution.squeeze(1)


_ROUNDS = 64
_SIZES = 8  # batch sizes that are tried
_REFINEMENTS = 3
_NEARLY = 1e-3  # the share of the gradient that may be unexplained for a refinement to make sense
_NOISE = 256  # how many rounding errors a neuron's gradient must exceed to be looked at again after peeling


def reconstruct(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    slots: int = 64,
    peel: bool = True,
    start: Proposal | None = None,
    size: float = 0.0,
) -> Remainder:
    """Propose every sample that has an exclusive neuron in the first layer; then peel and look again.

    Subtracting their gradient makes neurons exclusive that they shared with one other sample. `precision` is the
    rounding error of the gradient's numbers: 1.2e-7 for float32. The gradient's scale need not be known: clipping or a
    learning rate multiplies all shares alike, class weights those of a label. What is nearly explained is refined by
    least squares over all neurons. `start` is what another attack recovered; `size` is a known batch size.
    """
    head.require_readable()
    tolerance, rows = tolerance_of(precision), layers[0][0]
    level = rows.abs().amax(-1)
    live = level > 0
    left = Remainder.of(head, layers, Proposal.nothing(layers) if start is None else start)
    sizes = rows.new_full((head.classes,), size, dtype=torch.float64)  # that each label's neurons imply
    if start is not None:
        live = left.first[0].abs().amax(-1) > _NOISE * precision * level
        sizes[:] = (1 / start.shares).median()
    first = peel  # neurons with a twin come first, and others where these give nothing more
    for _ in range(_ROUNDS if peel else 1):
        some = worth_testing(head, left.first, live, tolerance, only_twins=first)
        candidates = find_candidates(head, left, some, precision)
        candidates = candidates[(candidates.deviation < tolerance) & (candidates.batch_size > 0)]
        sizes = _vote(candidates, sizes, tolerance)
        implied = sizes[candidates.label]
        # Half a sample is the most that rounding may excuse.
        excuse = torch.minimum(tolerance + candidates.slack, 0.5 / implied.clamp(min=1)).clamp(min=tolerance)
        agreed = (candidates.batch_size / implied - 1).abs() < excuse
        new = _merge(head, left.first[0], candidates[agreed], implied[agreed], tolerance)
        if len(new) and len(left.records):  # after peeling, the residual of a known sample could pass for one
            near = torch.cdist(new.inputs, left.records.inputs) <= 100 * tolerance * new.inputs.norm(
                dim=-1, keepdim=True
            )
            new = new[~near.any(-1)]
        others_are_left, first = first and not some.equal(live), peel and len(new) > 0
        if not len(new):
            if others_are_left:
                continue
            break
        left = sharpened(head, left.by(head, (left.records + new)[:slots]), max(_NEARLY, 30 * precision))
        # Skip neurons whose residual gradient is mere rounding.
        live = left.first[0].abs().amax(-1) > _NOISE * precision * level
        if left.unexplained.max() <= _NOISE * precision or not live.any() or len(left.records) >= slots:
            break
    return refined(head, left, precision)


def reconstruct_at_any_scale(
    head: DenseHead, layers: Layers, *, precision: float, slots: int = 64
) -> Remainder:
    """The same; where the vote on the batch size leaves much unexplained, other sizes that neurons imply are tried."""
    best = reconstruct(head, layers, precision=precision, slots=slots)
    if best.unexplained.max() <= max(_NEARLY, 30 * precision):
        return best
    tolerance = tolerance_of(precision)
    live = worth_testing(head, layers[0], layers[0][0].abs().amax(-1) > 0, tolerance)
    left = Remainder.of(head, layers, Proposal.nothing(layers))
    candidates = find_candidates(head, left, live, precision)
    sizes = candidates.batch_size[(candidates.deviation < tolerance) & (candidates.batch_size > 0)]
    tried = [best]
    while len(tried) <= _SIZES:
        size, votes = mode(sizes, tolerance)
        if votes < 2:
            break
        tried.append(reconstruct(head, layers, precision=precision, slots=slots, size=size))
        sizes = sizes[(sizes / size - 1).abs() > 2 * tolerance]
    return min(tried, key=lambda one: float(one.unexplained.max()))


def _vote(candidates: Candidates, sizes: Tensor, tolerance: float) -> Tensor:
    """The batch size that most neurons imply; a label's own, where two of its neurons agree on another.

    In a plain mean it is a whole number, and neurons that share several samples rarely agree on one.
    """
    implied, sizes = candidates.batch_size, sizes.clone()
    some = is_whole(implied, tolerance)
    value, votes = mode(implied[some], tolerance)
    if are_whole := votes >= 2:
        value = float(round(value))
    else:
        some = torch.ones_like(some)
        value, votes = mode(implied, tolerance)
    for label in (sizes == 0).nonzero().squeeze(1).tolist() if votes else ():
        own, agreeing = mode(implied[some & (candidates.label == label)], tolerance)
        own = float(round(own)) if are_whole else own
        sizes[label] = own if agreeing >= 2 else value
    return sizes


def _merge(
    head: DenseHead, rows: Tensor, candidates: Candidates, sizes: Tensor, tolerance: float
) -> Proposal:
    """One sample per group of neurons that imply the same input: least squares over the group's rows."""
    signal, label, own = candidates.signal[:, None], candidates.label, rows[candidates.neuron]
    if not len(label):
        return Proposal(own.double(), label, sizes)
    x = own / signal
    size = x.norm(dim=-1)
    distance = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist")
    same = distance <= 10 * tolerance * torch.maximum(size, size[:, None])
    same &= label == label[:, None]
    leads = same.int().argmax(-1) == torch.arange(len(x), device=x.device)  # the first candidate of its group
    members = same[leads].to(rows)  # (groups, candidates)
    if len(head.weights) == 2 and head.classes - (head.biases[0] is None) <= 2:
        # Too few classes for a column to disagree: only neurons that confirm each other count.
        leads[leads.clone()] = members.sum(-1) >= 2
        members = same[leads].to(rows)
    merged = members @ (own * signal) / (members @ signal.square()).clamp(min=1e-300)
    return Proposal(merged.double(), label[leads], 1 / sizes[leads])


def refined(head: DenseHead, left: Remainder, precision: float) -> Remainder:
    """Where nearly all is explained, solve Σ δ_m x_mᵀ = G₀ over all neurons; keep it as long as it explains more.

    If the residual is large, the update has further samples, and a fit would spoil correct inputs.
    """
    if not len(left.records) or left.unexplained.max() >= max(_NEARLY, 30 * precision):
        return left
    for _ in range(_REFINEMENTS):
        inputs, labels, shares = vars(left.records).values()
        values, logits = head.forward(inputs)
        losses = head.loss_vectors(logits, labels)
        deltas = head.backward(values, losses)[0]
        step, failed = torch.linalg.solve_ex(deltas @ deltas.mT, product(deltas, left.first[0]))
        # Where the label is all but certain, δ was rounded much more than the row that the input was read from.
        sharp = losses.norm(dim=-1) > min(0.1, 1e9 * precision)
        moved = (step / shares[:, None]).where(sharp[:, None], 0.0)
        after = left.by(head, Proposal(inputs + moved, labels, shares))
        before = left.unexplained.sum()
        if failed or not after.unexplained.sum() < before:
            break
        left = after
        if after.unexplained.sum() >= before / 2:
            break
    return left


_ROUNDINGS = 8
_FINEST = 1e-7  # angles below are not resolved by a product of unit vectors in double precision
_POINTS_ALONG = 0.8  # the cosine of the angle by which a loss vector may turn in the course of the steps
_COMPARED = 4096  # rows that are compared, each with each
_SEEN = 64  # how many tolerances a row's size must be
_GROUPS = 64  # of parallel rows


def parallel_rows(head: DenseHead, layers: Layers, precision: float) -> Proposal:
    """The inputs and labels of the largest groups of parallel rows; `precision` is relative to the largest entry."""
    weight, bias = layers[0]
    if bias is None:
        return Proposal.nothing(layers)
    rows = torch.cat([weight, bias[:, None]], 1)
    size = rows.norm(dim=1)
    absolute = precision * rows.abs().max()  # at worst: a difference of weights is rounded on their scale
    angle = (_ROUNDINGS * absolute * rows.shape[1] ** 0.5 / size.clamp(min=1e-300)).clamp(min=_FINEST)
    seen = (angle < 1 / _SEEN) & (bias != 0)
    if int(seen.sum()) > _COMPARED:  # look for multiples of others from a few sides first
        sides = torch.randn(rows.shape[1], 4, generator=torch.Generator().manual_seed(0)).to(rows)
        quotients = (rows @ sides) / bias.where(seen, 1.0)[:, None]
        seen = twins(quotients, seen, float(angle[seen].median())) >= 0
    live = seen.nonzero().squeeze(1)[:_COMPARED]
    unit = rows[live] / size[live, None] * bias[live].sign()[:, None]
    same = (2 - 2 * (unit @ unit.mT)).clamp(min=0).sqrt() <= angle[live][:, None] + angle[live]
    inputs, labels = [weight[:0]], [torch.zeros(0, dtype=torch.int64, device=weight.device)]
    while len(inputs) <= _GROUPS and len(live):
        counts = same.sum(1)
        best = int(counts.argmax())
        if counts[best] < 2:
            break
        group = live[same[best]]
        x = (weight[group] * bias[group, None]).sum(0) / bias[group].square().sum()
        inputs.append(x[None])
        labels.append(likely_label(head, x, head.sign * layers[1][0][:, group].to(x).sum(1))[None])
        gone = same[best].clone()
        same[gone] = False
        same[:, gone] = False
    found = torch.cat(inputs)
    return Proposal(found, torch.cat(labels), torch.full_like(found[:, 0], torch.nan))


def likely_label(head: DenseHead, x: Tensor, column: Tensor) -> Tensor:
    """The class whose derivative at the second layer points as the column does; −1 where none does, or all point away.

    After several steps it has turned a little. If the update has the wrong sign, no class fits.
    """
    _, implied = head.by_label(x, down_to=1)
    cosine = (implied @ column.to(implied)) / (implied.norm(dim=-1) * column.norm()).clamp(min=1e-300)
    best = cosine.nan_to_num(nan=-1.0).max(0)
    return best.indices.where(best.values > _POINTS_ALONG, -1)
