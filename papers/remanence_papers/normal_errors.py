"""Normal laws of an attack's errors and their ROC curves (Maciazek and Allison 2025, Appendix A.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, erfinv, ndtr

from remanence.core.roc import Roc

Errors = NDArray[np.float64]


@dataclass(frozen=True)
class Gaussians:
    """Normal distributions fitted to the transformed errors of targets (0) and of strangers (1)."""

    mean_0: float
    deviation_0: float
    mean_1: float
    deviation_1: float

    @classmethod
    def of(cls, roc: Roc, largest_error: float) -> Gaussians:
        """Normal fits to the logit of error / largest error (4 for pixels in [−1, 1])."""
        fits = []
        for values in (roc.errors, roc.controls):
            share = np.clip(values[np.isfinite(values)] / largest_error, 1e-12, 1 - 1e-12)
            logit = np.log(share / (1 - share))
            fits += [float(logit.mean()), float(max(logit.std(), 1e-12))]
        return cls(*fits)

    def cumulative(self, fpr: ArrayLike) -> NDArray[np.float64]:
        """Equation 6: the curve of the test "error ≤ τ" for these distributions."""
        shift = (self.mean_0 - self.mean_1) / (np.sqrt(2) * self.deviation_0)
        ratio = self.deviation_1 / self.deviation_0
        return 0.5 - 0.5 * erf(shift + ratio * erfinv(1 - 2 * np.asarray(fpr, float)))

    def neyman_pearson(self, fpr: ArrayLike) -> NDArray[np.float64]:
        """The true positive rate of the likelihood-ratio test, the best for these distributions.

        It differs from `cumulative` unless both spreads are equal: the ratio of two normal densities with
        different spreads is large on an interval or outside one, not below a threshold.

        >>> laws = Gaussians(-3.0, 1.2, -1.8, 0.35)
        >>> round(float(laws.neyman_pearson(0.06)), 3), round(float(laws.cumulative(0.06)), 3)
        (0.745, 0.708)
        """
        fpr = np.asarray(fpr, float)
        variance_0, variance_1 = self.deviation_0**2, self.deviation_1**2
        if np.isclose(variance_0, variance_1, rtol=1e-9):
            return self.cumulative(fpr) if self.mean_0 <= self.mean_1 else 1 - self.cumulative(1 - fpr)
        # log p0 / p1 is a parabola around `centre`: convex if the targets' distribution is the wider one.
        centre = (self.mean_1 * variance_0 - self.mean_0 * variance_1) / (variance_0 - variance_1)
        outside = variance_0 > variance_1

        def passing(half: Errors, mean: float, deviation: float) -> Errors:
            """The probability of lying within `half` of the centre, or outside, without cancellation."""
            low, high = (centre - half - mean) / deviation, (centre + half - mean) / deviation
            if outside:
                return ndtr(low) + ndtr(-high)
            return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))

        least = np.zeros_like(fpr)
        most = least + 40 * max(self.deviation_0, self.deviation_1) + abs(centre - self.mean_1)
        for _ in range(200):  # bisection to the last bit of a float
            middle = (least + most) / 2
            wider = (passing(middle, self.mean_1, self.deviation_1) > fpr) == outside
            least, most = np.where(wider, middle, least), np.where(wider, most, middle)
        found = passing(least, self.mean_0, self.deviation_0)
        return np.where(fpr <= 0, 0.0, np.where(fpr >= 1, 1.0, found))
