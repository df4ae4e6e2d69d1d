"""Bounds from a privacy definition alone: ε, (ε, δ), Rényi curves, and any accountant's profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from remanence.bounds.bound import Bound, Values, numbers, read_baselines
from remanence.bounds.engine.bracket import Bracket, ceiling
from remanence.bounds.engine.closed_forms import log_complement
from remanence.bounds.recipes import recomputable
from remanence.core.checks import number
from remanence.core.exceptions import InputError
from remanence.core.references import BALLE_2022, HAYES_2023

_ADJACENT = "training with and without the target are neighbours"
_SYMMETRIC = "the guarantee holds in both directions"
_REFINEMENTS = 8
_LARGEST_EPSILON = 1e4


@recomputable
def pure_dp(baseline: Values = None, *, epsilon: float, log_baseline: Values = None) -> Bound:
    """The ceiling under pure ε-differential privacy.

    γ = min(κ·e^ε, 1 − e^−ε·(1 − κ)) (Balle et al. 2022, Corollary 3, and its mirror image).

    >>> round(pure_dp(1e-6, epsilon=8.0).success, 5)  # one in a million, to one in 335
    0.00298
    """
    return approximate_dp(baseline, epsilon=epsilon, delta=0.0, log_baseline=log_baseline)


@recomputable
def approximate_dp(
    baseline: Values = None, *, epsilon: float, delta: float, log_baseline: Values = None
) -> Bound:
    """The ceiling under (ε, δ)-differential privacy with a symmetric neighbouring relation.

    γ = min(1, κ·e^ε + δ, 1 − e^−ε·(1 − δ − κ)): the first from μ(E) ≤ e^ε ν(E) + δ, the second
    from ν(Eᶜ) ≤ e^ε μ(Eᶜ) + δ.

    >>> round(approximate_dp(0.1, epsilon=1.0, delta=1e-5).success, 5)
    0.27184
    """
    number("epsilon", epsilon, least=0, hint="epsilon=8")
    number("delta", delta, least=0, below=1, hint="1e-5 is common")
    baselines = read_baselines(baseline, log_baseline)
    log_delta = math.log(delta) if delta > 0 else -math.inf
    ends = [_from_profile_point(log, epsilon, log_delta) for log in baselines.logs]
    name = f"({epsilon:g}, {delta:g})-DP" if delta else f"{epsilon:g}-DP"
    return baselines.bound(name, ends, (_ADJACENT, _SYMMETRIC), BALLE_2022.at("Corollary 3"))


@recomputable
def renyi(
    baseline: Values = None,
    *,
    order: float | Sequence[float],
    epsilon: float | Sequence[float],
    log_baseline: Values = None,
) -> Bound:
    """The ceiling under Rényi differential privacy, at one order or the best of several.

    γ = min over α of (κ·e^ε(α))^((α − 1)/α) (Balle et al. 2022, Theorem 2); α = ∞ is allowed.

    >>> round(renyi(0.1, order=[2, 4, 8], epsilon=[0.1, 0.2, 0.4]).success, 4)
    0.1892
    """
    orders = np.atleast_1d(numbers("order", order, "order=[2, 4, 8, 16]"))
    epsilons = np.atleast_1d(numbers("epsilon", epsilon, "epsilon=[0.1, 0.2, 0.4, 0.8]"))
    if orders.shape != epsilons.shape or not (orders > 1).all() or not (epsilons >= 0).all():
        raise InputError(
            "The Rényi curve cannot be used.",
            needs="orders above 1, each with an ε of at least 0",
            got=f"orders {orders.tolist()}, epsilons {epsilons.tolist()}",
            hint="order=[2, 4, 8, 16], epsilon=[...]",
        )
    baselines = read_baselines(baseline, log_baseline)
    ends = []
    for log in baselines.logs:
        # The rounding of a handful of operations, upwards. (α − 1)/α is 1 at α = ∞, which is pure DP.
        exponents = (1 - 1 / orders) * (log + epsilons)
        slack = 1e-14 * (np.abs(exponents) + np.abs(log) + epsilons)
        ends.append(ceiling(float(np.min(exponents + slack))))
    return baselines.bound("Rényi DP", ends, (_ADJACENT,), BALLE_2022.at("Theorem 2"))


def profile(
    baseline: Values = None, *, delta_at: Callable[[Any], Any] | Any, log_baseline: Values = None
) -> Bound:
    """The ceiling from a mechanism's whole privacy profile ε ↦ δ(ε).

    γ = min over ε ≥ 0 of min(κ·e^ε + δ(ε), 1 − e^−ε·(1 − δ(ε) − κ)). Every ε gives a valid bound,
    so the grid can only loosen the result, never invalidate it. `delta_at` is a function, or one of
    dp-accounting's objects: a PrivacyLossDistribution or a PrivacyAccountant. The bound is only as reliable
    as the profile: an accountant that rounds δ down gives a ceiling that is too low.

    >>> eight_dp = lambda epsilon: 1.0 if epsilon < 8.0 else 0.0
    >>> round(profile(1e-6, delta_at=eight_dp).success, 5)
    0.00298
    """
    function: Any = delta_at
    for method in ("get_delta_for_epsilon", "get_delta"):  # dp-accounting's PLDs and accountants
        function = getattr(delta_at, method, function)
    if not callable(function):
        raise InputError(
            "The privacy profile cannot be read.",
            needs="a function from ε to δ, or a dp-accounting PrivacyLossDistribution or PrivacyAccountant",
            got=type(delta_at).__name__,
            hint="delta_at=lambda epsilon: ...",
        )
    baselines = read_baselines(baseline, log_baseline)

    @cache
    def log_delta(epsilon: float) -> float:
        name, slack, hint = f"δ({epsilon:g}) of the profile", 1e-9, "check the accountant"  # which may round
        value = number(
            name, numbers(name, function(epsilon), hint).item(0), least=-slack, most=1 + slack, hint=hint
        )
        return math.log(min(value, 1.0)) if value > 0 else -math.inf

    def log_success(log: float, epsilon: float) -> float:
        return _from_profile_point(log, epsilon, log_delta(epsilon)).log_upper

    ends = []
    for log in baselines.logs:
        # A coarse grid, extended while its end is best or nothing is found, then finer ones around the best point.
        low, high = 0.0, 1.0 - log
        best = min((log_success(log, epsilon), epsilon) for epsilon in np.linspace(low, high, 33).tolist())
        while (best[0] == 0 or best[1] == high) and high < _LARGEST_EPSILON:
            low, high = high, 2 * high
            best = min(best, *((log_success(log, e), e) for e in np.linspace(low, high, 33).tolist()))
        step = (high - low) / 32
        for _ in range(_REFINEMENTS):
            around = np.linspace(max(0.0, best[1] - step), best[1] + step, 9).tolist()
            best, step = min(best, *((log_success(log, epsilon), epsilon) for epsilon in around)), step / 4
        ends.append(ceiling(best[0]))
    return baselines.bound("privacy profile", ends, (_ADJACENT, _SYMMETRIC), HAYES_2023.at("Theorem 2"))


def _from_profile_point(log_baseline: float, epsilon: float, log_delta: float) -> Bracket:
    """The better of the two inequalities, rounded up by more than their arithmetic error."""
    direct = float(np.logaddexp(log_baseline + epsilon, log_delta))
    direct += 1e-14 * (1 + abs(log_baseline) + epsilon)
    rest = 1 - math.exp(log_delta) - math.exp(log_baseline)  # 1 − δ − κ
    mirrored, log_rest = 0.0, -math.inf
    if rest > 1e-12:
        log_rest = math.log(rest - 4e-16) - epsilon - 1e-14 * (1 + epsilon)
        mirrored = float(log_complement(log_rest)) + 1e-15
    log_success = min(direct, mirrored, 0.0)
    through_mirror = mirrored <= direct
    return ceiling(log_success, log_rest if through_mirror else -math.inf)
