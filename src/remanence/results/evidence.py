"""What one attack achieved in one game: main, control and baseline, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from remanence.adversary.priors import Baseline
from remanence.attacks.catalogue import CATALOGUE
from remanence.results.caveats import CAVEATS, Caveat
from remanence.scoring.rates import SuccessRate

Json = dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The three rates of an attack, its errors and its caveats.

    `unresolved` names the trials (in a leave-one-out game, the records) that the optimiser's
    tolerance hides: their predicted error is above the threshold. `arrays` holds numbers per
    trial, never features. `gallery` holds a few targets, reconstructions and controls with `succeeded`.
    """

    attack: str
    main: SuccessRate
    control: SuccessRate
    baseline: Baseline
    caveats: tuple[Caveat, ...] = ()
    label_rate: SuccessRate | None = None
    median_error: float | None = None
    worst_error: float | None = None
    median_predicted_error: float | None = None
    remaining_gradient: float | None = None
    unresolved: tuple[int, ...] = ()
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    findings: Mapping[str, float] = field(default_factory=dict)  # further numbers that the evidence proves
    gallery: Mapping[str, Tensor] | None = None  # data, and so never part of audit.json or its arrays

    @property
    def reference(self) -> str:
        """Where the attack comes from, if it is one of ours."""
        return CATALOGUE[self.attack].reference.short if self.attack in CATALOGUE else ""

    @property
    def tells(self) -> bool:
        """Whether the attack certainly does better than what needs no release: a guess, or its own control.

        Where a guess has only been bounded, the control may be the smaller of the two. Where that bound is for records
        at random, and these few may be easier, only the control counts.
        """
        luck = self.control.upper
        return self.main.lower > (luck if self.baseline.on_average else min(self.baseline.value, luck))

    @property
    def rejects_the_claim(self) -> bool:
        """Whether what the training claims was measured to be false, or failed a test at the level of accusing."""
        level = self.findings.get("accused_at", 1 - self.main.confidence)
        tested = self.findings.get("p_value_of_the_claim", 1.0) <= level
        return tested or any(caveat.contradicts for caveat in self.caveats)

    def to_json(self) -> Json:
        """The entry in audit.json."""
        return {
            "attack": self.attack,
            "reference": self.reference,
            "main": _rate(self.main),
            "control": _rate(self.control),
            "baseline": {
                "value": self.baseline.value,
                "lower": self.baseline.lower,
                "note": self.baseline.note,
                **({"on_average": True} if self.baseline.on_average else {}),
            },
            "caveats": [
                {"id": c.id, "means": c.means, "do": c.do, **({"seen": c.seen} if c.seen else {})}
                for c in self.caveats
            ],
            "labels": None if self.label_rate is None else _rate(self.label_rate),
            "error": {
                "median": finite(self.median_error),
                "worst": finite(self.worst_error),
                "median_predicted": finite(self.median_predicted_error),
                "remaining_gradient": finite(self.remaining_gradient),
            },
            "unresolved": list(self.unresolved),
            **({"findings": dict(self.findings)} if self.findings else {}),
        }

    @classmethod
    def from_json(cls, entry: Json, arrays: Mapping[str, Tensor]) -> Evidence:
        """Read an entry back; the intervals are computed anew from the counts."""
        error = entry["error"]
        return cls(
            attack=entry["attack"],
            main=_read_rate(entry["main"]),
            control=_read_rate(entry["control"]),
            baseline=Baseline(**entry["baseline"]),
            caveats=tuple(
                replace(
                    CAVEATS.get(c["id"], Caveat(c["id"], "", c["means"], c["do"])), seen=c.get("seen", "")
                )
                for c in entry["caveats"]
            ),
            label_rate=None if entry["labels"] is None else _read_rate(entry["labels"]),
            median_error=error["median"],
            worst_error=error["worst"],
            median_predicted_error=error["median_predicted"],
            remaining_gradient=error["remaining_gradient"],
            unresolved=tuple(entry["unresolved"]),
            findings=entry.get("findings", {}),
            arrays=arrays,
        )


def finite(value: float | None) -> float | None:
    """The number, or None where JSON has no word for it.

    >>> finite(0.5), finite(float("nan")), finite(float("inf"))
    (0.5, None, None)
    """
    return value if value is not None and math.isfinite(value) else None


def _rate(rate: SuccessRate) -> Json:
    return {
        "rate": rate.rate,
        "lower": rate.lower,
        "upper": rate.upper,
        "successes": rate.successes,
        "trials": rate.trials,
        "clusters": rate.clusters,
        "confidence": rate.confidence,
        **({} if rate.floor is None else {"floor": rate.floor}),
    }


def _read_rate(entry: Json) -> SuccessRate:
    if entry["successes"] > entry["trials"]:
        raise ValueError(f"{entry['successes']} successes in {entry['trials']} trials")
    counts = entry["successes"], entry["trials"], entry["confidence"], entry["clusters"]
    return SuccessRate(*counts, floor=entry.get("floor"))
