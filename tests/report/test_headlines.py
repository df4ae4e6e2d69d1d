"""What the page says first is what the verdict rests on: one sentence, its number, and its row of the picture."""

import re
from dataclasses import replace

import pytest

from audit_results import MADE_UP, decided, made_up
from remanence import AuditResult, SuccessRate, Verdict
from remanence.report.figures import line
from remanence.report.html import report
from remanence.report.words import found, headline
from remanence.targets import TARGETS


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_result_begins_with_what_decided(name):
    agrees(MADE_UP[name]())


def test_canaries_of_one_run_give_no_rate():
    several = made_up(90, 120)
    one_run = replace(several.strongest, main=SuccessRate(90, 120, clusters=1))
    assert "The rate is 750 in 1000" in found(several)
    said = found(replace(several, evidence=(one_run,)))
    assert f"share one training run, so {one_run.attack} gives no rate." in said
    assert "The rate is" not in said


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"control": 160}, "It does as well without the records, so"),
        ({"guess": 0.65}, "A guess does as well, so"),
        ({"control": 145}, "That is not certainly more than without the records, so"),
        ({"guess": 0.58}, "That is not certainly more than a guess achieves, so"),
    ],
)
def test_a_rate_above_the_limit_that_does_not_decide_says_why(numbers, said):
    result = made_up(150, 250, **numbers)
    assert result.verdict is Verdict.UNPROVEN
    assert said in found(result)


# Attacks that need no network to learn, for targets on which one does by default.
QUICK = {"digits-heads": "linear-reader", "digits-mlp": "oblivious"}
AUDITS = [(name, QUICK.get(name)) for name in TARGETS]
AUDITS += [pytest.param(name, None, marks=pytest.mark.slow) for name in QUICK]


@pytest.mark.parametrize(("name", "attack"), AUDITS)
def test_every_target_is_listed_audited_and_begins_with_what_decided(run, name, attack):
    named = [] if attack is None else ["--attack", attack]
    code, out, _ = run("audit", name, "--trials", "2", *named, "--out", "here")
    stored = AuditResult.load("here")
    assert code == stored.verdict.exit_code
    assert out.split()[:2] == [stored.verdict, name]
    assert name in run("targets")[1]
    agrees(stored)


def agrees(result: AuditResult) -> None:
    """Headline and picture show the number that the verdict follows from."""
    said, page, (numbers, shown) = headline(result), report(result), decided(result)
    assert page.index(said.split("'")[0][:40]) < page.index("What to do now")
    assert re.findall(r"\d+(?:\.\d+)?", said)[: len(numbers)] == numbers
    assert all(f">{words}" in line(result) for words in shown)
    assert result.verdict is not Verdict.EXPOSED or result.reason.exposes(result.policy)
