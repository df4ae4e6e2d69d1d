"""The weight decay in an update of a transformer: λ times the weights fills every dimension, until it is taken out.

With W and G of the first layer, W⁺(G + λW) = W⁺G + λ: as G has a low rank, λ is the eigenvalue that most have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from remanence.attacks.gradients.text_models import TextModel

_FEWEST = 8  # dimensions that must be left over to see it in


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
    width = weights.shape[1]
    few = max(_FEWEST, width // 8)
    if few > min(weights.shape):
        return plain, 0.0
    values = torch.linalg.eigvals(torch.linalg.lstsq(weights, sent).solution).real.sort().values
    start = int((values[few - 1 :] - values[: len(values) - few + 1]).argmin())
    decay, left = float(values[start : start + few].median()), few
    taken, span = plain, None
    for _ in range(4):  # what the decay alone puts into the dimensions that nothing else fills
        empty = torch.linalg.svd(sent - decay * weights).Vh[-left:].mT
        there = weights @ empty
        decay = float(((sent @ empty) * there).sum() / there.square().sum())
        taken = {
            name: value.double() - decay * parameters[name].detach().double() for name, value in plain.items()
        }
        span = text.span(text.first, taken, precision)
        left = max(few, width - span.rank)
    return (taken, decay) if span is not None and span.tells else (plain, 0.0)
