"""The ceiling of published sums with noise; without noise `attacks.tables.aggregates` says what follows from them."""

from __future__ import annotations

import numpy as np

from remanence.bounds.bound import Bound
from remanence.bounds.settings import gaussian
from remanence.core.checks import number


def noisy_aggregates_bound(
    members: np.ndarray, baseline: float, *, noise: float, low: float = 0.0, high: float = 1.0
) -> Bound:
    """What no attack on one person's value exceeds, where every sum carries Gaussian noise of this deviation.

    One person moves the sums by at most (high − low)·√groups, the number of groups that they are in.
    """
    groups = float(np.asarray(members).sum(0).max())
    shift = (high - low) * groups**0.5
    return gaussian(baseline, noise_multiplier=number("noise", noise, above=0) / shift)
