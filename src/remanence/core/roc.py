"""ROC curves: how often the error is small on the target (true positives) and on strangers (false positives).

The attack's test says "this set was trained on" where the error is at most τ (Maciazek and Allison 2025,
Appendix A). Its true positive rate is the share of targets that pass, its false positive rate the share
of independently drawn sets, and τ runs along the curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import bdtr, bdtrc, rel_entr

from remanence.core.checks import number
from remanence.core.exceptions import InputError
from remanence.core.rates import CONFIDENCE, SuccessRate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Errors = NDArray[np.float64]

_FOR_THE_THRESHOLD = 0.8  # of the error probability: where few controls pass, it is the most uncertain


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
class Roc:
    """The errors of an attack on its targets and on strangers, `(trials, counted)` each.

    The entries of one trial share a model, so a trial counts once, whatever the dependence among its entries.

    >>> roc = Roc(np.arange(1000.0) / 2000, np.arange(1000.0) / 1000)
    >>> roc.tpr_at_fpr(0.1), roc.tpr_at_fpr(0.0001)
    (0.200 (0.131 to 0.276), None)
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
        """The rate of `tpr_at_fpr` without its interval, even with too few controls for one."""
        return _tpr(self.errors, self.controls, fpr)[0]

    def tpr_at_fpr(self, fpr: float, *, confidence: float = CONFIDENCE) -> TruePositiveRate | None:
        """The largest true positive rate whose false positive rate is at most `fpr`.

        None with fewer than 1 / fpr controls: too few to estimate it. The interval holds for any distribution,
        even if an error and its control are dependent. The threshold with this true false positive rate lies between
        two of the controls, whose ranks are binomial. Its true positive rate lies between those at these two controls,
        each of which gets a binomial interval.
        """
        found = self._limits(self.errors[:, :, None], fpr, confidence)
        return found[0] if found else None

    def tpr_of_each(self, fpr: float, *, confidence: float = CONFIDENCE) -> list[TruePositiveRate] | None:
        """`tpr_at_fpr` for every column of the errors (a class), at the common threshold that `fpr` gives."""
        return self._limits(self.errors[:, None, :], fpr, confidence)

    def _limits(self, groups: Errors, fpr: float, confidence: float) -> list[TruePositiveRate] | None:
        """The rates of groups of errors `(trials, entries, groups)` at the threshold that all controls give."""
        number("the false positive rate", fpr, above=0, below=1, hint="0.01")
        if self.controls.size * fpr < 1 - 1e-9:
            return None
        trials, entries, _ = groups.shape
        tail = (1 - confidence) / 2
        least, most = _thresholds(self.controls, fpr, _FOR_THE_THRESHOLD * tail)
        threshold = _tpr(self.errors, self.controls, fpr)[1]

        def rate(group: Errors, below: float) -> SuccessRate:
            left = 1 - 2 * (1 - _FOR_THE_THRESHOLD) * tail
            clusters = trials if entries > 1 else None
            return SuccessRate(int((group < below).sum()), group.size, left, clusters)

        return [
            TruePositiveRate(
                rate(group, threshold).rate, rate(group, least).lower, rate(group, most).upper, threshold
            )
            for group in np.moveaxis(groups, 2, 0)
        ]


def _thresholds(controls: Errors, fpr: float, tail: float) -> tuple[float, float]:
    """Controls below and above the true threshold of `fpr`, each wrong with probability at most `tail`.

    At most `fpr` of all controls are strictly below that threshold, and at least `fpr` at or below it, so that the
    number of these among n is binomial at worst. If a trial has several controls, their share gets Chernoff's limit.
    """
    (trials, counted), size = controls.shape, controls.size
    counts = np.arange(size + 1)
    if counted == 1:
        at_most, above = bdtr(counts, size, fpr), bdtrc(counts, size, fpr)
    else:
        shares = counts / size
        chance = np.exp(-trials * (rel_entr(shares, fpr) + rel_entr(1 - shares, 1 - fpr)))
        at_most = np.where(shares < fpr, chance, 1.0)
        above = np.append(np.where(shares > fpr, chance, 1.0)[1:], 0.0)  # P(more than this many)
    ranks = int((at_most <= tail).sum()), int((above > tail).sum()) + 1
    ordered = np.sort(controls, axis=None)
    least = -np.inf if ranks[0] == 0 else float(ordered[ranks[0] - 1])
    return least, np.inf if ranks[1] > size else float(ordered[ranks[1] - 1])


def _tpr(errors: NDArray[np.float64], controls: NDArray[np.float64], fpr: float) -> tuple[float, float]:
    """The share of errors strictly below the first control that must not pass, and that control."""
    allowed = int(fpr * controls.size + 1e-9)
    first = np.partition(controls, allowed, axis=None)[allowed]
    return float((errors < first).mean()), float(first)
