"""What came back column by column, and group by group: counts with intervals, never values."""

from __future__ import annotations

from typing import Any

import numpy as np

from remanence.auditing import AuditResult
from remanence.games.leave_one_out import LeaveOneOut
from remanence.mechanisms.tables.fitted import FittedModel
from remanence.mechanisms.tables.rows import Rows
from remanence.scoring.rates import CONFIDENCE, SuccessRate


def column_findings(result: AuditResult, game: LeaveOneOut) -> list[dict[str, Any]]:
    """For each column in how many rows its value came back, by the attack that found most, and what a guess finds."""
    kinds = {column.name: "word" if column.categories else "number" for column in _rows(game).columns}
    found = []
    for each in zip(*(evidence.parts for evidence in result.evidence), strict=True):
        best = max(each, key=lambda part: part.main.successes)
        kind = kinds.get(best.name, "label")
        found.append({"column": best.name, "kind": kind, **_rate(best.main), "guess": best.guess})
    return found


def _rows(game: LeaveOneOut) -> Rows:
    assert isinstance(game.mechanism, FittedModel)
    return game.mechanism.rows


def group_findings(result: AuditResult, groups: np.ndarray) -> list[dict[str, Any]]:
    """For each group in how many of its rows everything came back, by the strongest attack; the most exposed first."""
    best = result.strongest
    succeeded, record = best.arrays["succeeded"][:, 0].numpy(), best.arrays["record"].numpy()
    own = groups[record]
    names = sorted(set(own.tolist()), key=str)
    confidence = 1 - (1 - CONFIDENCE) / len(names)
    rates = {n: SuccessRate(int(succeeded[own == n].sum()), int((own == n).sum()), confidence) for n in names}
    order = sorted(names, key=lambda name: -rates[name].rate)
    return [
        {"group": name if isinstance(name, int | float) else str(name), **_rate(rates[name])}
        for name in order
    ]


def _rate(rate: SuccessRate) -> dict[str, Any]:
    return {"recovered": rate.successes, "rows": rate.trials, "lower": rate.lower, "upper": rate.upper}
