"""What a reader sees first: the number in the headline, and in the picture, is that of the finding that decided."""

import re

import pytest

from audit_results import MADE_UP, decided
from remanence import audit
from remanence.report.writing import write_report
from remanence.targets import TARGETS

pytestmark = pytest.mark.browser
RESULTS = {
    **MADE_UP,
    **{name: lambda name=name: audit(TARGETS[name](), target=name, trials=2) for name in TARGETS},
}


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
