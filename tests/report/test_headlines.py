"""What the page says first is what the verdict rests on: one sentence, its number, and its row of the picture."""

import re

import pytest

from audit_results import MADE_UP, decided
from remanence import AuditResult, Verdict
from remanence.report.figures import line
from remanence.report.html import report
from remanence.report.words import headline
from remanence.targets import TARGETS


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_result_begins_with_what_decided(name):
    agrees(MADE_UP[name]())


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_is_listed_audited_and_begins_with_what_decided(run, name):
    code, out, _ = run("audit", name, "--trials", "2", "--out", "here")
    found = AuditResult.load("here")
    assert code == found.verdict.exit_code
    assert out.split()[:2] == [found.verdict, name]
    assert name in run("targets")[1]
    agrees(found)


def agrees(found: AuditResult) -> None:
    """Headline and picture show the number that the verdict follows from."""
    said, page, (numbers, shown) = headline(found), report(found), decided(found)
    assert page.index(said.split("'")[0][:40]) < page.index("What to do now")
    assert re.findall(r"\d+(?:\.\d+)?", said)[: len(numbers)] == numbers
    assert all(f">{words}" in line(found) for words in shown)
    assert found.verdict is not Verdict.EXPOSED or found.reason.exposes(found.policy)
