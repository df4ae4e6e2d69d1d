"""Work that takes long says so, on a terminal and without one."""

import io
import sys

from remanence.scale import progress


def lines(monkeypatch, seconds: float, count: int) -> list[str]:
    """What is told about so many items that take so many seconds each, where nobody can draw a bar."""
    clock = iter(range(10**6))
    monkeypatch.setattr(
        progress.time, "monotonic", lambda: next(clock) * seconds / 3
    )  # asked up to three times an item
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    assert list(progress.track(range(count), total=count, what="training shadows")) == list(range(count))
    return told.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then_with_how_long_it_will_take(monkeypatch):
    told = lines(monkeypatch, seconds=4.0, count=400)
    assert told[0].startswith("training shadows: ")
    assert " of 400, about " in told[0]
    assert told[0].endswith(" left")
    assert 3 <= len(told) <= 10  # each waits twice as long as the one before


def test_short_work_says_nothing(monkeypatch):
    assert lines(monkeypatch, seconds=0.001, count=50) == []
