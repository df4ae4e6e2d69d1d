"""Exact reconstruction of a batch from its average gradient, sample by sample, with a residual that proves it.

*Neurons that are switched off make inputs more precise.* With a bias, the first layer's gradient is (G₀, G_b) = A X̃:
column m of A is zero on every neuron that record m switches off, and row m of X̃ is (x_m, 1). Where as many records are
known as the gradient has dimensions, V spans its rows and B = G Vᵀ, there is one combination u_m of B's columns that is
zero on these neurons, and A = B U, hence X̃ = U⁻¹ V. That takes thousands of neurons instead of the few that an input
was read off, and nothing of the layers behind: there, one gate that is on the wrong side because an input is a little
off moves every derivative, and a fit of the whole network follows it. Differences of weights, which have few digits,
need this.

*Rows that are multiples of one another survive local steps, dropout and any weights.* A neuron that one sample alone
activates has the row s · (x, 1), where s adds up whatever steps, momentum, masks, losses and weights did. Several such
neurons have parallel rows. Nothing else of the gradient is used, so that neither the loss nor the number of steps need
be known. Neurons that the same several samples share have parallel rows only if these samples' loss vectors are
parallel, which `proofs` rules out or does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from remanence.updates.dense.candidates import (
    Candidates,
    Remainder,
    find_candidates,
    is_whole,
    mode,
    tolerance_of,
    twins,
    worth_testing,
)
from remanence.updates.dense.layers import DenseHead, Layer, Layers, product
from remanence.updates.rounding import HALF

_ROUGHLY = 0.1  # the share of the gradient that may be unexplained for this to make sense
_CLEARLY = 1e-2  # of the usual size of what a neuron puts out: so far below zero it must be to count as off


Found = tuple[Tensor, Tensor, Tensor]  # inputs, labels and shares: (trials, slots, ...) each


def sharpened(head: DenseHead, left: Remainder, nearly: float) -> Remainder:
    """The same with refined samples, in trials whose samples explain much, but not `nearly` all, of the gradient.

    Trials that still do not explain nearly all are unchanged.
    """
    rest = left.unexplained.amax(1)
    for trial in ((rest >= nearly) & (rest < _ROUGHLY)).nonzero().squeeze(1).tolist():
        inputs, labels, shares = left.inputs.clone(), left.labels, left.shares.clone()
        own = labels[trial] >= 0
        weight, bias = left.whole[0]
        first = weight[trial], None if bias is None else bias[trial]
        sharp = _by_what_is_off(head, first, inputs[trial][own])
        if sharp is None:
            continue
        inputs[trial, own] = sharp
        shares[trial, own] = _shares(head, first[1], sharp, labels[trial][own])
        after = left.by(head, (inputs, labels, shares))
        if after.unexplained[trial].max() < nearly:
            left = after
    return left


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


@final
@dataclass(frozen=True)
class Recovered:
    """The samples recovered from a batch of gradients; empty slots are zeros with the label −1."""

    inputs: Tensor  # (trials, slots, numbers), what entered the first dense layer
    labels: Tensor  # (trials, slots)
    shares: Tensor  # (trials, slots), of each sample in the gradient: 1 / batch size in a plain mean
    unexplained: Tensor  # (trials, layers): the share of each layer's gradient that is left, by norm

    @classmethod
    def nothing(cls, layers: Layers) -> Recovered:
        """No sample of any gradient."""
        return cls(*_nothing(layers), layers[0][0].new_ones(len(layers[0][0]), len(layers)))

    @property
    def batch_size(self) -> Tensor:
        """The batch size implied by the shares, `(trials,)`; 0 if it is not a whole number. A hint, not a proof."""
        size = (1 / self.shares.where(self.found, torch.nan)).nanmedian(1).values.nan_to_num(nan=0.0)
        is_whole = (size - size.round()).abs() <= 1e-2 * size.clamp(max=25)
        return size.round().where(is_whole, 0.0).long()

    @property
    def found(self) -> Tensor:
        """Which slots hold a sample, `(trials, slots)`."""
        return self.labels >= 0

    def is_complete(self, precision: float) -> Tensor:
        """Whether the residual is mere rounding, `(trials,)`."""
        rounding = 2 * precision if precision > HALF else max(1e-6, 1e2 * precision)
        return self.found.any(1) & (self.unexplained.amax(1) < rounding)

    def padded(self, slots: int) -> Recovered:
        """The same with empty slots at the end."""
        more = slots - self.labels.shape[1]
        return Recovered(
            pad(self.inputs, (0, 0, 0, more)),
            pad(self.labels, (0, more), value=-1),
            pad(self.shares, (0, more)),
            self.unexplained,
        )

    def of(self, trial: int) -> Recovered:
        """One trial alone."""
        return Recovered(*(getattr(self, name)[trial : trial + 1] for name in self.__dataclass_fields__))

    def replaced(self, trial: int, other: Recovered) -> Recovered:
        """The same with one trial taken from a result of a single one."""
        parts = {name: getattr(self, name).clone() for name in self.__dataclass_fields__}
        for name, values in parts.items():
            values[trial] = getattr(other, name)[0]
        return Recovered(**parts)


def reconstruct(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    slots: int = 64,
    peel: bool = True,
    start: Recovered | None = None,
    size: float = 0.0,
) -> Recovered:
    """Propose every sample that has an exclusive neuron in the first layer; then peel and look again.

    The gradient of what was recovered is subtracted, so that neurons which the recovered samples shared with one
    other become exclusive to that one. `precision` is the rounding error of the numbers in which the gradient was
    computed: 1.2e-7 for float32, 2.2e-16 for float64. The scale of the gradient need not be known: clipping or a
    learning rate multiplies every sample's share alike, class weights those of a label. What is nearly explained is
    refined by least squares over all neurons. `start` is what another attack has recovered already; `size` is the
    batch size, whole or not, where it need not be voted on.
    """
    head.require_readable()
    tolerance = tolerance_of(precision)
    trials = len(layers[0][0])
    level = layers[0][0].abs().amax(-1)
    live = level > 0
    sizes = layers[0][0].new_full((trials, head.classes), size, dtype=torch.float64)
    samples = _nothing(layers)
    if start is not None:
        samples = _compact(start.inputs, start.labels, start.shares, slots)
    left = Remainder.of(head, layers, samples)
    if start is not None:
        live = left.first[0].abs().amax(-1) > _NOISE * precision * level
        sizes[:] = (1 / start.shares.where(start.found, torch.nan)).nanmedian(1, keepdim=True).values
    first = peel  # neurons with a twin come first, and others where these give nothing more
    for _ in range(_ROUNDS if peel else 1):
        some = worth_testing(head, left.first, live, tolerance, only_twins=first)
        candidates = find_candidates(head, left, some, precision)
        candidates = candidates[(candidates.deviation < tolerance) & (candidates.batch_size > 0)]
        sizes = _vote(candidates, sizes, tolerance)
        implied = sizes[candidates.trial, candidates.label]
        # Half a sample is the most that rounding may excuse.
        excuse = torch.minimum(tolerance + candidates.slack, 0.5 / implied.clamp(min=1)).clamp(min=tolerance)
        agreed = (candidates.batch_size / implied - 1).abs() < excuse
        found = _merge(head, left.first[0], candidates[agreed], implied[agreed], trials, tolerance)
        new = _compact(*_unseen(left.inputs, *found, tolerance), slots)
        twins, first = first and not some.equal(live), peel and bool(new[1].shape[1])
        if not new[1].shape[1]:
            if twins:
                continue
            break
        both = zip((left.inputs, left.labels, left.shares), new, strict=True)
        left = left.by(head, _compact(*(torch.cat(pair, 1) for pair in both), slots))
        left = sharpened(head, left, max(_NEARLY, 30 * precision))
        # Skip neurons whose residual gradient is mere rounding.
        live = left.first[0].abs().amax(-1) > _NOISE * precision * level
        live &= (left.unexplained.amax(1) > _NOISE * precision)[:, None]
        if not live.any() or left.inputs.shape[1] >= slots:
            break
    return _refined(head, left, precision).padded(slots)


def reconstruct_at_any_scale(
    head: DenseHead, layers: Layers, *, precision: float, slots: int = 64
) -> Recovered:
    """The same; where the vote on the batch size leaves much unexplained, other sizes that neurons imply are tried."""
    best = reconstruct(head, layers, precision=precision, slots=slots)
    for trial in (best.unexplained.amax(1) > max(_NEARLY, 30 * precision)).nonzero().squeeze(1).tolist():
        own: Layers = [(w[trial : trial + 1], None if b is None else b[trial : trial + 1]) for w, b in layers]
        for size in likely_sizes(head, own, precision=precision):
            found = reconstruct(head, own, precision=precision, slots=slots, size=size)
            if found.unexplained[0].amax() < best.unexplained[trial].amax():
                best = best.replaced(trial, found)
    return best


def likely_sizes(head: DenseHead, layers: Layers, *, precision: float) -> list[float]:
    """Batch sizes, whole or not, that several neurons of one gradient imply, the likeliest first."""
    tolerance = tolerance_of(precision)
    live = worth_testing(head, layers[0], layers[0][0].abs().amax(-1) > 0, tolerance)
    candidates = find_candidates(head, Remainder.of(head, layers, _nothing(layers)), live, precision)
    sizes = candidates.batch_size[(candidates.deviation < tolerance) & (candidates.batch_size > 0)]
    found = []
    while len(found) < _SIZES:
        value, votes = mode(sizes, tolerance)
        if votes < 2:
            break
        found.append(value)
        sizes = sizes[(sizes / value - 1).abs() > 2 * tolerance]
    return found


def _nothing(layers: Layers) -> Found:
    trials, _, numbers = layers[0][0].shape
    none = layers[0][0].new_zeros(trials, 0, dtype=torch.float64)
    return none.new_zeros(trials, 0, numbers), none.long(), none


def _vote(candidates: Candidates, sizes: Tensor, tolerance: float) -> Tensor:
    """The batch size that most neurons of a trial imply; a label's own, where two of its neurons agree on another.

    In a plain mean it is a whole number, and neurons that share several samples rarely agree on one.
    """
    sizes, implied = sizes.clone(), candidates.batch_size
    whole = is_whole(implied, tolerance)
    for trial in (sizes == 0).any(1).nonzero().squeeze(1).tolist():
        own = candidates.trial == trial
        for some in (own & whole, own):
            value, votes = mode(implied[some], tolerance)
            value = float(round(value)) if votes and some is not own else value
            if votes >= 2 or (votes and some is own):
                break
        if not votes:
            continue
        for label in (sizes[trial] == 0).nonzero().squeeze(1).tolist():
            special, agreeing = mode(implied[some & (candidates.label == label)], tolerance)
            special = float(round(special)) if some is not own else special
            sizes[trial, label] = special if agreeing >= 2 else value
    return sizes


def _merge(
    head: DenseHead, rows: Tensor, candidates: Candidates, sizes: Tensor, trials: int, tolerance: float
) -> Found:
    """One sample per group of neurons that imply the same input: least squares over the group's rows."""
    counts = torch.bincount(candidates.trial, minlength=trials)
    most = int(counts.max()) if len(candidates.trial) else 0
    place = torch.arange(len(candidates.trial), device=rows.device)
    place = place - (counts.cumsum(0) - counts)[candidates.trial]
    signal = rows.new_zeros(trials, most)
    labels = torch.full((trials, most), -1, dtype=torch.int64, device=rows.device)
    shares = rows.new_zeros(trials, most)
    own = rows.new_zeros(trials, most, rows.shape[-1])
    index = candidates.trial, place
    signal[index], labels[index], shares[index] = candidates.signal, candidates.label, 1 / sizes
    own[index] = rows[candidates.trial, candidates.neuron]
    x = own / signal.where(signal != 0, 1.0).unsqueeze(-1)
    distance = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist") if most else x.new_zeros(trials, 0, 0)
    size = x.norm(dim=-1)
    same = distance <= 10 * tolerance * torch.maximum(size.unsqueeze(-1), size.unsqueeze(-2))
    same &= (labels.unsqueeze(-1) == labels.unsqueeze(-2)) & (labels >= 0).unsqueeze(-1)
    leader = same.int().argmax(-1) if most else labels  # the first candidate of the group
    leads = (leader == torch.arange(most, device=rows.device)) & (labels >= 0)
    members = (same & leads.unsqueeze(-1)).to(rows)  # (trials, groups, candidates)
    if len(head.weights) == 2 and head.classes - (head.biases[0] is None) <= 2:
        # Too few classes for a column to disagree: only neurons that confirm each other count.
        leads &= members.sum(-1) >= 2
    merged = (
        members @ (own * signal.unsqueeze(-1)) / (members @ signal.square().unsqueeze(-1)).clamp(min=1e-300)
    )
    return merged * leads.unsqueeze(-1), labels.where(leads, -1), shares * leads


