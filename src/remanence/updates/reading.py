"""One update read from end to end: does it belong, what do the exact attacks propose, what does recomputation prove?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.updates.belonging import Belonging, belonging, without_decay
from remanence.updates.blending import blended
from remanence.updates.condensing import Coordinates, condensed
from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.local_training import LocalTraining, explains
from remanence.updates.low_rank import reconstruct_low_rank
from remanence.updates.parallel_rows import parallel_rows
from remanence.updates.parts import working
from remanence.updates.peeling import Recovered, reconstruct_at_any_scale
from remanence.updates.recomputed import Proposal, Recomputed
from remanence.updates.rounding import Layer, Rounding
from remanence.updates.shared_gradient import Sent
from remanence.updates.single_layer import one_record
from remanence.updates.span_fit import fit_in_span
from remanence.updates.verification import Proof, verify, verify_rows

_STARTS = 2  # with a scale that is known, and with one that is not: what is found is found at once
_AT_ONCE = 32  # records that are solved for within the span: the work grows with the fourth power


@final
@dataclass(frozen=True)
class Reading:
    """What was found out about one update."""

    belonging: Belonging
    proof: Proof
    sign: int = 1  # −1 where the update goes against the gradient, as a difference of weights does
    coordinates: Coordinates | None = None  # in which a large first layer was read


@final
@dataclass(frozen=True)
class Staged:
    """What the stages name for one update, in which sign, and what recomputation makes of it."""

    named: Proposal
    proof: Proof
    sign: int = 1


def read_update(
    head: DenseHead,
    layers: Layers,
    rounding: Rounding,
    *,
    training: LocalTraining | None = None,
    search: bool = True,
    scale_is_known: bool = True,
) -> Reading:
    """Read one update (its tensors have a dimension for trials, of size 1).

    The update is a gradient, or old weights minus new ones over the learning rate; a factor that nobody knows is solved
    for, and without `scale_is_known` no size is read off it. `search` allows the searches, which take longer. What is
    not declared to be several steps must be one. A large first layer is read in coordinates of its span.
    """
    one: list[Layer] = [(weight[0], None if bias is None else bias[0]) for weight, bias in layers]
    found = condensed(head, one[:1], relative=rounding.relative, absolute=rounding.absolute)
    sent = Sent(rounding, training or LocalTraining(), scale_is_known=scale_is_known)
    weight, bias = one[0]
    one[0] = (weight.to(working(weight)) if found is None else found.gradients[0]), bias
    head = head if found is None else found.head
    fit = belonging(head, one, rounding)
    if sent.training.is_plain:
        if not fit.is_one_step:
            return Reading(fit, verify(head, one, _no_records(one), rounding=rounding))
        one = without_decay(head, one, fit.decay) if fit.decay else one
    (staged,) = read_dense(head, _batched(one), sent, search=search)
    proposal = staged.proof.proposal
    if found is not None:
        proposal = Proposal(found.inputs(proposal.inputs), proposal.labels, proposal.shares)
    return Reading(fit, replace(staged.proof, proposal=proposal), staged.sign, found)


def read_dense(
    head: DenseHead, layers: Layers, sent: Sent, *, seed: int = 0, search: bool = True
) -> list[Staged]:
    """What the stages name for updates that belong, all trials at once where they can be.

    Samples with neurons to themselves are read off all updates together. What they do not explain whole is looked at
    update by update.
    """
    precision = min(sent.rounding.of_largest(layers[0][0]), 0.1)
    at_sight = None
    if sent.training.is_plain and head.activation.is_relu and len(layers) > 1:
        at_sight = reconstruct_at_any_scale(head, layers, precision=precision)
    found = []
    for trial in range(len(layers[0][0])):
        one: list[Layer] = [(weight[trial], None if bias is None else bias[trial]) for weight, bias in layers]
        first = None if at_sight is None else at_sight.of(trial)
        found.append(_stages(head, one, sent, first, seed=seed, search=search))
    return found


def _stages(
    head: DenseHead, one: list[Layer], sent: Sent, at_sight: Recovered | None, *, seed: int, search: bool
) -> Staged:
    """The stages in their order, each where those before it left something unexplained.

    Behind ReLU a search looks at one sign: that in which something was seen at sight, or a gradient's. Behind other
    functions nothing is seen at sight, not even a turned sign. A large network is searched only where nothing was.
    """
    rounding, training = sent.rounding, sent.training
    best = Staged(_no_records(one), verify(head, one, _no_records(one), rounding=rounding))
    signs, sights = (1,) if sent.sign_is_known else (1, -1), {1: at_sight}
    for look in (_quickly, _by_search)[: 1 + search]:
        if look is _by_search and best.proof.count and head.is_large:
            break
        both = look is _quickly or not head.activation.is_relu
        for sign in signs if both else (best.sign,):
            if best.proof.tells_sign and sign != best.sign:
                continue
            turned = one if sign == 1 else _negated(one)
            if sign not in sights and at_sight is not None:
                sights[sign] = reconstruct_at_any_scale(
                    head, _batched(turned), precision=min(rounding.of_largest(one[0][0]), 0.1)
                )
            for records in look(head, turned, sent, sights.get(sign), seed):
                known = sent.scale_is_known and sign == 1
                proof = prove(head, turned, records, rounding, training, scale_is_known=known)
                better = proof.rank > best.proof.rank
                if better or (not best.proof.count and len(records) > len(best.named)):
                    best = Staged(records, proof, sign)
                if best.proof.explains_all and best.proof.tells_sign:
                    return best
        if best.proof.explains_all:
            return best
    return best


def _quickly(
    head: DenseHead, one: list[Layer], sent: Sent, at_sight: Recovered | None, _: int
) -> Iterator[Proposal]:
    """What is named without a search: one record behind a single layer, neurons of one sample alone, parallel rows."""
    if len(one) == 1:
        yield proposed(one_record(head, _batched(one)))
    if not head.activation.is_relu:
        return
    if at_sight is not None:
        yield proposed(at_sight)
    inputs, labels = parallel_rows(head, one, min(sent.rounding.of_largest(one[0][0]), 0.1))
    yield Proposal(inputs, labels, inputs.new_full((len(inputs),), torch.nan))


def _by_search(
    head: DenseHead, one: list[Layer], sent: Sent, at_sight: Recovered | None, seed: int
) -> Iterator[Proposal]:
    """What a solution within the gradient's span and its sparse directions give, of one step."""
    precision = min(sent.rounding.of_largest(one[0][0]), 0.1)
    if not sent.training.is_plain:
        return
    found = fit_in_span(head, _batched(one), precision=precision, seed=seed, slots=_AT_ONCE, starts=_STARTS)
    yield proposed(found)
    if head.activation.is_relu:
        yield proposed(
            reconstruct_low_rank(head, _batched(one), precision=precision, seed=seed, first=at_sight)
        )


