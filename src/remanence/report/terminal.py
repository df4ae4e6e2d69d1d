"""An audit as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from remanence.auditing import AuditResult
from remanence.core.plain_text import plain
from remanence.report import words
from remanence.report.frequencies import ceiling, thousandths
from remanence.results.evidence import Evidence
from remanence.results.verdict import Verdict

_COLOURS = {
    Verdict.PROTECTED: "green",
    Verdict.UNPROVEN: "yellow",
    Verdict.EXPOSED: "red",
    Verdict.CONTRADICTED: "magenta",
}

_WIDE = 110  # columns that a terminal needs for all of a table
_UNBROKEN = 10_000  # columns in which no sentence is broken


def audit_view(result: AuditResult, width: int = 120) -> RenderableType:
    """The verdict, the scope, the evidence and the caveats of one audit."""
    verdict = Text.assemble(
        (f"{result.verdict}", f"bold {_COLOURS[result.verdict]}"), (f"  {plain(result.target)}\n", "bold")
    )
    verdict.append("\n".join([words.headline(result), f"{result.meaning} {words.found(result)}"]))
    parts: list[RenderableType] = [
        verdict,
        Text(words.scope(result), "dim"),
        Text(words.counts(result), "dim"),
        _evidence_table(result.evidence, width),
    ]
    for bound in result.bounds:
        most = f"at most {ceiling(bound)} for {words.of_whom(bound)}"
        parts.append(Text(f"Bound: {most}: {bound.name} ({bound.reference.short})"))
    parts += [Text(f"For comparison: {entry.attack} {result.done(entry)}.") for entry in result.companions]
    notes = words.notes(result)
    parts += [Text.assemble(("Note: ", "yellow"), sentence) for sentence in notes]
    if result.strongest.unresolved:
        parts.append(Text(f"Records that the optimiser's tolerance hides: {words.hidden(result)}."))
    more = len(words.caveats(result)) - len(notes)
    if more > 0:
        parts.append(Text(f"{'More caveats' if notes else 'Caveats'} in the report: {more}.", "dim"))
    return Group(*parts)


def as_text(result: AuditResult) -> str:
    """The same as `print` shows it: without colours, and with no line broken."""
    written = StringIO()
    Console(file=written, width=_UNBROKEN, markup=False, emoji=False).print(audit_view(result))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def summary_table(results: Sequence[AuditResult], width: int = 120) -> Table:
    """One line per audit; a narrow terminal loses columns, never a name."""
    wide = width >= _WIDE
    table = Table(title="Verdicts, out of 1000", title_justify="left")
    for heading in ("target", "verdict", *(["strongest attack"] if wide else [])):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for heading in ("recovered", *(["by guessing"] if wide else []), "limit", "ceiling"):
        table.add_column(heading, justify="right", no_wrap=wide)
    for result in results:
        best, ceiling = result.strongest, words.tightest(result)
        rate = words.decided(result) if wide else words.decided(result).partition(" ")[0]
        cells = [Text(plain(result.target)), Text(str(result.verdict), _COLOURS[result.verdict])]
        cells += [Text(plain(best.attack)), rate, words.decided(result, "guess")] if wide else [rate]
        cells += [
            thousandths(result.policy.max_success),
            "none" if ceiling is None else thousandths(ceiling.success, up=True),
        ]
        table.add_row(*cells)
    return table


def _evidence_table(evidence: Sequence[Evidence], width: int) -> Table:
    """A line per attack; a narrow terminal loses the last columns, never a name."""
    cells = {
        "recovered in 1000": [words.interval(entry.main) for entry in evidence],
        "control": [words.interval(entry.control) for entry in evidence],
        "guess": [words.guessing(entry.baseline) for entry in evidence],
    }
    if width >= _WIDE:
        rates = [entry.label_rate for entry in evidence]
        cells["labels"] = ["" if rate is None else thousandths(rate.rate) for rate in rates]
        medians = [entry.errors.median for entry in evidence]
        cells["median error"] = ["" if median is None else f"{median:.2g}" for median in medians]
    table = Table()
    table.add_column("attack", no_wrap=True, overflow="fold")
    for heading in cells:
        table.add_column(heading, justify="right")
    for number, entry in enumerate(evidence):
        table.add_row(Text(plain(entry.attack)), *(column[number] for column in cells.values()))
    return table
