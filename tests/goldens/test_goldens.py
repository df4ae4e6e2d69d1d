"""What was found before is found again: counts and verdicts to the digit, errors but for rounding."""

import json
from pathlib import Path

import pytest
from cases import CASES, SLOW
from digest import digest

FROZEN = json.loads((Path(__file__).parent / "frozen.json").read_text())
# Errors this far below every threshold are rounding, which another order of additions changes.
ROUNDING = 1e-6
# Another processor's FFTs and matrix products moved the logarithm of a bound by 4e-9 of itself, a single-precision
# error by 1.5e-6: a bound is compared to more digits than any page prints, an error to five.
BOUND, NUMBER = 1e-7, 1e-5
# A search ends anywhere within its last step, 2e-4 of a range of 2: of an error of 0.022, 0.15 squared, that is 0.5 %.
SEARCHED = {"game/gradient-based": 1e-2}


def assert_same(found, frozen, place=""):
    """Numbers that are not counts are compared up to what a processor's rounding moves, all else exactly."""
    if isinstance(frozen, dict):
        assert found.keys() == frozen.keys(), place
        for name, value in frozen.items():
            assert_same(found[name], value, f"{place}/{name}")
    elif isinstance(frozen, list):
        assert len(found) == len(frozen), f"{place}: {found} instead of {frozen}"
        for index, value in enumerate(frozen):
            assert_same(found[index], value, f"{place}/{index}")
    elif isinstance(frozen, float) and isinstance(found, float):
        is_bound = "/error/" not in place and "/numbers/" not in place
        rounding = ROUNDING if "/error/" in place else 1e-15
        number = SEARCHED.get("/".join(place.split("/")[:2]), NUMBER)
        expected = pytest.approx(frozen, rel=BOUND if is_bound else number, abs=rounding)
        assert found == expected, place
    else:
        assert found == frozen, place


def test_every_case_is_frozen_and_nothing_else():
    assert FROZEN.keys() == CASES.keys()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.startswith(SLOW) else ()) for name in CASES],
)
def test_nothing_that_was_found_got_lost(name):
    found = json.loads(json.dumps(digest(CASES[name])))
    assert_same(found, FROZEN[name], name)
