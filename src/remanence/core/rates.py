"""Success rates and their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy.special import betaincinv, rel_entr

CONFIDENCE = 0.95


@dataclass(frozen=True)
class SuccessRate:
    """A success rate with an interval that holds at the stated confidence.

    Independent trials get the exact interval of Clopper and Pearson. If the records of one
    trial are correlated (`clusters` < `trials`), each trial counts as one observation
    of a share in [0, 1], and the interval is Chernoff's, which holds for any such variable. `floor` is
    a lower limit that was proven by other means; there is then no upper limit.

    >>> SuccessRate(9, 10)
    9 of 10 = 0.900 (0.555 to 0.997)
    >>> SuccessRate(9, 10, clusters=2)
    9 of 10 = 0.900 (0.091 to 1.000)
    """

    successes: int  # number of successes
    trials: int  # number of trials
    confidence: float = CONFIDENCE  # of the interval
    clusters: int | None = None  # independent trials, if the records of one are correlated
    floor: float | None = None  # a lower limit that was proven by other means

    def __post_init__(self) -> None:
        assert 0 <= self.successes <= self.trials
        assert self.trials > 0
        assert 0 < self.confidence < 1

    @property
    def rate(self) -> float:
        """The observed share."""
        return self.successes / self.trials

    @property
    def lower(self) -> float:
        """The lower end of the two-sided interval."""
        return self._interval[0]

    @property
    def upper(self) -> float:
        """The upper end of the two-sided interval."""
        return self._interval[1]

    @property
    def _interval(self) -> tuple[float, float]:
        if self.floor is not None:
            return self.floor, 1.0
        tail = (1 - self.confidence) / 2
        if self.clusters is None or self.clusters == self.trials:
            return clopper_pearson(self.successes, self.trials, tail)
        return _chernoff(self.rate, self.clusters, tail)

    def to_json(self) -> dict[str, Any]:
        """The entry in audit.json."""
        return {
            "rate": self.rate,
            "lower": self.lower,
            "upper": self.upper,
            "successes": self.successes,
            "trials": self.trials,
            "clusters": self.clusters,
            "confidence": self.confidence,
            **({} if self.floor is None else {"floor": self.floor}),
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> SuccessRate:
        """Read it back; the interval is recomputed from the counts."""
        if entry["successes"] > entry["trials"]:
            raise ValueError(f"{entry['successes']} successes in {entry['trials']} trials")
        counts = entry["successes"], entry["trials"], entry["confidence"], entry["clusters"]
        return cls(*counts, floor=entry.get("floor"))

    def __repr__(self) -> str:
        return f"{self.successes} of {self.trials} = {self.rate:.3f} ({self.lower:.3f} to {self.upper:.3f})"


def clopper_pearson(successes: int, trials: int, tail: float) -> tuple[float, float]:
    """The exact interval for a binomial share, each end failing with probability at most `tail`.

    >>> lower, upper = clopper_pearson(0, 30, 0.025)
    >>> lower, round(upper, 4)  # close to the rule of three
    (0.0, 0.1157)
    """
    lower = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    upper = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return lower, upper


def _chernoff(mean: float, observations: int, tail: float) -> tuple[float, float]:
    """The set of p with n·KL(mean ‖ p) ≤ log(1 / tail): valid for independent variables in [0, 1]."""
    budget = math.log(1 / tail) / observations

    def end(outside: float) -> float:
        inside = mean
        for _ in range(60):  # bisection to the last bit of a float
            middle = (inside + outside) / 2
            divergence = rel_entr(mean, middle) + rel_entr(1 - mean, 1 - middle)
            inside, outside = (middle, outside) if divergence <= budget else (inside, middle)
        return outside

    return (0.0 if mean == 0 else end(0.0)), (1.0 if mean == 1 else end(1.0))
