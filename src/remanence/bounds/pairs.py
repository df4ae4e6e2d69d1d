"""Reconstruction robustness and differential privacy are one: what guessing between two records says about ε.

For candidates z₁ and z₀ with weights 1 : e^ε, the best attack succeeds with probability
∫ max(f₁, e^ε f₀) / (1 + e^ε) = (e^ε + δ(ε)) / (1 + e^ε), where δ(ε) = ∫ (f₁ − e^ε f₀)₊ is the
mechanism's privacy profile at ε (Balle et al. 2022, §VII-A).
"""

from __future__ import annotations

import math

from remanence.core.checks import number


def pair_success(epsilon: float, delta: float) -> float:
    """The best success on a pair with weights 1 : e^ε, given δ(ε).

    >>> round(pair_success(0.0, 0.3829249), 5)  # Gaussian noise, one standard deviation apart: Φ(1/2)
    0.69146
    """
    _check(epsilon, delta)
    return (
        math.exp(-math.log1p(math.exp(-epsilon))) + delta / (1 + math.exp(epsilon)) if epsilon < 700 else 1.0
    )


def delta_from_pair(success: float, *, epsilon: float) -> float:
    """The least δ(ε) of a mechanism against which an attack on a pair with weights 1 : e^ε has this success.

    The other direction: δ(ε) ≥ success·(1 + e^ε) − e^ε.

    >>> round(delta_from_pair(pair_success(1.5, 0.02), epsilon=1.5), 10)
    0.02
    """
    _check(epsilon, 0.0)
    number("success", success, least=0, most=1, hint="the lower end of the attack's interval")
    return max(0.0, success - (1 - success) * math.exp(min(epsilon, 700.0)))


def epsilon_from_pair(success: float, *, delta: float = 0.0) -> float:
    """The least ε of an (ε, δ)-DP mechanism against which a guess between two equally likely records succeeds so often.

    success ≤ (e^ε + δ) / (1 + e^ε), so ε ≥ log((success − δ) / (1 − success)). Give the lower end of
    the attack's interval, not its rate.

    >>> round(epsilon_from_pair(0.9, delta=1e-5), 3)
    2.197
    """
    number("success", success, least=0, below=1, hint="the lower end of the attack's interval")
    _check(0.0, delta)
    if success <= (1 + delta) / 2:
        return 0.0
    return max(0.0, math.log((success - delta) / (1 - success)))


def _check(epsilon: float, delta: float) -> None:
    number("epsilon", epsilon, least=0, hint="epsilon=1")
    number("delta", delta, least=0, below=1, hint="delta=1e-5")