def _negated(one: list[Layer]) -> list[Layer]:
    return [(-weight, None if bias is None else -bias) for weight, bias in one]


def _batched(one: list[Layer]) -> Layers:
    return [(weight[None], None if bias is None else bias[None]) for weight, bias in one]


def prove(
    head: DenseHead,
    one: Sequence[Layer],
    records: Proposal,
    rounding: Rounding,
    training: LocalTraining,
    *,
    scale_is_known: bool = True,
) -> Proof:
    """What recomputation says about proposed records: by the whole update, by some of its neurons, or by rows alone."""
    none = torch.zeros(0, dtype=torch.int64, device=records.labels.device)
    if training.is_plain:
        best = verify(head, one, records, rounding=rounding, scale_is_known=scale_is_known)
    else:
        best = verify(head, one, records[none], rounding=rounding)
        if training.learning_rate is not None:
            best = _whole_training(head, one, rounding, training, records, best)
    if best.explains_all:
        return best
    return _joined(best, *verify_rows(head, one, records, rounding=rounding))


def _joined(proof: Proof, more: Proposal, errors: Tensor) -> Proof:
    """A proof and further records; those that it has already are left out."""
    known = proof.proposal.inputs[proof.proven]
    if len(more) and len(known):
        new = torch.cdist(more.inputs, known).amin(1) > 1e-2 * more.inputs.norm(dim=1)
        more, errors = more[new], errors[new]
    if not len(more):
        return proof
    parts = zip(vars(proof.proposal).values(), vars(more).values(), strict=True)
    return replace(
        proof,
        proposal=Proposal(*(torch.cat(pair) for pair in parts)),
        proven=torch.cat([proof.proven, torch.ones_like(more.labels, dtype=torch.bool)]),
        error=torch.cat([proof.error, errors]),
    )


def _whole_training(
    head: DenseHead,
    one: Sequence[Layer],
    rounding: Rounding,
    training: LocalTraining,
    records: Proposal,
    proof: Proof,
) -> Proof:
    """The proof of a whole batch by making the declared steps again; the proof so far where they do not meet."""
    if not len(records) or (records.labels < 0).any():
        return proof
    equal = records.with_shares(torch.full_like(records.shares, 1 / len(records)))
    fine, left = explains(head, one, equal, training, rounding)
    if not fine:
        return proof
    error = torch.full_like(equal.shares, 4 * len(equal) * max(float(left[0]), rounding.relative))
    # The first step tells what rounding hides; several add up more of it.
    coarser = Rounding(training.steps * rounding.relative, training.steps * rounding.absolute)
    first = Recomputed.of(head, LocalTraining().update(head, equal), equal, coarser)
    error = torch.maximum(error, blended(first, scale_is_known=True))
    return Proof(equal, error < 0.1, error, left, bool((error < 0.1).all()), len(equal))


def proposed(found: Recovered, trial: int = 0) -> Proposal:
    """What an exact attack names."""
    kept = found.found[trial]
    return Proposal(found.inputs[trial][kept], found.labels[trial][kept], found.shares[trial][kept])


def _no_records(one: list[Layer]) -> Proposal:
    weight = one[0][0]
    return Proposal(weight[:0], torch.zeros(0, dtype=torch.int64, device=weight.device), weight[:0, 0])
