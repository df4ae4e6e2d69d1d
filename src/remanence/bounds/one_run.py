"""Many canaries, one training run: a test of the privacy claim by the number of correct guesses.

Each of m canaries is drawn independently: in the training set or not (a fair coin), or, with a shortlist of
n > 1 candidates, as one of them. One run trains on all. An attack then guesses at most k of the canaries, k
fixed beforehand, and C is how many it gets right. The guesses of one run are dependent, so no
binomial interval is valid. The following holds instead.

Let G be the claimed trade-off curve: P(E) ≤ G(Q(E)) for every event E, where P and Q are the laws of the
release with a record and without it, in either order. G is concave and increasing. With T_i = P(C ≥ i) and
a_i = E[C·1{C ≥ i}] / m = (i·T_i + Σ_{l>i} T_l) / m, for every i ≥ 1

    Σ_{l≥i} T_l + m·L(a_i) ≤ (k − i + 1)·T_{i−1},
    L(a) = G⁻¹(a)                                                  in or out,
    L(a) = max(0, (n − 1)·G⁻¹(G⁻¹(a)), G⁻¹(n·G⁻¹(a)) − a)          shortlist of n.

Proof. Fix canary j and the others, and let C' count the right guesses among the others. If j is x, the event
{j is guessed as x, C' ≥ i − 1} is "j is right and C ≥ i".
(1) In or out: turn x into its opposite, which costs G once. The event is then "j is wrong and C ≥ i − 1".
Average over x, the others and j; by Jensen's inequality a_i ≤ G(b_{i−1}) with b_i = E[(k − C)·1{C ≥ i}] / m.
For a shortlist, replacing x by y takes x out and puts y in, which costs G twice, and there are n − 1 wrong
guesses for each right one: a_i ≤ G(G(b_{i−1} / (n − 1))). This is the theorem of Mahloujifar, Melis and
Chaudhuri, with what replacing a record costs written out.
(2) Shortlist: take x out, which costs G once. The resulting law does not depend on x, and the events of the n
candidates are disjoint, so on average a_i ≤ G(P_without(j is guessed, C' ≥ i − 1) / n). Putting j back costs
G once more: a_i ≤ G(G(b_{i−1} + a_i) / n). For i = 0 this is the ceiling γ = G(1/n) on the mean.
All say b_{i−1} ≥ L(a_i), and b_{i−1} = ((k − i + 1)·T_{i−1} − Σ_{l≥i} T_l) / m. ∎

Every left side increases in all T_l, so the smallest sequence with T_c = τ takes each T_i as small as allowed,
from c down to 0. If its T_0 exceeds 1, P(C ≥ c) = τ is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from remanence.bounds.engine.closed_forms import shift_of
from remanence.bounds.engine.dpsgd import delta_upper, epsilon_upper
from remanence.bounds.engine.schedule import Array, Segment, normalise

_LEAST_DELTA = 1e-7  # rarer events are irrelevant for a few thousand canaries
_LINES = 24
_SUREST = 0.3  # of canaries that are in or out: guessing only these gives the strongest test


@final
@dataclass(frozen=True)
class GaussianCurve:
    """G(x) = Φ(Φ⁻¹(x) + μ): what every full-batch run with Gaussian noise composes to.

    >>> round(float(GaussianCurve(1.0).inverse(np.array(0.38914))), 5)
    0.1
    """

    mu: float | Array

    def inverse(self, probability: Array) -> Array:
        """Φ(Φ⁻¹(y) − μ)."""
        return ndtr(ndtri(np.clip(probability, 0, 1)) - self.mu)


@final
@dataclass(frozen=True)
class LinesCurve:
    """G(x) = min over (ε, δ) of e^ε·x + δ and 1 − e^−ε·(1 − δ − x): any set of proven (ε, δ), in both directions.

    >>> round(float(LinesCurve(((0.0, 0.2),)).inverse(np.array(0.5))), 12)
    0.3
    """

    pairs: tuple[tuple[float, float], ...]  # (ε, δ)

    def inverse(self, probability: Array) -> Array:
        """The largest of the lines' inverses, in a loop over the few lines."""
        found = np.zeros_like(probability)
        for epsilon, delta in self.pairs:
            found = np.maximum(found, (probability - delta) * math.exp(-epsilon))
            if epsilon < 700:  # beyond, the line is below 0 wherever it matters, and e^ε overflows
                found = np.maximum(found, 1 - delta - math.exp(epsilon) * (1 - probability))
        return found


# A claimed trade-off curve G by its inverse, rounded down: the least probability without a record, given that with it.
TradeOff = GaussianCurve | LinesCurve


def dpsgd_curve(schedule: Segment | Sequence[Segment]) -> TradeOff:
    """The curve of DP-SGD's settings: closed form for full batches, certified (ε, δ) pairs otherwise.

    >>> dpsgd_curve(Segment(10.0, steps=100))
    GaussianCurve(mu=1.0)
    """
    segments = normalise(schedule)
    if all(segment.sample_rate == 1 for segment in segments):
        return GaussianCurve(shift_of(segments))
    shares = np.linspace(0, 1, _LINES) ** 1.5  # denser where the curvature is high
    grid = epsilon_upper(segments, _LEAST_DELTA) * shares
    return LinesCurve(tuple((epsilon, delta_upper(segments, epsilon)) for epsilon in grid.tolist()))


