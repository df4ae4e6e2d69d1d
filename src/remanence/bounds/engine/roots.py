"""Where a function crosses zero."""

from __future__ import annotations

from collections.abc import Callable


def root(function: Callable[[float], float], low: float, high: float, *, precision: float) -> float:
    """The zero of a function whose sign differs at the two ends, by Brent's method.

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0, precision=1e-12), 9)
    1.414213562
    """
    from scipy.optimize import brentq  # loaded here: a plain bound starts faster without it

    return float(brentq(function, low, high, xtol=precision, rtol=1e-15))  # pyright: ignore
