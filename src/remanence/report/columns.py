"""What came back column by column, and group by group: counts with intervals, never values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from remanence.adversary.guess_from_others import guess_from_others
from remanence.auditing import AuditResult
from remanence.games.leave_one_out import LeaveOneOut
from remanence.mechanisms.tables.fitted import FittedModel
from remanence.scoring.rates import CONFIDENCE, SuccessRate

_PREFIX = "column "


def column_findings(result: AuditResult, game: LeaveOneOut) -> list[dict[str, Any]]:
    """For each column in how many rows its value came back, by the attack that found most, and what a guess finds."""
    mechanism, found = game.mechanism, []
    assert isinstance(mechanism, FittedModel)
    confidence = 1 - (1 - CONFIDENCE) / len(mechanism.rows.columns)
    for column in mechanism.rows.columns:
        hits = [
            errors <= game.criterion.threshold
            for evidence in result.evidence
            for name, errors in evidence.arrays.items()
            if name == _PREFIX + column.name
        ]
        best = max(hits, key=lambda each: int(each.sum()))
        alone = replace(game.criterion, error=mechanism.rows.error([column.name]))
        rate = SuccessRate(int(best.sum()), len(best), confidence)
        guess = guess_from_others(game.data, alone).value
        kind = "word" if column.categories else "number"
        found.append({"column": column.name, "kind": kind, **_rate(rate), "guess": guess})
    return found


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
