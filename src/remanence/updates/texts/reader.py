"""Texts behind an update of a transformer: the attack's proposals, and their proof by recomputing the update.

The attack grows sequences within the spans of the first two layers. Here the last token of each, which is a label
only, is solved for; the share of every sequence is fitted, so that phantoms get none; and the whole update is
recomputed from the remaining texts. Texts are proven if the residual is mere rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.attack import Reconstruction
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.updates.caveats import TEXTS_OPEN, UPDATE_CROWDED
from remanence.updates.decay import without_decay
from remanence.updates.declared import LocalTraining
from remanence.updates.rounding import Explained, Rounding, apart, coarsest, explained, rounded_again
from remanence.updates.shared_gradient import Effort, ProvenTogether, SharedGradient
from remanence.updates.texts.model import TextModel
from remanence.updates.texts.naming import name_after_steps, name_sequences
from remanence.updates.texts.shares import (
    OPEN,
    Counted,
    Named,
    alike,
    count_once,
    fit_begun,
    fit_shares,
    losses_of,
)

_TRACE = 4  # times what rounding explains: how much a text must count
_SEEN = 1.0  # what rounding explains, in all tensors together and as a square: less is no trace of a token
_SURE = 0.9  # a less likely token leaves a clear trace

Parameters = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Recomputed:
    """An update recomputed from texts, compared with the one sent."""

    held: Explained
    made: Parameters
    moves: Mapping[str, float]  # how far rounding the weights once moves that
    counts: tuple[
        float, ...
    ]  # how much of the second layer's gradient each text makes, relative to the largest
    faint: float  # texts that count less may be there or not


def recompute(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    counted: Counted,
    rounding: Rounding,
    *,
    training: LocalTraining,
    moves: Mapping[str, float] | None = None,
) -> Recomputed:
    """Compute an update from texts with these shares; the effect of rounding is measured, if not given."""
    sent = {name: gradient[name] for name, _ in text.model.named_parameters() if name in gradient}
    own = {name: value.detach() for name, value in text.model.named_parameters() if name in sent}
    counts: list[float] = []

    def slopes(weights: Parameters) -> Parameters:
        parts, shares = _made(text, weights, named, counted)
        counts.extend(shares)
        return parts

    made = training.along(own, slopes)
    if moves is None:
        precision = torch.finfo(next(iter(own.values())).dtype).eps
        moves = apart(made, training.along(rounded_again(own, precision), slopes))
    steps = rounding.times(training.steps)  # weights are rounded after each
    held = explained(sent, made, moves, steps)
    second = [name for name in text.second.weights(gradient) if name in sent]
    size = sum(held.sizes[name] ** 2 for name in second) ** 0.5
    faint = _TRACE * sum(held.allowed[name] ** 2 for name in second) ** 0.5 / max(size, 1e-300)
    return Recomputed(held, made, moves, tuple(counts[: len(named)]), faint)


def _made(
    text: TextModel, weights: Mapping[str, Tensor], named: Sequence[Named], counted: Counted
) -> tuple[Parameters, list[float]]:
    """The gradient of the sum of the texts' losses by their shares; and how much each of them counts."""
    own = {name: value.detach().requires_grad_() for name, value in weights.items()}
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    counts = torch.zeros(len(named), dtype=torch.float64)
    for some in alike(named):
        ids = torch.stack([named[index][0] for index in some])
        with _each(text) as each:
            losses = losses_of(text, ids, [named[index][1] for index in some], own, counted.smoothing)
            loss = (torch.stack([counted.shares[index] for index in some]).to(losses) * losses).sum()
            parts = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        counts[some] = torch.stack(each).sum(0).sqrt().cpu()
        for name, part in zip(own, parts, strict=True):
            if part is not None:
                total[name] += part
    return total, (counts / counts.max().clamp(min=1e-300)).tolist()


