"""A bound in frequencies, the same words on the command line and on the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remanence.bounds.bound import Bound


def times(log_share: float, *, up: bool = False) -> str:
    """A share as a number in 1000, rounded up for a ceiling; as a power of ten where that is no number to speak of.

    >>> times(math.log(0.025)), times(math.log(0.02501), up=True), times(-1000.0)
    ('25', '25.1', '10^-434.3')
    """
    if log_share < math.log(1e-6):
        return f"10^{log_share / math.log(10):.1f}"
    value = 1000 * math.exp(log_share)
    digits = 0 if value >= 100 else 1 if value >= 1 else 4
    scaled = value * 10**digits
    whole = math.ceil(scaled - 1e-9) if up else round(scaled)
    return f"{whole / 10**digits:g}"


def sentence(bound: Bound, candidates: int | None, *, whole_run: bool) -> str:
    """What a guess achieves, and what nobody exceeds."""
    who = (
        "An adversary"
        if candidates is None
        else f"An adversary who has narrowed a record down to {candidates} candidates"
    )
    what = "your whole training run" if whole_run else "whatever you release"
    guess, most = times(bound.log_baseline), times(bound.log_success, up=True)
    pairs = [("guesses it without your model", guess), (f"and with {what}", most)]
    unit = "" if "10^" in guess + most else " times in 1000"
    lines = [f"  {words:33} {number}{unit}" for words, number in pairs]
    return "\n".join([who, *lines]) + " at most."
