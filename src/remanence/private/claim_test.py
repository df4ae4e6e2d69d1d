"""Does a run's claim hold? Two tests that allow for canaries that depend on each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from remanence import bounds
from remanence.bounds import Segment
from remanence.bounds.one_run import GuessCount, dpsgd_curve, gaussian_epsilon
from remanence.private.consistency import RecordedRun
from remanence.private.exchange_test import STATES, Slots
from remanence.private.one_run_canaries import guesses
from remanence.scale.progress import track

LEVEL = 1e-3  # at which a run is accused: an honest one less than once in a thousand
_SEARCHED = 0.05  # level of the limits on noise, μ and ε
_SEARCHING = 400  # states, while searching for the noise
_HALVINGS = 4  # to 4 % of the noise
_MOST_NOISE = 64.0  # times the claim's: what leaks less than that is not told from nothing
_LEAST_NOISE = 0.05  # twenty standard deviations between a record and none, in every step that has it
_SUREST = 0.3  # of the canaries that are in or out: guessing only these makes the strongest test


@final
@dataclass(frozen=True)
class ClaimTest:
    """The accountant's claim, held against how likely the truth is and how many canaries were guessed."""

    claimed: Sequence[Segment]
    slots: Slots | None  # None where the exact test says nothing
    counted: GuessCount
    seed: int

    @classmethod
    def of(cls, run: RecordedRun, *, guessed: int | None, seed: int) -> ClaimTest:
        """The tests of one run; `guessed` is how many of the surest guesses the theorem is about."""
        tensors = run.recording.tensors("canaries")
        scores, chosen = tensors["scores"], tensors["chosen"]
        count, candidates = scores.shape
        guess, sureness = guesses(scores)
        wanted = (round(_SUREST * count) if candidates == 1 else count) if guessed is None else guessed
        surest = sureness.argsort(descending=True)[: max(1, wanted)]
        counted = GuessCount(int((guess == chosen)[surest].sum()), len(surest), count, candidates)
        slots = None
        if run.tests_canaries:
            found = run.recording.tensors("slots")
            slots = Slots(found["field"].numpy(), found["coupling"].numpy(), int(found["count"]))
        return cls(run.claimed, slots, counted, seed)

    def exact(self, scale: float = 1.0, states: int = STATES) -> float | None:
        """The p-value of the exact test, with `scale` times the claimed noise; None where there is none."""
        return None if self.slots is None else self.slots.p_value(seed=self.seed, scale=scale, states=states)

    def of_any_mechanism(self, scale: float = 1.0) -> float:
        """The p-value by the theorem, for every mechanism with the claim's trade-off curve."""
        claimed = scaled(self.claimed, scale)
        return self.counted.p_value(dpsgd_curve(claimed)) if hides(claimed) else 1.0

    def least_noise_rejected(self) -> float | None:
        """The least noise, in units of the claim's, at which this run is too revealing; None if at no noise."""

        def rejects(scale: float) -> bool:
            exact = self.exact(scale, _SEARCHING)
            return (self.of_any_mechanism(scale) if exact is None else exact) <= _SEARCHED

        rejected = rejects(1.0)
        kept, out = (0.5, 1.0) if rejected else (1.0, 2.0)
        while rejected and kept > 1e-3 and rejects(kept):
            kept, out = kept / 2, kept
        while not rejected and not rejects(out):
            kept, out = out, 2 * out
            if out > _MOST_NOISE:
                return None
        for _ in track(range(_HALVINGS), total=_HALVINGS, what="searching the noise that explains it"):
            middle = math.sqrt(kept * out)
            kept, out = (kept, middle) if rejects(middle) else (middle, out)
        return out

    def findings(self, delta: float) -> dict[str, float]:
        """All that follows for the report, by name."""
        exact, counted = self.exact(), self.of_any_mechanism()
        scale, claim = self.least_noise_rejected(), self.claimed[0]
        mu = self.counted.mu_lower(_SEARCHED)
        limits = (
            {}
            if scale is None
            else {
                "noise_multiplier_at_most": scale * claim.noise_multiplier,
                **_epsilon(scaled(self.claimed, scale), delta, "epsilon_at_least_if_dpsgd"),
            }
        )
        return {
            "p_value_of_the_claim": together(exact, counted),
            **({} if exact is None else {"p_value_of_the_exact_test": exact}),
            "p_value_of_any_such_mechanism": counted,
            "surest_guesses": self.counted.guesses,
            "surest_guesses_correct": self.counted.correct,
            **limits,
            "gaussian_mu_at_least": mu,
            "epsilon_at_least_if_gaussian": gaussian_epsilon(mu, delta),
            "epsilon_at_least": self.counted.epsilon_lower(delta, _SEARCHED),
            **_epsilon(self.claimed, delta, "claimed_epsilon"),
            "delta": delta,
        }


def together(exact: float | None, counted: float) -> float:
    """Two p-values of one claim as one (Bonferroni).

    >>> together(0.01, 0.4), together(None, 0.4)
    (0.02, 0.4)
    """
    return counted if exact is None else min(1.0, 2 * min(exact, counted))


def hides(claimed: Sequence[Segment]) -> bool:
    """Whether there is so much noise that a bound is worth computing: with less, every record in a batch stands out."""
    return min(segment.noise_multiplier for segment in claimed) >= _LEAST_NOISE


def _epsilon(claimed: Sequence[Segment], delta: float, name: str) -> dict[str, float]:
    return {name: bounds.epsilon_upper(claimed, delta)} if hides(claimed) else {}


def scaled(claimed: Sequence[Segment], scale: float) -> list[Segment]:
    """The same settings with more or less noise."""
    return [Segment(scale * s.noise_multiplier, s.sample_rate, s.steps) for s in claimed]
