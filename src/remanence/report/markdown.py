"""An audit for a pull request and for a model card, and two audits side by side."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remanence.auditing import AuditResult
from remanence.core import plain_text
from remanence.core.rates import SuccessRate
from remanence.report import words
from remanence.report.frequencies import ceiling, thousandths
from remanence.results.verdict import Verdict

_SHOWN = 20  # rows; a summary fits a pull request


def summary(result: AuditResult) -> str:
    """A short summary, as for `$GITHUB_STEP_SUMMARY`."""
    rows = [
        (e.attack, words.interval(e.main), words.interval(e.control), words.guessing(e.baseline))
        for e in result.evidence
    ]
    ceilings = [
        f"- {plain(bound.name)}: no attack exceeds {ceiling(bound)} for {plain(words.of_whom(bound))} "
        f"({plain(bound.reference.short)})"
        for bound in result.bounds
    ]
    caveats = [
        f"- **{plain(caveat.id)}** ({plain(', '.join(names))}): {plain(f'{caveat.seen} {caveat.means}'.strip())}"
        for caveat, names in words.caveats(result).items()
    ]
    parts = [
        f"## {result.verdict}: {plain(result.target)}",
        f"**{plain(words.headline(result))}** {result.meaning} {plain(words.found(result))}",
        f"{plain(words.scope(result))} {plain(words.counts(result))}",
        table(("attack", "recovered in 1000", "control", "guess"), rows),
        "**Proven**\n\n" + "\n".join(ceilings) if ceilings else "No proven bound covers this training.",
        *_sections(result),
        *(["**Caveats**\n\n" + "\n".join(caveats)] if caveats else []),
        f"{words.DECISION} Seed {result.seed}, remanence {plain(result.environment['packages']['remanence'])}.",
    ]
    return "\n\n".join(parts) + "\n"


def _sections(result: AuditResult) -> list[str]:
    """What the findings and the door add, without pictures."""
    shown = []
    for section in words.sections(result):
        shown.append(f"**{plain(section.title)}**\n\n" + "\n\n".join(map(plain, section.paragraphs)))
        shown += [table(section.headings, section.rows[:_SHOWN])] if section.rows else []
        more = len(section.rows) - _SHOWN
        shown += [f"And {more} more rows in the report."] if more > 0 else []
    return shown


def model_card(result: AuditResult) -> str:
    """A section for a model card, with the same numbers as YAML for machines."""
    best, ceiling = result.strongest, words.tightest(result)
    model, found = result.threat_model, words.measured(result)
    values = {
        "verdict": str(result.verdict),
        "limit": result.policy.max_success,
        "attack": best.attack,
        "attack_rate": found["rate"],
        "attack_lower": found["lower"],
        "attack_upper": found["upper"],
        "baseline": found["baseline"],
        "bound": None if ceiling is None else ceiling.success,
        "bound_of": None if ceiling is None else ceiling.whose,
        "threat_model": f"sees {model['sees']}; knows {'; '.join(model['knows'])}",
        "date": str(result.environment.get("started", ""))[:10],
        "version": result.environment["packages"]["remanence"],
    }
    # A JSON scalar is a YAML scalar; an escaped < is no tag to whatever shows the card.
    keys = "\n".join(f"  {name}: {json.dumps(value)}" for name, value in values.items())
    keys = keys.replace("<", "\\u003c")
    return "\n\n".join(
        [
            f"---\nremanence:\n{keys}\n---",
            "## Reconstruction risk",
            f"**{result.verdict}**: {plain(words.headline(result))} {result.meaning} {plain(words.found(result))}",
            f"{plain(words.scope(result))} {plain(words.counts(result))} {words.not_covered(result)}",
            f"{words.DECISION}\n",
        ]
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the cells are escaped.

    >>> print(table(("a", "b"), [("1|2", "<b>")]))
    | a | b |
    |---|---|
    | 1\\|2 | &lt;b&gt; |
    """
    lines = [headings, *(tuple(map(plain, row)) for row in rows)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(headings), *text[1:]])


