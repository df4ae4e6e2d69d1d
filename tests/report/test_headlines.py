"""What the page says first is what the verdict rests on: one sentence, its number, and its row of the picture."""

import math
import re
from dataclasses import replace

import pytest

from audit_results import result
from remanence import Bound, Policy, SuccessRate, Verdict, audit
from remanence.core.baseline import Baseline
from remanence.core.references import HAYES_2023
from remanence.report.figures import line
from remanence.report.html import report
from remanence.report.tables import thousandths
from remanence.report.words import headline, tightest
from remanence.results.findings import ProvenRecords, WholeRecords
from remanence.results.verdict import decide
from remanence.targets import TARGETS

EXPOSED = result(Verdict.EXPOSED)


def made_up(successes: int, trials: int, *, control: int = 0, guess: float = 0.0, limit: float = 0.1):
    """A result in which these numbers were measured."""
    best = replace(
        EXPOSED.strongest,
        main=SuccessRate(successes, trials),
        control=SuccessRate(control, trials),
        baseline=Baseline(guess, guess, "exact"),
        findings=(),
        arrays={},
    )
    return judged(replace(EXPOSED, evidence=(best,), policy=Policy(limit), companions=()))


def judged(found):
    return replace(found, verdict=decide(found.evidence, found.bounds, found.policy))


def proven(count: int, of: int | None):
    found = made_up(0, 40)
    return judged(replace(found, evidence=(replace(found.strongest, proven=count, proven_of=of),)))


def bounded(success: float):
    found = made_up(1, 400)
    return judged(replace(found, bounds=(Bound("a proof", math.log(success), ("nothing",), HAYES_2023),)))


MADE_UP = {
    "everything": lambda: made_up(442, 442),
    "nothing": lambda: made_up(0, 200),
    "a third": lambda: made_up(70, 210, limit=0.2),
    "as the control": lambda: made_up(150, 250, control=160),
    "as a guess": lambda: made_up(150, 250, guess=0.65),
    "below a high limit": lambda: made_up(50, 100, limit=0.9),
    "one proven": lambda: proven(1, 8),
    "proven of unknown many": lambda: proven(3, None),
    "protected": lambda: bounded(0.05),
    "a ceiling above the limit": lambda: bounded(0.5),
}


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