def lengthened(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    counted: Counted,
    found: Recomputed,
) -> tuple[list[Named], Counted]:
    """Texts extended by a next token that the model is sure of, if the residual of the update has its trace.

    The position before such a token has almost no gradient, so it may lie outside the span although it was there.
    """
    longer, more = list(named), list(counted.shares)
    if not named or named[0][1] is not None:
        return longer, counted
    chances, tokens = _last_logits(text, [ids for ids, _ in named]).softmax(-1).max(-1)
    sure = (chances >= _SURE).nonzero().squeeze(1).tolist()
    if not sure:
        return longer, counted
    rest = {
        name: (gradient[name].double() - found.held.scale * value.double())
        / max(found.held.allowed[name], 1e-300) ** 2
        for name, value in found.made.items()
    }
    own = {name: text.model.get_parameter(name) for name in rest}
    for index in sure:
        (ids, _), shares, token = named[index], counted.shares[index], tokens[index]
        answer = text.logits(ids[None])[0, -1]
        parts = torch.autograd.grad(
            float(shares[-1]) * found.held.scale * cross_entropy(answer[None], token[None]),
            list(own.values()),
            allow_unused=True,
        )
        along = size = 0.0
        for (name, left), part in zip(rest.items(), parts, strict=True):
            if part is not None:
                along += float((left * part.double()).sum())
                size += float(part.double().square().sum()) / max(found.held.allowed[name], 1e-300) ** 2
        # Nearer to all of the trace than to none. Of the rounding residual, which points anywhere, almost nothing lies
        # along a trace: 0.03 of one of this size at most, in a model of 135 million weights.
        if along > size / 2 and size > _SEEN:
            longer[index] = torch.cat([ids, token[None]]), None
            more[index] = torch.cat([shares, shares[-1:]])
    return longer, Counted(tuple(more), counted.smoothing)


