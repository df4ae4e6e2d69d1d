"""A new game in one file outside the package: who was asked to answer a survey with randomised response?"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from remanence import Criterion, Knowledge, Mechanism, Records, Uninformed, Weights, bounds, mismatch
from remanence.core.baseline import Baseline
from remanence.protocol import AnyGame
from remanence.results.outcome import Outcome

EXACT = Criterion(mismatch, threshold=0.0)


@dataclass(frozen=True)
class RandomisedResponse(Mechanism):
    """Everybody answers the truth with this probability, and the opposite otherwise."""

    honesty: float
    name: ClassVar[str] = "randomised response"
    releases = Weights

    def release(self, known_data, targets, generator):
        lies = torch.rand(targets.features.shape, generator=generator) > self.honesty
        return Weights({"answers": (targets.features.bool() ^ lies).float().flatten(1)})

    def settings(self):
        return {"honesty": self.honesty}


@dataclass(frozen=True)
class Survey(AnyGame):
    """Every trial asks somebody new. The control holds what was read against somebody else."""

    mechanism: RandomisedResponse
    criterion: Criterion = EXACT
    bounds: tuple = ()
    default_trials: ClassVar[int] = 400

    @property
    def knowledge(self):
        return Knowledge(self.mechanism, Uninformed(), None)

    def baseline(self, chances=1):
        return Baseline(0.5, 0.5, "a coin")

    def trials(self, prepared, draws, unit):
        people, others = (
            Records(torch.randint(2, (unit.size, 1, 1), generator=draws.stream(who, unit.number)).float(),
                    torch.zeros(unit.size, 1))
            for who in ("targets", "control")
        )  # fmt: skip
        release = self.mechanism.release(None, people, draws.stream("training", unit.number))
        guess = prepared.for_unit(draws, unit)(release).records
        return Outcome(self.criterion.compare(people, guess), self.criterion.compare(others, guess))


def survey():
    """Three in four answers are true: ε = log 3, which caps every attack at five in six."""
    ceiling = bounds.pure_dp(0.5, epsilon=math.log(3))
    return Survey(RandomisedResponse(0.75), bounds=(ceiling,))


def noiseless():
    return Survey(RandomisedResponse(1.0))
