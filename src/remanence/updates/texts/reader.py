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

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.updates.caveats import TEXTS_OPEN, UPDATE_CROWDED
from remanence.updates.declared import LocalTraining, Parameters
from remanence.updates.rounding import Explained, Rounding, apart, coarsest, explained, rounded_again
from remanence.updates.shared_gradient import ProvenTogether, Reader, Sent, SharedGradient, each
from remanence.updates.texts.model import TextModel
from remanence.updates.texts.naming import name_sequences
from remanence.updates.texts.shares import (
    OPEN,
    Named,
    Shares,
    alike,
    count_once,
    equal_shares,
    fit_begun,
    fit_shares,
    losses_of,
)
from remanence.updates.watching import Seen, watching

_TRACE = 4  # times what rounding explains: how much a text must count
_SEEN = 1.0  # what rounding explains, in all tensors together and as a square: less is no trace of a token
_SURE = 0.9  # a less likely token leaves a clear trace


@final
@dataclass(frozen=True)
class Recomputed:
    """An update recomputed from texts, compared with the one sent."""

    held: Explained
    made: Parameters
    moves: Mapping[str, float]  # how far rounding the weights once moves that
    counts: list[float]  # of the second layer's gradient that each text makes, relative to the largest
    faint: float  # texts that count less may be there or not
    ends: Tensor  # logits of the token after each text


def recompute(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    shares: Shares,
    rounding: Rounding,
    *,
    moves: Mapping[str, float] | None = None,
) -> Recomputed:
    """Compute an update from texts with these shares; the effect of rounding is measured, if not given."""
    sent = {name: gradient[name] for name, _ in text.model.named_parameters() if name in gradient}
    own = {name: value.detach() for name, value in text.model.named_parameters() if name in sent}
    noted: list[tuple[list[float], Tensor]] = []

    def slopes(weights: Parameters) -> Parameters:
        parts, counts, ends = _made(text, weights, named, shares)
        noted.append((counts, ends))
        return parts

    made = slopes(own)
    if moves is None:
        precision = torch.finfo(next(iter(own.values())).dtype).eps
        moves = apart(made, slopes(rounded_again(own, precision)))
    held = explained(sent, made, moves, rounding)
    second = [name for name in text.second.weights(gradient) if name in sent]
    size = sum(held.sizes[name] ** 2 for name in second) ** 0.5
    faint = _TRACE * sum(held.allowed[name] ** 2 for name in second) ** 0.5 / max(size, 1e-300)
    counts, ends = noted[0]  # at the weights that came in
    return Recomputed(held, made, moves, counts, faint, ends)


def _made(
    text: TextModel, weights: Mapping[str, Tensor], named: Sequence[Named], shares: Shares
) -> tuple[Parameters, list[float], Tensor]:
    """The gradient of the sum of the texts' losses by their shares; how much each counts, and what may follow it."""
    own = {name: value.detach().requires_grad_() for name, value in weights.items()}
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    counts, ends = torch.zeros(len(named), dtype=torch.float64), [torch.empty(0)] * len(named)
    for some in alike(named):
        ids = torch.stack([named[index][0] for index in some])
        with _each(text) as each:
            losses, last = losses_of(text, ids, [named[index][1] for index in some], own)
            loss = (torch.stack([shares[index] for index in some]).to(losses) * losses).sum()
            parts = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        counts[some] = torch.stack(each).sum(0).sqrt().cpu()
        for index, logits in zip(some, last.detach(), strict=True):
            ends[index] = logits
        for name, part in zip(own, parts, strict=True):
            if part is not None:
                total[name] += part
    return total, (counts / counts.max().clamp(min=1e-300)).tolist(), torch.stack(ends)


