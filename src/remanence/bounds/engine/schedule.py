"""What a DP-SGD run looked like: how much noise, what share of the records, for how many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from remanence.bounds.bound import require
from remanence.exceptions import InputError

MOST_STEPS = 10**9
LEAST_NOISE = 1e-6  # below it, squares leave the range of a float


@dataclass(frozen=True)
class Segment:
    """A stretch of training during which neither the noise nor the sampling changes.

    Each of its T steps releases N(0, σ²) without the target and (1−q)·N(0, σ²) + q·N(1, σ²)
    with it, in units of the clipping norm.

    >>> Segment(1.1, sample_rate=0.01, steps=1000).log_odds_of_absence  # log((1−q)/q)
    4.59511985013459
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        noise, rate, steps = self.noise_multiplier, self.sample_rate, self.steps
        enough = f"a finite number of at least {LEAST_NOISE:g}"
        require(noise, "noise_multiplier", enough, LEAST_NOISE <= noise < math.inf, "1.1")
        require(rate, "sample_rate", "a share above 0 and at most 1", 0 < rate <= 1, "batch size / records")
        whole = isinstance(steps, Integral) and not isinstance(steps, bool)
        needs = f"a whole number from 1 to {MOST_STEPS:,}"
        require(steps, "steps", needs, whole and 1 <= steps <= MOST_STEPS, "1000")

    @property
    def log_absence(self) -> float:
        """The logarithm of the chance 1−q that a step leaves the target out."""
        return math.log1p(-self.sample_rate) if self.sample_rate < 1 else -math.inf

    @property
    def log_odds_of_absence(self) -> float:
        """The logarithm of (1−q)/q."""
        return self.log_absence - math.log(self.sample_rate)


Schedule = tuple[Segment, ...]


def normalise(schedule: Segment | Sequence[Segment]) -> Schedule:
    """The same run with equal segments merged; their order does not matter to any bound.

    >>> normalise([Segment(2.0, steps=3), Segment(2.0, steps=4)])
    (Segment(noise_multiplier=2.0, sample_rate=1.0, steps=7),)
    """
    segments = [schedule] if isinstance(schedule, Segment) else list(schedule)
    if not segments:
        raise InputError(
            "The schedule is empty.",
            needs="at least one segment",
            got="none",
            hint="[Segment(1.1, 0.01, 1000)]",
        )
    steps: dict[tuple[float, float], int] = {}
    for segment in segments:
        settings = (float(segment.noise_multiplier), float(segment.sample_rate))
        steps[settings] = steps.get(settings, 0) + int(segment.steps)
    return tuple(Segment(*settings, count) for settings, count in sorted(steps.items()))


def total_steps(schedule: Schedule) -> int:
    """How many noisy gradients the run releases in all.

    >>> total_steps((Segment(1.0, steps=3), Segment(2.0, steps=4)))
    7
    """
    return sum(segment.steps for segment in schedule)


def is_full_batch(schedule: Schedule) -> bool:
    """Whether every step uses every record, so that the run composes to one Gaussian mechanism."""
    return all(segment.sample_rate == 1 for segment in schedule)
