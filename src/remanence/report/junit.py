"""The result as a test report for CI servers."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree as ET

from remanence.auditing import AuditResult
from remanence.report import frequencies, words
from remanence.report.frequencies import thousandths
from remanence.results.evidence import Evidence
from remanence.results.findings import WholeRecords
from remanence.results.verdict import Verdict, exposing, lowest

# What XML has no way to write.
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case(NamedTuple):
    """One line of the test report; no outcome means passed."""

    kind: str
    name: str
    outcome: str | None = None
    why: str = ""


def junit(result: AuditResult) -> str:
    """Failed where the limit or a proof is broken, skipped where nothing is proven, passed where a proof holds."""
    limit, cases = result.policy.max_success, [_attack(result, evidence) for evidence in result.evidence]
    for bound in result.bounds:
        numbers = f"{frequencies.ceiling(bound)} for {bound.whose}, limit {thousandths(limit)}"
        case = Case("bound", bound.name)
        if bound.success > limit:
            case = case._replace(outcome="skipped", why=f"proves less than the limit asks for: {numbers}")
        cases.append(case)
    outcome = {Verdict.PROTECTED: None, Verdict.UNPROVEN: "skipped"}.get(result.verdict, "failure")
    why = f"{words.headline(result)} {result.meaning} {words.found(result)}"
    cases.append(Case("verdict", "within the limit", outcome, f"{result.verdict}. {why}"))
    return _document(result, cases)


def _attack(result: AuditResult, evidence: Evidence) -> Case:
    """How one attack counts, by the rules of the verdict."""
    limit, ceiling = result.policy.max_success, lowest(result.bounds)
    numbers = f"{words.interval(evidence.main)} in 1000, limit {thousandths(limit)}"
    outcome, why = "skipped", f"nothing certain found, nothing proven: {numbers}"
    if evidence.main.lower > ceiling:
        outcome, why = "failure", f"beats a proven bound: {numbers}"
    elif evidence.rejects_the_claim:
        outcome, why = "failure", " ".join(["refutes the claim of the training.", *words.claim(evidence)])
    elif reasons := exposing(evidence, result.evidence, result.policy):
        if not isinstance(reasons[0], WholeRecords):
            numbers = f"Limit {thousandths(limit)} in 1000"
        outcome, why = "failure", f"{reasons[0].headline(result.words)} {numbers}"
    elif evidence.main.lower > limit:
        why = f"above the limit, but not certainly more than without the release: {numbers}"
    elif ceiling <= limit:
        outcome, why = None, ""
    return Case("attack", evidence.attack, outcome, why)


def _document(result: AuditResult, cases: list[Case]) -> str:
    seconds = result.environment.get("seconds", {})
    suite = ET.Element(
        "testsuite",
        name=_clean(f"remanence: {result.target}"),
        tests=str(len(cases)),
        failures=str(sum(case.outcome == "failure" for case in cases)),
        errors="0",
        skipped=str(sum(case.outcome == "skipped" for case in cases)),
        time=f"{seconds.get('total', 0.0):.3f}",
    )
    for kind, name, outcome, why in cases:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"remanence.{kind}",
            name=_clean(name),
            time=f"{seconds.get(name, 0.0):.3f}",
        )
        if outcome is not None:
            # `skipped` has no message in the schema that CI servers use.
            child = ET.SubElement(case, outcome, {"message": _clean(why)} if outcome == "failure" else {})
            child.text = _clean(why)
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _CONTROL.sub("\ufffd", text)
