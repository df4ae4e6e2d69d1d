"""One result for each verdict, on data whose numbers can be searched for."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

from conftest import shortlist_game, synthetic
from remanence import (
    GLM,
    AuditResult,
    Bound,
    Criterion,
    LeaveOneOut,
    Logistic,
    Policy,
    Records,
    SuccessRate,
    Verdict,
    audit,
)
from remanence.bounds import gaussian
from remanence.core.baseline import Baseline
from remanence.core.references import HAYES_2023
from remanence.report.frequencies import thousandths
from remanence.report.words import tightest
from remanence.results.findings import ProvenRecords, WholeRecords
from remanence.results.verdict import decide
from remanence.tables.single_columns import Columns, PartRate

DATA: Records = synthetic(40, classes=2, seed=3)


class Page(HTMLParser):
    """The tags, attributes and visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


@cache
def result(verdict: Verdict) -> AuditResult:
    if verdict is Verdict.EXPOSED:
        game = LeaveOneOut(GLM(Logistic(), penalty=1.0), DATA, Criterion(label_scale=1.0))
        return audit(game, target="a logistic regression", policy=Policy(0.2))
    game = shortlist_game(distance=1.0, candidates=4)  # guessing finds 250 in 1000
    if verdict is Verdict.PROTECTED:  # the target moves the sum by at most √½
        game = replace(game, bounds=(gaussian(1 / 4, noise_multiplier=2**0.5),))
    if verdict is Verdict.CONTRADICTED:
        game = replace(game, bounds=(Bound("a wrong claim", math.log(0.251), ("nothing",), HAYES_2023),))
    limit = 0.6 if verdict is Verdict.PROTECTED else 0.55
    return audit(game, target="a noisy sum", policy=Policy(limit), trials=300)


def poisoned(found: AuditResult) -> AuditResult:
    """The same result with a script and a formula in every string that a file may bring along."""
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'$\\frac{$|*_`\x00"

    def spoil(value):
        if isinstance(value, dict):
            return {key: spoil(one) for key, one in value.items()}
        if isinstance(value, list):
            return [spoil(one) for one in value]
        return evil if isinstance(value, str) else value

    document = spoil(found.to_json()) | {"verdict": str(found.verdict)}
    document["policy"]["set_by"] = found.policy.set_by  # one of two words: the schema refuses any other
    document["threat_model"]["mechanism"][evil] = evil
    document["environment"]["packages"][evil] = evil
    document["subject"]["sha256"][evil] = evil
    for one, other in zip(document["evidence"], found.evidence, strict=True):
        for entry, finding in zip(one["findings"], other.findings, strict=True):
            entry["kind"] = finding.kind  # an unknown one would not be read at all
    document["evidence"][0]["caveats"] = [{"id": evil, "means": evil, "do": evil}]
    arrays = {f"{evil}.{name}": values for name, values in found.evidence[0].arrays.items()}
    return AuditResult.from_json(document, arrays)


def made_up(successes: int, trials: int, *, control: int = 0, guess: float = 0.0, limit: float = 0.1):
    """A result in which these numbers were measured."""
    exposed = result(Verdict.EXPOSED)
    rates = {"main": SuccessRate(successes, trials), "control": SuccessRate(control, trials)}
    chance = Baseline(guess, guess, "exact")
    best = replace(exposed.strongest, **rates, baseline=chance, findings=(), arrays={})
    return judged(replace(exposed, evidence=(best,), policy=Policy(limit), companions=()))


def judged(found):
    return replace(found, verdict=decide(found.evidence, found.bounds, found.policy))


def proven(count: int, of: int | None):
    found = made_up(0, 40)
    return judged(replace(found, evidence=(replace(found.strongest, proven=count, proven_of=of),)))


AGE = Columns((PartRate("age", SuccessRate(36, 40), SuccessRate(0, 40), 0.01),))


def one_column():
    """No whole record came back; the column of ages did."""
    found = made_up(0, 40)
    return judged(replace(found, evidence=(replace(found.strongest, findings=(AGE,)),)))


def bounded(success: float):
    found = made_up(1, 400)
    return judged(replace(found, bounds=(Bound("a proof", math.log(success), ("nothing",), HAYES_2023),)))


MADE_UP = {
    "everything": lambda: made_up(442, 442),
    "nothing": lambda: made_up(0, 200),
    "one column": one_column,
    "as the control": lambda: made_up(150, 250, control=160),
    "as a guess": lambda: made_up(150, 250, guess=0.65),
    "below a high limit": lambda: made_up(50, 100, limit=0.9),
    "one proven": lambda: proven(1, 8),
    "proven of unknown many": lambda: proven(3, None),
    "protected": lambda: bounded(0.05),
    "a ceiling above the limit": lambda: bounded(0.5),
}


def decided(found: AuditResult) -> tuple[list[str], list[str]]:
    """The numbers that the headline has to begin with, and the words that the picture has to show."""
    ceiling, reason = tightest(found), found.reason
    if found.verdict is Verdict.PROTECTED:
        assert ceiling is not None
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