def _unseen(known: Tensor, new: Tensor, labels: Tensor, shares: Tensor, tolerance: float) -> Found:
    """Drop samples found in an earlier round; after peeling, their residual could pass for a sample."""
    if not known.shape[1] or not new.shape[1]:
        return new, labels, shares
    near = torch.cdist(new, known) <= 100 * tolerance * new.norm(dim=-1, keepdim=True)
    fresh = ~near.any(-1)
    return new * fresh.unsqueeze(-1), labels.where(fresh, -1), shares * fresh


def _compact(inputs: Tensor, labels: Tensor, shares: Tensor, slots: int) -> Found:
    """Move the samples to the front and drop slots that are empty in every trial."""
    most = min(slots, int((labels >= 0).sum(1).max()))
    order = (labels < 0).int().argsort(dim=1, stable=True)[:, :most]
    across = order.unsqueeze(-1).expand(-1, -1, inputs.shape[-1])
    return inputs.gather(1, across), labels.gather(1, order), shares.gather(1, order)


def _refined(head: DenseHead, left: Remainder, precision: float) -> Recovered:
    """Where nearly all is explained, solve Σ δ_m x_mᵀ = G₀ over all neurons; keep it as long as it explains more.

    If the residual is large, the update has further samples, and a fit would spoil correct inputs.
    """
    inputs, labels, shares = left.inputs, left.labels, left.shares
    present = labels >= 0
    rest = left.unexplained
    improving = (rest.amax(1) < max(_NEARLY, 30 * precision)) & present.any(1)
    for _ in range(_REFINEMENTS):
        if not improving.any():
            break
        values, logits = head.forward(inputs)
        losses = head.loss_vectors(logits, labels.clamp(min=0))
        deltas = head.backward(values, losses)[0] * present.unsqueeze(-1)
        gram = deltas @ deltas.mT + torch.diag_embed((~present).to(deltas))
        step, failed = torch.linalg.solve_ex(gram, product(deltas, left.first[0]))
        # Where the label is all but certain, δ was rounded much more than the row that the input was read from.
        sharp = losses.norm(dim=-1) > min(0.1, 1e9 * precision)
        usable = (present & sharp & (improving & (failed == 0))[:, None]).unsqueeze(-1)
        tried = inputs + (step / shares.where(present, 1.0).unsqueeze(-1)).where(usable, 0.0)
        left = left.by(head, (tried, labels, shares))  # trials that no longer improve are done
        rest_after = left.unexplained
        improving &= rest_after.sum(1) < rest.sum(1)
        inputs = torch.where(improving[:, None, None], tried, inputs)
        worthwhile = rest_after.sum(1) < rest.sum(1) / 2
        rest = torch.where(improving[:, None], rest_after, rest)
        improving &= worthwhile
    return Recovered(inputs, labels, shares, rest)


