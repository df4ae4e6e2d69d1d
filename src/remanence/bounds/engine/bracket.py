"""What is known of γ, and of 1 − γ, from both sides."""

from __future__ import annotations

from dataclasses import dataclass

_COMPLEMENT_LENIENCE = 100.0  # 1 − γ is asked for to two digits fewer
_NO_COMPLEMENT = -690.0  # below 1e-300 its digits are asked for no more


@dataclass(frozen=True)
class TwoSided:
    """A bracket of log γ and one of log(1−γ)."""

    log_lower: float
    log_upper: float
    log_complement_lower: float
    log_complement_upper: float

    def meets(self, other: TwoSided) -> TwoSided:
        """What both brackets allow."""
        return TwoSided(
            max(self.log_lower, other.log_lower),
            min(self.log_upper, other.log_upper),
            max(self.log_complement_lower, other.log_complement_lower),
            min(self.log_complement_upper, other.log_complement_upper),
        )

    def excess(self, rtol: float) -> float:
        """The width as a multiple of what is asked for; 1 − γ is asked for to two digits fewer."""
        width = self.log_upper - self.log_lower
        complement = self.log_complement_upper - self.log_complement_lower
        if self.log_complement_upper < _NO_COMPLEMENT:
            complement = 0.0
        return max(width, complement / _COMPLEMENT_LENIENCE) / rtol
