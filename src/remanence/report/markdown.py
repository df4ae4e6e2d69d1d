"""An audit for a pull request and for a model card, and two audits side by side."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence

from remanence.auditing import AuditResult
from remanence.core import plain_text
from remanence.report import words
from remanence.report.frequencies import ceiling

_SHOWN = 20  # rows; a summary fits a pull request


def summary(result: AuditResult) -> str:
    """A short summary, as for `$GITHUB_STEP_SUMMARY`."""
    rows = [
        (
            entry.attack,
            words.interval(entry.main),
            words.interval(entry.control),
            words.guessing(entry.baseline),
        )
        for entry in result.evidence
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
    model = result.threat_model
    values = {
        "verdict": str(result.verdict),
        "limit": result.policy.max_success,
        "attack": best.attack,
        "attack_rate": best.main.rate,
        "attack_lower": best.main.lower,
        "attack_upper": best.main.upper,
        "baseline": best.baseline.value,
        "bound": None if ceiling is None else ceiling.success,
        "bound_of": None if ceiling is None else ceiling.whose,
        "threat_model": f"sees {model['sees']}; knows {'; '.join(model['knows'])}",
        "date": str(result.environment.get("started", ""))[:10],
        "version": result.environment["packages"]["remanence"],
    }
    # A JSON scalar is a YAML scalar; an escaped < is no tag to whatever shows the card.
    keys = "\n".join(f"  {name}: {json.dumps(value)}" for name, value in values.items()).replace(
        "<", "\\u003c"
    )
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
    """Text that Markdown and HTML show as it is, on one line; it calls nobody and opens nothing.

    >>> plain("a*b <script>")
    'a\\\\*b &lt;script&gt;'
    """
    shown = html.escape(" ".join(plain_text.plain(text).split()), quote=False)
    shown = re.sub(r"([\\`*_\[\]|])", r"\\\1", shown)
    # Nobody is called, no address opens.
    return re.sub(r"[@#]|(?<=:)//|(?<=www)\.", lambda m: "".join(f"&#{ord(c)};" for c in m.group()), shown)
