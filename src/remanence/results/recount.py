"""Recount a stored result: everything that can be recomputed is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from remanence.core.rates import SuccessRate

Json = dict[str, Any]

_CLOSE = 1e-9  # tolerance between a stored and a recomputed interval


def contradictions(entry: Json, arrays: Mapping[str, Tensor]) -> Iterator[str]:
    """Statements of an entry in audit.json that its arrays, counts or ceilings contradict."""
    for name, counted in (
        ("main", "succeeded"),
        ("control", "control_succeeded"),
        ("labels", "labels_agree"),
    ):
        if entry[name] is not None:
            yield from rate_contradictions(name, entry[name], arrays.get(counted))
    errors = arrays.get("error")
    if errors is not None and entry["error"]["worst"] is not None:
        values = errors.double().nan_to_num(nan=torch.inf, posinf=torch.inf)
        for word, found in (("worst", values.max()), ("median", values.nanmedian())):
            stored = entry["error"][word]
            if stored is not None and not math.isclose(stored, float(found), rel_tol=1e-5, abs_tol=1e-30):
                yield f"the {word} error {stored:.6g} is {float(found):.6g} in the arrays"
    hidden = arrays.get("unresolved")
    if hidden is not None and (count := int(hidden.sum())) != entry.get(
        "unresolved_count", len(entry["unresolved"])
    ):
        yield f"{count} records are unresolved in the arrays"


def rate_contradictions(name: str, stored: Json, counted: Tensor | None) -> Iterator[str]:
    """Statements of a stored rate that its outcomes or counts contradict."""
    if stored["successes"] > stored["trials"]:
        yield f"{name}: {stored['successes']} successes in {stored['trials']} trials"
        return
    if counted is not None and (counted.dtype != torch.bool or not counted.numel()):
        yield f"{name}: outcomes that are not yes or no"
    elif counted is not None:
        found = int(counted.sum()), counted.numel()
        if found != (stored["successes"], stored["trials"]):
            yield (
                f"{name}: {stored['successes']} of {stored['trials']} in the document, "
                f"{found[0]} of {found[1]} in the arrays"
            )
        if counted.ndim == 2 and stored["clusters"] != (len(counted) if counted.shape[1] > 1 else None):
            yield f"{name}: {stored['clusters']} trials that stand or fall together"
    rate = SuccessRate(
        stored["successes"], stored["trials"], stored["confidence"], stored["clusters"], stored.get("floor")
    )
    for end, value in (("rate", rate.rate), ("lower", rate.lower), ("upper", rate.upper)):
        if abs(stored[end] - value) > _CLOSE:
            yield f"{name}: {end} {stored[end]:.6g}, and the counts give {value:.6g}"


def contradicted_bound(stored: Json) -> str | None:
    """The error in a stored ceiling whose value and logarithm disagree; None if they agree."""
    success = min(1.0, math.exp(stored["log_success"]))
    if math.isclose(stored["success"], success, rel_tol=1e-9, abs_tol=1e-300):
        return None
    return f"the bound {stored['name']!r} is {stored['success']:.6g}, and its logarithm says {success:.6g}"
