"""One update from end to end: does it belong, which records are proposed, and which are proven?"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.updates import caveats
from remanence.updates.declared import LocalTraining
from remanence.updates.dense.belonging import belonging, has_another_loss, misfit
from remanence.updates.dense.layers import LARGE, DenseHead, Layer, Layers, has_one_logit
from remanence.updates.dense.peeling import Proposal, Remainder, parallel_rows, reconstruct_at_any_scale
from remanence.updates.dense.proofs import (
    Proof,
    Recomputed,
    blended,
    independent_numbers,
    update_of,
    verify,
    verify_rows,
)
from remanence.updates.dense.span_fit import fit_in_span
from remanence.updates.dense.sparse_columns import reconstruct_low_rank
from remanence.updates.rounding import Rounding, apart, explained, rounded_again
from remanence.updates.shared_gradient import Reader, Sent, SharedGradient, each
from remanence.updates.watching import logits_of, loss_of

_STARTS = 2  # with a scale that is known, and with one that is not: what is found is found at once
_AT_ONCE = 32  # records that are solved for within the span: the work grows with the fourth power


@final
@dataclass(frozen=True)
class Staged:
    """The records proposed for one update, its sign, and the proof."""

    named: Proposal
    proof: Proof
    sign: int = 1


def read_dense(head: DenseHead, one: Layers, sent: Sent, *, seed: int = 0) -> Staged:
    """The records proposed for an update that belongs: stages, each only if those before it left something unexplained.

    Behind ReLU a search looks at one sign: that in which something was seen at sight, or a gradient's. Behind other
    functions nothing is seen at sight, not even a turned sign. A large network is searched only where nothing was, and
    a noised update is not searched: nothing could be claimed.
    """
    weight, is_relu, is_plain = one[0][0], head.activation.is_relu, sent.training.is_plain
    precision, even = min(sent.rounding.of_largest(weight), 0.1), sent.rounding.is_even(weight)
    signs, at_sight = (1,) if sent.sign_is_known else (1, -1), dict[int, Remainder]()
    heads = {sign: replace(head, sign=sign) for sign in signs}

    def quickly(sign: int) -> Iterator[Proposal]:
        """One record behind a single layer, exclusive neurons, parallel rows."""
        if len(one) == 1:
            yield _one_record(heads[sign], one)
        if is_relu and is_plain:
            at_sight[sign] = reconstruct_at_any_scale(heads[sign], one, precision=precision)
            yield at_sight[sign].records
        if is_relu:
            yield parallel_rows(heads[sign], one, precision)

    def by_search(sign: int) -> Iterator[Proposal]:
        """From the gradient's span and its sparse directions."""
        turned, seen = heads[sign], at_sight.get(sign)
        yield fit_in_span(
            turned, one, precision=precision, even=even, seed=seed, slots=_AT_ONCE, starts=_STARTS
        )
        if is_relu:
            found = reconstruct_low_rank(turned, one, precision=precision, even=even, seed=seed, first=seen)
            yield found.records

    nothing = Proposal.nothing(one)
    best = Staged(nothing, verify(head, one, nothing, rounding=sent.rounding))
    # Each pass through a large network takes long.
    is_large = sum(weight.numel() for weight in head.weights) > LARGE
    for look in (quickly, by_search):
        if look is by_search and not (
            is_plain and sent.can_be_judged and not (best.proof.count and is_large)
        ):
            break
        for sign in signs if look is quickly or not is_relu else (best.sign,):
            if best.proof.tells_sign and sign != best.sign:
                continue
            for records in look(sign):
                proof = prove(heads[sign], one, records, sent)
                better = proof.rank > best.proof.rank
                if better or (not best.proof.count and len(records) > len(best.named)):
                    best = Staged(records, proof, sign)
                if best.proof.explains_all and best.proof.tells_sign:
                    return best
        if best.proof.explains_all:
            return best
    return best


def _one_record(head: DenseHead, one: Layers) -> Proposal:
    """The record behind a single layer, assuming there is only one.

    G = s Σ_t g_t (x, 1)ᵀ, whatever the loss vectors g_t of one step or of several were: x is a quotient.
    """
    weight, bias = one[0]
    if bias is None or not bias.any():
        return Proposal.nothing(one)
    x = bias @ weight / bias.square().sum()
    label = (head.sign * bias).argmin()  # only the label's own loss is negative
    loss = head.loss_vectors(head.forward(x)[1], label)
    share = (loss @ bias) / loss.square().sum().clamp(min=1e-300)
    return Proposal(x[None], label[None], share[None])


