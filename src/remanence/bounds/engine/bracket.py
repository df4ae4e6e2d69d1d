"""Two-sided bounds on γ and on 1 − γ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_COMPLEMENT_LENIENCE = 100.0  # 1 − γ is required to two digits fewer
_NO_COMPLEMENT = -690.0  # below 1e-300 its digits are not required


@dataclass(frozen=True)
class Bracket:
    """The success γ at one baseline κ, and 1 − γ, from both sides, in logarithms.

    `log_upper` is the bound to report: no attack exceeds it. `log_lower` is the success of an explicit test, −∞
    if none is known, so the bound cannot be improved by more than the difference. `converged` says that the
    bracket is as narrow as requested; otherwise it is still valid.
    """

    log_lower: float
    log_upper: float
    log_complement_lower: float = -math.inf
    log_complement_upper: float = 0.0
    method: str = ""  # how it was found
    converged: bool = True

    def meets(self, other: Bracket) -> Bracket:
        """The intersection of both brackets."""
        return replace(
            self,
            log_lower=max(self.log_lower, other.log_lower),
            log_upper=min(self.log_upper, other.log_upper),
            log_complement_lower=max(self.log_complement_lower, other.log_complement_lower),
            log_complement_upper=min(self.log_complement_upper, other.log_complement_upper),
        )

    def excess(self, rtol: float) -> float:
        """The width as a multiple of the required one; 1 − γ is required to two digits fewer."""
        width = self.log_upper - self.log_lower
        complement = self.log_complement_upper - self.log_complement_lower
        if self.log_complement_upper < _NO_COMPLEMENT:
            complement = 0.0
        return max(width, complement / _COMPLEMENT_LENIENCE) / rtol


def ceiling(log_upper: float, log_complement: float = -math.inf) -> Bracket:
    """A bracket of which only the upper side is known."""
    return Bracket(-math.inf, log_upper, log_complement)
