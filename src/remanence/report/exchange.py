"""The result in formats that other tools read: JUnit and SARIF."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from jinja2.filters import do_urlencode

from remanence.auditing import AuditResult
from remanence.report import frequencies, words
from remanence.report.frequencies import thousandths
from remanence.results.evidence import Evidence
from remanence.results.findings import WholeRecords
from remanence.results.storage import DOCUMENT
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


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_KINDS = {
    Verdict.PROTECTED: ("pass", "none"),
    Verdict.UNPROVEN: ("open", "none"),
    Verdict.EXPOSED: ("fail", "error"),
    Verdict.CONTRADICTED: ("fail", "error"),
}
_RULES = {
    "RMN001": (
        "Reconstruction",
        "Training records can be read back out of the release more often than the limit allows.",
        "Add calibrated noise to training (`remanence calibrate`), release less, or set another limit.",
    ),
    "RMN002": (
        "BoundViolated",
        "An attack succeeds more often than a proof allows, so the training does not match its claims.",
        "Check the noise, the clipping, the sampling, and the settings that the bound was computed for.",
    ),
}


def sarif(result: AuditResult) -> str:
    """One run with one result: the verdict."""
    kind, level = _KINDS[result.verdict]
    contradicted = result.verdict is Verdict.CONTRADICTED
    best, ceiling = result.strongest, words.tightest(result)
    told = f"{result.verdict}. {words.headline(result)} {result.meaning} {words.found(result)}"
    entry: dict[str, Any] = {
        "ruleId": "RMN002/bound-violated" if contradicted else "RMN001/reconstruction",
        "rule": {"id": "RMN002" if contradicted else "RMN001", "index": int(contradicted)},
        "kind": kind,
        "level": level,
        "message": {"text": told},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _address(result.target)}},
                "logicalLocations": [{"fullyQualifiedName": result.target, "kind": "resource"}],
            }
        ],
        "partialFingerprints": {"subjectAndThreatModel/v1": _fingerprint(result)},
        "properties": {
            "verdict": str(result.verdict),
            "limit": result.policy.max_success,
            "attack": best.attack,
            **words.measured(result),
            "bound": None if ceiling is None else ceiling.success,
            "bound_of": None if ceiling is None else ceiling.whose,
            "caveats": [caveat.id for caveat in words.caveats(result)],
        },
    }
    driver = {
        "name": "remanence",
        "version": result.environment["packages"]["remanence"],
        "rules": [
            {"id": id, "name": name, "shortDescription": {"text": short}, "help": {"text": help}}
            for id, (name, short, help) in _RULES.items()  # noqa: A001
        ],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [entry]}
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _address(target: str) -> str:
    """The file that was audited, or the result itself for a built-in or a Python game."""
    path, colon, _ = target.rpartition(":")
    file = path if colon else target
    return do_urlencode(file) if file.endswith((".py", ".toml")) else DOCUMENT


def _fingerprint(result: AuditResult) -> str:
    """The same for the same data and threat model, whatever was found."""
    identity = json.dumps([result.target, result.subject, result.threat_model], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()
