"""What happens to an update before it is sent: filters that people switch on, and signs of them in a file.

Filters are heuristics, but for noise: each keeps, rounds or disturbs numbers of the update, and none promises anything.
What one does to reconstruction is measured by the same attacks before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.bounds import Bound, gaussian
from remanence.core.exceptions import InputError
from remanence.results.caveats import Caveat
from remanence.updates.caveats import UPDATE_COMPRESSED, UPDATE_NOISED
from remanence.updates.rounding import Rounding

Update = Mapping[str, Tensor]

_CODES = 256  # different numbers that a tensor of 8-bit codes has at most
_FEWEST = 15  # and at least: those of 4 bits
_ZEROS = 0.3  # of a matrix outside of rows and columns that are zero throughout: what ReLU does not explain
_GRID = 1e-3  # of a step, by which a number may be off the grid


@final
@dataclass(frozen=True)
class Filter:
    """A filter by name, with its settings: `topk=0.1`, `clip-noise=1,0.5`."""

    name: str
    settings: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Filter:
        """From the command line; settings that are left out are the usual ones."""
        name, _, values = text.partition("=")
        try:
            given = tuple(float(value) for value in values.split(",")) if values else ()
        except ValueError:
            given = (float("nan"),)
        if name not in _FILTERS or len(given) > len(_FILTERS[name][1]) or not all(0 < v < 1e9 for v in given):
            raise InputError(
                "This filter is not known.",
                needs="; ".join(
                    f"{known}={','.join(f'{v:g}' for v in usual)}" if usual else known
                    for known, (_, usual, _) in _FILTERS.items()
                ),
                got=text,
                hint="--filter topk=0.1, or --filter clip-noise=1,0.5 for a clipping norm of 1 and noise of half of it",
            )
        return cls(name, (*given, *_FILTERS[name][1][len(given) :]))

    def __str__(self) -> str:
        settings = ", ".join(f"{value:g}" for value in self.settings)
        return f"{self.name} ({settings})" if settings else self.name

    @property
    def means(self) -> str:
        """What it does, in a sentence."""
        return _FILTERS[self.name][2]

    def to_json(
        self, counts: Mapping[str, Mapping[str, int]], ceilings: Sequence[Bound]
    ) -> dict[str, object]:
        """The entry in audit.json: what comes back `before` it and `after` it, and what no attack exceeds."""
        success = [float(bound.success) for bound in ceilings]
        return {"filter": str(self), "means": self.means, **counts, "ceilings": success}

    def apply(self, update: Update, generator: torch.Generator) -> dict[str, Tensor]:
        """What is left of an update."""
        return _FILTERS[self.name][0](update, generator, *self.settings)

    def ceilings(self, candidates: int) -> tuple[Bound, ...]:
        """What no attack exceeds where there is noise: two clipped updates differ by twice the norm at most."""
        if self.name != "clip-noise":
            return ()
        return (gaussian(1 / candidates, noise_multiplier=self.settings[1] / 2),)


def _each(change: Callable[..., Tensor]) -> Callable[..., dict[str, Tensor]]:
    """A filter that looks at one tensor at a time."""

    def apply(update: Update, generator: torch.Generator, *settings: float) -> dict[str, Tensor]:
        del generator
        return {name: change(value, *settings) for name, value in update.items()}

    return apply


def _topk(values: Tensor, share: float) -> Tensor:
    floor = values.abs().flatten().topk(max(1, round(share * values.numel()))).values[-1]
    return values.where(values.abs() >= floor, 0.0)


def _codes(values: Tensor, bits: float) -> Tensor:
    step = values.abs().max().clamp(min=1e-30) / (2 ** (int(bits) - 1) - 1)
    return (values / step).round() * step


def _low_rank(values: Tensor, rank: float) -> Tensor:
    if values.ndim < 2:
        return values
    left, sizes, right = torch.linalg.svd(values.flatten(1), full_matrices=False)
    kept = int(rank)
    return ((left[:, :kept] * sizes[:kept]) @ right[:kept]).view_as(values)


def _norm(update: Update) -> Tensor:
    return torch.stack([value.square().sum() for value in update.values()]).sum().sqrt()


def _percentile(
    update: Update, generator: torch.Generator, percentile: float, limit: float
) -> dict[str, Tensor]:
    """NVFLARE's PercentilePrivacy: small entries become zero, large ones are cut off."""
    del generator
    sizes = torch.cat([value.abs().flatten() for value in update.values()])
    cutoff = sizes.kthvalue(max(1, round(percentile / 100 * len(sizes)))).values
    return {name: v.where(v.abs() >= cutoff, 0.0).clamp(-limit, limit) for name, v in update.items()}


