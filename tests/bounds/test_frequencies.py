"""Ceilings in words: never below the certified number, always with a unit, over 300 orders of magnitude."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from remanence import bounds
from remanence.report.frequencies import ceiling, frequency, sentence, thousandths


def exact(text: str) -> mpmath.mpf:
    """The share that a printed frequency stands for."""
    number, unit = text.split(" in ")
    if unit == "1000":
        return mpmath.mpf(str(number)) / 1000
    assert number == "1"
    return mpmath.power(10, -mpmath.mpf(unit.removeprefix("10^")))


def test_no_printed_ceiling_is_below_the_number_over_three_hundred_orders_of_magnitude():
    generator = np.random.default_rng(5)
    logs = -np.concatenate(
        [10 ** generator.uniform(-12, np.log10(700), 3000), generator.uniform(0, 700, 3000)]
    )
    with mpmath.workdps(60):
        for log in [*logs.tolist(), 0.0, *np.log([0.025, 0.1, 0.3, 1e-3, 1e-6]).tolist()]:
            truth = mpmath.exp(mpmath.mpf(log))
            shown = exact(frequency(log, up=True))
            assert shown >= truth, log
            assert shown <= min(1, truth * mpmath.mpf("1.26")), log  # a tenth of a decade, or two digits
            assert abs(exact(frequency(log)) / truth - 1) <= mpmath.mpf("0.13"), log


def test_a_column_of_ceilings_is_rounded_up_exactly_too():
    for share in np.random.default_rng(6).uniform(0, 1, 3000).tolist():
        assert Fraction(thousandths(share, up=True)) >= 1000 * Fraction(repr(share))


def test_a_ceiling_below_a_millionth_is_not_rounded_down():
    bound = bounds.dpsgd(log_baseline=-8.6 * math.log(10), noise_multiplier=5.0)
    assert bound.log_success == pytest.approx(math.log(8.193e-9), rel=1e-4)
    assert ceiling(bound) == "1 in 10^8.0"


def test_both_numbers_of_a_sentence_have_units_even_if_only_the_guess_is_tiny():
    words = " ".join(sentence(bounds.gaussian(1e-10, noise_multiplier=0.2), None).split())
    assert "1 time in 10^10.0 and with" in words
    assert "86.8 times in 1000 at most." in words
