"""The result for code scanning: SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from jinja2.filters import do_urlencode

from remanence.auditing import AuditResult
from remanence.report import words
from remanence.results.storage import DOCUMENT
from remanence.results.verdict import Verdict

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