def lengthened(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    counted: Shares,
    found: Recomputed,
) -> tuple[list[Named], Shares]:
    """Texts extended by a next token that the model is sure of, if the residual of the update has its trace.

    The position before such a token has almost no gradient, so it may lie outside the span although it was there.
    """
    longer, more = list(named), list(counted)
    if not named or named[0][1] is not None:
        return longer, counted
    chances, tokens = found.ends.softmax(-1).max(-1)
    likely = (chances >= _SURE).nonzero().squeeze(1).tolist()
    sure = [index for index in likely if len(named[index][0]) < text.longest]
    if not sure:
        return longer, counted
    rest = {
        name: (gradient[name].double() - found.held.scale * value.double())
        / max(found.held.allowed[name], 1e-300) ** 2
        for name, value in found.made.items()
    }
    own = {name: text.model.get_parameter(name) for name in rest}
    for index in sure:
        (ids, _), shares, token = named[index], counted[index], tokens[index]
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
    return longer, more


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
_LABELS = 4  # last tokens that are tried for each sequence
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
) -> Texts:
    """Recompute an update from proposed sequences: last tokens, labels and shares are solved for."""
    best = Texts(tokens=tokens)
    for named, counted, is_certain in _proposals(text, gradient, found):
        tried = _explaining(text, gradient, named, counted, rounding)
        if tried.unexplained < best.unexplained:
            best = replace(tried, tokens=tokens, is_complete=tried.is_complete and is_certain)
        if best.explains_all:
            break
    return best


def _proposals(
    text: TextModel, gradient: Mapping[str, Tensor], found: Sequence[Tensor]
) -> Iterator[tuple[list[Named], Shares, bool]]:
    """Whole texts, the weight of each position, and whether their number is certain: equal weights, then fitted."""
    if not found:
        return
    if text.classes is not None:
        labelled: list[Named] = [(ids, label) for ids in found for label in range(text.classes)]
        yield count_once(labelled, fit_shares(text, gradient, labelled))
        return
    begun: list[Named] = [(torch.cat([one, one.new_tensor([OPEN])]), None) for one in found]
    named = _with_last_tokens(text, gradient, begun, equal_shares(begun), 1)
    yield named, equal_shares(named), True
    named = _with_last_tokens(text, gradient, begun, fit_begun(text, gradient, begun), _LABELS)
    yield count_once(named, fit_shares(text, gradient, named))


def _explaining(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    counted: Shares,
    rounding: Rounding,
) -> Texts:
    """The update recomputed from texts with these shares, each extended by tokens that the model was sure of."""
    if not named:
        return Texts()
    found = recompute(text, gradient, named, counted, rounding)
    for _ in range(_LONGER if found.held.left < _NEAR else 0):
        longer, more = lengthened(text, gradient, named, counted, found)
        if all(len(new[0]) == len(old[0]) for new, old in zip(longer, named, strict=True)):
            break
        named, counted = longer, more
        found = recompute(text, gradient, longer, more, rounding, moves=found.moves)
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
    text: TextModel, gradient: Mapping[str, Tensor], begun: Sequence[Named], shares: Shares, most: int
) -> list[Named]:
    """Texts with their last token, read off the rows of the output layer that the rest does not explain."""
    parameters = {name: p for name, p in text.model.named_parameters() if name in gradient}
    head, layers = _output_layers(text, parameters)
    loss, seen, order = torch.zeros((), device=text.device), list[Seen](), list[int]()
    with watching(layers, seen):
        for some in alike(begun):
            losses, _ = losses_of(text, torch.stack([begun[index][0] for index in some]), [None])
            loss = loss + (torch.stack([shares[index] for index in some]).to(losses) * losses).sum()
            order += some
    last = [one for _, entered, _ in seen if entered.ndim == 3 for one in entered[:, -1].double()]
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
        read = dict(zip(order, last, strict=True)) if len(last) == len(order) else {}
        hidden = torch.stack(
            [read[k] if read else _last_hidden(text, head, one) for k, one in enumerate(prefixes)], 1
        )
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


