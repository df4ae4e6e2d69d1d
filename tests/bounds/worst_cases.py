"""Trainings in which a ceiling is (nearly) reached: one secret sign, the same direction in every step.

The target is +1 or −1, and its clipped gradient points that way in every step, as do all its copies. Whoever knows the
training guesses the sign by its likelihood. `python tests/bounds/worst_cases.py` prints the table of docs/people.md.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from remanence import (
    Attack,
    AttackInfo,
    Criterion,
    FinitePrior,
    Game,
    Mechanism,
    Reconstruction,
    Records,
    Weights,
    mismatch,
    play,
)
from remanence.bounds import Person, Segment, correlated_noise, dpsgd, final_weights
from remanence.core.references import REMANENCE

SIGNS = Records(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
TRIALS = 20_000


@dataclass(frozen=True)
class OneSign(Mechanism):
    """Noisy sums, one for each step: what is released of a training on one secret sign."""

    noise: float
    rate: float
    steps: int
    records: int = 1
    batches: str = "poisson"
    name: ClassVar[str] = "one sign"
    releases = Weights

    def settings(self):
        return dict(vars(self))

    def release(self, known_data, targets, generator):
        sign, trials = targets.features[:, 0].double(), len(targets)
        counts, told = self.counts(trials, generator)
        noise = torch.randn(counts.shape, generator=generator, dtype=torch.float64)
        return Weights({"sums": sign * counts + self.noise * noise, **told})

    def counts(self, trials, generator):
        """How many copies are in each batch, and what the adversary is told of it."""
        if self.batches in ("poisson", "people", "fixed"):
            copies = self.records if self.batches == "poisson" else 1
            drawn = torch.rand(trials, self.steps, copies, generator=generator) < self.rate
            return drawn.sum(2).double(), {}
        bins = round(1 / self.rate)
        thrown = self.records if self.batches == "balls-in-bins" else 1
        place = torch.randint(bins, (trials, self.steps // bins, thrown), generator=generator)
        counts = torch.nn.functional.one_hot(place, bins).sum(2).flatten(1).double() * (self.records / thrown)
        return counts, ({"counts": counts} if self.batches == "shuffled" else {})

    def surer(self, release):
        """How much likelier + is than −, as a logarithm."""
        sums = release["sums"].numpy()
        if self.batches == "shuffled":
            return (sums * release["counts"].numpy()).sum(1)
        if self.batches == "balls-in-bins":
            bins = round(1 / self.rate)
            together = itertools.product(range(bins), repeat=self.records)
            places = np.array([np.bincount(each, minlength=bins) for each in together])
            fits = sums.reshape(len(sums), -1, bins) @ places.T
            lengths = (places**2).sum(axis=1) / 2
            plus, minus = (
                np.logaddexp.reduce((sign * fits - lengths) / self.noise**2, axis=2) for sign in (1, -1)
            )
            return (plus - minus).sum(1)
        run = Segment(self.noise, self.rate, 1, self.records if self.batches == "poisson" else 1)
        return (run.loss(sums) - run.loss(-sums)).sum(1)

    def ceiling(self):
        run = Segment(self.noise, self.rate, self.steps)
        return dpsgd(0.5, schedule=run, person=Person(self.records, self.batches))


def banded(steps, coefficients):
    """A factor of these bands, with columns of at most 1."""
    matrix = sum(value * np.eye(steps, k=-index) for index, value in enumerate(coefficients))
    return matrix / np.linalg.norm(coefficients)


@dataclass(frozen=True)
class Correlated(OneSign):
    """Banded noise, a participation in every fourth step from the first on."""

    @property
    def factor(self):
        return banded(self.steps, [1.0, 0.5, 0.25])

    def counts(self, trials, generator):
        present = (np.arange(self.steps) % 4 == 0).astype(float)
        return torch.tensor(self.factor @ present).expand(trials, -1), {}

    def surer(self, release):
        return release["sums"].numpy() @ self.counts(1, None)[0][0].numpy()

    def ceiling(self):
        return correlated_noise(0.5, factor=self.factor, noise_multiplier=self.noise, separation=4)


@dataclass(frozen=True)
class Final(OneSign):
    """A quadratic objective, whose last iterate is all that is seen."""

    convexity: ClassVar[dict] = {"learning_rate": 0.3, "strong_convexity": 0.4, "smoothness": 0.4}

    def release(self, known_data, targets, generator):
        sign, rate = targets.features[:, 0, 0].double(), self.convexity["learning_rate"]
        weights = torch.zeros(len(targets), dtype=torch.float64)
        for _ in range(self.steps):
            noise = self.noise * torch.randn(len(targets), generator=generator, dtype=torch.float64)
            weights = weights - rate * (self.convexity["strong_convexity"] * weights - sign + noise)
        return Weights({"sums": weights})

    def surer(self, release):
        return release["sums"].numpy()

    def ceiling(self):
        return final_weights(0.5, noise_multiplier=self.noise, steps=self.steps, **self.convexity)


@dataclass(frozen=True)
class Likelihood(Attack):
    """The likelier sign."""

    info: ClassVar[AttackInfo] = AttackInfo("likelihood", "The likelier sign.", "sums", "sums", REMANENCE)

    def check(self, knowledge):
        """It knows the training."""

    def prepare(self, knowledge, generator):
        def reconstruct(release):
            surer = torch.tensor(knowledge.mechanism.surer(release)).reshape(-1, 1, 1)
            return Reconstruction(Records(torch.where(surer > 0, 1.0, -1.0), torch.zeros(len(release), 1)))

        return reconstruct


# How far below its ceiling the best attack may stay here, beside what chance does to its rate.
CASES = {
    "one record, Poisson": (OneSign(1.0, 0.1, 20), 0.02),
    "5 equal records, Poisson": (OneSign(4.0, 0.2, 40, 5), 0.01),
    "5 records clipped as one": (OneSign(1.0, 0.1, 20, 5, "people"), 0.02),
    "one record, shuffled, order known": (OneSign(3.0, 0.1, 50, 1, "shuffled"), 0.001),
    "3 equal records, shuffled, order known": (OneSign(9.0, 0.1, 50, 3, "shuffled"), 0.001),
    "one record, fixed-size draws": (OneSign(3.0, 0.2, 20, 1, "fixed"), 0.2),
    "one record, balls in bins": (OneSign(1.0, 0.2, 20, 1, "balls-in-bins"), 0.03),
    "2 equal records, balls in bins": (OneSign(2.0, 0.2, 20, 2, "balls-in-bins"), 0.03),
    "banded noise": (Correlated(2.0, 1.0, 20), 0.001),
    "final weights of a quadratic": (Final(3.0, 1.0, 25), 0.001),
}


def attacked(name: str, trials: int = TRIALS):
    """The ceiling of a case and what its attack achieves."""
    mechanism, _ = CASES[name]
    bound = mechanism.ceiling()
    game = Game(mechanism, FinitePrior(SIGNS), None, Criterion(mismatch, threshold=0.5), bounds=(bound,))
    return bound, play(game, Likelihood(), trials=trials)


def table() -> str:
    """What docs/people.md shows."""
    lines = ["| worst case | ceiling, in 1000 | attack, in 1000 |", "|---|---|---|"]
    for name in CASES:
        bound, evidence = attacked(name)
        rate = evidence.main
        span = f"{1000 * rate.rate:.0f} ({1000 * rate.lower:.0f} to {1000 * rate.upper:.0f})"
        lines.append(f"| {name} | {math.ceil(1000 * bound.success)} | {span} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(table())
