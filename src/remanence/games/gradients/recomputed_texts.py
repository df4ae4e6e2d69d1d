"""An update of a transformer computed anew from texts: what they leave of it, and how much each of them counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.attacks.gradients.text_models import TextModel

_AT_ONCE = 1024  # tokens whose gradient is computed at once

Named = tuple[Tensor, int | None]  # a text, and its label where a classifier read it


def recompute(
    text: TextModel, gradient: Mapping[str, Tensor], named: Sequence[Named], shares: Tensor
) -> tuple[float, list[float]]:
    """What the texts leave of the update, relatively, in the tensor that they explain least; the scale is fitted.

    And how much of the second layer's gradient each of them makes: the same pass tells.
    """
    if not named:
        return 1.0, []
    parameters = {name: p for name, p in text.model.named_parameters() if name in gradient}
    total = [torch.zeros_like(p) for p in parameters.values()]
    counts = torch.zeros(len(named), dtype=torch.float64)
    for some in alike(named):
        ids = torch.stack([named[index][0] for index in some])
        with _each(text) as each:
            losses = losses_of(text, ids, [named[index][1] for index in some])
            loss = (shares[some].to(losses) * losses).sum()
            made = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        counts[some] = torch.stack(each).sum(0).sqrt().cpu()
        for sum_, part in zip(total, made, strict=True):
            if part is not None:
                sum_ += part
    inner = squares = whole = 0.0
    for name, made in zip(parameters, total, strict=True):
        sent = gradient[name].double()
        inner, squares = inner + float((sent * made).sum()), squares + float(made.double().square().sum())
        whole += float(sent.square().sum())
    scale, worst = inner / max(squares, 1e-300), 0.0
    for name, made in zip(parameters, total, strict=True):
        sent = gradient[name].double()
        # A tensor that hardly matters is not asked for all its digits.
        size = max(float(sent.norm()), 1e-3 * whole**0.5)
        worst = max(worst, float((sent - scale * made).norm()) / size)
    return worst, (counts / counts.max().clamp(min=1e-300)).tolist()


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


def alike(named: Sequence[Named]) -> list[list[int]]:
    """Texts of one length together, up to so many tokens."""
    lengths: dict[int, list[int]] = {}
    for index, (sequence, _) in enumerate(named):
        lengths.setdefault(len(sequence), []).append(index)
    return [
        some[start : start + max(1, _AT_ONCE // length)]
        for length, some in lengths.items()
        for start in range(0, len(some), max(1, _AT_ONCE // length))
    ]


def losses_of(text: TextModel, ids: Tensor, labels: Sequence[int | None]) -> Tensor:
    """Of texts of one length: summed over their places, so that shares are those of a token; or of their labels."""
    given = [label for label in labels if label is not None]
    if given:
        wanted = torch.tensor(given, device=text.device)
        return cross_entropy(text.logits(ids), wanted, reduction="none")
    answers, wanted = text.logits(ids[:, :-1]), ids[:, 1:]
    return cross_entropy(answers.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted).sum(1)
