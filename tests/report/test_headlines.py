"""What the page says first is what the verdict rests on: one sentence, its number, and its row of the picture."""

import re

import pytest

from audit_results import MADE_UP
from remanence import Verdict, audit
from remanence.report.figures import line
from remanence.report.frequencies import thousandths
from remanence.report.html import report
from remanence.report.words import headline, tightest
from remanence.results.findings import ProvenRecords, WholeRecords
from remanence.targets import TARGETS


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_result_begins_with_what_decided(name):
    agrees(MADE_UP[name]())


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_begins_with_what_decided(name):
    agrees(audit(TARGETS[name](), target=name, trials=2))


def agrees(found) -> None:
    """Headline and picture show the number that the verdict follows from."""
    said, page = headline(found), report(found)
    picture = line(found)
    assert page.index(said.split("'")[0][:40]) < page.index("What to do now")
    numbers = re.findall(r"\d+(?:\.\d+)?", said)
    ceiling, reason = tightest(found), found.reason
    if found.verdict is Verdict.PROTECTED:
        assert thousandths(ceiling.success, up=True) in numbers
        assert f">ceiling: {thousandths(ceiling.success, up=True)}<" in picture
        return
    if found.verdict is Verdict.EXPOSED:
        assert reason.exposes(found.policy)
    if isinstance(reason, WholeRecords):
        assert numbers[:2] == [str(reason.main.successes), str(reason.main.trials)]
        shown = [row for row in reason.rows() if row.role == "attack"]
        assert f">attack: {thousandths(reason.main.rate)}" in picture or not shown
    elif isinstance(reason, ProvenRecords):
        assert numbers[0] == str(reason.count)
        assert reason.of is None or f">proven: {thousandths(reason.count / reason.of)}<" in picture
    else:
        assert said == reason.headline(found.words)
        rows = [row for row in reason.rows() if row.role == "attack"]
        assert all(f": {thousandths(row.share)}" in picture for row in rows)
