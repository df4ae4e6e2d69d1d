"""What must not change of an audit, as plain JSON: counts, rates, bounds and verdicts; no sentence, hash or time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from remanence import AuditResult, Bound, RemanenceError, exposed_pictures

# Caveats that were added since the freeze, and take nothing from what was found.
_SINCE = {"dense-open", "near-twins", "training-not-shown"}


def digest(compute: Callable[[], Any]) -> Any:
    """Compute a case on one thread; a refusal is the class of its error and the error's first line."""
    torch.set_num_threads(1)
    try:
        return summary(compute())
    except RemanenceError as error:
        return {"refused": type(error).__name__, "says": _without_folders(str(error).splitlines()[0])}


def summary(found: Any) -> Any:
    """The digest of a result, of bounds, or of numbers."""
    if isinstance(found, AuditResult):
        return _result(found)
    if isinstance(found, Bound):
        return _bound(found)
    if isinstance(found, Iterable):
        return [summary(each) for each in found]
    return _digits(float(found), 12)


def _result(result: AuditResult) -> dict[str, Any]:
    """The only place that reads the layout of audit.json."""
    document = result.to_json()
    entries = [_evidence(entry) for entry in document["evidence"]]
    pictures = [[row.label, row.picture, row.came_back] for row in exposed_pictures(result)]
    companions = {
        entry["attack"]: _digits(entry["main"]["successes"] / entry["main"]["trials"], 8)
        for entry in document["companions"]
    }
    return {
        "verdict": document["verdict"],
        "target": document["target"],
        "evidence": sorted(entries, key=lambda entry: entry["attack"]),
        "bounds": [_bound(bound) for bound in result.bounds],
        **({"this_head": sorted(pictures)} if pictures else {}),
        **({"companions": companions} if companions else {}),
    }


def _evidence(entry: dict[str, Any]) -> dict[str, Any]:
    found = {
        "attack": entry["attack"],
        "main": _counts(entry["main"]),
        "control": _counts(entry["control"]),
        "baseline": [_digits(entry["baseline"][name], 12) for name in ("value", "lower")],
        "labels": None if entry["labels"] is None else _counts(entry["labels"]),
        "error": {name: _digits(entry["error"][name], 8) for name in ("median", "worst")},
        "caveats": sorted({caveat["id"] for caveat in entry["caveats"]} - _SINCE),
        "proven": entry.get("proven"),
        "parts": [
            [part["name"], _counts(part["main"]), _counts(part["control"]), _digits(part["guess"], 12)]
            for finding in entry["findings"]
            for part in finding.get("columns", ())
        ],
        "numbers": {
            name: _digits(value, 8)
            for part in (
                entry.get("numbers", {}),
                *(f for f in entry["findings"] if f["kind"] == "privacy-test"),
            )
            for name, value in part.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        },
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _counts(rate: dict[str, Any]) -> list[int]:
    return [rate["successes"], rate["trials"]]


def _bound(bound: Bound) -> dict[str, Any]:
    return {
        "name": bound.name,
        "log_success": _digits(float(bound.log_success), 12),
        "on_average": bool(bound.on_average),
        "whose": bound.whose,
    }


def _without_folders(line: str) -> str:
    return re.sub(r"/\S*/", "", line)


def _digits(value: float | None, digits: int) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")
