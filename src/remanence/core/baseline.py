"""κ, how far belief alone gets."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Baseline:
    """κ from above (`value`) and from below (`lower`), and where it comes from."""

    value: float
    lower: float
    note: str
    on_average: bool = (
        False  # over records at random, where all trials have the same few: those may be easier
    )

    @property
    def loose(self) -> bool:
        """Whether the certain upper value is more than twice what a guess was seen to achieve."""
        return self.value > 2 * self.lower

    @property
    def seen(self) -> float:
        """What guessing is known to achieve: the value, or where that is loose what a guess was seen to do."""
        return self.lower if self.loose else self.value

    def times(self, factor: int) -> Baseline:
        """The baseline when `factor` pairs of guess and record could each succeed (union bound)."""
        if factor == 1:
            return self
        note = f"{self.note}; times {factor} chances"
        return replace(self, value=min(1.0, self.value * factor), note=note)
