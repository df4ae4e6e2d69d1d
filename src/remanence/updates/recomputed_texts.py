"""An update of a transformer computed anew from texts: what they leave of it, and how much each of them counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.updates.explaining import Explained, apart, explained, rounded_again
from remanence.updates.local_training import LocalTraining
from remanence.updates.rounding import Rounding
from remanence.updates.text_models import TextModel
from remanence.updates.text_shares import Counted, Named, alike, losses_of

_TRACE = 4  # times what rounding explains: how much a text must count
_SEEN = 1.0  # what rounding explains, in all tensors together and as a square: less is no trace of a token
_SURE = 0.9  # a token that is less likely leaves a trace that nobody overlooks

Parameters = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Recomputed:
    """An update computed anew from texts, beside what was sent."""

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
    """Compute an update from texts that count so much in it; what rounding moves is measured, if not given."""
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
    """Texts with the token after them that the model is sure of, where what is left of the update has its trace.

    The place before such a token has hardly any gradient, so that it may lie outside the span although it was there.
    """
    rest = {
        name: (gradient[name].double() - found.held.scale * value.double())
        / max(found.held.allowed[name], 1e-300) ** 2
        for name, value in found.made.items()
    }
    own = {name: text.model.get_parameter(name) for name in rest}
    longer: list[Named] = []
    more: list[Tensor] = []
    for (ids, label), shares in zip(named, counted.shares, strict=True):
        longer.append((ids, label))
        more.append(shares)
        if label is not None:
            continue
        with torch.no_grad():
            chance, token = text.logits(ids[None])[0, -1].softmax(-1).max(0)
        if chance < _SURE:
            continue
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
        # Nearer to all of the trace than to none. Of what rounding leaves, which points anywhere, hardly anything lies
        # along a trace: 0.03 of one of this size at most, in a model of 135 million weights.
        if along > size / 2 and size > _SEEN:
            longer[-1] = torch.cat([ids, token[None]]), None
            more[-1] = torch.cat([shares, shares[-1:]])
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
