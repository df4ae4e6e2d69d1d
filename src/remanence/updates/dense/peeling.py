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

import torch
from torch import Tensor

from remanence.updates.dense.candidates import (
    Candidates,
    Proposal,
    Remainder,
    find_candidates,
    is_whole,
    mode,
    tolerance_of,
    twins,
    worth_testing,
)
from remanence.updates.dense.layers import DenseHead, Layers, product

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

    The gradient of what was recovered is subtracted, so that neurons which the recovered samples shared with one
    other become exclusive to that one. `precision` is the rounding error of the numbers in which the gradient was
    computed: 1.2e-7 for float32, 2.2e-16 for float64. The scale of the gradient need not be known: clipping or a
    learning rate multiplies every sample's share alike, class weights those of a label. What is nearly explained is
    refined by least squares over all neurons. `start` is what another attack has recovered already; `size` is the
    batch size, whole or not, where it need not be voted on.
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
        twins, first = first and not some.equal(live), peel and len(new) > 0
        if not len(new):
            if twins:
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
    implied, every = candidates.batch_size, torch.ones_like(candidates.label, dtype=torch.bool)

    def voted(some: Tensor) -> tuple[float, int]:
        value, votes = mode(implied[some], tolerance)
        return float(round(value)) if some is whole else value, votes

    some = whole = is_whole(implied, tolerance)
    value, votes = voted(whole)
    if votes < 2:
        some = every
        value, votes = voted(every)
    if not votes:
        return sizes
    sizes = sizes.clone()
    for label in (sizes == 0).nonzero().squeeze(1).tolist():
        special, agreeing = voted(some & (candidates.label == label))
        special = float(round(special)) if some is whole else special
        sizes[label] = special if agreeing >= 2 else value
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
_AT_ONCE = 4096  # rows that are compared, each with each
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
    if int(seen.sum()) > _AT_ONCE:  # look for multiples of others from a few sides first
        sides = torch.randn(rows.shape[1], 4, generator=torch.Generator().manual_seed(0)).to(rows)
        quotients = (rows @ sides) / bias.where(seen, 1.0)[:, None]
        seen = twins(quotients, seen, float(angle[seen].median())) >= 0
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