def prove(head: DenseHead, one: Sequence[Layer], records: Proposal, sent: Sent) -> Proof:
    """The proof of proposed records by recomputation: by the whole update, by some of its neurons, or by rows alone."""
    rounding, is_plain = sent.rounding, sent.training.is_plain
    known = sent.scale_is_known and head.sign == 1
    tried = records if is_plain else records[:0]
    best = verify(head, one, tried, rounding=rounding, scale_is_known=known)
    if not is_plain and sent.training.learning_rate is not None:
        best = _by_all_steps(head, one, records, sent) or best
    if best.explains_all:
        return best
    return _joined(best, *verify_rows(head, one, records, rounding=rounding, is_one_step=is_plain))


def _joined(proof: Proof, more: Proposal, errors: Tensor) -> Proof:
    """A proof extended by further records, without duplicates."""
    distances = torch.cdist(more.inputs, proof.proposal.inputs[proof.proven])
    near = 1e-2 * more.inputs.norm(dim=1, keepdim=True)
    twice = (torch.cdist(more.inputs, more.inputs) <= near).tril(-1).any(1)  # several groups of a record
    new = (distances > near).all(1) & ~twice
    more, errors = more[new], errors[new]
    return replace(
        proof,
        proposal=proof.proposal + more,
        proven=torch.cat([proof.proven, torch.ones_like(more.labels, dtype=torch.bool)]),
        error=torch.cat([proof.error, errors]),
    )


def _by_all_steps(head: DenseHead, one: Sequence[Layer], records: Proposal, sent: Sent) -> Proof | None:
    """The proof of a whole batch by recomputing the declared steps, each of which depends on every record."""
    rounding, steps = sent.rounding, sent.training.steps
    unknowns = records.inputs.numel() + len(records)
    if not len(records) or (records.labels < 0).any() or unknowns > 0.8 * independent_numbers(one):
        return None
    equal = records.with_shares(torch.full_like(records.shares, 1 / len(records)))
    weights = rounded_again(
        {str(index): weight for index, weight in enumerate(head.weights)}, rounding.relative
    )
    other = replace(head, weights=tuple(weights.values()))
    made, moved = (_weights_of(update_of(each, equal, sent.training)) for each in (head, other))
    held = explained(_weights_of(one), made, apart(made, moved), rounding.times(steps), scale=1.0)
    if not held.is_all:
        return None
    left = [off / max(held.sizes[name], 1e-300) for name, off in held.off.items()]
    error = torch.full_like(equal.shares, 4 * len(equal) * max(left[0], rounding.relative))
    # The first step tells what rounding hides; several add up more of it.
    coarser = Rounding(steps * rounding.relative, steps * rounding.absolute)
    first = Recomputed.of(head, update_of(head, equal, LocalTraining()), equal, coarser)
    error = torch.maximum(error, blended(first, scale_is_known=True))
    unexplained = torch.tensor(left, dtype=torch.float64)
    return Proof(equal, error < 0.1, error, unexplained, bool((error < 0.1).all()), len(equal))


def _weights_of(layers: Sequence[Layer]) -> dict[str, Tensor]:
    return {str(index): weight for index, (weight, _) in enumerate(layers)}


_COPIED = 2**24  # weights of a network that is copied in double precision
_AGREES = 1e-6  # relative: two ways to compute one gradient in double precision, in networks that cancel much


@final
@dataclass(frozen=True)
class Own:
    """The client's own module, used to check the formulas of the dense layers."""

    model: nn.Module
    head: DenseHead  # with the module's names
    shape: tuple[int, ...]  # of an input

    @classmethod
    def of(cls, model: nn.Module, head: DenseHead, shape: tuple[int, ...] | None) -> Own | None:
        """None where it would take a copy of a large network."""
        numbers = sum(value.numel() for value in model.parameters())
        shape = shape or ((head.weights[0].shape[1],) if head.is_whole_network else None)
        return None if numbers > _COPIED or shape is None else cls(model, head, shape)

    def agrees(self, records: Proposal) -> bool:
        """Whether autograd on a copy of the module, in double precision, agrees with the layers' formulas.

        Inputs of its shape reach those layers, and what enters there is exchanged. Losses are summed by shares.
        """
        own, entering = copy.deepcopy(self.model).double().eval().cpu(), records.inputs.double().cpu()
        labels, shares = records.labels.cpu(), records.shares.cpu()
        own.get_submodule(self.head.names[0]).register_forward_pre_hook(lambda *_: (entering,))
        said = logits_of(own(torch.zeros(len(records), *self.shape, dtype=torch.float64)))
        assert isinstance(said, Tensor)
        loss, layers = loss_of(said, labels, reduction="none") @ shares, set(self.head.names)
        named = {name: value for name, value in own.named_parameters() if name.rpartition(".")[0] in layers}
        parts = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        made = self.head.gradients(entering, labels, shares)
        return all(
            float((seen.double() - weight).norm()) <= _AGREES * float(weight.norm())
            for (seen, _), (weight, _) in zip(self.head.layers_of(parts), made, strict=True)
        )