def _svt(
    update: Update, generator: torch.Generator, share: float, epsilon: float, noise: float, limit: float
) -> dict[str, Tensor]:
    """After NVFLARE's SVTPrivacy: a share of the entries above a noisy threshold, cut off and with Laplace noise."""
    flat = torch.cat([value.flatten() for value in update.values()])
    cut = flat.clamp(-limit, limit)

    def laplace(scale: float) -> Tensor:
        uniform = torch.rand(len(flat), generator=generator, dtype=torch.float64) - 0.5
        return -scale * uniform.sign() * torch.log1p(-2 * uniform.abs())

    wanted = max(1, round(share * len(flat)))
    scores = cut.abs() + laplace(2 * limit * wanted / epsilon)
    kept = torch.zeros(len(flat), dtype=torch.bool).index_fill(0, scores.topk(wanted).indices, value=True)
    sent = (cut + laplace(2 * limit / noise).to(flat)).clamp(-limit, limit).where(kept, 0.0).to(flat)
    parts = sent.split([value.numel() for value in update.values()])
    return {name: part.view_as(value) for part, (name, value) in zip(parts, update.items(), strict=True)}


def _clip_noise(
    update: Update, generator: torch.Generator, limit: float, multiplier: float
) -> dict[str, Tensor]:
    factor = float((limit / _norm(update)).clamp(max=1))
    return {
        name: factor * value + limit * multiplier * torch.randn(value.shape, generator=generator).to(value)
        for name, value in update.items()
    }


_FILTERS: dict[str, tuple[Callable[..., dict[str, Tensor]], tuple[float, ...], str]] = {
    "svt": (_svt, (0.1, 0.1, 0.1, 1e-5), "a share of the entries, cut off, with Laplace noise (after NVFLARE's)"),
    "percentile": (_percentile, (10.0, 0.01), "small entries become zero, large ones are cut off (NVFLARE's)"),
    "topk": (_each(_topk), (0.1,), "the largest share of each tensor is kept"),
    "sign": (_each(torch.sign), (), "only signs are sent"),
    "int8": (_each(lambda v: _codes(v, 8)), (), "each tensor in 255 steps"),
    "int4": (_each(lambda v: _codes(v, 4)), (), "each tensor in 15 steps"),
    "half": (_each(lambda v: v.half().float()), (), "float16"),
    "low-rank": (_each(_low_rank), (4.0,), "each matrix by its largest singular values"),
    "clip": (
        lambda update, _, limit: {n: float((limit / _norm(update)).clamp(max=1)) * v for n, v in update.items()},
        (1.0,),
        "the whole update is scaled down to a norm",
    ),
    "clip-noise": (_clip_noise, (1.0, 1.0), "scaled down to a norm, with Gaussian noise of a multiple of it"),
}  # fmt: skip


def disturbance(passed: Filter, update: Update) -> Caveat | None:
    """Why an update that passed a filter cannot be recomputed, where it cannot."""
    if passed.name == "clip-noise":
        return UPDATE_NOISED
    seen = looks_compressed(update)
    return None if seen is None else replace(UPDATE_COMPRESSED, seen=f"{passed}: {seen}.")


def rounding_after(passed: Filter, update: Update, before: Rounding) -> Rounding:
    """How coarse an update's numbers are once it has passed a filter."""
    if passed.name == "half":
        return Rounding.of([torch.float16])
    return codes_of(update) or before


def codes_of(update: Update) -> Rounding | None:
    """How coarse an update is whose matrices hold few different numbers on a grid; None for others, and for signs."""
    steps, most = [], 0
    for value in update.values():
        if value.ndim < 2 or value.numel() < 4 * _CODES:
            continue
        different = value.double().unique()
        most = max(most, len(different))
        if not 1 < len(different) <= _CODES:
            return None
        places = (different - different[0]) / different.diff().min()
        if (places.round() - places).abs().max() > _GRID * len(different):
            return None
        steps.append(float(different.diff().min()))
    if most < _FEWEST:
        return None
    return Rounding(max(torch.finfo(v.dtype).eps for v in update.values()), max(steps) / 2)


def looks_compressed(update: Update) -> str | None:
    """What is to be seen of a compression in an update's numbers, in words; None where nothing is."""
    matrices = [value for value in update.values() if value.ndim >= 2 and value.numel() >= 4 * _CODES]
    most = max((len(value.unique()) for value in matrices), default=_CODES + 1)
    if most <= _CODES:
        return f"its matrices hold at most {most} different numbers"
    shares = []
    for value in update.values():
        if value.ndim == 2 and value.numel() >= 4 * _CODES:
            inside = value[value.any(1)][:, value.any(0)]
            shares.append(float((inside == 0).double().mean()) if inside.numel() else 0.0)
    if shares and min(shares) > _ZEROS:
        return f"{min(shares):.0%} or more of each matrix are zeros, scattered over rows and columns"
    return None
