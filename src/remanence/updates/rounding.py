"""How coarse an update's numbers are, and whether rounding alone explains the residual after recomputation.

The order in which a client summed its numbers is unknown. But rounding every weight once moves an update about as much
as the rounding inside a forward and a backward pass does, tensor by tensor, in shallow networks and in deep ones
(`integration/transformers/margins.py` measures it). So this move is measured, and `_TIMES` of it are allowed, in
addition to the rounding of the numbers sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.updates.parts import largest

HALF = 1e-4  # precisions above are half precision, in which gradients are sent but not computed
_NOTHING = 1e-30  # a smallest number below this counts as zero


@final
@dataclass(frozen=True)
class Rounding:
    """How coarse an update's numbers are: relative to each; for a difference of weights, on the weights' scale too."""

    relative: float  # 1.2e-7 for float32
    absolute: float = 0.0
    tensors: tuple[tuple[str, float], ...] = ()  # the same for some tensors, if known for each

    @classmethod
    def of(cls, dtypes: Iterable[torch.dtype]) -> Rounding:
        """The rounding of numbers sent in these formats; the coarsest counts. float16 has a smallest number."""
        formats = [torch.finfo(dtype) for dtype in dtypes if dtype.is_floating_point]
        least = max(one.smallest_normal * one.eps / 2 for one in formats)
        return cls(max(one.eps for one in formats), least if least > _NOTHING else 0.0)

    @property
    def is_coarse(self) -> bool:
        """Whether it is half precision, in which gradients are sent but not computed."""
        return self.relative > HALF

    def of_largest(self, values: Tensor) -> float:
        """The rounding relative to the largest of these numbers."""
        return self.relative + self.absolute / max(largest(values), 1e-300)

    def is_even(self, values: Tensor) -> bool:
        """Whether most of these numbers are off by as much as the largest, as those of a difference of weights are."""
        return self.absolute > self.relative * float(values.abs().median())

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
        """The rounding of one tensor."""
        return Rounding(self.relative, dict(self.tensors).get(name, self.absolute))


def coarsest(updates: Iterable[Mapping[str, Tensor]], rounding: Rounding) -> float:
    """How coarse the matrices of updates are, relative to the largest number of each."""
    return max(
        rounding.of_tensor(name).of_largest(value)
        for one in updates
        for name, value in one.items()
        if value.ndim > 1 and value.any()
    )


_TIMES = 16  # times the effect of rounding the weights
_TELLING = 1e-2  # of a tensor, that rounding may explain where it is informative
_ENOUGH = 0.5  # of the update, squared, that must lie in informative tensors


@final
@dataclass(frozen=True)
class Explained:
    """An update compared with its recomputation."""

    scale: float
    off: Mapping[str, float]  # the norm of each tensor's residual
    sizes: Mapping[str, float]  # norms of the tensors sent
    allowed: Mapping[str, float]  # what rounding explains
    most: float = _TELLING  # of a tensor: with a larger tolerance it is uninformative

    @property
    def is_all(self) -> bool:
        """Whether rounding explains the residual of an informative update."""
        told = sum(self.sizes[name] ** 2 for name in self.telling)
        whole = sum(size**2 for size in self.sizes.values())
        fits = all(self.off[name] <= self.allowed[name] for name in self.off)
        return self.scale > 0 and fits and told > _ENOUGH * whole

    def with_more(self, moves: Mapping[str, float]) -> Explained:
        """The same for records known so imprecisely that the update may have moved by this."""
        more = {name: allowed + abs(self.scale) * moves[name] for name, allowed in self.allowed.items()}
        return replace(self, allowed=more)

    @property
    def telling(self) -> list[str]:
        """Informative tensors: those with a small tolerance."""
        return [name for name, size in self.sizes.items() if self.allowed[name] <= self.most * size > 0]

    @property
    def similarity(self) -> float:
        """The cosine between the update and its recomputation."""
        whole = sum(size**2 for size in self.sizes.values())
        return max(0.0, 1 - sum(off**2 for off in self.off.values()) / max(whole, 1e-300)) ** 0.5

    @property
    def left(self) -> float:
        """The relative residual of the worst informative tensor."""
        return max((self.off[name] / self.sizes[name] for name in self.telling), default=1.0)


def explained(
    sent: Mapping[str, Tensor],
    made: Mapping[str, Tensor],
    moves: Mapping[str, float],
    rounding: Rounding,
    *,
    scale: float | None = None,
) -> Explained:
    """Compare an update with its recomputation; `moves` is how far rounding the weights once moves the latter.

    An unknown `scale` is fitted.
    """
    inner = whole = 0.0
    off, sizes, allowed = {}, {}, {}
    for name, value in sent.items():
        one, own = value.double(), made[name].double()
        inner, whole = inner + float((one * own).sum()), whole + float(own.square().sum())
        sizes[name] = float(one.norm())
    scale = inner / max(whole, 1e-300) if scale is None else scale
    for name, value in sent.items():
        off[name] = float(torch.sub(value.double(), made[name].double(), alpha=scale).norm())
        coarse = rounding.relative * sizes[name] + rounding.of_tensor(name).absolute * value.numel() ** 0.5
        allowed[name] = _TIMES * abs(scale) * moves[name] + coarse
    return Explained(scale, off, sizes, allowed)


def apart(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, float]:
    """How far two updates are apart, tensor by tensor."""
    return {name: float((value - second[name]).double().norm()) for name, value in first.items()}


def rounded_again(weights: Mapping[str, Tensor], precision: float) -> dict[str, Tensor]:
    """Weights that are off by one rounding, at random."""
    moved: dict[str, Tensor] = {}
    for seed, (name, value) in enumerate(weights.items()):
        generator = torch.Generator(device=value.device).manual_seed(seed)
        coins = torch.rand(value.shape, generator=generator, dtype=value.dtype, device=value.device)
        moved[name] = value * (1 + precision * (2 * coins - 1))
    return moved
