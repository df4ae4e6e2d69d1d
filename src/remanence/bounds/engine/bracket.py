"""What is known of γ, and of 1 − γ, from both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_COMPLEMENT_LENIENCE = 100.0  # 1 − γ is asked for to two digits fewer
_NO_COMPLEMENT = -690.0  # below 1e-300 its digits are asked for no more


@dataclass(frozen=True)
class Bracket:
    """The success γ at one baseline κ, and 1 − γ, from both sides, in logarithms.

    `log_upper` is the bound to report: no attack exceeds it. `log_lower` is the success of a test that exists, −∞
    where none is known, so the bound cannot be improved by more than the difference. `converged` says that the
    bracket is as narrow as asked for; otherwise it holds all the same.
    """

    log_lower: float
    log_upper: float
    log_complement_lower: float = -math.inf
    log_complement_upper: float = 0.0
    log_estimate: float | None = None  # between the two sides
    method: str = ""  # how it was found
    converged: bool = True
    dropped: str = ""  # why an estimate was not used: it contradicted the two sides, which are proven

    def meets(self, other: Bracket) -> Bracket:
        """What both brackets allow."""
        return replace(
            self,
            log_lower=max(self.log_lower, other.log_lower),
            log_upper=min(self.log_upper, other.log_upper),
            log_complement_lower=max(self.log_complement_lower, other.log_complement_lower),
            log_complement_upper=min(self.log_complement_upper, other.log_complement_upper),
        )

    def excess(self, rtol: float) -> float:
        """The width as a multiple of what is asked for; 1 − γ is asked for to two digits fewer."""
        width = self.log_upper - self.log_lower
        complement = self.log_complement_upper - self.log_complement_lower
        if self.log_complement_upper < _NO_COMPLEMENT:
            complement = 0.0
        return max(width, complement / _COMPLEMENT_LENIENCE) / rtol


def ceiling(log_upper: float, log_complement: float = -math.inf) -> Bracket:
    """A bracket of which only the upper side is known."""
    return Bracket(-math.inf, log_upper, log_complement)
