"""Root finding."""

from __future__ import annotations

from collections.abc import Callable


def root(function: Callable[[float], float], low: float, high: float, *, precision: float) -> float:
    """The zero of a function whose sign differs at the two ends, by Brent's method.

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0, precision=1e-12), 9)
    1.414213562
    """
    from scipy.optimize import brentq  # loaded here: a plain bound starts faster without it

    return float(brentq(function, low, high, xtol=precision, rtol=1e-15))  # pyright: ignore


def boundary(
    allowed: Callable[[float], bool], refused: float, found: float, *, near: Callable[[float, float], bool]
) -> float:
    """An allowed number near the boundary of the allowed range, by bisection on a yes/no certificate.

    >>> 2 <= boundary(lambda x: x**2 >= 4, 0.0, 9.0, near=lambda low, high: high - low < 0.01) < 2.01
    True
    """
    while not near(refused, found):
        middle = (refused + found) / 2
        refused, found = (refused, middle) if allowed(middle) else (middle, found)
    return found