@final
@dataclass(frozen=True)
class DenseReader(Reader):
    """A network that ends in dense layers: their inputs are read."""

    head: DenseHead
    own: Own | None = field(default=None, repr=False, compare=False)
    many: ClassVar[str] = "samples"
    counts: ClassVar[str] = ""
    counts_records: ClassVar[bool] = True

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:
        """Neurons balance, or the last layer's columns sum to zero."""
        sent = mechanism.sent
        for number, one in enumerate(each(gradients) if sent.training.is_plain else ()):
            fit = belonging(self.head, self.head.layers_of(one), sent.rounding)
            if not fit.is_one_step:
                raise misfit(fit, f"update {number}")

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """Caveats about what the network or the precision keeps from being tested or proven."""
        head, sent = self.head, mechanism.sent
        is_tested = head.activation.is_kinked and len(head.weights) > 1
        other = (has_another_loss(head, head.layers_of(one), sent.rounding) for one in each(gradients))
        where = (
            (caveats.UPDATE_UNTESTED, not head.activation.is_kinked),
            (caveats.UPDATE_SINGLE_LAYER, len(head.weights) == 1),
            (caveats.UPDATE_ONE_OUTPUT, has_one_logit(head)),
            (caveats.UPDATE_COARSE, sent.rounding.is_coarse),
            (
                caveats.UPDATE_OTHER_LOSS,
                sent.can_be_judged and sent.training.is_plain and is_tested and any(other),
            ),
        )
        yield from (caveat for caveat, holds in where if holds)

    def check(self, training: LocalTraining, shape: tuple[int, ...]) -> None:
        """The head's inputs are records, and one step, or exclusive rows over several, reveals them."""
        head, example = self.head, torch.Size(shape)
        numbers = head.weights[0].shape[1]
        if example.numel() != numbers or not (head.is_whole_network or len(example) == 1):
            raise InputError(
                "The inputs of the dense layers are not records.",
                needs="a network of dense layers only",
                got="features made by earlier layers",
                hint="remanence update reads the features; remanence_papers.gradients.hybrid draws pictures from them",
            )
        if training.is_plain:
            if head.activation.is_relu and len(head.weights) > 1:
                head.require_readable()
        elif len(head.weights) > 1 and (head.biases[0] is None or not head.activation.is_relu):
            raise InputError(
                "Several local steps of this network reveal no records.",
                needs="ReLU and a bias in the first layer, or a single layer",
                got=f"several local steps behind {head.activation.name}",
                hint="audit an update of one step on the same batch",
            )

    def propose(
        self, one: Mapping[str, Tensor], mechanism: SharedGradient, *, seed: int, longest: int
    ) -> tuple[Records, dict[str, int]]:
        """Samples with their shares; a sign of −1 where the update goes against the gradient."""
        head = self.head.to(next(iter(one.values())).device).double(only_first=True)
        found = read_dense(head, head.layers_of(one), mechanism.sent, seed=seed)
        inputs, labels, shares = vars(found.named).values()
        records = Records(inputs.unflatten(-1, mechanism.example_shape), labels.double(), shares)
        return records, {"proposed": len(records), "sign": found.sign}

    def prove(self, records: Records, one: Mapping[str, Tensor], sent: Sent, sign: int) -> Proof:
        """By the whole update, by some of its neurons, or by rows alone."""
        head = replace(self.head.to(records.labels.device), sign=sign)
        layers, named = head.layers_of(one), _proposal(records)
        proof = prove(head, layers, named, sent)
        if proof.explains_all and self.own is not None:
            proven = named.with_shares(proof.proposal.shares)[proof.proven]
            if not self.own.agrees(proven):  # the layers were misread
                return verify(head, layers, named[:0], rounding=sent.rounding)
        return proof


def _proposal(records: Records) -> Proposal:
    """The proposal for one update; without shares, all samples have the same."""
    shares = torch.full_like(records.labels, 1 / max(1, len(records)), dtype=torch.float64)
    shares = shares if records.weights is None else records.weights
    return Proposal(records.features.flatten(1).double(), records.labels.long(), shares)
