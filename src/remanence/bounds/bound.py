"""γ, the success that no attack can exceed."""

from __future__ import annotations

from dataclasses import dataclass

from remanence.references import Reference


@dataclass(frozen=True)
class Bound:
    """A proven ceiling on the success of any attack in one game, and what the proof assumes."""

    name: str
    success: float  # never below the true γ
    assumptions: tuple[str, ...]
    reference: Reference
