"""The result in formats that other tools read: in-toto, CycloneDX, and Hugging Face's evaluation results."""

from __future__ import annotations

import json
from typing import Any

from remanence.auditing import AuditResult
from remanence.core.plain_text import plainly
from remanence.report import words
from remanence.results.evidence import Evidence
from remanence.results.verdict import Verdict

_RESULT = {Verdict.PROTECTED: "PASSED", Verdict.UNPROVEN: "WARNED"}  # the other two are FAILED


def in_toto(result: AuditResult) -> str:
    """An in-toto statement, not signed, with a test-result predicate over the digest of what was released."""
    groups: dict[str, list[str]] = {"PASSED": [], "WARNED": [], "FAILED": []}
    for evidence in result.evidence:
        broken = any(finding.exposes(result.policy) for finding in evidence.found)
        groups["FAILED" if broken else "WARNED"].append(evidence.attack)
    for bound in result.bounds:
        met = bound.success <= result.policy.max_success and not bound.on_average
        groups["PASSED" if met else "WARNED"].append(bound.name)
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": result.target, "digest": {"sha256": _digest(result)}}],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": _RESULT.get(result.verdict, "FAILED"),
            "configuration": [
                {
                    "name": f"remanence {result.environment['packages']['remanence']}",
                    "uri": f"urn:remanence:result:{result.digest()}",
                    "annotations": {
                        "verdict": str(result.verdict),
                        "max_success": result.policy.max_success,
                        "seed": result.seed,
                    },
                }
            ],
            **{f"{name.lower()}Tests": tests for name, tests in groups.items()},
        },
    }
    return _written(statement)


def cyclonedx(result: AuditResult) -> str:
    """A CycloneDX 1.6 document whose one component carries the result in its model card."""
    ceiling = words.tightest(result)
    metrics = [_metric(evidence) for evidence in result.evidence]
    if ceiling is not None:
        told = {"type": "proven ceiling of reconstruction", "value": f"{float(ceiling.success):.6g}"}
        metrics.append({**told, "slice": ceiling.whose})
    card = {
        "quantitativeAnalysis": {"performanceMetrics": metrics},
        "considerations": {
            "technicalLimitations": [words.not_covered(result)],
            "ethicalConsiderations": [
                {
                    "name": f"Reconstruction of training data: {result.verdict}. {words.headline(result)}",
                    "mitigationStrategy": words.DECISION,
                }
            ],
        },
    }
    component = {
        "type": "machine-learning-model",
        "name": result.target,
        "hashes": [{"alg": "SHA-256", "content": _digest(result)}],
        "modelCard": card,
    }
    return _written({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": [component]})


def eval_results(result: AuditResult) -> str:
    """A file for `.eval_results/` of a Hugging Face repository; JSON is YAML.

    The Hub shows results of registered benchmarks only, so that there this one is a file and no badge.
    """
    best = result.strongest
    entry = {
        "dataset": {"id": "remanence/reconstruction", "task_id": best.attack},
        "value": best.main.rate,
        "date": str(result.environment.get("started", ""))[:10],
        "notes": f"{result.verdict}: {words.headline(result)} Limit {result.policy.max_success:g}.",
    }
    return _written([entry])


def _metric(evidence: Evidence) -> dict[str, Any]:
    ends = {"lowerBound": f"{evidence.main.lower:.6g}", "upperBound": f"{evidence.main.upper:.6g}"}
    return {
        "type": "success of reconstruction",
        "value": f"{evidence.main.rate:.6g}",
        "slice": evidence.attack,
        "confidenceInterval": ends,
    }


def _digest(result: AuditResult) -> str:
    """Of the numbers released, not of a file; of the targets where every trial releases anew. As in audit.json."""
    hashes = result.subject.get("sha256", {})
    return str(
        next((hashes[name] for name in ("release", "targets", "data") if name in hashes), result.digest())
    )


def _written(document: Any) -> str:
    text = json.dumps(plainly(document), indent=2, ensure_ascii=False)
    return text.replace("<", "\\u003c") + "\n"  # no tag to whatever shows it
