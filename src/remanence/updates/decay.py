"""The weight decay in an update: λ times the weights fills every dimension until it is subtracted.

With W and G of a layer whose gradient has a low rank, W⁺(G + λW) = W⁺G + λ: λ is the most frequent eigenvalue. Plain
SGD subtracts the same multiple of all weights in a round, however many steps it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

_FEWEST = 8  # spare dimensions needed to see it
_ROUNDS = 4


def decay_of(weights: Tensor, sent: Tensor, rank_at: Callable[[float], int]) -> float | None:
    """The multiple of a layer's weights `(outputs, inputs)` in its update; None without spare dimensions.

    `rank_at` gives the rank of the update after subtracting this much.
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
    gradient: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    names: Sequence[str],
    layer: Callable[[Mapping[str, Tensor]], Tensor | None],
    rank: Callable[[dict[str, Tensor]], int],
    tells: Callable[[dict[str, Tensor]], bool],
) -> tuple[dict[str, Tensor], float]:
    """The update without a decay of all weights, and that decay; as it is where its span tells, or never will.

    `layer` puts the tensors of these `names` together in which the decay is seen, `rank` is that of what entered there.
    """
    plain = dict(gradient)
    own, sent = layer(weights), layer(gradient)
    if own is None or sent is None or not sent.any() or tells(plain):
        return plain, 0.0

    def taken(decay: float, some: Iterable[str]) -> dict[str, Tensor]:
        return {name: plain[name].double() - decay * weights[name].double() for name in some}

    decay = decay_of(own, sent, lambda one: rank(taken(one, names)))
    found = None if decay is None else taken(decay, plain)
    return (found, decay) if found is not None and decay is not None and tells(found) else (plain, 0.0)
