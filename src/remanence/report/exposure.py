"""Who is exposed: the unluckiest records and classes, not only the mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from remanence.auditing import AuditResult
from remanence.core.rates import SuccessRate

_SHOWN = 10


@dataclass(frozen=True)
class ClassExposure:
    """How often records of one class were recovered; the intervals of all classes hold together."""

    label: int
    rate: SuccessRate


@dataclass(frozen=True)
class RecordExposure:
    """How closely one record of the training set came back."""

    position: int
    error: float
    succeeded: bool


def classes(result: AuditResult) -> list[ClassExposure]:
    """The strongest attack class by class, the most exposed first; empty if the classes are not known."""
    best = result.strongest
    if not {"class", "succeeded"} <= best.arrays.keys():
        return []
    labels, succeeded = best.arrays["class"].flatten(), best.arrays["succeeded"].flatten()
    if len(labels) != len(succeeded):
        return []
    present = torch.unique(labels).tolist()
    confidence = 1 - (1 - best.main.confidence) / len(present)
    rows = []
    for label in present:
        hits = succeeded[labels == label]
        rows.append(ClassExposure(int(label), SuccessRate(int(hits.sum()), len(hits), confidence)))
    return sorted(rows, key=lambda row: -row.rate.rate)


def records(result: AuditResult) -> list[RecordExposure]:
    """The records that came back most closely, by their position in the training set."""
    best = result.strongest
    if not result.words.by_record or not {"record", "error"} <= best.arrays.keys():
        return []
    positions, error = best.arrays["record"].flatten(), best.arrays["error"].flatten()
    if len(positions) != len(error):
        return []
    order = error.nan_to_num(nan=torch.inf).argsort(stable=True)[:_SHOWN]
    hits = best.arrays["succeeded"].flatten()
    return [RecordExposure(int(positions[i]), float(error[i]), bool(hits[i])) for i in order.tolist()]
