"""Which canaries were trained on? All at once, from a run's privatised gradients alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

_SKETCHED = 4096  # numbers: inner products of longer gradients are taken between sketches of them
_LOUD = 4.0  # noise per canary, in clipping norms, above which a sketch's error does not matter
_MOST_NUMBERS = 2**26  # of gradients that are held at once, a quarter of a gigabyte


@final
@dataclass
class CanaryReader:
    """Log odds that each candidate was trained on, step by step.

    A step releases r = Σ b_j·g_j + noise, g_j the candidates' clipped gradients and b_j whether j was in the
    batch. Canaries hide each other, so that each is read off the best linear estimate of all of them,
    b̂ = E b + W(Gr − K·E b), K = GGᵀ, W = (K + (s²/Var b)·I)⁻¹, divided by its gain ρ_j = (WK)_jj; what is left
    of the others and of the noise then has the variance Var b·(1 − ρ)/ρ. In full batches b is the same in all
    steps, which are added up first. In sampled ones each step adds log(1 − q + q·exp((x − ½)/variance)).
    """

    canaries: int
    candidates: int
    _log_odds: Tensor = field(init=False)  # (canaries · candidates,)
    _gram: Tensor = field(init=False)
    _products: Tensor = field(init=False)

    def __post_init__(self) -> None:
        total = self.canaries * self.candidates
        self._log_odds = torch.zeros(total, dtype=torch.float64)
        self._gram = torch.zeros(total, total, dtype=torch.float64)
        self._products = torch.zeros(total, dtype=torch.float64)

    @property
    def _prior(self) -> float:
        return 0.5 if self.candidates == 1 else 1 / self.candidates

    def step(
        self, gradients: Iterable[Tensor], released: Tensor, *, noise: float, norm: float, sample_rate: float
    ) -> None:
        """Take in one step: all candidates' gradients, clipped to `norm`, some rows after others, and the release."""
        mean, numbers, rows = sample_rate * self._prior, released.numel(), len(self._log_odds)
        loud = sample_rate < 1 and noise**2 / (mean * (1 - mean)) > _LOUD * norm**2
        sketched = numbers > _SKETCHED and (loud or rows * numbers > _MOST_NUMBERS)
        signs = _signs(released) if sketched else None
        products, squares, kept = [], [], []
        for part in gradients:
            products.append((part @ released).double().cpu())
            squares.append(part.norm(dim=1).double().square().cpu())
            kept.append(part if signs is None else _sketch(part, signs))
        products, squares = torch.cat(products), torch.cat(squares)
        everything = torch.cat(kept)
        gram = (everything @ everything.mT).double().cpu()
        gram.diagonal().copy_(squares)
        if not sketched:
            noise = min(noise, _noise_left(gram, products, released))
        variance = max(noise**2, 1e-6 * float(squares.mean()))  # float32 has no more digits than that
        centred = products - mean * gram.sum(1)
        if sample_rate == 1:
            self._gram += gram / variance
            self._products += centred / variance
            return
        estimate, left = _linear(gram / variance, centred / variance, mean * (1 - mean))
        presence = (mean + estimate - 0.5) / left
        absent = torch.tensor(math.log1p(-sample_rate), dtype=torch.float64)
        self._log_odds += torch.logaddexp(absent, math.log(sample_rate) + presence)

    def scores(self) -> Tensor:
        """Log odds by canary and candidate, `(canaries, candidates)`."""
        found = self._log_odds
        if self._gram.any():
            estimate, left = _linear(self._gram, self._products, self._prior * (1 - self._prior))
            found = found + (self._prior + estimate - 0.5) / left
        return found.view(self.canaries, self.candidates)


def _linear(precision: Tensor, centred: Tensor, variance: float) -> tuple[Tensor, Tensor]:
    """The unbiased linear estimates less their mean, and their variances."""
    inverse = torch.linalg.inv(precision + torch.eye(len(precision), dtype=torch.float64) / variance)
    gain = (1 - inverse.diagonal() / variance).clamp(1e-12, 1 - 1e-12)
    return inverse @ centred / gain, variance * (1 - gain) / gain


def _noise_left(gram: Tensor, products: Tensor, released: Tensor) -> float:
    """The noise, from the part of the release that no candidate explains; infinite where they may explain all of it."""
    numbers, total = released.numel(), len(gram)
    if numbers < 2 * total:
        return math.inf
    ridge = 1e-6 * gram.diagonal().mean().clamp(min=1e-30)
    explained = products @ torch.linalg.solve(gram + ridge * torch.eye(total, dtype=torch.float64), products)
    left = float(released.double().square().sum()) - float(explained)
    return math.sqrt(max(left, 0.0) / (numbers - total))


def _signs(released: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    coins = torch.randint(2, (released.numel(),), generator=generator, dtype=torch.int8)
    return (2 * coins - 1).to(released)


def _sketch(gradients: Tensor, signs: Tensor) -> Tensor:
    """Every number with a random sign, added up into a few thousand: inner products stay right on average.

    The gradients are spent: a copy of them would cost more than all the rest.
    """
    numbers = gradients.shape[1]
    short = _SKETCHED // 2
    whole = numbers - numbers % short
    gradients *= signs
    found = gradients[:, :whole].unflatten(1, (-1, short)).sum(1)
    found[:, : numbers - whole] += gradients[:, whole:]
    return found
