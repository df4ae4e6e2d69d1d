"""The weight decay in an update: λ times the weights fills every dimension, until it is taken out.

With W and G of a layer whose gradient has a low rank, W⁺(G + λW) = W⁺G + λ: λ is the eigenvalue that most have. Plain
SGD takes the same multiple of all weights off in a round, however many steps it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from remanence.updates.texts.model import TextModel

_FEWEST = 8  # dimensions that must be left over to see it in
_ROUNDS = 4


def decay_of(weights: Tensor, sent: Tensor, rank_at: Callable[[float], int]) -> float | None:
    """The multiple of a layer's weights `(outputs, inputs)` that is in its update; None without room to see it.

    `rank_at` tells the rank of the update once so much has been taken out.
    """
    if weights.shape[0] < weights.shape[1]:
        weights, sent = weights.mT, sent.mT
    width = weights.shape[1]
    few = max(_FEWEST, width // 8)
    if few > width:
        return None
    values = torch.linalg.eigvals(torch.linalg.lstsq(weights, sent).solution).real.sort().values
    start = int((values[few - 1 :] - values[: len(values) - few + 1]).argmin())
    decay, left = float(values[start : start + few].median()), few
    for _ in range(_ROUNDS):  # what the decay alone puts into the dimensions that nothing else fills
        empty = torch.linalg.svd(sent - decay * weights).Vh[-left:].mT
        there = weights @ empty
        decay = float(((sent @ empty) * there).sum() / there.square().sum())
        left = max(few, width - rank_at(decay))
    return decay


def without_decay(
    text: TextModel, gradient: Mapping[str, Tensor], precision: float
) -> tuple[dict[str, Tensor], float]:
    """The update without a decay of all weights, and that decay; as it is where its span tells, or never will."""
    plain = dict(gradient)
    if text.span(text.first, gradient, precision).tells:
        return plain, 0.0
    parameters = dict(text.model.named_parameters())
    names = [f"{name}.weight" for name in text.first.names if f"{name}.weight" in gradient]
    turned = {f"{name}.weight" for name in text.first.transposed}
    if not names:
        return plain, 0.0
    weights, sent = (
        torch.cat(
            [
                held[name].detach().double().mT if name in turned else held[name].detach().double()
                for name in names
            ]
        )
        for held in (parameters, gradient)
    )

    def taken(decay: float, some: Iterable[str]) -> dict[str, Tensor]:
        return {name: plain[name].double() - decay * parameters[name].detach().double() for name in some}

    decay = decay_of(weights, sent, lambda one: text.span(text.first, taken(one, names), precision).rank)
    if decay is None:
        return plain, 0.0
    found = taken(decay, plain)
    return (found, decay) if text.span(text.first, found, precision).tells else (plain, 0.0)
