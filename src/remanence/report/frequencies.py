"""Shares as natural frequencies: numbers in 1000, and a bound in a sentence."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remanence.bounds.bound import Bound


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


def ends(lower: float, upper: float) -> tuple[str, str]:
    """The ends of an interval in 1000, rounded outwards to 0 and 1000 where an end is negligibly close to them.

    >>> ends(1.3e-7, 0.256), ends(0.998, 0.9999)
    (('0', '256'), ('998', '999.9'))
    """
    lower = 0.0 if lower < 1e-3 * upper else lower
    upper = 1.0 if 1 - upper < 1e-3 * (1 - lower) else upper
    return thousandths(lower), thousandths(upper)


def in_thousand(share: float, digits: int, *, up: bool) -> str:
    """1000 times a share with this many decimals, to the nearest or never below it: exact decimals, no tolerance.

    >>> in_thousand(0.025, 1, up=True), in_thousand(0.0250001, 1, up=True), in_thousand(0.0250001, 1, up=False)
    ('25.0', '25.1', '25.0')
    """
    value = 1000 * Decimal(repr(share))
    return f"{value.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING if up else ROUND_HALF_EVEN):f}"


def upwards(value: float, digits: int = 4) -> str:
    """A number with this many significant digits, never rounded down.

    >>> upwards(1.51537), upwards(8.0), upwards(0.00012341)
    ('1.516', '8', '0.0001235')
    """
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**places
    nearest = round(scaled)
    whole = nearest if abs(scaled - nearest) < 1e-9 * abs(scaled) else math.ceil(scaled)
    return f"{whole / 10.0**places:.{digits}g}"


def downwards(value: float, digits: int = 4) -> str:
    """A positive number with this many significant digits, never rounded up.

    >>> downwards(0.123456)
    '0.1234'
    """
    return upwards(-value, digits).removeprefix("-")


EVERY_STEP = "your whole training run"
_LEAST = math.log(1e-6)  # below it, a share is given as one in a power of ten
_ROUNDING = 1e-14  # relative: more than an exponential and a product lose


def frequency(log_share: float, *, up: bool = False, noun: str = "") -> str:
    """A share with its unit: a number in 1000, or one in a power of ten. With `up` it is never below the share.

    >>> frequency(math.log(0.025)), frequency(math.log(0.02501), up=True), frequency(-19.0, up=True)
    ('25 in 1000', '25.1 in 1000', '1 in 10^8.2')
    >>> frequency(math.log(0.025), noun="times"), frequency(-1000.0, noun="times")
    ('25 times in 1000', '1 time in 10^434.3')
    """
    if log_share < _LEAST:
        power = -log_share / math.log(10) * 10
        whole = math.floor(power * (1 - _ROUNDING)) if up else round(power)
        return f"1 {f'{noun} '.replace('s ', ' ').lstrip()}in 10^{whole / 10:.1f}"
    share = math.exp(min(log_share, 0.0))
    if up and log_share < 0:
        share = min(share * (1 + _ROUNDING), 1.0)
    digits = 0 if share >= 0.1 else 1 if share >= 1e-3 else 4
    number = in_thousand(share, digits, up=up)
    number = number.rstrip("0").rstrip(".") if digits else number
    noun = noun.removesuffix("s") if number == "1" else noun
    return f"{number} {f'{noun} '.lstrip()}in 1000"


def ceiling(bound: Bound, *, noun: str = "") -> str:
    """A bound's ceiling, always rounded up and always with its unit."""
    return frequency(float(bound.log_success), up=True, noun=noun)


def sentence(bound: Bound, candidates: int | None, *, what: str = EVERY_STEP) -> str:
    """The success of a guess, and the ceiling for every attack."""
    whose = bound.whose.replace("one record", "a record")
    who = "An adversary" if bound.whose == "one record" else f"An adversary who is after {whose}"
    if candidates is not None:
        who = f"An adversary who has narrowed {whose} down to {candidates} candidates"
    guess = frequency(float(bound.log_baseline), noun="times")
    pairs = [
        ("guesses it without your model", guess),
        (f"and with {what}", f"{ceiling(bound, noun='times')} at most."),
    ]
    return "\n".join([who, *(f"  {words:33} {number}" for words, number in pairs)])
