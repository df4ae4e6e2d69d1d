"""What one attack achieved in one game: main, control and baseline, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, Error
from remanence.core.rates import SuccessRate
from remanence.heads.this_head import PictureExposure, ThisHead
from remanence.results.caveats import (
    DIVERGED,
    NO_TRACE,
    OPTIMISER_NOT_CONVERGED,
    Caveat,
    check_rates,
)
from remanence.results.outcome import Outcome
from remanence.results.parts import PartRate, part_rates

Json = dict[str, Any]

_LISTED = 1000  # records by name in audit.json; arrays hold any number of them
_NO_TRACE = 1e13  # a residual of rounding size: even an exact optimum says nothing about the record


class Played(Protocol):
    """What evidence needs to know of a game."""

    @property
    def criterion(self) -> Criterion:
        """When a reconstruction counts."""
        ...

    def baseline(self, chances: int = 1) -> Baseline:
        """What a guess achieves."""
        ...

    def baseline_of(self, part: Error) -> Baseline | None:
        """What a guess achieves for a single column, where columns are counted."""
        ...

    def caveats(self) -> Iterable[Caveat]:
        """What to mind about it."""
        ...

    def findings(self) -> Mapping[str, float]:
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
    `proven` counts the records that the game recomputed the release from: facts, which need no interval. `parts` are
    single columns, where records are rows of a table: they share the confidence with the rows. `this_head` is
    about the very head that was handed in, and the rates about heads that are made like it. `prepare`
    returns what the attack had prepared, as long as nobody has stored the evidence.
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
    findings: Mapping[str, float] = field(default_factory=dict)  # further numbers that the evidence proves
    gallery: Mapping[str, Tensor] | None = None  # data, and so never part of audit.json or its arrays
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the attack
    proven: int | None = None
    parts: tuple[PartRate, ...] = ()
    this_head: ThisHead | None = None
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
    ) -> Evidence:
        """Count what all trials found; `record` says which record of the training set each was about."""
        asked = [(part.name, game.baseline_of(part)) for part in game.criterion.error.parts]
        guesses = {name: guess.seen for name, guess in asked if guess is not None}
        confidence = 1 - (1 - confidence) / 2 if guesses else confidence  # one half for rows, one for columns
        main, control = (_counted(side.succeeded, confidence) for side in (outcome.main, outcome.control))
        numbers, errors = dict(outcome.numbers), outcome.main.errors
        left, sensitivity = numbers.pop("remaining_gradient", None), numbers.pop("sensitivity", None)
        diverged = numbers.pop("diverged", None)
        baseline = game.baseline(outcome.chances)
        parts = part_rates(numbers, guesses, game.criterion.threshold, confidence)
        tells = any(part.tells for part in parts)
        caveats = [*check_rates(main, control, baseline, tells=tells), *game.caveats()]
        record = torch.arange(len(errors)) if record is None else record
        findings, unresolved = dict(game.findings()), ()
        if left is not None and sensitivity is not None:
            predicted = sensitivity * left
            numbers["predicted_error"] = predicted
            traceless = ~(sensitivity < _NO_TRACE)
            hidden = ~(predicted <= game.criterion.threshold) & ~traceless
            caveats += [NO_TRACE] if traceless.any() else []
            caveats += [OPTIMISER_NOT_CONVERGED] if hidden.any() else []
            numbers["unresolved"] = hidden
            unresolved = tuple(record[hidden.cpu()].tolist())
        if outcome.this_head is not None:
            caveats += outcome.this_head.caveats(outcome.main.succeeded)
        if diverged is not None and diverged.any():
            caveats.append(DIVERGED)
            findings["diverged_trainings"] = float(diverged.sum())
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
            findings=findings,
            gallery=None if outcome.gallery is None else outcome.gallery.tensors(),
            settings=attack.settings(),
            proven=None if outcome.proven is None else int(outcome.proven.sum()),
            parts=parts,
            this_head=outcome.this_head,
            reference=attack.info.reference.short,
            prepare=prepare,
        )

    @property
    def tells(self) -> bool:
        """Whether the attack certainly does better than what needs no release: its own control, and a guess.

        Where a guess has only been bounded from far above, what a guess was seen to achieve counts.
        """
        return self.main.lower > max(self.control.upper, self.baseline.seen)

    @property
    def about_the_release(self) -> bool:
        """Whether the rates are about what was handed in: not if a head may be one on other pictures."""
        return self.this_head is None or self.this_head.made_like_this

    @property
    def telling_parts(self) -> tuple[PartRate, ...]:
        """The columns that certainly come back more often than without the release, the surest first."""
        return tuple(sorted((p for p in self.parts if p.tells), key=lambda p: -p.main.lower))

    @property
    def of_unknown_many(self) -> bool:
        """Whether more records were proven than were counted: nobody knows how many there were, so there is no rate."""
        return self.proven is not None and self.proven > self.main.trials

    @property
    def pictures(self) -> list[PictureExposure]:
        """What came back out of the very head that was handed in, the closest first; empty if none was."""
        return [] if self.this_head is None else self.this_head.pictures()

    @property
    def came_back(self) -> float:
        """The share of that head's classes of which a picture came back."""
        found = self.pictures
        return sum(picture.came_back for picture in found) / max(1, len(found))

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
            **({} if self.proven is None else {"proven": self.proven}),
            **({"parts": [part.to_json() for part in self.parts]} if self.parts else {}),
            **({} if self.this_head is None else {"this_head": self.this_head.to_json()}),
            **({"findings": dict(self.findings)} if self.findings else {}),
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
            findings=entry.get("findings", {}),
            settings=entry.get("settings", {}),
            proven=entry.get("proven"),
            parts=tuple(PartRate.from_json(part) for part in entry.get("parts", ())),
            this_head=ThisHead.from_json(entry["this_head"]) if "this_head" in entry else None,
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
