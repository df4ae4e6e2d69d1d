"""Shares as people read them: numbers in 1000."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal


def thousandths(share: float, *, up: bool = False) -> str:
    """A share as a number in 1000, with decimals where rounding would hide it; rounded up for a ceiling.

    >>> thousandths(0.389), thousandths(0.0004), thousandths(0.9999), thousandths(1.0), thousandths(0.02501, up=True)
    ('389', '0.4', '999.9', '1000', '25.1')
    """
    value = 1000 * share
    if value in (0, 1000):
        return f"{value:.0f}"
    edge = min(value, 1000 - value)
    digits = (
        0 if edge >= (100 if up else 1) else 1 if edge >= 0.05 else min(12, 1 - math.floor(math.log10(edge)))
    )
    return in_thousand(share, digits, up=up)


def in_thousand(share: float, digits: int, *, up: bool) -> str:
    """1000 times a share with so many decimals, to the nearest or never below it: exact decimals, no tolerance.

    >>> in_thousand(0.025, 1, up=True), in_thousand(0.0250001, 1, up=True), in_thousand(0.0250001, 1, up=False)
    ('25.0', '25.1', '25.0')
    """
    value = 1000 * Decimal(repr(share))
    return f"{value.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING if up else ROUND_HALF_EVEN):f}"


def upwards(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never below itself.

    >>> upwards(1.51537), upwards(8.0), upwards(0.00012341)
    ('1.516', '8', '0.0001235')
    """
    return _outwards(value, digits, math.ceil)


def downwards(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never above itself.

    >>> downwards(0.123456)
    '0.1234'
    """
    return _outwards(value, digits, math.floor)


def _outwards(value: float, digits: int, rounded: Callable[[float], int]) -> str:
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**places
    nearest = round(scaled)
    whole = nearest if abs(scaled - nearest) < 1e-9 * abs(scaled) else rounded(scaled)
    return f"{whole / 10.0**places:.{digits}g}"
