"""Companions of the bound: Fano's inequality, and a lower limit on the squared error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import xlog1py, xlogy

from remanence.bounds.bound import Baselines, Bound, require
from remanence.bounds.engine.bracket import ceiling
from remanence.bounds.engine.closed_forms import shift_of
from remanence.bounds.engine.cumulant import moments
from remanence.bounds.engine.roots import root
from remanence.bounds.engine.schedule import Segment, normalise
from remanence.bounds.recipes import recomputable
from remanence.core.checks import whole
from remanence.core.references import GUO_2022A, GUO_2022B, Reference

_ROUNDING = 1e-13  # of a sum of a few logarithms


@recomputable
def fano(candidates: int, *, mutual_information: float, reference: Reference = GUO_2022B) -> Bound:
    """The ceiling on guessing one of n equally likely candidates, from what the release tells about them.

    1 − γ is the smallest t with log n − I + t·log t + (1 − t)·log(1 − t) − t·log(n − 1) ≤ 0
    (Hayes et al. 2023, Equation 5, after Guo et al. 2022b).

    >>> round(fano(10, mutual_information=0.5).advantage, 3)  # σ = 1, one step
    0.439
    """
    whole("candidates", candidates, least=2)
    require(
        mutual_information,
        "information",
        "nats of at least 0",
        lambda: mutual_information >= 0,
        "mutual_information()",
    )

    def left(miss: float) -> float:
        """Above 0 where so few misses are impossible; it falls up to 1 − 1/n."""
        told = math.log(candidates) - mutual_information - miss * math.log(candidates - 1)
        return told + float(xlogy(miss, miss) + xlog1py(1 - miss, -miss)) - _ROUNDING

    least, most = 0.0, 1 - 1 / candidates  # of the misses: never above the smallest that is possible
    if left(0.0) > 0:
        least = root(left, 0.0, most, precision=1e-300) if left(most) < 0 else most
        while left(least) < 0:
            least *= 1 - 1e-13
    assumptions = (f"{candidates} equally likely candidates", "the mutual information is a valid upper limit")
    baselines = Baselines((-math.log(candidates),), single=True)
    return baselines.bound("Fano", [ceiling(math.log1p(-least))], assumptions, reference)


def mutual_information(
    schedule: Segment | Sequence[Segment], *, candidates: int, distance: float | None = None
) -> float:
    """What a DP-SGD transcript can tell about which of n equally likely candidates was used, in nats.

    The smallest of log n; Σ T·KL(μ‖ν), valid for every geometry of the gradients; and, for full
    batches whose clipped gradients are at most `distance` (in clipping norms) apart,
    −log(1/n + (1 − 1/n)·exp(−Δ²·Σ T/2σ²)) (Guo et al. 2022b). Orthogonal gradients have Δ = √2,
    which is what Table 2 of Hayes et al. 2023 silently uses; clipping alone only guarantees Δ ≤ 2.

    >>> round(mutual_information(Segment(1.0), candidates=10), 6)
    0.5
    """
    segments = normalise(schedule)
    whole("candidates", candidates, least=2)
    options = [math.log(candidates), max(0.0, moments(segments, 1.0).mean) * (1 + 1e-9)]
    if distance is not None:
        if any(segment.sample_rate < 1 for segment in segments):
            require(
                distance,
                "distance",
                "full batches (sampling rate 1)",
                lambda: False,
                "leave the distance out",
            )
        require(
            distance, "distance", "at least 0 and at most 2 clipping norms", lambda: 0 <= distance <= 2, "2"
        )
        spread = math.exp(-(distance**2) * shift_of(segments) ** 2 / 2)
        options.append(-math.log(1 / candidates + (1 - 1 / candidates) * spread))
    return min(options)


@dataclass(frozen=True)
class SquaredErrorBound:
    """A lower limit on the expected mean squared error, with its caveats."""

    mean_squared_error: float
    vacuous: bool
    assumptions: tuple[str, ...]
    reference: Reference


def squared_error(schedule: Segment | Sequence[Segment], *, diameter: float = 1.0) -> SquaredErrorBound:
    """The mean squared error that no *unbiased* attack can go below, for features of this range.

    E MSE ≥ diameter² / (4·(e^ε − 1)) for (2, ε)-Rényi DP under replacement of a record (Guo et al.
    2022a). Replacing moves a sum of clipped gradients by up to two clipping norms, so a full-batch
    run has ε = 4·Σ T/σ². Two caveats: a biased attack, such as one that knows the data, may do better;
    and a limit above the range's own squared size says nothing.

    >>> squared_error(Segment(10.0, steps=100)).mean_squared_error  # doctest: +ELLIPSIS
    0.0046...
    """
    segments = normalise(schedule)
    least = min(segment.sample_rate for segment in segments)
    require(least, "sampling rate", "full batches (1)", lambda: least == 1, "fano()")
    require(
        diameter,
        "range",
        "a positive number",
        lambda: 0 < diameter < math.inf,
        "diameter=1 for pixels in [0, 1]",
    )
    epsilon = 4 * shift_of(segments) ** 2
    limit = diameter**2 / (4 * math.expm1(epsilon)) if epsilon < 700 else 0.0
    assumptions = (
        "the attack is unbiased: averaged over its randomness, it returns the target itself",
        "neighbours replace one record: a sum of clipped gradients moves by at most two clipping norms",
    )
    return SquaredErrorBound(limit, limit > diameter**2, assumptions, GUO_2022A)
