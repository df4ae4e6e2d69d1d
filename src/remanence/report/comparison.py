"""Two audits side by side: what changed, and whether it got worse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from remanence.auditing import AuditResult
from remanence.core.rates import SuccessRate
from remanence.report import words
from remanence.report.markdown import plain, table
from remanence.report.tables import thousandths
from remanence.results.verdict import Verdict

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
    """Hold an audit against an earlier one."""
    rows: list[tuple[str, str, str, str]] = []
    worse: list[str] = []
    if before.verdict is not after.verdict:
        declined = _ORDER.index(after.verdict) > _ORDER.index(before.verdict)
        worse += ["the verdict"] if declined else []
        rows.append(("verdict", str(before.verdict), str(after.verdict), "worse" if declined else "better"))
    rows += _settings("limit", before.policy.max_success, after.policy.max_success)
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
    raised = [sorted({caveat.id for caveat in words.caveats(result)}) for result in (before, after)]
    rows += _settings("caveats", *(", ".join(ids) or "none" for ids in raised))
    for name in ("mechanism", "criterion"):
        one, other = before.threat_model[name], after.threat_model[name]
        for key in [*one, *(key for key in other if key not in one)]:
            rows += _settings(f"{name} {key}", one.get(key), other.get(key))
    rows += _settings("sees", *(result.threat_model["sees"] for result in (before, after)))
    rows += _settings("knows", *("; ".join(result.threat_model["knows"]) for result in (before, after)))
    hashes = [result.subject["sha256"] for result in (before, after)]
    for name in sorted(hashes[0].keys() | hashes[1].keys()):
        rows += _settings(f"data: {name}", *(str(entry.get(name, "none"))[:12] for entry in hashes))
    packages = [result.environment["packages"] for result in (before, after)]
    for name in sorted(packages[0].keys() | packages[1].keys()):
        rows += _settings(f"package {name}", *(entry.get(name, "none") for entry in packages))
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


def _settings(name: str, before: Any, after: Any) -> list[tuple[str, str, str, str]]:
    return [] if before == after else [(name, str(before), str(after), "differs")]
