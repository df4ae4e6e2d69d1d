"""Which canaries were trained on? All at once, from a whole run's privatised gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

_MOST_NUMBERS = 2**27  # inner products that are kept for the exact test, half a gigabyte


@final
@dataclass
class Decoder:
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
    _kept: list[tuple[Tensor, Tensor, float]] = field(
        init=False, default_factory=list
    )  # gram, products, rate

    def __post_init__(self) -> None:
        total = self.canaries * self.candidates
        self._log_odds = torch.zeros(total, dtype=torch.float64)
        self._gram = torch.zeros(total, total, dtype=torch.float64)
        self._products = torch.zeros(total, dtype=torch.float64)

    @property
    def _prior(self) -> float:
        return 0.5 if self.candidates == 1 else 1 / self.candidates

    def step(self, gradients: Tensor, released: Tensor, *, noise: float, sample_rate: float) -> None:
        """Take in one step: all candidates' clipped gradients `(candidates, numbers)` and what was released."""
        gram = (gradients @ gradients.mT).double()
        products = (gradients @ released).double()
        self._keep(gram / noise**2, products / noise**2, sample_rate)
        variance = _noise_left(gram, products, released, noise)
        mean = sample_rate * self._prior
        centred = products - mean * gram.sum(1)
        if sample_rate == 1:
            self._gram += gram / variance
            self._products += centred / variance
            return
        estimate, left = _linear(gram / variance, centred / variance, mean * (1 - mean))
        presence = (mean + estimate - 0.5) / left
        absent = torch.tensor(math.log1p(-sample_rate), dtype=torch.float64)
        self._log_odds += torch.logaddexp(absent, math.log(sample_rate) + presence)

    def _keep(self, gram: Tensor, products: Tensor, rate: float) -> None:
        """Steps of full batches, which have the same members, become one."""
        if rate == 1 and self._kept and self._kept[-1][2] == 1:
            before = self._kept.pop()
            gram, products = before[0] + gram, before[1] + products
        if len(self._kept) * gram.numel() <= _MOST_NUMBERS:
            self._kept.append((gram if rate == 1 else gram.float(), products, rate))

    def projections(self, presence: Tensor) -> dict[str, Tensor] | None:
        """All steps as `remanence.games.recorded_runs.exchange_test` reads them, given who was in each `(steps, rows)`.

        None where they are too many to keep, or full batches and sampled ones are mixed.
        """
        grams, products, rates = zip(*self._kept, strict=True)
        full = rates == (1.0,)
        if not full and (1.0 in rates or len(rates) < len(presence)):
            return None
        return {
            "gram": torch.stack(grams).float(),
            "products": torch.stack(products),
            "presence": presence[:1] if full else presence,
            "rates": torch.tensor(rates, dtype=torch.float64),
        }

    def scores(self) -> Tensor:
        """Log odds by canary and candidate, `(canaries, candidates)`."""
        found = self._log_odds
        if self._gram.any():
            estimate, left = _linear(self._gram, self._products, self._prior * (1 - self._prior))
            found = found + (self._prior + estimate - 0.5) / left
        return found.view(self.canaries, self.candidates)


def guesses(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest choice of each canary (−1 for out) and how sure it is, `(canaries,)` each.

    >>> guesses(torch.tensor([[2.0], [-3.0]]))
    (tensor([ 0, -1]), tensor([2., 3.]))
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).long() - 1, scores[:, 0].abs()
    best = scores.topk(2, dim=1)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]


def _linear(precision: Tensor, centred: Tensor, variance: float) -> tuple[Tensor, Tensor]:
    """The unbiased linear estimates less their mean, and their variances."""
    inverse = torch.linalg.inv(precision + torch.eye(len(precision), dtype=torch.float64) / variance)
    gain = (1 - inverse.diagonal() / variance).clamp(1e-12, 1 - 1e-12)
    return inverse @ centred / gain, variance * (1 - gain) / gain


def _noise_left(gram: Tensor, products: Tensor, released: Tensor, claimed: float) -> float:
    """The noise's variance per number, from the part of the release that no candidate explains."""
    numbers, total = released.numel(), len(gram)
    if numbers < 2 * total:
        return max(claimed**2, 1e-20)
    ridge = 1e-7 * gram.diagonal().mean().clamp(min=1e-30)
    explained = products @ torch.linalg.solve(gram + ridge * torch.eye(total, dtype=torch.float64), products)
    return max(float((released.double().square().sum() - explained) / (numbers - total)), 1e-20)