def plain(text: str) -> str:
    """Text that Markdown and HTML show as it is, on one line; no mention notifies, no address opens.

    >>> plain("a*b <script>")
    'a\\\\*b &lt;script&gt;'
    """
    shown = html.escape(" ".join(plain_text.plain(text).split()), quote=False)
    shown = re.sub(r"([\\`*_\[\]|])", r"\\\1", shown)
    # No mention notifies, no address opens.
    return re.sub(r"[@#]|(?<=:)//|(?<=www)\.", lambda m: "".join(f"&#{ord(c)};" for c in m.group()), shown)


_ORDER = [Verdict.PROTECTED, Verdict.UNPROVEN, Verdict.EXPOSED, Verdict.CONTRADICTED]


@dataclass(frozen=True)
class Comparison:
    """What changed from one audit to the next. A rate has changed if the two intervals do not overlap."""

    rows: tuple[tuple[str, str, str, str], ...]  # what, before, after, change
    worse: tuple[str, ...]

    def markdown(self) -> str:
        """A table of what changed, and a sentence about what got worse."""
        end = "Worse: " + "; ".join(self.worse) + "." if self.worse else "Nothing got certainly worse."
        body = table(("", "before", "after", "change"), self.rows) if self.rows else "Nothing changed."
        return f"{body}\n\n{plain(end)}\n"


def compare(before: AuditResult, after: AuditResult) -> Comparison:
    """Compare an audit with an earlier one."""
    rows: list[tuple[str, str, str, str]] = []
    worse: list[str] = []
    if before.verdict is not after.verdict:
        declined = _ORDER.index(after.verdict) > _ORDER.index(before.verdict)
        worse += ["the verdict"] if declined else []
        rows.append(("verdict", str(before.verdict), str(after.verdict), "worse" if declined else "better"))
    older, newer = ({e.attack: e.main for e in result.evidence} for result in (before, after))
    for name in sorted(older.keys() | newer.keys()):
        row = _attack(name, older.get(name), newer.get(name))
        rows.append(row)
        worse += [name] if row[3] == "certainly more" else []
    ceilings = [words.tightest(result) for result in (before, after)]
    shown = ["none" if c is None else thousandths(c.success, up=True) for c in ceilings]
    if shown[0] != shown[1]:
        one, other = (1.0 if c is None else c.success for c in ceilings)
        worse += ["the ceiling"] if other > one else []
        rows.append(("ceiling", shown[0], shown[1], "higher" if other > one else "lower"))
    then, now = _settings(before), _settings(after)
    for name in dict.fromkeys([*then, *now]):
        pair = then.get(name, "none"), now.get(name, "none")
        rows += [(name, *pair, "differs")] if pair[0] != pair[1] else []
    return Comparison(tuple(rows), tuple(worse))


def _attack(name: str, before: SuccessRate | None, after: SuccessRate | None) -> tuple[str, str, str, str]:
    shown = [f"{words.interval(rate)}" if rate else "not run" for rate in (before, after)]
    if before is None or after is None:
        change = "newly run" if before is None else "no longer run"
    elif after.lower > before.upper:
        change = "certainly more"
    elif after.upper < before.lower:
        change = "certainly less"
    else:
        change = "no certain change"
    return f"{name}, recovered in 1000", shown[0], shown[1], change


def _settings(result: AuditResult) -> dict[str, str]:
    """The settings, data and packages that two audits may differ in."""
    model = result.threat_model
    parts = {
        "mechanism": model["mechanism"],
        "criterion": model["criterion"],
        "data:": {name: str(digest)[:12] for name, digest in result.subject["sha256"].items()},
        "package": result.environment["packages"],
    }
    return {
        "target": result.target,
        "limit": str(result.policy.max_success),
        "caveats": ", ".join(sorted({caveat.id for caveat in words.caveats(result)})) or "none",
        "sees": model["sees"],
        "knows": "; ".join(model["knows"]),
        **{f"{part} {name}": str(value) for part, values in parts.items() for name, value in values.items()},
    }
