"""The report that people hand over: one file, no network, no script, no training data."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import torch

from remanence.auditing import AuditResult
from remanence.core.catalogue import catalogue
from remanence.core.rates import SuccessRate
from remanence.report import figures, words
from remanence.report.dossier import RULES, criteria
from remanence.report.frequencies import ceiling, thousandths, upwards
from remanence.report.remedies import command, python, remedies
from remanence.results.caveats import OPTIMISER_NOT_CONVERGED
from remanence.results.evidence import Evidence
from remanence.results.verdict import Verdict

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def report(result: AuditResult) -> str:
    """The whole report as one HTML document."""
    raised = []
    for caveat, names in words.caveats(result).items():
        hidden = words.hidden(result) if caveat == OPTIMISER_NOT_CONVERGED else ""
        raised.append((caveat, words.concerned(result, names), hidden))
    rates = {evidence.attack: _true_positives(result, evidence) for evidence in result.evidence}
    relative = any("relative" in text for text in rates.values())
    return template("report.html.jinja").render(
        card=_card(result),
        result=result,
        words=words,
        caveats=raised,
        catalogue=catalogue(),
        rates=rates,
        seconds={name: f"{value:.1f}" for name, value in result.environment.get("seconds", {}).items()},
        roc=figures.roc(result),
        errors=figures.errors(result),
        classes=classes(result),
        records=records(result),
        sections=words.sections(result),
        remedies=remedies(result),
        command=command(result),
        python=python(result),
        glossary={word: told for word, told in words.GLOSSARY.items() if relative or word != "relative"},
        style=style(),
    )


def dossier_page(result: AuditResult) -> str:
    """The dossier as a page to print."""
    page = template("dossier.html.jinja").render(
        card=_card(result), result=result, words=words, criteria=criteria(result), rules=RULES, style=style()
    )
    return f"{page}\n"


def card(result: AuditResult) -> str:
    """The verdict, its numbers, the line and the scope: the top of the report, and what a notebook shows."""
    return _card(result, style=style())


def index(results: Mapping[str, AuditResult], galleries: Collection[str] = ()) -> str:
    """One page that links the reports in these folders, and the galleries in some of them."""
    counts = {verdict: sum(each.verdict is verdict for each in results.values()) for verdict in Verdict}
    return template("index.html.jinja").render(
        results=results,
        counts={verdict: count for verdict, count in counts.items() if count},
        galleries=galleries,
        verdicts=list(Verdict),
        words=words,
        style=style(),
    )


def style() -> str:
    """The style sheet; every rule holds inside `.remanence` alone, so that a notebook keeps its looks."""
    return (files("remanence.report") / "templates" / "report.css").read_text(encoding="utf-8")


def _card(result: AuditResult, *, style: str = "") -> str:
    return template("card.html.jinja").render(
        result=result, words=words, line=figures.line(result), style=style
    )


def _true_positives(result: AuditResult, evidence: Evidence) -> str:
    """The share of targets found where 1 in 100 strangers is taken for one, where there are errors to order."""
    texts = []
    for kind, curve in figures.curves(result, evidence).items():
        found = curve.tpr_at_fpr(0.01, confidence=evidence.main.confidence)
        texts.append(f"{'too few controls to tell' if found is None else words.interval(found)}{kind}")
    return "; ".join(texts) or "n/a"


def _coded(text: str) -> str:
    """Text in which `this` and an option such as --this are code; all of it is escaped first."""
    from markupsafe import Markup, escape

    code = re.sub(
        r"`([^`<>]+)`|(?<= )(--[a-z-]+)", lambda m: f"<code>{m[1] or m[2]}</code>", str(escape(text))
    )
    return Markup(code)  # noqa: S704


def template(name: str) -> Template:
    """A template of ours; whatever is put into it is escaped unless it says `ours`."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("remanence.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "thousandths": thousandths,
        "ceiling": ceiling,
        "guessing": words.guessing,
        "upwards": upwards,
        "ours": Markup,
        # An interval that a narrow table breaks before its bracket and nowhere else.
        "unbroken": lambda text: text.replace(" to ", "\u00a0to\u00a0"),
        "short": lambda value: f"{value:.6g}" if isinstance(value, float) else value,
        "coded": _coded,
    }
    return environment


_SHOWN = 10


def classes(result: AuditResult) -> list[tuple[int, SuccessRate]]:
    """Each class with how often its records were recovered by the strongest attack, the most exposed first.

    The intervals of all classes hold together. Empty if the classes are not known.
    """
    best = result.strongest
    if not {"class", "succeeded"} <= best.arrays.keys():
        return []
    labels, succeeded = best.arrays["class"].flatten(), best.arrays["succeeded"].flatten()
    if len(labels) != len(succeeded):
        return []
    present = torch.unique(labels).tolist()
    confidence = 1 - (1 - best.main.confidence) / len(present)
    rows = []
    for label in present:
        hits = succeeded[labels == label]
        rows.append((int(label), SuccessRate(int(hits.sum()), len(hits), confidence)))
    return sorted(rows, key=lambda row: -row[1].rate)


def records(result: AuditResult) -> list[tuple[int, float, bool]]:
    """The records that came back most closely: position in the training set, error, and whether it was recovered."""
    best = result.strongest
    if not result.words.by_record or not {"record", "error"} <= best.arrays.keys():
        return []
    positions, error = best.arrays["record"].flatten(), best.arrays["error"].flatten()
    if len(positions) != len(error) or not best.main.successes:
        return []
    order = error.nan_to_num(nan=torch.inf).argsort(stable=True)[:_SHOWN]
    hits = best.arrays["succeeded"].flatten()
    return [(int(positions[i]), float(error[i]), bool(hits[i])) for i in order.tolist()]
