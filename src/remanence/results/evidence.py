"""The success of one attack in one game: main, control and baseline rates, with their caveats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from remanence.core.baseline import Baseline
from remanence.core.plain_text import plain
from remanence.core.rates import SuccessRate
from remanence.results.caveats import Caveat
from remanence.results.claims import split
from remanence.results.findings import Finding, ProvenRecords, WholeRecords, read_finding, stored_finding
from remanence.results.verdict import Policy

Json = dict[str, Any]

_CLOSE = 1e-9  # tolerance between a stored and a recomputed interval
_COUNTED = {
    "main": "succeeded",
    "control": "control_succeeded",
    "labels": "labels_agree",
}  # rates, and arrays
_LISTED = 1000  # most records listed in audit.json; the arrays hold all of them


@dataclass(frozen=True)
class ErrorSummary:
    """Summary statistics of the errors; None for an attack without errors to measure."""

    median: float | None = None
    worst: float | None = None
    median_predicted: float | None = None  # expected from the optimiser's tolerance
    remaining_gradient: float | None = None  # norm at which the optimiser stopped

    @classmethod
    def of(cls, errors: Tensor, predicted: Tensor | None, left: Tensor | None) -> ErrorSummary:
        """The summary of the trials' errors."""
        known = not errors.isnan().all()
        return cls(
            _summary(errors, torch.nanmedian) if known else None,
            _summary(errors, torch.max) if known else None,
            None if predicted is None else float(predicted.median()),
            None if left is None else float(left.max()),
        )


@dataclass(frozen=True)
class Evidence:
    """The three rates of an attack, its errors and its caveats.

    `unresolved` names the trials (in a leave-one-out game, the records) that the optimiser's
    tolerance hides: their predicted error is above the threshold. `arrays` holds numbers per
    trial, never features. `gallery` holds a few targets, reconstructions and controls with `succeeded`.
    `proven` counts the records from which the game recomputed the release, out of `proven_of` if that is known. They
    are facts and need no interval. `findings` are the door's results besides whole records. `numbers` are further
    numbers that the evidence proves. `prepare` returns the attack's prepared state, until the evidence is stored.
    """

    attack: str
    main: SuccessRate
    control: SuccessRate
    baseline: Baseline
    caveats: tuple[Caveat, ...] = ()
    label_rate: SuccessRate | None = None
    errors: ErrorSummary = ErrorSummary()
    unresolved: tuple[int, ...] = ()
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)  # further numbers that the evidence proves
    gallery: Mapping[str, Tensor] | None = None  # data, hence never part of audit.json or its arrays
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the attack
    proven: int | None = None
    proven_of: int | None = None
    findings: tuple[Finding, ...] = ()
    reference: str = ""  # where the attack comes from
    prepare: Callable[[], Any] | None = field(default=None, compare=False, repr=False)

    @property
    def whole(self) -> WholeRecords:
        """The finding about whole records."""
        vouched = all(each.vouches for each in self.findings)
        return WholeRecords(self.main, self.control, self.baseline, vouched, not self.of_unknown_many)

    @property
    def found(self) -> tuple[Finding, ...]:
        """All findings: proven records first, which are facts, then whole records, then the door's own."""
        proven = (ProvenRecords(self.proven, self.proven_of),) if self.proven else ()
        return (*proven, self.whole, *self.findings)

    @property
    def tells(self) -> bool:
        """Whether the attack is significantly better than its own control and a guess, which need no release."""
        return self.whole.tells

    @property
    def of_unknown_many(self) -> bool:
        """Whether more records were proven than counted: their total is unknown, so there is no rate."""
        return self.proven is not None and self.proven > self.main.trials

    @property
    def rejects_the_claim(self) -> bool:
        """Whether a finding or a caveat contradicts the training's claim."""
        return any(each.contradicts for each in (*self.findings, *self.caveats))

    def to_json(self, policy: Policy) -> Json:
        """The entry in audit.json."""
        return {
            "attack": self.attack,
            "reference": self.reference,
            "main": self.main.to_json(),
            "control": self.control.to_json(),
            "baseline": {
                "value": self.baseline.value,
                "lower": self.baseline.lower,
                "note": self.baseline.note,
                **({"on_average": True} if self.baseline.on_average else {}),
            },
            "caveats": [caveat.to_json() for caveat in self.caveats],
            "labels": None if self.label_rate is None else self.label_rate.to_json(),
            "error": {name: finite(value) for name, value in vars(self.errors).items()},
            "unresolved": list(self.unresolved[:_LISTED]),  # all of them are in the arrays
            "unresolved_count": len(self.unresolved),
            **({"settings": dict(self.settings)} if self.settings else {}),
            **({} if self.proven is None else {"proven": self.proven, "proven_of": self.proven_of}),
            "findings": [stored_finding(finding, policy) for finding in self.findings],
            **({"numbers": dict(self.numbers)} if self.numbers else {}),
        }

    @classmethod
    def from_json(cls, entry: Json, arrays: Mapping[str, Tensor]) -> Evidence:
        """Read an entry back; the intervals are recomputed from the counts."""
        hidden = entry["unresolved"]
        if {"unresolved", "record"} <= arrays.keys():
            hidden = arrays["record"][arrays["unresolved"].bool()].tolist()
        older, numbers = split(entry.get("numbers", {}))
        findings = [read_finding(finding) for finding in entry["findings"]]
        return cls(
            attack=entry["attack"],
            main=SuccessRate.from_json(entry["main"]),
            control=SuccessRate.from_json(entry["control"]),
            baseline=Baseline(**entry["baseline"]),
            caveats=tuple(Caveat.from_json(stored) for stored in entry["caveats"]),
            label_rate=None if entry["labels"] is None else SuccessRate.from_json(entry["labels"]),
            errors=ErrorSummary(**{each.name: entry["error"][each.name] for each in fields(ErrorSummary)}),
            unresolved=tuple(hidden),
            numbers=numbers,
            settings=entry.get("settings", {}),
            proven=entry.get("proven"),
            proven_of=entry.get("proven_of"),
            findings=(*findings, *([] if older is None else [older])),
            reference=entry["reference"],
            arrays=arrays,
        )


def contradictions(entry: Json, arrays: Mapping[str, Tensor]) -> Iterator[str]:
    """Statements of an entry in audit.json that its arrays, counts or ceilings contradict."""
    for name, counted in _COUNTED.items():
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
    held = [each for finding in entry["findings"] for each in finding.values() if isinstance(each, list)]
    parts = {plain(part.get("name")) for parts in held for part in parts if isinstance(part, dict)}
    for name in sorted(arrays):  # what is stored of a column is counted by a finding
        column = plain(name.partition("column ")[2])
        if column and column not in parts:
            yield f"the finding about {name!r} is left out"


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


def finite(value: float | None) -> float | None:
    """The number, or None if JSON cannot represent it.

    >>> finite(0.5), finite(float("nan")), finite(float("inf"))
    (0.5, None, None)
    """
    return value if value is not None and math.isfinite(value) else None


def counted(succeeded: Tensor, confidence: float) -> SuccessRate:
    """The success rate of an attack; the records of one trial, `(trials, records)`, may be correlated."""
    clusters = len(succeeded) if succeeded.shape[1] > 1 else None
    return SuccessRate(int(succeeded.sum()), succeeded.numel(), confidence, clusters=clusters)


def _summary(errors: Tensor, function: Callable[[Tensor], Tensor]) -> float:
    return float(function(errors.nan_to_num(nan=torch.inf, posinf=torch.inf)))