_ROUNDINGS = 8
_FINEST = 1e-7  # angles below are not resolved by a product of unit vectors in double precision
_POINTS_ALONG = 0.8  # the cosine of the angle by which a loss vector may turn in the course of the steps
_AT_ONCE = 4096  # rows that are compared, each with each
_SEEN = 64  # how many tolerances a row's size must be
_GROUPS = 64  # of parallel rows


def parallel_rows(head: DenseHead, layers: list[Layer], precision: float) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the largest groups of parallel rows; `precision` is relative to the largest entry."""
    weight, bias = layers[0]
    if bias is None:
        return weight[:0], torch.zeros(0, dtype=torch.int64, device=weight.device)
    rows = torch.cat([weight, bias[:, None]], 1)
    size = rows.norm(dim=1)
    absolute = precision * rows.abs().max()  # at worst: a difference of weights is rounded on their scale
    angle = (_ROUNDINGS * absolute * rows.shape[1] ** 0.5 / size.clamp(min=1e-300)).clamp(min=_FINEST)
    seen = (angle < 1 / _SEEN) & (bias != 0)
    if int(seen.sum()) > _AT_ONCE:  # look for multiples of others from a few sides first
        sides = torch.randn(rows.shape[1], 4, generator=torch.Generator().manual_seed(0)).to(rows)
        quotients = (rows @ sides) / bias.where(seen, 1.0)[:, None]
        seen = twins(quotients[None], seen[None], float(angle[seen].median()))[0] >= 0
    live = seen.nonzero().squeeze(1)[:_AT_ONCE]
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
    return torch.cat(inputs), torch.cat(labels)


def likely_label(head: DenseHead, x: Tensor, column: Tensor) -> Tensor:
    """The class whose derivative at the second layer points as the column does; −1 where none does, or all point away.

    After several steps it has turned a little. If the update has the wrong sign, no class fits.
    """
    _, implied = head.by_label(x, down_to=1)
    cosine = (implied @ column.to(implied)) / (implied.norm(dim=-1) * column.norm()).clamp(min=1e-300)
    best = cosine.nan_to_num(nan=-1.0).max(0)
    return best.indices.where(best.values > _POINTS_ALONG, -1)
