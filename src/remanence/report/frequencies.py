"""A bound in frequencies, the same words on the command line, in reports and on the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from remanence.report.tables import in_thousand

if TYPE_CHECKING:
    from remanence.bounds.bound import Bound

EVERY_STEP = "your whole training run"
_LEAST = math.log(1e-6)  # below it, a number in 1000 is no number to speak of
_ROUNDING = 1e-14  # relative: more than an exponential and a product lose


def frequency(log_share: float, *, up: bool = False, noun: str = "") -> str:
    """A share with its unit: so many in 1000, or one in a power of ten. With `up` it is never below the share.

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
    return f"{number} {f'{noun} '.lstrip()}in 1000"


def ceiling(bound: Bound, *, noun: str = "") -> str:
    """What no attack exceeds, always rounded up and always with its unit."""
    return frequency(float(bound.log_success), up=True, noun=noun)


def sentence(bound: Bound, candidates: int | None, *, what: str = EVERY_STEP) -> str:
    """What a guess achieves, and what nobody exceeds."""
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
