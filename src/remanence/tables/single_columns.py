"""Single columns of a record: a row need not come back whole to give a person away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor

from remanence.core.errors import Error
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.results.evidence import rate_contradictions
from remanence.results.findings import Finding, Row, Section, Words
from remanence.results.verdict import Policy

Json = dict[str, Any]

MAIN, _CONTROL = "column ", "control column "  # before a column's name, in the arrays of an audit


@final
@dataclass(frozen=True)
class PartRate:
    """How often one column came back, came back in the control, and is guessed from the known records."""

    name: str
    main: SuccessRate
    control: SuccessRate
    guess: float

    @property
    def tells(self) -> bool:
        """Whether it certainly comes back more often than without the release."""
        return self.main.lower > max(self.control.upper, self.guess)

    def to_json(self) -> Json:
        """The entry in audit.json."""
        rates = {"main": self.main.to_json(), "control": self.control.to_json()}
        return {"name": self.name, **rates, "guess": self.guess}

    @classmethod
    def from_json(cls, entry: Json) -> PartRate:
        """Read it back; the intervals are recomputed from the counts."""
        main, control = SuccessRate.from_json(entry["main"]), SuccessRate.from_json(entry["control"])
        return cls(entry["name"], main, control, entry["guess"])


@final
@dataclass(frozen=True)
class Columns(Finding):
    """How often each column came back. All intervals hold jointly, and share the confidence with whole rows."""

    parts: tuple[PartRate, ...]
    kind: ClassVar[str] = "columns"
    meaning: ClassVar[str] = "Single columns come back more often than the limit allows."

    @property
    def telling(self) -> tuple[PartRate, ...]:
        """The columns that certainly come back more often than without the release, the surest first."""
        return tuple(sorted((p for p in self.parts if p.tells), key=lambda p: -p.main.lower))

    @property
    def tells(self) -> bool:
        """Whether any does."""
        return bool(self.telling)

    def exposes(self, policy: Policy) -> bool:
        """One column above the limit, its control and a guess is enough."""
        return any(part.main.lower > policy.max_success for part in self.telling)

    def headline(self, said: Words) -> str:
        """The surest column, and how many more."""
        if not self.telling:
            return "No column certainly came back more often than without the release."
        best, *more = self.telling
        several = f" {len(more)} more columns came back, too."
        others = several if len(more) > 1 else " So did one more." * len(more)
        return (
            f"The column {best.name} came back in {best.main.successes} of {best.main.trials} {said.many}; a guess "
            f"finds it {1000 * best.guess:.0f} times in 1000.{others}"
        )

    def rows(self) -> list[Row]:
        """Guess, control and attack for the surest column."""
        if not self.telling:
            return []
        best = self.telling[0]
        guess = Row("guess", best.guess, best.guess, best.guess, "guess")
        return [guess, Row.of("control", best.control, "control"), Row.of("attack", best.main, "attack")]

    def section(self) -> Section | None:
        """Every column; those that come back because of the release come first."""
        headings = "column", "came back", "control", "guess in 1000"
        ordered = [*self.telling, *(part for part in self.parts if not part.tells)]
        rows = [
            (part.name, _counted(part.main), _counted(part.control), f"{1000 * part.guess:.0f}")
            for part in ordered
        ]
        said = (
            "How often each column came back by itself. Those that beat their control and a guess come first."
        )
        return Section("Column by column", (said,), headings, tuple(rows))

    def to_json(self) -> Json:
        """Its entry in audit.json: the counts behind the sentences."""
        return {"columns": [part.to_json() for part in self.parts]}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Read an entry back."""
        return cls(tuple(PartRate.from_json(part) for part in entry["columns"]))

    def contradictions(self, arrays: Mapping[str, Tensor], threshold: float) -> Iterator[str]:
        """The numbers that the counts hold and the arrays do not."""
        for part in self.parts:
            for which, rate, prefix in (("main", part.main, MAIN), ("control", part.control, _CONTROL)):
                errors = arrays.get(prefix + part.name)
                met = None if errors is None else (errors <= threshold)[:, None].to(torch.bool)
                yield from rate_contradictions(f"{part.name}, {which}", rate.to_json(), met)


def _counted(rate: SuccessRate) -> str:
    return f"{rate.successes} of {rate.trials} ({1000 * rate.lower:.0f} to {1000 * rate.upper:.0f} in 1000)"


def part_numbers(
    parts: Iterable[Error], main: tuple[Records, Records], control: tuple[Records, Records]
) -> dict[str, Tensor]:
    """The errors of each column in a target and its guess, and in those of the control, `(trials,)` each, by name."""
    found = {}
    for part in parts:
        found[MAIN + part.name] = part(*main)[:, 0]
        found[_CONTROL + part.name] = part(*control)[:, 0]
    return found


def part_rates(
    arrays: Mapping[str, Tensor], guesses: Mapping[str, float], threshold: float, confidence: float
) -> tuple[PartRate, ...]:
    """Count each column; `confidence` holds for all of them jointly."""
    each = 1 - (1 - confidence) / max(1, len(guesses))

    def rate(name: str) -> SuccessRate:
        met = arrays[name] <= threshold
        return SuccessRate(int(met.sum()), met.numel(), each)

    return tuple(PartRate(name, rate(MAIN + name), rate(_CONTROL + name), g) for name, g in guesses.items())
