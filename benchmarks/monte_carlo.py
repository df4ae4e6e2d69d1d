"""Monte-Carlo estimates of γ: time, spread and the measured coverage of every interval.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/monte_carlo.py   # prints docs/reproductions/hayes-monte-carlo.md
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from remanence import bounds
from remanence.bounds import Segment
from remanence.core.rates import clopper_pearson
from remanence_papers.monte_carlo import (
    Estimate,
    Interval,
    as_printed,
    bennett_as_printed,
    complement,
    corrected,
    dkw_as_printed,
    from_target,
    sample_losses,
)

CONFIDENCE = 0.999  # the paper's
RUNS = [
    ("One step, σ = 1, full batch", Segment(1.0), (0.1, 0.01), {4: 400, 5: 200, 6: 40, 7: 6}),
    ("One step, σ = 0.3, full batch: low noise", Segment(0.3), (0.1,), {4: 400, 5: 200, 6: 40, 7: 6}),
    ("100 steps, σ = 1, sampling rate 0.1", Segment(1.0, 0.1, 100), (0.1, 0.001), {4: 100, 5: 20, 6: 5}),
]
INTRODUCTION = f"""\
# Hayes et al. 2023, Algorithm 1 and its intervals: what sampling gives

`OMP_NUM_THREADS=1 .venv/bin/python benchmarks/monte_carlo.py` prints this page (one thread, 2-core machine; the
times vary, everything else is fixed by seeds). The exact value is `bounds.dpsgd`, which needs milliseconds.

*As printed*, *corrected*, *complement* and *from target* are the estimators of `remanence_papers.monte_carlo`;
[errata](../errata.md) says what is wrong with the first. *Mean* and *spread* are the mean and the standard deviation
over the repetitions. *Seconds* are the median for one repetition with its sampling; the estimators that sample
without the target share their samples. All intervals claim {CONFIDENCE:.1%}; *covered* counts the repetitions whose
interval holds the exact value, with a 95 % interval for the true coverage; *width* is the mean width.

*DKW* and *Bennett* are the two intervals that Section 3.3 of the paper sketches, Bennett's with the second moment as
printed, e^T, and with the exact one, (1 + q²(e^(1/σ²) − 1))^T; neither is valid for γ. *Corrected ± 0.01* is the
paper's statement that the mean is off by less than 0.01. *From target* is the only interval with a proof."""

READING = """
## What it says

- The printed normaliser gives γ/κ, at any number of samples.
- At low noise (σ = 0.3) the top sum does not settle even at 10^7 samples. The DKW interval around it, which leaves out
  the error of the mean, almost never holds the exact value; Bennett's with the printed moment does about half of the
  time.
- The DKW interval around the complement holds everywhere here because it is wide, not because of a proof; at κ = 0.001
  and 10^6 samples it is fifteen times as wide as the one from the target.
- Many steps make the printed moment e^T useless: the interval is all of [0, 1].
- Sampling with the target has the smallest spread of all for small κ, the complement for γ close to 1."""


def timed(function: Callable[[], Interval | Estimate]) -> tuple[Interval | Estimate, float]:
    started = time.perf_counter()
    found = function()
    return found, time.perf_counter() - started


def repetition(
    segment: Segment, baselines: tuple[float, ...], samples: int, rng: np.random.Generator
) -> dict[tuple[float, str], tuple[Interval | Estimate, float]]:
    started = time.perf_counter()
    losses = sample_losses(segment, samples=samples, with_target=False, rng=rng)
    sampling = time.perf_counter() - started
    found = {}
    for baseline in baselines:
        functions: dict[str, Callable[[], Interval | Estimate]] = {
            name: lambda function=function, kappa=baseline: function(losses, baseline=kappa)
            for name, function in (
                ("as printed", as_printed),
                ("corrected", corrected),
                ("complement", complement),
                ("DKW, corrected", dkw_as_printed),
            )
        }
        functions["DKW, complement"] = lambda kappa=baseline: dkw_as_printed(
            losses, baseline=kappa, estimator=complement
        )
        growth = segment.sample_rate**2 * math.expm1(1 / segment.noise_multiplier**2)
        moments = {"Bennett, e^T": segment.steps, "Bennett, exact": segment.steps * math.log1p(growth)}
        for name, moment in moments.items():
            functions[name] = lambda moment=moment, kappa=baseline: bennett_as_printed(
                losses, baseline=kappa, log_second_moment=moment
            )
        for name, function in functions.items():
            value, seconds = timed(function)
            found[baseline, name] = value, seconds + sampling
        middle = found[baseline, "corrected"][0].success
        claimed = Interval(middle, middle - 0.01, middle + 0.01, CONFIDENCE, samples)
        found[baseline, "corrected ± 0.01"] = claimed, found[baseline, "corrected"][1]
        found[baseline, "from target"] = timed(
            lambda kappa=baseline: from_target(
                segment, baseline=kappa, samples=samples, rng=rng, confidence=CONFIDENCE
            )
        )
    return found


def table(title: str, segment: Segment, baselines: tuple[float, ...], repetitions: dict[int, int]) -> None:
    found = defaultdict(list)
    for power, count in repetitions.items():
        rng = np.random.default_rng([power, segment.steps])
        for _ in range(count):
            for (baseline, name), result in repetition(segment, baselines, 10**power, rng).items():
                found[baseline, power, name].append(result)
    for baseline in baselines:
        bound = bounds.dpsgd(baseline, schedule=[segment], rtol=1e-7)
        exact = bound.success
        print(f"\n## {title}, κ = {baseline:g}: γ = {exact:.6f}\n")
        print("| samples | repetitions | estimator | mean | spread | seconds | covered | coverage | width |")
        print("|--:|--:|---|--:|--:|--:|--:|--:|--:|")
        for (kappa, power, name), results in found.items():
            if kappa != baseline:
                continue
            values = np.array([value.success for value, _ in results])
            seconds = float(np.median([seconds for _, seconds in results]))
            row = f"| 10^{power} | {len(results)} | {name} | {values.mean():.5f} | {values.std(ddof=1):.1e} |"
            row += f" {seconds:.2g} |"
            intervals = [value for value, _ in results if isinstance(value, Interval)]
            if intervals:
                hits = sum(one.covers(exact) for one in intervals)
                low, high = clopper_pearson(hits, len(intervals), 0.025)
                width = float(np.mean([one.upper - one.lower for one in intervals]))
                row += f" {hits} | {low:.3f} to {high:.3f} | {width:.2g} |"
            else:
                row += " | | |"
            print(row)


if __name__ == "__main__":
    print(INTRODUCTION)
    for run in RUNS:
        table(*run)
    print(READING)
