"""Single columns of a record: a row need not come back whole to give a person away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from remanence.core.errors import Error
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.results.recount import rate_contradictions

Json = dict[str, Any]

_MAIN, _CONTROL = "column ", "control column "  # before a column's name, in the arrays of an audit


@final
@dataclass(frozen=True)
class PartRate:
    """How often one column came back, was met where it was not trained on, and is guessed from the known records."""

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
        return {
            "name": self.name,
            "main": self.main.to_json(),
            "control": self.control.to_json(),
            "guess": self.guess,
        }

    @classmethod
    def from_json(cls, entry: Json) -> PartRate:
        """Read it back; the intervals are computed anew from the counts."""
        main, control = SuccessRate.from_json(entry["main"]), SuccessRate.from_json(entry["control"])
        return cls(entry["name"], main, control, entry["guess"])


def part_numbers(
    parts: Iterable[Error], main: tuple[Records, Records], control: tuple[Records, Records]
) -> dict[str, Tensor]:
    """The errors of each column in a target and its guess, and in those of the control, `(trials,)` each, by name."""
    found = {}
    for part in parts:
        found[_MAIN + part.name] = part(*main)[:, 0]
        found[_CONTROL + part.name] = part(*control)[:, 0]
    return found


def part_errors(name: str, arrays: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The errors of one column among the arrays of an audit, and those of its control."""
    return arrays[_MAIN + name], arrays[_CONTROL + name]


def part_rates(
    arrays: Mapping[str, Tensor], guesses: Mapping[str, float], threshold: float, confidence: float
) -> tuple[PartRate, ...]:
    """Count each column; `confidence` holds for all of them together."""
    each = 1 - (1 - confidence) / max(1, len(guesses))

    def rate(name: str) -> SuccessRate:
        met = arrays[name] <= threshold
        return SuccessRate(int(met.sum()), met.numel(), each)

    return tuple(PartRate(name, rate(_MAIN + name), rate(_CONTROL + name), g) for name, g in guesses.items())


def part_contradictions(
    entries: Iterable[Json], arrays: Mapping[str, Tensor], threshold: float
) -> Iterator[str]:
    """What the entries of audit.json say about columns and the arrays do not."""
    for entry in entries:
        for which, prefix in (("main", _MAIN), ("control", _CONTROL)):
            errors = arrays.get(prefix + entry["name"])
            met = None if errors is None else (errors <= threshold)[:, None].to(torch.bool)
            yield from rate_contradictions(f"{entry['name']}, {which}", entry[which], met)
