"""What a reader sees first: the number in the headline, and in the picture, is that of the finding that decided."""

import re

import pytest

from audit_results import MADE_UP
from remanence import Verdict, audit
from remanence.report.frequencies import thousandths
from remanence.report.words import tightest
from remanence.report.writing import write_report
from remanence.results.findings import ProvenRecords, WholeRecords
from remanence.targets import TARGETS

pytestmark = pytest.mark.browser
RESULTS = {
    **MADE_UP,
    **{name: lambda name=name: audit(TARGETS[name](), target=name, trials=2) for name in TARGETS},
}


def decided(found) -> tuple[list[str], list[str]]:
    """The numbers that the headline has to begin with, and the words that the picture has to show."""
    ceiling, reason = tightest(found), found.reason
    if found.verdict is Verdict.PROTECTED:
        top = thousandths(ceiling.success, up=True)
        return [top], [f"ceiling: {top}"]
    if isinstance(reason, WholeRecords):
        shown = [f"attack: {thousandths(reason.main.rate)}"] if reason.known_many else []
        return [str(reason.main.successes), str(reason.main.trials)], shown
    if isinstance(reason, ProvenRecords):
        whole = [] if reason.of is None else [str(reason.of)]
        shown = [] if reason.of is None else [f"proven: {thousandths(reason.count / reason.of)}"]
        return [str(reason.count), *whole], shown
    rows = [row for row in reason.rows() if row.role == "attack"]
    counted = re.findall(r"\d+(?:\.\d+)?", reason.headline(found.words))
    return counted, [f"{row.name}: {thousandths(row.share)}" for row in rows]


@pytest.mark.parametrize("name", RESULTS)
def test_the_number_in_the_headline_is_that_of_what_decided(watch, tmp_path, name):
    found = RESULTS[name]()
    page = watch(write_report(found, tmp_path).as_uri()).page
    numbers, shown = decided(found)
    headline = page.locator(".headline")
    assert page.locator(".band strong").inner_text() == found.verdict
    assert re.findall(r"\d+(?:\.\d+)?", headline.inner_text())[: len(numbers)] == numbers
    drawn = page.locator("svg[data-figure=line] text").all_text_contents()
    for words in shown:
        assert any(text.startswith(words) for text in drawn), (words, drawn)
    box = headline.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900  # without scrolling


def test_ten_results_are_made_up():
    assert len(MADE_UP) == 10
    assert len(RESULTS) == 10 + len(TARGETS)
