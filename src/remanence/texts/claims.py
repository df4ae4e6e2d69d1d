"""What canaries prove about a fine-tuning: a lower limit on ε, and whether its claim can be true.

Two attacks guess. One tells by the losses which canaries are in. The other takes what the model says after a prefix for
the secret of the canary. All canaries share one fine-tuning, so that no binomial interval holds; what so many right
guesses prove is the theorem of `remanence.bounds.one_run`, for any way of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from remanence import bounds
from remanence.bounds import Bound, Segment
from remanence.bounds.one_run import GuessCount, LinesCurve, TradeOff, dpsgd_curve
from remanence.core.checks import number
from remanence.core.exceptions import InputError
from remanence.core.rates import CONFIDENCE

# A claim counts as refuted if it makes what was seen no likelier than this. Recorded runs are accused at a thousandth,
# which coins alone seldom reach: half the noise of one Gaussian step showed p-values near 0.003 with 1,200 canaries.
LEVEL = 0.05
_DELTA = 1e-5
_SUREST = 0.3  # of the canaries: guessing only these makes the strongest test


@final
@dataclass(frozen=True)
class Claim:
    """What a private fine-tuning says of itself: (ε, δ), or the settings of its DP-SGD, which say more."""

    epsilon: float | None = None
    delta: float = _DELTA
    dpsgd: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (not self.dpsgd):
            raise InputError(
                "The claim says nothing, or two things.",
                needs="either epsilon and delta, or the settings of DP-SGD",
                got=f"epsilon={self.epsilon}, {len(self.dpsgd)} segments",
                hint="Claim(epsilon=8, delta=1e-5), or Claim(dpsgd=(Segment(1.0, 0.01, 1000),))",
            )
        if self.epsilon is not None:
            number("epsilon", self.epsilon, least=0)
        number("delta", self.delta, above=0, below=1)

    @property
    def curve(self) -> TradeOff:
        """What it allows, as a trade-off."""
        if self.epsilon is None:
            return dpsgd_curve(list(self.dpsgd))
        return LinesCurve(((self.epsilon, self.delta),))

    @property
    def claimed_epsilon(self) -> float:
        """ε at the claim's δ."""
        return bounds.epsilon_upper(list(self.dpsgd), self.delta) if self.epsilon is None else self.epsilon

    def extraction(self, baseline: float) -> Bound:
        """γ: how often anybody brings out a secret at most that a guess finds this often."""
        if self.epsilon is None:
            return bounds.dpsgd(baseline, schedule=list(self.dpsgd))
        return bounds.approximate_dp(baseline, epsilon=self.epsilon, delta=self.delta)


@final
@dataclass(frozen=True)
class Planted:
    """What an auditor knows of secrets that they planted.

    `candidates` is how many secrets were equally likely, where they were drawn. `by_coin`: each was put in or left out
    by a fair coin, and the unseen texts are those that were left out.
    """

    candidates: float | None = None
    by_coin: bool = False
    claim: Claim | None = None
    level: float = LEVEL

    def __post_init__(self) -> None:
        number("level", self.level, above=0, below=1, hint="0.05")
        if self.candidates is not None:
            number("candidates", self.candidates, least=2, hint="10**6 for six random digits")
        if self.claim is not None and not self.by_coin:
            raise no_canaries("other texts")

    def said(self, scores: Tensor, chosen: Tensor, spoken: Tensor, guess: float) -> dict[str, float]:
        """What is proven by losses, the larger the likelier in, and by whole secrets that were spoken, `(inserted,)`.

        `guess` is how often somebody without the model brings a secret out.
        """
        counts = [told_by_losses(scores, chosen)]
        if self.candidates is not None and len(spoken):
            drawn = int(min(self.candidates, 1e15))
            counts.append(GuessCount(int(spoken.sum()), len(spoken), len(spoken), drawn))
        delta = _DELTA if self.claim is None else self.claim.delta
        share = (1 - CONFIDENCE) / len(counts)
        found = {
            "surest_guesses": counts[0].guesses,
            "surest_guesses_correct": counts[0].correct,
            **(
                {"whole_secrets": counts[1].guesses, "whole_secrets_guessed": counts[1].correct}
                if counts[1:]
                else {}
            ),
            "epsilon_at_least": max(count.epsilon_lower(delta, share) for count in counts),
            "delta": delta,
        }
        if self.claim is not None:
            curve = self.claim.curve
            found["claimed_epsilon"] = self.claim.claimed_epsilon
            found["p_value_of_the_claim"] = min(
                1.0, len(counts) * min(count.p_value(curve) for count in counts)
            )
            found["accused_at"] = self.level
            if self.candidates is not None:
                found["extracted_at_most_as_claimed"] = float(self.claim.extraction(guess).success)
        return found


def no_canaries(got: str) -> InputError:
    """A claim needs canaries."""
    return InputError(
        "There is nothing to hold the claim against.",
        needs="canaries, each in or out by a coin",
        got=got,
        hint="make canaries with `remanence canaries`, and train on those that are in",
    )


def told_by_losses(scores: Tensor, chosen: Tensor) -> GuessCount:
    """How many of the surest guesses are right, in where a score is above the median."""
    centred = scores.double().nan_to_num(nan=0.0) - scores.double().nanmedian()
    right = (centred > 0) == chosen
    surest = centred.abs().argsort(descending=True)[: max(1, round(_SUREST * len(scores)))]
    return GuessCount(int(right[surest].sum()), len(surest), len(scores))
