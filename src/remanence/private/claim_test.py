"""Does a run's claim hold? A test that allows for canaries that depend on each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from remanence import bounds
from remanence.bounds import Segment
from remanence.bounds.one_run import GuessCount, dpsgd_curve, gaussian_epsilon
from remanence.private.consistency import RecordedRun
from remanence.private.one_run_canaries import guesses
from remanence.scale.progress import track

LEVEL = 1e-3  # at which a run is accused: an honest one less than once in a thousand
_SEARCHED = 0.05  # level of the limits on noise, μ and ε
_HALVINGS = 4  # to 4 % of the noise
_MOST_NOISE = 64.0  # times the claim's: what leaks less than that is not told from nothing
_LEAST_NOISE = 0.05  # twenty standard deviations between a record and none, in every step that has it
_SUREST = 0.3  # of the canaries that are in or out: guessing only these makes the strongest test


@final
@dataclass(frozen=True)
class ClaimTest:
    """The accountant's claim, held against how many canaries were guessed."""

    claimed: Sequence[Segment]
    counted: GuessCount

    @classmethod
    def of(cls, run: RecordedRun, *, guessed: int | None) -> ClaimTest:
        """The test of one run; `guessed` is how many of the surest guesses it is about."""
        tensors = run.recording.tensors("canaries")
        scores, chosen = tensors["scores"], tensors["chosen"]
        count, candidates = scores.shape
        guess, sureness = guesses(scores)
        wanted = (round(_SUREST * count) if candidates == 1 else count) if guessed is None else guessed
        surest = sureness.argsort(descending=True)[: max(1, wanted)]
        right = int((guess == chosen)[surest].sum())
        return cls(run.claimed, GuessCount(right, len(surest), count, candidates))

    def p_value(self, scale: float = 1.0) -> float:
        """For every mechanism with the claim's trade-off curve, or that of `scale` times its noise."""
        claimed = scaled(self.claimed, scale)
        return self.counted.p_value(dpsgd_curve(claimed)) if hides(claimed) else 1.0

    def least_noise_rejected(self) -> float | None:
        """The least noise, in units of the claim's, at which this run is too revealing; None if at no noise."""
        rejected = self.p_value() <= _SEARCHED
        kept, out = (0.5, 1.0) if rejected else (1.0, 2.0)
        while rejected and kept > 1e-3 and self.p_value(kept) <= _SEARCHED:
            kept, out = kept / 2, kept
        while not rejected and self.p_value(out) > _SEARCHED:
            kept, out = out, 2 * out
            if out > _MOST_NOISE:
                return None
        for _ in track(range(_HALVINGS), total=_HALVINGS, what="searching the noise that explains it"):
            middle = math.sqrt(kept * out)
            kept, out = (kept, middle) if self.p_value(middle) <= _SEARCHED else (middle, out)
        return out

    def findings(self, delta: float) -> dict[str, float]:
        """All that follows for the report, by name."""
        scale, claim = self.least_noise_rejected(), self.claimed[0]
        mu = self.counted.mu_lower(_SEARCHED)
        found = {
            "p_value_of_the_claim": self.p_value(),
            "surest_guesses": self.counted.guesses,
            "surest_guesses_correct": self.counted.correct,
        }
        if scale is not None:
            found["noise_multiplier_at_most"] = scale * claim.noise_multiplier
            found |= _epsilon(scaled(self.claimed, scale), delta, "epsilon_at_least_if_dpsgd")
        return {
            **found,
            "gaussian_mu_at_least": mu,
            "epsilon_at_least_if_gaussian": gaussian_epsilon(mu, delta),
            "epsilon_at_least": self.counted.epsilon_lower(delta, _SEARCHED),
            **_epsilon(self.claimed, delta, "claimed_epsilon"),
            "delta": delta,
        }


def hides(claimed: Sequence[Segment]) -> bool:
    """Whether there is so much noise that a bound is worth computing: with less, every record in a batch stands out."""
    return min(segment.noise_multiplier for segment in claimed) >= _LEAST_NOISE


def _epsilon(claimed: Sequence[Segment], delta: float, name: str) -> dict[str, float]:
    return {name: bounds.epsilon_upper(claimed, delta)} if hides(claimed) else {}


def scaled(claimed: Sequence[Segment], scale: float) -> list[Segment]:
    """The same settings with more or less noise."""
    return [Segment(scale * s.noise_multiplier, s.sample_rate, s.steps) for s in claimed]
