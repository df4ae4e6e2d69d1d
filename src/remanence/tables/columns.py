"""What came back column by column, and group by group: counts with intervals, never values."""

from __future__ import annotations

from typing import Any

import numpy as np

from remanence.auditing import AuditResult
from remanence.core.rates import CONFIDENCE, SuccessRate
from remanence.results.evidence import Evidence
from remanence.tables.fitted import FittedModel
from remanence.tables.single_columns import Columns, PartRate, part_errors


def column_findings(result: AuditResult, model: FittedModel) -> list[dict[str, Any]]:
    """For each column in how many rows its value came back, by the attack that found most, and what a guess finds."""
    kinds = {column.name: "word" if column.categories else "number" for column in model.rows.columns}
    found = []
    for each in zip(*(_parts(evidence) for evidence in result.evidence), strict=True):
        best = max(each, key=lambda part: part.main.successes)
        kind = kinds.get(best.name, "label")
        found.append({"column": best.name, "kind": kind, **_rate(best.main), "guess": best.guess})
    return found


def _parts(evidence: Evidence) -> tuple[PartRate, ...]:
    return next((each.parts for each in evidence.findings if isinstance(each, Columns)), ())


def group_findings(result: AuditResult, groups: np.ndarray, threshold: float) -> list[dict[str, Any]]:
    """For each group in how many of its rows everything came back, and each column, by the strongest attack.

    The most exposed come first. All intervals hold together.
    """
    best = result.strongest
    own = groups[best.arrays["record"].numpy()]
    names = sorted(set(own.tolist()), key=str)
    met = {part.name: part_errors(part.name, best.arrays)[0] <= threshold for part in _parts(best)}
    met = {"": best.arrays["succeeded"][:, 0].bool(), **met}
    confidence = 1 - (1 - CONFIDENCE) / (len(names) * len(met))

    def rate(group: Any, column: str) -> SuccessRate:
        here = met[column].numpy()[own == group]
        return SuccessRate(int(here.sum()), len(here), confidence)

    found = [
        {
            "group": name if isinstance(name, int | float) else str(name),
            **_rate(rate(name, "")),
            "columns": [{"column": column, **_rate(rate(name, column))} for column in met if column],
        }
        for name in names
    ]
    return sorted(found, key=lambda each: -sum(_recovered(each)) / each["rows"])


def _recovered(entry: dict[str, Any]) -> list[int]:
    return [each["recovered"] for each in (entry, *entry["columns"])]


def _rate(rate: SuccessRate) -> dict[str, Any]:
    return {"recovered": rate.successes, "rows": rate.trials, "lower": rate.lower, "upper": rate.upper}
