"""The weight decay in an update of a transformer that reads texts, seen in its first attention layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from remanence.updates.decay import decay_of
from remanence.updates.text_models import TextModel


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