def _output_layers(
    text: TextModel, parameters: Mapping[str, Tensor]
) -> tuple[str | None, Mapping[str, nn.Module]]:
    """The matrix that makes logits, its own or the embedding's, and the layer that multiplies by it.

    Without such a layer, as where the model's own code multiplies, it is read like a model of adapters.
    """
    for name, value in parameters.items():
        layers = {n: one for n, one in text.model.named_modules() if getattr(one, "weight", None) is value}
        layers = {n: one for n, one in layers.items() if isinstance(one, nn.Linear)}
        if layers and len(value) == text.vocabulary:
            return name, layers
    some = torch.zeros(1, dtype=torch.int64, device=text.device)
    for name, value in parameters.items():
        if value.ndim == 2 and len(value) == text.vocabulary and _last_hidden(text, name, some).any():
            return name, {}
    return None, {}


def _last_hidden(text: TextModel, head: str, prefix: Tensor) -> Tensor:
    """What the output matrix reads at the last position: the derivative of a logit by its row."""
    weight = text.model.get_parameter(head)
    absent = int(torch.ones(len(weight), device=text.device).index_fill(0, prefix, 0).argmax())
    answer = text.logits(prefix[None])[0, -1, absent]  # of a row that no input embedding touches
    (made,) = torch.autograd.grad(answer, weight, allow_unused=True)
    return torch.zeros_like(weight[0]).double() if made is None else made[absent].double()


@final
@dataclass(frozen=True)
class TokenReader(Reader):
    """A transformer that reads token ids: whole texts are read."""

    model: TextModel
    many: ClassVar[str] = "texts"

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """A caveat if the layers are too narrow to distinguish texts."""
        for index, one in enumerate(each(gradients)):
            text, precision = self.read_at(one, mechanism.sent.rounding)
            for layer, which in (("first", text.first), ("second", text.second)):
                span = text.span(which, one, precision)
                if not span.tells:
                    fills = (
                        f"update {index}: what entered the {layer} attention layer fills {span.rank} dimensions, of "
                        f"{span.most} that its gradient has."
                    )
                    none = f"update {index}: the {layer} attention layer has no gradient."
                    yield replace(UPDATE_CROWDED, seen=fills if span.outputs else none)
                    return
        yield TEXTS_OPEN

    def check(self, training: LocalTraining, shape: tuple[int, ...]) -> None:
        """One step of SGD: between several the weights moved, and other optimisers leave no span."""
        if not training.is_plain:
            raise InputError(
                "Texts are proven from one step of SGD alone.",
                needs="an update of one step of SGD",
                got=f"{training.steps} steps of {training.optimizer}",
                hint="audit the first step; undeclared, the tokens that fit are still counted, and no text is proven",
            )

    def read_at(self, gradient: Mapping[str, Tensor], rounding: Rounding) -> tuple[TextModel, float]:
        """The model with the rounding of its updates, and how coarse the layers are whose spans are read."""
        names = {*self.model.first.weights(gradient), *self.model.second.weights(gradient)}
        layers = {name: value for name, value in gradient.items() if name in names}
        told = layers if any(value.any() for value in layers.values()) else gradient
        return replace(self.model, is_difference=bool(rounding.tensors)), coarsest([told], rounding)

    def propose(
        self, one: Mapping[str, Tensor], mechanism: SharedGradient, *, seed: int, longest: int
    ) -> tuple[Records, dict[str, int]]:
        """Texts as ids; −1 fills the rest. The last token of a language model's texts is a label only."""
        text, precision = self.read_at(one, mechanism.sent.rounding)
        found, tokens = name_sequences(text, one, precision=precision, longest=longest)
        ids = torch.full((len(found[: self.slots]), longest), -1)
        for row, sequence in zip(ids, found, strict=False):
            row[: len(sequence)] = sequence
        return Records(ids, torch.zeros(len(ids))), {"tokens_in_batch": tokens}

    def prove(self, records: Records, one: Mapping[str, Tensor], sent: Sent, sign: int) -> Texts:
        """By the whole update, in either sign if none was declared: spans and proposals are the same."""
        named, best = [ids[ids >= 0] for ids in records.features], None
        for tried in (1,) if sent.sign_is_known else (1, -1):
            turned = {name: tried * value for name, value in one.items()}
            found = replace(verify_texts(self.model, turned, named, rounding=sent.rounding), sign=tried)
            if found.explains_all:
                return found
            best = best or found
        assert best is not None
        return best
