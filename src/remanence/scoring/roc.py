"""True positives against false positives: how often the error is small on the target, and on strangers.

The attack's test says "this set was trained on" where the error is at most τ (Maciazek and Allison 2025,
Appendix A). Its true positive rate is the share of targets that pass, its false positive rate the share
of independently drawn sets, and τ runs along the curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erf, erfinv, ndtr

from remanence.exceptions import InputError
from remanence.scoring.rates import CONFIDENCE, SuccessRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Errors = NDArray[np.float64]

_RESAMPLES = 1000


@dataclass(frozen=True)
class TruePositiveRate:
    """A true positive rate at a given false positive rate, with its interval and the threshold that gives it."""

    rate: float
    lower: float
    upper: float
    threshold: float

    def __repr__(self) -> str:
        return f"{self.rate:.3f} ({self.lower:.3f} to {self.upper:.3f})"


@dataclass(frozen=True)
class Gaussians:
    """Normal laws fitted to the transformed errors of targets (0) and of strangers (1)."""

    mean_0: float
    deviation_0: float
    mean_1: float
    deviation_1: float

    def cumulative(self, fpr: ArrayLike) -> NDArray[np.float64]:
        """Equation 6: the curve of the test "error ≤ τ" for these laws."""
        shift = (self.mean_0 - self.mean_1) / (np.sqrt(2) * self.deviation_0)
        ratio = self.deviation_1 / self.deviation_0
        return 0.5 - 0.5 * erf(shift + ratio * erfinv(1 - 2 * np.asarray(fpr, float)))

    def neyman_pearson(self, points: int = 400) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """False and true positive rates of the likelihood-ratio test, the best for these laws.

        It differs from `cumulative` unless both spreads are equal: the ratio of two normal densities with
        different spreads is large on an interval or outside one, not below a threshold.

        >>> laws = Gaussians(-3.0, 1.2, -1.8, 0.35)
        >>> fpr, tpr = laws.neyman_pearson()
        >>> round(float(np.interp(0.06, fpr, tpr)), 3), round(float(laws.cumulative(0.06)), 3)
        (0.745, 0.708)
        """
        variance_0, variance_1 = self.deviation_0**2, self.deviation_1**2
        if np.isclose(variance_0, variance_1, rtol=1e-9):
            fpr = np.linspace(0, 1, points)
            best = self.cumulative(fpr) if self.mean_0 <= self.mean_1 else 1 - self.cumulative(1 - fpr)
            return fpr, best
        # log p0 / p1 is a parabola around `centre`: convex if the targets' law is the wider one.
        centre = (self.mean_1 * variance_0 - self.mean_0 * variance_1) / (variance_0 - variance_1)
        reach = 12 * max(self.deviation_0, self.deviation_1) + abs(centre - self.mean_1)
        half = np.concatenate([[0.0], np.geomspace(1e-9, 1, points - 1)]) * reach

        def inside(mean: float, deviation: float) -> NDArray[np.float64]:
            return ndtr((centre + half - mean) / deviation) - ndtr((centre - half - mean) / deviation)

        rates = inside(self.mean_1, self.deviation_1), inside(self.mean_0, self.deviation_0)
        if variance_0 > variance_1:
            return (1 - rates[0])[::-1], (1 - rates[1])[::-1]
        return rates


@dataclass(frozen=True)
class Roc:
    """The errors of an attack on its targets and on strangers, `(trials, counted)` each.

    The entries of one trial share a model, so that intervals come from resampling whole trials.

    >>> roc = Roc(np.arange(100.0) / 200, np.arange(100.0) / 100)
    >>> roc.tpr_at_fpr(0.1).rate
    0.2
    """

    errors: NDArray[np.float64]
    controls: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("errors", "controls"):
            values = np.asarray(getattr(self, name), float)
            values = values[:, None] if values.ndim == 1 else values
            object.__setattr__(self, name, np.where(np.isnan(values), np.inf, values))
        if len(self.errors) != len(self.controls) or len(self.errors) < 2:
            raise InputError(
                "There is nothing to draw a curve from.",
                needs="the errors of at least two trials, and of as many controls",
                got=f"{len(self.errors)} and {len(self.controls)}",
                hint="more trials",
            )

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """False and true positive rates at every threshold that occurs, both increasing."""
        controls, errors = np.sort(self.controls, axis=None), np.sort(self.errors, axis=None)
        thresholds = np.unique(np.concatenate([controls, errors]))
        fpr = np.searchsorted(controls, thresholds, side="right") / controls.size
        tpr = np.searchsorted(errors, thresholds, side="right") / errors.size
        return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])

    def area(self) -> float:
        """The area under the curve: how often a target's error is below a stranger's."""
        fpr, tpr = self.curve()
        return float(np.trapezoid(tpr, fpr))

    def true_positive_rate(self, fpr: float) -> float:
        """The rate of `tpr_at_fpr` alone, which needs no resampling."""
        return _tpr(self.errors, self.controls, fpr)[0]

    def tpr_at_fpr(self, fpr: float, *, confidence: float = CONFIDENCE) -> TruePositiveRate:
        """The largest true positive rate whose false positive rate is at most `fpr`.

        The interval is the percentile bootstrap over trials, with a fixed seed, and at least the exact one at the
        found threshold: resampling sees no uncertainty at 0 and 1.
        """
        return self._resampled(fpr, confidence, lambda errors, first: (errors < first).mean()[None])[0]

    def tpr_of_each(self, fpr: float, *, confidence: float = CONFIDENCE) -> list[TruePositiveRate]:
        """The same for every column of the errors (a class), where all share the threshold that `fpr` gives."""
        return self._resampled(fpr, confidence, lambda errors, first: (errors < first).mean(0))

    def _resampled(
        self, fpr: float, confidence: float, rates: Callable[[Errors, float], Errors]
    ) -> list[TruePositiveRate]:
        """Rates at the threshold, which every resample chooses anew."""
        if not 0 < fpr < 1:
            raise InputError(
                "There is no such false positive rate.", needs="between 0 and 1", got=str(fpr), hint="0.01"
            )
        threshold = _tpr(self.errors, self.controls, fpr)[1]
        found = rates(self.errors, threshold)
        draws = np.random.default_rng(0).integers(len(self.errors), size=(_RESAMPLES, len(self.errors)))
        again = [
            rates(self.errors[rows], _tpr(self.errors[rows], self.controls[rows], fpr)[1]) for rows in draws
        ]
        tail = (1 - confidence) / 2
        ends = np.quantile(again, [tail, 1 - tail], axis=0)
        trials, counted = len(self.errors), self.errors.size // len(found)
        results = []
        for rate, lower, upper in zip(found.tolist(), *ends.tolist(), strict=True):
            clusters = trials if counted > trials else None
            exact = SuccessRate(round(rate * counted), counted, confidence, clusters)
            results.append(
                TruePositiveRate(rate, min(lower, exact.lower), max(upper, exact.upper), threshold)
            )
        return results

    def gaussians(self, largest_error: float) -> Gaussians:
        """Normal laws for the logit of error / largest error (4 for pixels in [−1, 1]), as in Appendix A.1."""
        fits = []
        for values in (self.errors, self.controls):
            share = np.clip(values[np.isfinite(values)] / largest_error, 1e-12, 1 - 1e-12)
            logit = np.log(share / (1 - share))
            fits += [float(logit.mean()), float(max(logit.std(), 1e-12))]
        return Gaussians(*fits)


def _tpr(errors: NDArray[np.float64], controls: NDArray[np.float64], fpr: float) -> tuple[float, float]:
    """The rate of errors strictly below the first control that may not pass, and that control."""
    allowed = int(fpr * controls.size + 1e-9)
    first = np.partition(controls, allowed, axis=None)[allowed]
    return float((errors < first).mean()), float(first)