@final
@dataclass(frozen=True)
class GuessCount:
    """The outcome of one run: `correct` of at most `guesses` guesses about `canaries` canaries.

    `candidates` is the length of each canary's shortlist; 1 means that the canary was in or out.
    """

    correct: int
    guesses: int
    canaries: int
    candidates: int = 1

    @classmethod
    def of_surest(cls, right: npt.ArrayLike, sureness: npt.ArrayLike, *, candidates: int = 1) -> GuessCount:
        """How many of the surest guesses are right; of shortlists, all guesses count.

        >>> GuessCount.of_surest([True, False, True, True, False], [3.0, 1.0, 2.0, 9.0, 0.0])
        GuessCount(correct=2, guesses=2, canaries=5, candidates=1)
        """
        order = np.argsort(-np.asarray(sureness, dtype=np.float64), kind="stable")
        surest = order[: max(1, round(_SUREST * len(order)))] if candidates == 1 else order
        return cls(int(np.asarray(right)[surest].sum()), len(surest), len(order), candidates)

    def least_mass(self, curve: TradeOff, tail: npt.ArrayLike) -> Array:
        """The smallest T_0 with P(C ≥ correct) = tail; if it exceeds 1, the curve rules out this tail."""
        m, k = self.canaries, self.guesses
        current = np.asarray(tail, dtype=np.float64)
        if isinstance(curve, GaussianCurve):
            current = np.broadcast_to(current, np.broadcast_shapes(current.shape, np.shape(curve.mu)))
        above = np.zeros_like(current)  # Σ_{l>i} T_l
        for i in range(self.correct, 0, -1):
            share = np.minimum((i * current + above) / m, 1.0)
            needed = self._least_wrong(curve, share)
            above = above + current
            current = np.minimum(np.maximum(current, (above + m * needed) / (k - i + 1)), 2.0)
        return current

    def _least_wrong(self, curve: TradeOff, share: Array) -> Array:
        """L(a): the least share of wrong guesses, given this share of right ones."""
        n, once = self.candidates, curve.inverse(share)
        if n == 1:
            return once
        left = np.minimum(n * once, 1.0)
        taken_out = np.where(n * once > 1, np.inf, curve.inverse(left) - share)
        return np.maximum(0, np.maximum((n - 1) * curve.inverse(once), taken_out))

    def rejects(self, curve: TradeOff, level: float) -> bool:
        """Whether this many correct guesses have a probability below `level` under the curve."""
        return bool(self.least_mass(curve, level) > 1)

    def p_value(self, curve: TradeOff) -> float:
        """An upper bound on the probability of at least this many correct guesses, under the curve.

        >>> curve = GaussianCurve(1.0)  # the best attack gets 0.84 of its 150 surest guesses right
        >>> GuessCount(126, 150, 500).p_value(curve), round(GuessCount(147, 150, 500).p_value(curve), 3)
        (1.0, 0.014)
        """
        low, high = -30.0, 0.0  # log10 of the tail
        if not self.least_mass(curve, 1.0) > 1:
            return 1.0
        for _ in range(4):
            grid = np.linspace(low, high, 33)
            possible = ~(self.least_mass(curve, 10.0**grid) > 1)
            last = int(possible.sum()) - 1
            if last < 0:
                return 10.0**low
            low, high = grid[last], grid[min(last + 1, 32)]
        return float(10.0**high)

    def mu_lower(self, level: float) -> float:
        """Every Gaussian mechanism with a smaller μ is rejected at the level; 0 if none is."""
        return _last_rejected(lambda mu: self.least_mass(GaussianCurve(mu), level) > 1, 50.0)

    def epsilon_lower(self, delta: float, level: float) -> float:
        """Every (ε, δ)-DP mechanism with a smaller ε is rejected at the level; 0 if none is."""

        def rejected(grid: Array) -> npt.NDArray[np.bool_]:
            return np.array([self.rejects(LinesCurve(((epsilon, delta),)), level) for epsilon in grid])

        return _last_rejected(rejected, 50.0, points=5)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε at which a Gaussian mechanism is (ε, δ)-DP.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    return 0.0 if mu == 0 else epsilon_upper(Segment(1 / mu), delta)


def _last_rejected(
    rejected: Callable[[Array], npt.NDArray[np.bool_]], highest: float, *, points: int = 33
) -> float:
    """The end of the rejected range, found from below to within about a thousandth."""
    low, high = 0.0, highest
    if not bool(rejected(np.array([1e-9]))[0]):
        return 0.0
    while high - low > 1e-3 * max(high, 0.1):
        grid = np.linspace(low, high, points)[1:]
        count = int(np.cumprod(rejected(grid)).sum())
        if count == len(grid):
            return float(high)
        low, high = (low if count == 0 else float(grid[count - 1])), float(grid[count])
    return low
