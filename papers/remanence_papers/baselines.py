"""log κ in closed form: the success of a guess against priors that have a formula.

Every function returns log κ, rounded up. A threshold on the mean squared error of d numbers is a
radius of √(d·threshold) (`radius_of`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import betainc, betaln, gammainc, gammaln

from remanence.bounds.bound import numbers
from remanence.core.checks import number, whole

_ROUNDING = 1e-12  # relative, many times the error of the special functions
_SMALL = 1e-280


def shortlist(candidates: int | Sequence[float]) -> float:
    """A number of equally likely candidates, or candidates with these weights.

    >>> round(math.exp(shortlist([1, 1, 2])), 6)
    0.5
    """
    if isinstance(candidates, int):
        whole("candidates", candidates, hint="10")
        return _up(-math.log(candidates))
    weights = numbers("shortlist", candidates, "10, or one weight for each candidate").ravel().tolist()
    number("smallest weight", min(weights), least=0)
    number("largest weight", max(weights), above=0)
    return _up(math.log(max(weights)) - math.log(math.fsum(weights)))


def cube(dimension: int, *, radius: float, side: float = 1.0, euclidean: bool = False) -> float:
    """Uniform on a cube. Within `radius` in every number: κ = (2·radius/side)^d.

    In euclidean distance, the ball's share of the volume, which is exact if the ball fits into the cube.

    >>> round(cube(784, radius=32 / 256) / math.log(10), 2)  # Hayes et al. 2023, Appendix I: 9.66e-473
    -472.02
    """
    _check(dimension, radius, side)
    if not euclidean:
        return _up(min(0.0, dimension * math.log(min(1.0, 2 * radius / side))))
    log_ball = (
        dimension / 2 * math.log(math.pi) - float(gammaln(dimension / 2 + 1)) + dimension * math.log(radius)
    )
    return _up(min(0.0, log_ball - dimension * math.log(side)))


def ball(dimension: int, *, radius: float, size: float = 1.0) -> float:
    """Uniform in a ball of radius `size`: κ = (radius/size)^d.

    >>> round(math.exp(ball(3, radius=0.5)), 6)
    0.125
    """
    _check(dimension, radius, size)
    return _up(dimension * math.log(min(1.0, radius / size)))


def sphere(dimension: int, *, radius: float, size: float = 1.0) -> float:
    """Uniform on the sphere of radius `size` in d dimensions.

    The best guess lies inside the sphere: a ball of radius η holds the cap with sin θ = η / size,
    whose share is ½·I(sin²θ; (d − 1)/2, ½).

    >>> round(math.exp(sphere(3, radius=0.6)), 6)  # (1 − cos θ) / 2
    0.1
    """
    _check(dimension, radius, size)
    whole("dimension", dimension, least=2)
    if radius >= size:
        return 0.0
    return _up(math.log(0.5) + _log_betainc((dimension - 1) / 2, 0.5, (radius / size) ** 2))


def normal(dimension: int, *, radius: float, deviation: float = 1.0) -> float:
    """Independent normal numbers: the best guess is the mean, κ = P(χ²_d ≤ (radius/deviation)²).

    >>> round(math.exp(normal(1, radius=1.0)), 5)
    0.68269
    """
    _check(dimension, radius, deviation)
    shape, at = dimension / 2, (radius / deviation) ** 2 / 2
    plain = float(gammainc(shape, at))
    if plain > _SMALL:
        return _up(math.log(plain))
    term = total = 1.0  # e^−x x^a / Γ(a + 1) · Σ x^k / ((a + 1)⋯(a + k))
    count = 0
    while term > 1e-17 * total:
        count += 1
        term *= at / (shape + count)
        total += term
    return _up(shape * math.log(at) - at - float(gammaln(shape + 1)) + math.log(total))


def pixels(dimension: int, *, share: float, chance: float) -> float:
    """At least a share of d independent numbers right, each with the same probability: a binomial tail.

    Hayes et al. 2023, Appendix I, writes chance^(d·share), which ignores that *any* of the numbers
    may be missed: at a share of 0.6 of MNIST's pixels it is 10^188 times too small.

    >>> round(pixels(784, share=0.6, chance=0.25) / math.log(10), 1)
    -95.1
    """
    whole("dimension", dimension, hint="784")
    number("share", share, above=0, most=1, hint="1")
    number("chance", chance, above=0, most=1, hint="0.25")
    needed = math.ceil(dimension * share - 1e-9)
    if chance == 1:
        return 0.0
    if needed == dimension:
        return _up(dimension * math.log(chance))
    return _up(_log_betainc(needed, dimension - needed + 1, chance))


def radius_of(mean_squared_error: float, dimension: int) -> float:
    """The euclidean radius of a threshold on the mean squared error.

    >>> radius_of(0.01, 100)
    1.0
    """
    error = number("mean_squared_error", mean_squared_error, least=0)
    return math.sqrt(error * whole("dimension", dimension))


def _log_betainc(first: float, second: float, at: float) -> float:
    """log I(at; first, second), even if the value itself would underflow."""
    plain = float(betainc(first, second, at))
    if plain > _SMALL:
        return math.log(plain)
    term = total = 1.0  # x^a (1 − x)^b / (a B(a, b)) · ₂F₁(a + b, 1; a + 1; x)
    count = 0
    while term > 1e-17 * total:
        term *= at * (first + second + count) / (first + 1 + count)
        total += term
        count += 1
    front = first * math.log(at) + second * math.log1p(-at) - math.log(first) - float(betaln(first, second))
    return front + math.log(total)


def _up(log_value: float) -> float:
    return min(0.0, log_value + _ROUNDING * (1 + abs(log_value))) if log_value < 0 else 0.0


def _check(dimension: int, radius: float, size: float) -> None:
    whole("dimension", dimension, hint="the number of pixels or columns")
    number("radius", radius, above=0, hint="radius_of(threshold, dimension)")
    number("size", size, above=0, hint="1")
