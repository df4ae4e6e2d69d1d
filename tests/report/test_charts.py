"""Every chart: one theme, numbers that are text, axes with names, and no guess that looks more certain than it is."""

import re
from dataclasses import replace

import pytest

from audit_results import Page, result
from remanence import Verdict
from remanence.core.baseline import Baseline
from remanence.report.figures import errors, line, roc
from remanence.updates.leak_map import leak_map_picture

CHARTS = {
    "line": lambda: line(result(Verdict.EXPOSED)),
    "errors": lambda: errors(result(Verdict.EXPOSED)),
    "roc": lambda: roc(result(Verdict.EXPOSED)),
    "leak map": lambda: leak_map_picture([{"name": "0", "rank": 8, "unexplained": 1e-6}]),
}


@pytest.mark.parametrize("chart", CHARTS)
def test_a_chart_is_text_in_our_colours_with_a_label_and_the_same_every_time(chart):
    drawn = CHARTS[chart]()
    assert drawn == CHARTS[chart]()
    page = Page(drawn)
    tag, attributes = page.tags[0]
    assert (tag, attributes["role"]) == ("svg", "img")
    assert attributes["aria-label"]
    assert any(tag == "text" for tag, _ in page.tags)
    for wrong in ("mathdefault", "mathregular", "\\", "$"):
        assert wrong not in page.text
    assert re.search(r"var\(--(attack|ceiling|guess)", drawn)


def test_a_loose_guess_is_drawn_as_a_range():
    found = result(Verdict.UNPROVEN)
    loose = replace(found.strongest, baseline=Baseline(0.4, 0.048, "measured"))
    ranged = replace(found, evidence=(loose,))
    assert "guess: 48 to 400" in Page(line(ranged)).text
    assert "limit 550" in Page(line(ranged)).text
    assert line(ranged).count("var(--guess") == line(found).count("var(--guess") + 1
