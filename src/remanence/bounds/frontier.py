"""γ along a line of settings: over the sampling rate at fixed ε, over ε, or over the length of the shortlist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from remanence.bounds.calibration import noise_for_epsilon
from remanence.bounds.person import Person
from remanence.bounds.settings import dpsgd
from remanence.core.checks import number, one_of, whole
from remanence.scale.progress import track

Axis = Literal["sample_rate", "epsilon", "candidates"]


@dataclass(frozen=True)
class FrontierPoint:
    """One setting, and the certified bracket of γ at its noise."""

    sample_rate: float
    epsilon: float
    delta: float
    steps: int
    candidates: float
    noise_multiplier: float
    success_lower: float
    success_upper: float
    whose: str = "one record"


def frontier(
    over: Axis,
    values: Sequence[float],
    *,
    epsilon: float = 4.0,
    delta: float = 1e-5,
    steps: int = 100,
    sample_rate: float = 1.0,
    candidates: float = 10.0,
    person: Person | None = None,
) -> list[FrontierPoint]:
    """The ceiling at each value, with the noise recalibrated to (ε, δ)-DP whenever that changes.

    The ceiling holds for every training that is (ε, δ)-DP with these settings: the noise is a certified lower
    bound on the least sufficient noise, about 5e-5 below it. ε and δ are those of one record under
    Poisson sampling, even if the ceiling is for a person.

    >>> low, high = frontier("sample_rate", [0.01, 0.99])  # Hayes et al. 2023, Figure 5
    >>> round(low.success_upper, 3), round(high.success_upper, 3)
    (0.187, 0.361)
    """
    one_of("over", over, get_args(Axis))
    settings = {"sample_rate": sample_rate, "epsilon": epsilon, "candidates": candidates}
    points, noises = [], {}
    for value in track(values, total=len(values), what="frontier"):
        at = {**settings, over: number(over, value, hint="10")}
        number("candidates", at["candidates"], above=1, hint="10")
        run = (at["epsilon"], at["sample_rate"])
        if run not in noises:
            noises[run] = noise_for_epsilon(
                run[0], delta=delta, sample_rate=run[1], steps=steps, guess=_next(noises), enough=False
            )
        bound = dpsgd(
            log_baseline=-math.log(at["candidates"]),
            noise_multiplier=noises[run],
            sample_rate=run[1],
            steps=steps,
            person=person,
        )
        lower = bound.baseline if bound.lower is None else bound.lower
        points.append(
            FrontierPoint(delta=delta, steps=steps, noise_multiplier=noises[run], success_lower=float(lower),
                  success_upper=float(bound.success), whose=bound.whose, **at)
        )  # fmt: skip
    if over == "sample_rate":
        return points
    # A larger ε admits more trainings, and a shorter shortlist is easier to guess, so ceilings carry over.
    ordered = sorted(points, key=lambda point: point.epsilon if over == "epsilon" else -point.candidates)
    least = np.minimum.accumulate([point.success_upper for point in reversed(ordered)])[::-1]
    lowered = dict(zip(map(id, ordered), least.tolist(), strict=True))
    return [replace(point, success_upper=lowered[id(point)]) for point in points]


def _next(noises: dict[tuple[float, float], float]) -> float | None:
    """Extrapolate the next noise along a line from its last change."""
    last = list(noises.values())[-2:]
    if len(last) < 2:
        return last[0] if last else None
    return last[1] * min(max(last[1] / last[0], 0.5), 2.0)


def evenly(low: float, high: float, count: int) -> list[float]:
    """Values at equal ratios.

    >>> evenly(1, 100, 3)
    [1.0, 10.0, 100.0]
    """
    number("start of the range", low, above=0, hint="--from 0.01")
    number("end of the range", high, above=low, hint=f"--to {2 * low:g}")
    whole("points", count, least=2, most=10_000, hint="--points 25")
    step = (math.log(high) - math.log(low)) / (count - 1)
    inner = [math.exp(math.log(low) + step * index) for index in range(1, count - 1)]
    return [float(low), *(round(value, 12) for value in inner), float(high)]
