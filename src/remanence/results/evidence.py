"""What one attack achieved in one game: main, control and baseline, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion
from remanence.core.rates import SuccessRate
from remanence.results.caveats import (
    DIVERGED,
    NO_TRACE,
    OPTIMISER_NOT_CONVERGED,
    Caveat,
    check_rates,
)
from remanence.results.findings import Finding, ProvenRecords, WholeRecords, read_finding, stored_finding
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy

Json = dict[str, Any]

_LISTED = 1000  # records by name in audit.json; arrays hold any number of them
_NO_TRACE = 1e13  # a residual of rounding size: even an exact optimum says nothing about the record


class Played(Protocol):
    """What evidence needs to know of a game."""

    @property
    def criterion(self) -> Criterion:
        """When a reconstruction counts."""
        ...

    @property
    def tests_more(self) -> bool:
        """Whether it tests more than whole records."""
        ...

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """What it found beside whole records."""
        ...

    def how_many(self, outcome: Outcome) -> int | None:
        """How many records the trials are about."""
        ...

    def baseline(self, chances: int = 1) -> Baseline:
        """What a guess achieves."""
        ...

    def caveats(self) -> Iterable[Caveat]:
        """What to mind about it."""
        ...

    def measures(self) -> Mapping[str, float]:
        """Further numbers that it proves, whatever the attack."""
        ...

    def certain(self, rate: SuccessRate) -> SuccessRate:
        """A rate with what the game knows about its certainty."""
        ...


@dataclass(frozen=True)
class ErrorSummary:
    """All errors in a few numbers; none where an attack has no errors to measure."""

    median: float | None = None
    worst: float | None = None
    median_predicted: float | None = None  # what the optimiser's tolerance makes one expect
    remaining_gradient: float | None = None  # how far the optimiser stopped from its goal

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
    `proven` counts the records that the game recomputed the release from, of `proven_of` where that is known: facts,
    which need no interval. `findings` are what the door found beside whole records. `numbers` are further numbers that
    the evidence proves. `prepare` returns what the attack had prepared, until the evidence is stored.
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
    gallery: Mapping[str, Tensor] | None = None  # data, and so never part of audit.json or its arrays
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the attack
    proven: int | None = None
    proven_of: int | None = None
    findings: tuple[Finding, ...] = ()
    reference: str = ""  # where the attack comes from
    prepare: Callable[[], Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        game: Played,
        attack: Attack,
        outcome: Outcome,
        confidence: float,
        record: Tensor | None = None,
        prepare: Callable[[], Any] | None = None,
        baseline: Baseline | None = None,
    ) -> Evidence:
        """Count what all trials found; `record` says which record of the training set each was about."""
        confidence = 1 - (1 - confidence) / 2 if game.tests_more else confidence  # one half for whole records
        main, control = (_counted(side.succeeded, confidence) for side in (outcome.main, outcome.control))
        numbers, errors = dict(outcome.numbers), outcome.main.errors
        left, sensitivity = numbers.pop("remaining_gradient", None), numbers.pop("sensitivity", None)
        diverged = numbers.pop("diverged", None)
        baseline = game.baseline(outcome.chances) if baseline is None else baseline
        findings = tuple(game.findings(outcome, confidence))
        tells = any(each.tells for each in findings)
        caveats = [*check_rates(main, control, baseline, tells=tells), *game.caveats()]
        record = torch.arange(len(errors)) if record is None else record
        facts, unresolved = dict(game.measures()), ()
        if left is not None and sensitivity is not None:
            predicted = sensitivity * left
            numbers["predicted_error"] = predicted
            traceless = ~(sensitivity < _NO_TRACE)
            hidden = ~(predicted <= game.criterion.threshold) & ~traceless
            caveats += [NO_TRACE] if traceless.any() else []
            caveats += [OPTIMISER_NOT_CONVERGED] if hidden.any() else []
            numbers["unresolved"] = hidden
            unresolved = tuple(record[hidden.cpu()].tolist())
        caveats += [caveat for each in findings for caveat in each.caveats(outcome)]
        if diverged is not None and diverged.any():
            caveats.append(DIVERGED)
            facts["diverged_trainings"] = float(diverged.sum())
        known = not errors.isnan().all()
        arrays = {"record": record, "error": errors, "control_error": outcome.control.errors}
        arrays |= {"succeeded": outcome.main.succeeded, "control_succeeded": outcome.control.succeeded}
        if known and outcome.claims_labels:
            arrays["labels_agree"] = outcome.main.labels_agree
        arrays = {**numbers, **arrays}
        return cls(
            attack=attack.info.name,
            main=game.certain(main),
            control=control,
            baseline=baseline,
            caveats=tuple(caveats),
            label_rate=_counted(outcome.main.labels_agree, confidence)
            if known and outcome.claims_labels
            else None,
            errors=ErrorSummary.of(errors, numbers.get("predicted_error"), left),
            unresolved=unresolved,
            arrays={name: values.detach().cpu().contiguous() for name, values in arrays.items()},
            numbers=facts,
            gallery=None if outcome.gallery is None else outcome.gallery.tensors(),
            settings=attack.settings(),
            proven=None if outcome.proven is None else int(outcome.proven.sum()),
            proven_of=None if outcome.proven is None else game.how_many(outcome),
            findings=findings,
            reference=attack.info.reference.short,
            prepare=prepare,
        )

    @property
    def whole(self) -> WholeRecords:
        """How often whole records came back."""
        vouched = all(each.vouches for each in self.findings)
        return WholeRecords(self.main, self.control, self.baseline, vouched, not self.of_unknown_many)

    @property
    def found(self) -> tuple[Finding, ...]:
        """All that was found: proven records first, which are facts, then whole records, then what the door adds."""
        proven = (ProvenRecords(self.proven, self.proven_of),) if self.proven else ()
        return (*proven, self.whole, *self.findings)

    @property
    def tells(self) -> bool:
        """Whether the attack certainly does better than what needs no release: its own control, and a guess."""
        return self.whole.tells

    @property
    def of_unknown_many(self) -> bool:
        """Whether more records were proven than counted: it is unknown how many there were, so there is no rate."""
        return self.proven is not None and self.proven > self.main.trials

    @property
    def rejects_the_claim(self) -> bool:
        """Whether what the training claims was measured to be false, or failed a test at the level of accusing."""
        level = self.numbers.get("accused_at", 1 - self.main.confidence)
        tested = self.numbers.get("p_value_of_the_claim", 1.0) <= level
        return tested or any(caveat.contradicts for caveat in self.caveats)

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
        """Read an entry back; the intervals are computed anew from the counts."""
        return cls(
            attack=entry["attack"],
            main=SuccessRate.from_json(entry["main"]),
            control=SuccessRate.from_json(entry["control"]),
            baseline=Baseline(**entry["baseline"]),
            caveats=tuple(Caveat.from_json(stored) for stored in entry["caveats"]),
            label_rate=None if entry["labels"] is None else SuccessRate.from_json(entry["labels"]),
            errors=ErrorSummary(**{each.name: entry["error"][each.name] for each in fields(ErrorSummary)}),
            unresolved=_unresolved(entry, arrays),
            numbers=entry.get("numbers", {}),
            settings=entry.get("settings", {}),
            proven=entry.get("proven"),
            proven_of=entry.get("proven_of"),
            findings=tuple(read_finding(finding) for finding in entry["findings"]),
            reference=entry["reference"],
            arrays=arrays,
        )


def _unresolved(entry: Json, arrays: Mapping[str, Tensor]) -> tuple[int, ...]:
    if {"unresolved", "record"} <= arrays.keys():
        return tuple(arrays["record"][arrays["unresolved"].bool()].tolist())
    return tuple(entry["unresolved"])


def finite(value: float | None) -> float | None:
    """The number, or None where JSON has no word for it.

    >>> finite(0.5), finite(float("nan")), finite(float("inf"))
    (0.5, None, None)
    """
    return value if value is not None and math.isfinite(value) else None


def _counted(succeeded: Tensor, confidence: float) -> SuccessRate:
    trials, counted = succeeded.shape
    clusters = trials if counted > 1 else None
    return SuccessRate(int(succeeded.sum()), succeeded.numel(), confidence, clusters=clusters)


def _summary(errors: Tensor, function: Callable[[Tensor], Tensor]) -> float:
    return float(function(errors.nan_to_num(nan=torch.inf, posinf=torch.inf)))