@contextmanager
def _each(text: TextModel) -> Iterator[list[Tensor]]:
    """Notes the squared size of the gradient that every text of a batch makes in the second layer's projections."""
    found: list[Tensor] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...], answer: Tensor) -> None:
        entered = arguments[0].detach().double()
        if answer.requires_grad:
            answer.register_hook(lambda pull: found.append((pull.double().mT @ entered).square().sum((1, 2))))

    handles = [text.model.get_submodule(name).register_forward_hook(note) for name in text.second.names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


_LONGER = 16  # tokens that are added to texts at most
_NEAR = 0.1  # the largest residual of an update for which that is tried
_LARGE = 1e-3  # of the largest row of the output layer's gradient
_COUNTS = 0.3  # of the largest share: places with less do not count, where shares are off by what steps moved
_LABELS = 4  # last tokens that are tried for each sequence
_TEXTS = 64  # that are named at most
_STEP = 1e-3  # of the weights' size, by which they are moved to see what moves with them


@final
@dataclass(frozen=True, kw_only=True)
class Texts(ProvenTogether):
    """The findings in one update."""

    sequences: tuple[tuple[int, ...], ...] = ()  # of token ids; proven only if `explains_all`
    labels: tuple[int, ...] = ()  # of a classifier; empty for a language model
    tokens: int = 0  # distinct tokens that fit the first layer's span, or whose embedding moved
    is_complete: bool = True  # none was left out for having almost no weight
    sign: int = 1  # −1 where the update goes against the gradient

    @property
    def batch_size(self) -> int | None:
        """The batch size, if that is proven too."""
        return (self.count or None) if self.is_complete else None

    def numbers(self) -> dict[str, float]:
        """Further numbers to store about them."""
        return {**super().numbers(), "sign": float(self.sign)}


def read_texts(
    text: TextModel, gradient: Mapping[str, Tensor], *, precision: float, longest: int = 64
) -> Texts:
    """Everything that one update reveals about its texts."""
    found, tokens = name_sequences(text, gradient, precision=precision, longest=longest)
    return verify_texts(text, gradient, found, rounding=Rounding(precision), tokens=tokens)


def verify_texts(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    found: Sequence[Tensor],
    *,
    rounding: Rounding,
    tokens: int = 0,
    training: LocalTraining | None = None,
) -> Texts:
    """Recompute an update from proposed sequences: last tokens, labels and shares are solved for."""
    training = training or LocalTraining()
    best = Texts(tokens=tokens)
    proposals = _proposals if training.is_plain else _proposals_of_steps
    for named, counted, is_certain in proposals(text, gradient, found):
        tried = _explaining(text, gradient, named, counted, rounding, training=training)
        if tried.unexplained < best.unexplained:
            best = replace(tried, tokens=tokens, is_complete=tried.is_complete and is_certain)
        if best.explains_all:
            break
    return best


def _proposals(
    text: TextModel, gradient: Mapping[str, Tensor], found: Sequence[Tensor]
) -> Iterator[tuple[list[Named], Counted, bool]]:
    """Whole texts, the weight of each position, and whether their number is certain: equal weights, then fitted."""
    if not found:
        return
    with torch.no_grad():
        answer = text.logits(found[0][None])
    if answer.ndim == 2:
        labelled = [(sequence, label) for sequence in found for label in range(answer.shape[-1])]
        yield count_once(labelled, *fit_shares(text, gradient, labelled))
        return
    begun: list[Named] = [(torch.cat([one, one.new_tensor([OPEN])]), None) for one in found]
    named = _with_last_tokens(text, gradient, begun, Counted.alike(begun), 1)
    yield named, Counted.alike(named), True
    named = _with_last_tokens(text, gradient, begun, fit_begun(text, gradient, begun), _LABELS)
    yield count_once(named, *fit_shares(text, gradient, named))


def _proposals_of_steps(
    text: TextModel, gradient: Mapping[str, Tensor], found: Sequence[Tensor]
) -> Iterator[tuple[list[Named], Counted, bool]]:
    """The same for several steps, which depend on the weight of each position: the usual means are tried.

    A fit to the first step decides which positions count, and which label a text has.
    """
    fitted = list(_proposals(text, gradient, found))
    for named, counted, _ in [fitted[0], fitted[-1]] if fitted else []:
        largest = max((float(shares.max()) for shares in counted.shares), default=0.0)
        marks = [(shares > _COUNTS * largest).double() for shares in counted.shares]
        kept = [index for index, mark in enumerate(marks) if mark.any()]
        if kept:
            texts, counting = [named[index] for index in kept], [marks[index] for index in kept]
            total = sum(float(mark.sum()) for mark in counting)
            yield texts, Counted(tuple(mark / total for mark in counting)), True
            if len({float(mark.sum()) for mark in counting}) > 1:
                yield texts, Counted(tuple(mark / mark.sum() / len(kept) for mark in counting)), True


def _explaining(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    counted: Counted,
    rounding: Rounding,
    *,
    training: LocalTraining,
) -> Texts:
    """The update recomputed from texts with these shares, each extended by tokens that the model was sure of."""
    if not named:
        return Texts()
    found = recompute(text, gradient, named, counted, rounding, training=training)
    for _ in range(_LONGER if found.held.left < _NEAR and training.is_plain else 0):
        longer, more = lengthened(text, gradient, named, counted, found)
        if all(len(new[0]) == len(old[0]) for new, old in zip(longer, named, strict=True)):
            break
        named, counted = longer, more
        found = recompute(text, gradient, longer, more, rounding, training=training, moves=found.moves)
    counting = sorted(zip(found.counts, named, strict=True), key=lambda one: one[0])
    sure = {  # a text counts once, with the label that counts most
        tuple(sequence.tolist()): label for count, (sequence, label) in counting if count > found.faint
    }
    labels = tuple(label for label in sure.values() if label is not None)
    complete, held = len(sure) == len(named), found.held
    return Texts(
        named=len(sure), unexplained=held.left, explains_all=held.is_all, similarity=held.similarity,
        sequences=tuple(sure), labels=labels, is_complete=complete,
    )  # fmt: skip


def _with_last_tokens(
    text: TextModel, gradient: Mapping[str, Tensor], begun: Sequence[Named], counted: Counted, most: int
) -> list[Named]:
    """Texts with their last token, read off the rows of the output layer that the rest does not explain."""
    parameters = {name: p for name, p in text.model.named_parameters() if name in gradient}
    head = _output_weight(text, parameters)
    loss = torch.zeros((), device=text.device)
    for some in alike(begun):
        losses = losses_of(text, torch.stack([begun[index][0] for index in some]), [None])
        loss = loss + (torch.stack([counted.shares[index] for index in some]).to(losses) * losses).sum()
    used = {head: parameters[head]} if head is not None else parameters
    made = torch.autograd.grad(loss, list(used.values()), allow_unused=True)
    explained = {
        name: torch.zeros_like(value, dtype=torch.float64) if part is None else part.double()
        for (name, value), part in zip(used.items(), made, strict=True)
    }
    sent = {name: gradient[name].double() for name in used}
    prefixes = [sequence[:-1] for sequence, _ in begun]
    if head is None:
        share = _inner(sent, explained) / max(_inner(explained, explained), 1e-300)
        plain = 1 / sum(len(prefix) for prefix in prefixes)  # in a mean over all places of the batch
        share = plain if 0.5 < share / plain < 2 else share
        rest = {name: sent[name] / share - explained[name] for name in used}
        pulls = [_pull(text, rest, prefix) for prefix in prefixes]
    else:
        # Most tokens end no text: their rows are explained but for the share of a token, whatever the scale.
        rows, own = sent[head], explained[head]
        sizes = own.norm(dim=1)
        large = sizes > _LARGE * sizes.max()  # rows that are nearly zero say little about the scale
        share = ((rows * own).sum(1) / sizes.square())[large].median()
        # What is left is −Σ over texts of (row of the last token) × (what the output layer reads there): solve for all.
        hidden = torch.stack(_last_hidden(text, head, prefixes), 1)
        pulls = ((own - rows / share) @ torch.linalg.pinv(hidden, rtol=1e-5).mT).unbind(1)
    return [
        (torch.cat([prefix, token[None].to(prefix)]), None)
        for prefix, pull in zip(prefixes, pulls, strict=True)
        for token in pull.topk(min(most, len(pull))).indices
    ]


def _inner(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return sum(float((first[name] * second[name]).sum()) for name in first)


def _pull(text: TextModel, rest: Mapping[str, Tensor], prefix: Tensor) -> Tensor:
    """How much each token's logit at the last position moves with the residual of the update: most for the label.

    Adapters have no row for each token. The residual is minus the derivative of the labels' logits, so a small step
    against it raises those most.
    """
    parameters = dict(text.model.named_parameters())
    size = max(_inner(rest, rest) ** 0.5, 1e-300)
    reach = (
        _STEP * max(1.0, sum(float(parameters[name].detach().square().sum()) for name in rest) ** 0.5) / size
    )
    lifted = []
    for side in (1, -1):
        moved = {
            name: parameters[name].detach() - (side * reach * value).to(parameters[name])
            for name, value in rest.items()
        }
        with torch.no_grad():
            lifted.append(text.logits(prefix[None], moved)[0, -1].double())
    return lifted[0] - lifted[1]


def _output_weight(text: TextModel, parameters: Mapping[str, Tensor]) -> str | None:
    """The matrix that makes logits: one row per token, its own or the embedding's."""
    rows = [name for name, value in parameters.items() if value.ndim == 2 and len(value) == text.vocabulary]
    return rows[-1] if rows else None


def _last_hidden(text: TextModel, head: str, prefixes: Sequence[Tensor]) -> list[Tensor]:
    """The input of the output matrix at the last position of each, by least squares from the logits.

    If the logits have a bias or a cap, the derivative of a logit is used instead.
    """
    weight = text.model.get_parameter(head)
    matrix = weight.detach().double()
    square = torch.linalg.cholesky_ex(matrix.mT @ matrix).L
    said = _last_logits(text, prefixes).double()
    solved = torch.cholesky_solve((said @ matrix).mT, square).mT
    off = (solved @ matrix.mT - said).norm(dim=1) > 1e-3 * said.norm(dim=1)
    found = []
    for prefix, hidden, logits, is_off in zip(prefixes, solved, said, off.tolist(), strict=True):
        if is_off:
            absent = int(torch.ones(len(logits), device=text.device).index_fill(0, prefix, 0).argmax())
            answer = text.logits(prefix[None])[0, -1, absent]  # of a row that no input embedding touches
            found.append(torch.autograd.grad(answer, weight)[0][absent].double())
        else:
            found.append(hidden)
    return found


@torch.no_grad()
def _last_logits(text: TextModel, sequences: Sequence[Tensor]) -> Tensor:
    """The logits at the last position of each, `(sequences, vocabulary)`, batched by length."""
    found: dict[int, Tensor] = {}
    for some in alike([(ids, None) for ids in sequences]):
        said = text.logits(torch.stack([sequences[index] for index in some]))[:, -1]
        found |= dict(zip(some, said, strict=True))
    return torch.stack([found[index] for index in range(len(sequences))])


@final
@dataclass(frozen=True)
class TokenReader:
    """A transformer that reads token ids: whole texts are read."""

    model: TextModel
    many: ClassVar[str] = "texts"
    counts: ClassVar[str] = "Records count only if the whole update can be recomputed from them."
    counts_records: ClassVar[bool] = False

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:
        """Only recomputation can decide."""

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """A caveat if the layers are too narrow to distinguish texts."""
        text = self.text(mechanism)
        for index in range(len(gradients)):
            one = {name: values[index] for name, values in gradients.tensors.items()}
            precision = self.precision([one], mechanism)
            for layer, which in (("first", text.first), ("second", text.second)):
                span = text.span(which, one, precision)
                if not span.tells:
                    fills = (
                        f"update {index}: what entered the {layer} attention layer fills {span.rank} dimensions, of "
                        f"{span.most} that its gradient has."
                    )
                    none = f"update {index}: the {layer} attention layer has no gradient."
                    yield replace(UPDATE_CROWDED, seen=none if span.part is None else fills)
                    return
        yield TEXTS_OPEN

    def proofs(
        self, guess: Reconstruction, gradients: Gradient, mechanism: SharedGradient, *, claims: bool
    ) -> list[Texts]:
        """By the whole update, in either sign if none was declared: spans and proposals are the same."""
        text, sent, found = self.text(mechanism), mechanism.sent, []
        for index, sequences in enumerate(guess.records.features):
            named = [ids[ids >= 0] for ids in sequences if claims and (ids >= 0).any()]
            tokens = int(guess.diagnostics["tokens_in_batch"][index])
            best = None
            for sign in (1,) if sent.sign_is_known else (1, -1):
                one = {name: sign * values[index] for name, values in gradients.tensors.items()}
                tried = verify_texts(
                    text, one, named, rounding=sent.rounding, tokens=tokens, training=sent.training
                )
                if best is None or tried.explains_all:
                    best = replace(tried, sign=sign)
                if tried.explains_all:
                    break
            assert best is not None
            found.append(best)
        return found

    def without_decay(
        self, gradient: Mapping[str, Tensor], rounding: Rounding
    ) -> tuple[dict[str, Tensor], float]:
        """An update of one step without a decay of the weights, and that decay."""
        text = replace(self.model, is_difference=bool(rounding.tensors))
        precision = self.coarseness([dict(gradient)], rounding)
        weights = {name: value.detach() for name, value in text.model.named_parameters()}
        return without_decay(
            gradient,
            weights,
            [f"{name}.weight" for name in text.first.names if f"{name}.weight" in gradient],
            text.first.rows,
            lambda one: text.span(text.first, one, precision).rank,
            lambda one: text.span(text.first, one, precision).tells,
        )

    def check(self, mechanism: SharedGradient) -> None:
        """Any optimiser is accepted: whether the span survives is seen when it is read."""

    def text(self, mechanism: SharedGradient) -> TextModel:
        """The model, with the rounding of its updates."""
        return replace(self.model, is_difference=mechanism.sent.is_difference)

    def precision(self, gradients: Sequence[dict[str, Tensor]], mechanism: SharedGradient) -> float:
        """How coarse the layers are whose spans are read."""
        return self.coarseness(gradients, mechanism.sent.rounding)

    def coarseness(self, gradients: Sequence[dict[str, Tensor]], rounding: Rounding) -> float:
        """The same, from the rounding of their numbers."""
        read = {*self.model.first.weights(gradients[0]), *self.model.second.weights(gradients[0])}
        layers = [{name: value for name, value in one.items() if name in read} for one in gradients]
        told = layers if any(value.any() for value in layers[0].values()) else gradients
        return coarsest(told, rounding)

    def reconstruct(self, release: Gradient, mechanism: SharedGradient, effort: Effort) -> Reconstruction:
        """Texts as ids; −1 fills the rest. The last token of a language model's texts is a label only."""
        text = self.text(mechanism)
        name = name_sequences if mechanism.sent.training.steps == 1 else name_after_steps
        ids = torch.full((len(release), _TEXTS, effort.longest), -1)
        tokens = torch.zeros(len(release), dtype=torch.int64)
        for trial in range(len(release)):
            gradient = {name: values[trial] for name, values in release.tensors.items()}
            precision = self.precision([gradient], mechanism)
            found, tokens[trial] = name(text, gradient, precision=precision, longest=effort.longest)
            for slot, sequence in enumerate(found[:_TEXTS]):
                ids[trial, slot, : len(sequence)] = sequence
        unnamed = torch.full(ids.shape[:2], torch.nan, dtype=torch.float64)
        return Reconstruction(Records(ids, unnamed), diagnostics={"tokens_in_batch": tokens})
