"""κ, the success of the best guess from the prior alone."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Baseline:
    """An upper (`value`) and a lower (`lower`) bound on κ, and their source."""

    value: float
    lower: float
    note: str
    on_average: bool = False  # over random records; all trials share a few, which may be easier

    @property
    def loose(self) -> bool:
        """Whether the proven upper bound is more than twice the success observed for a guess."""
        return self.value > 2 * self.lower

    @property
    def seen(self) -> float:
        """The success attributed to guessing: the upper bound or, if that is loose, the observed success."""
        return self.lower if self.loose else self.value

    def times(self, factor: int) -> Baseline:
        """The baseline when `factor` pairs of guess and record could each succeed (union bound)."""
        if factor == 1:
            return self
        note = f"{self.note}; times {factor} chances"
        return replace(self, value=min(1.0, self.value * factor), note=note)
