from __future__ import annotations

import pytest

from remanence.bounds.engine.schedule import Segment, normalise, total_steps
from remanence.core.exceptions import InputError


def test_equal_segments_are_merged_and_order_does_not_matter():
    first, second = Segment(1.0, 0.1, 3), Segment(2.0, 0.1, 4)
    assert normalise([first, second, first]) == normalise([second, Segment(1.0, 0.1, 6)])
    assert total_steps(normalise([first, second, first])) == 10


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0.0,), "noise_multiplier"),
        ((-1.0,), "noise_multiplier"),
        ((float("nan"),), "noise_multiplier"),
        ((float("inf"),), "noise_multiplier"),
        ((1.0, 0.0), "sample_rate"),
        ((1.0, 1.5), "sample_rate"),
        ((1.0, float("nan")), "sample_rate"),
        ((1.0, 0.5, 0), "steps"),
        ((1.0, 0.5, 10**9 + 1), "steps"),
        ((1.0, 0.5, 2.0), "steps"),
        ((1.0, 0.5, True), "steps"),
    ],
)
def test_impossible_settings_are_refused_by_name_and_value(arguments, field):
    with pytest.raises(InputError, match=field) as refusal:
        Segment(*arguments)
    assert repr(arguments[-1]) in str(refusal.value)
