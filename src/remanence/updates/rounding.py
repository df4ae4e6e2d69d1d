"""How coarse an update's numbers are, and what rounding does to everything that is recomputed from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.updates.dense_layers import DenseHead, product
from remanence.updates.parts import backwards, forwards, largest

Layer = tuple[Tensor, Tensor | None]  # weight and bias gradient of one layer of one update

_HALF = 1e-4  # precisions above are half precision
_NOTHING = 1e-30  # a smallest number below this is none


@final
@dataclass(frozen=True)
class Rounding:
    """How coarse an update's numbers are: relative to each; for a difference of weights, on the weights' scale too."""

    relative: float  # 1.2e-7 for float32
    absolute: float = 0.0
    tensors: tuple[tuple[str, float], ...] = ()  # the same for some tensors, where it is known of each

    @classmethod
    def of(cls, dtypes: Iterable[torch.dtype]) -> Rounding:
        """The rounding of numbers sent in these formats; the coarsest counts. float16 has a smallest number."""
        formats = [torch.finfo(dtype) for dtype in dtypes if dtype.is_floating_point]
        least = max(one.smallest_normal * one.eps / 2 for one in formats)
        return cls(max(one.eps for one in formats), least if least > _NOTHING else 0.0)

    @property
    def is_coarse(self) -> bool:
        """Whether it is that of half precision, in which gradients are sent and not computed."""
        return self.relative > _HALF

    def of_largest(self, values: Tensor) -> float:
        """Relative to the largest of these numbers: what an attack may expect."""
        return self.relative + self.absolute / max(largest(values), 1e-300)

    def or_coarser(self, other: Rounding) -> Rounding:
        """The coarser of two, in each respect."""
        return Rounding(
            max(self.relative, other.relative),
            max(self.absolute, other.absolute),
            tuple(
                (name, max(self.of_tensor(name).absolute, other.of_tensor(name).absolute))
                for name in dict(self.tensors + other.tensors)
            ),
        )

    def times(self, factor: float) -> Rounding:
        """The rounding of numbers that were multiplied."""
        scaled = tuple((name, absolute * abs(factor)) for name, absolute in self.tensors)
        return Rounding(self.relative, self.absolute * abs(factor), scaled)

    def of_tensor(self, name: str) -> Rounding:
        """That of the numbers of one tensor."""
        return Rounding(self.relative, dict(self.tensors).get(name, self.absolute))


def coarsest(updates: Iterable[Mapping[str, Tensor]], rounding: Rounding) -> float:
    """How coarse the matrices of updates are, relative to the largest number of each."""
    return max(
        rounding.of_tensor(name).of_largest(value)
        for one in updates
        for name, value in one.items()
        if value.ndim > 1 and value.any()
    )


def independent_numbers(layers: Sequence[Layer]) -> int:
    """How many numbers an update's weights hold that do not follow from others: the logits' rows add up to nothing."""
    counts = [int(weight.count_nonzero()) for weight, _ in layers]
    return sum(counts) - counts[-1] // len(layers[-1][0])


def rounding_errors(
    head: DenseHead,
    values: Sequence[Tensor],
    logits: Tensor,
    deltas: Sequence[Tensor],
    inputs_off: Tensor,
    precision: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """A running error analysis: what rounding, and inputs that are off, may do to each value and each derivative."""
    off, before = [inputs_off], []
    for index, (weight, value) in enumerate(zip(head.weights, values, strict=True)):
        # Errors of many terms are independent: their squares add up, not their sizes.
        both = forwards(torch.stack([off[-1].square(), value.square()]), weight, torch.square)
        spread, rounded = both.sqrt()
        after = logits if index == len(values) - 1 else values[index + 1]
        before.append(spread + precision * (rounded + after.abs()))
        off.append(before[-1])  # none of the functions between is much steeper than 1
    chances = logits.softmax(-1)
    off.pop()
    back = [chances * (1 - chances) * before.pop() + precision * chances + precision * deltas[-1].abs()]
    for index in range(len(values) - 1, 0, -1):
        weight, source, slope = head.weights[index], deltas[index], head.slopes(values, index)
        spread = backwards(back[-1].square() + (precision * source).square(), weight, torch.square).sqrt()
        error = (spread + precision * deltas[index - 1].abs()) * slope.abs()
        if not head.activation.is_kinked:  # the slope itself moves, by no more than what enters it does
            error = error + product(source, weight).abs() * before[index - 1]
        back.append(error)
    return off, back[::-1]


def loss_spread(head: DenseHead, first: Layer, inputs: Tensor) -> float:
    """How far apart loss vectors of one label lie, as the derivatives that they put into the columns: a median.

    Inputs are taken from all rows of the first layer; where neurons are shared these are mixtures, which lie closer
    together.
    """
    weight, bias = first
    points = inputs
    if bias is not None:
        live = (bias != 0).nonzero().squeeze(1)
        live = live[:: max(1, len(live) // 64)][:64]
        points = torch.cat([weight[live] / bias[live, None], inputs])
    points = points[points.isfinite().all(-1)]
    norms = points.norm(dim=-1)
    points = points[norms < 2 * norms.median()] if len(points) else points
    if len(points) < 2:
        return 0.0
    values, logits = head.forward(points)
    loss = head.loss_vectors(logits, torch.zeros(len(points), dtype=torch.int64, device=points.device))
    delta = head.backward(values, loss, down_to=1)[0]
    delta = delta / delta.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    apart = torch.cdist(delta, delta)
    pairs = torch.triu_indices(len(points), len(points), 1)
    return float(apart[pairs[0], pairs[1]].median())
