"""20,000 settings of DP-SGD, half of them round numbers: does any ceiling crash, cross or contradict itself?

    OMP_NUM_THREADS=1 python benchmarks/bound_sweep.py [--settings 20000]

Round settings are what people type; random ones cover the whole documented range. Each asks for one certified
bracket. Every hundredth also solves for the noise that keeps the ceiling halfway between the guess and 1. Every tenth
also asks for the ceiling of a random person under a random way of batching.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections import Counter

import numpy as np

from remanence.bounds import Person, dpsgd
from remanence.bounds.calibration import calibrate
from remanence.bounds.engine.dpsgd import dpsgd_bracket
from remanence.bounds.engine.schedule import Segment
from remanence.core.exceptions import InputError

NOISES = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 1, 1.1, 1.5, 2, 3, 4, 5, 8, 10, 20, 50, 100)
RATES = (1e-6, 1e-5, 1e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 0.9)
STEPS = (2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**4, 10**5, 10**6, 10**7)
CANDIDATES = (2, 3, 10, 20, 100, 1000, 10**4, 10**5, 10**6, 10**9)


def settings(count: int, generator: np.random.Generator) -> list[tuple[Segment, float]]:
    """Half round, half random over the documented range; a tenth of the random ones are people with several records."""
    grid = list(itertools.product(NOISES, RATES, STEPS, CANDIDATES))
    chosen = generator.choice(len(grid), size=min(count // 2, len(grid)), replace=False)
    found = [(Segment(*grid[index][:3]), -math.log(grid[index][3])) for index in chosen]
    while len(found) < count:
        noise, rate, steps, size, several = generator.random(5)
        run = Segment(
            0.05 * 4000**noise,
            1e-7 ** (rate**1.5) * 0.999,
            round(2 * 5e8 ** (steps**1.5)),
            1 if several > 0.1 else int(generator.integers(2, 20)),
        )
        log_baseline = math.log(0.9) - 200 * size**4 if size < 0.95 else -float(generator.uniform(200, 4600))
        found.append((run, log_baseline))
    return [found[index] for index in generator.permutation(len(found))]


def other_ways(run: Segment, log_baseline: float, generator: np.random.Generator) -> None:
    """The same run, in whole batches of a pass, for a person and a way of batching at random."""
    batches = generator.choice(["shuffled", "fixed", "balls-in-bins", "people"])
    person = Person(int(generator.choice([1, 1, 2, 5])), str(batches), bool(generator.random() < 0.1))  # pyright: ignore[reportArgumentType]
    whole = Segment(run.noise_multiplier, 1 / max(2, round(1 / run.sample_rate)), run.steps)
    found = dpsgd(log_baseline=log_baseline, schedule=whole, person=person)
    if not log_baseline * (1 + 1e-12) <= found.log_success <= 0 or (found.lower or 0.0) > found.success:
        raise ArithmeticError(f"out of order: {person}, {found}")


def main() -> None:
    """Print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=20_000)
    parser.add_argument("--part", type=int, nargs=2, default=(1, 1), help="the first of three parts: 1 3")
    options = parser.parse_args()
    count, (part, parts) = options.settings, options.part
    generator = np.random.default_rng(35)
    failed, loose, seconds, solved = [], 0, [], Counter()
    chosen = settings(count, generator)[part - 1 :: parts]
    for index, (run, log_baseline) in enumerate(chosen):
        if index % 1000 == 0:
            print(f"{index} settings, {len(failed)} failed", file=sys.stderr, flush=True)
        started = time.process_time()
        try:
            bracket = dpsgd_bracket(run, log_baseline)
        except Exception as error:  # noqa: BLE001
            failed.append((run, log_baseline, f"{type(error).__name__}: {error}"[:160]))
            print(failed[-1], file=sys.stderr, flush=True)
            continue
        seconds.append(time.process_time() - started)
        if not log_baseline <= bracket.log_lower <= bracket.log_upper <= 0:
            failed.append((run, log_baseline, f"out of order: {bracket}"))
        loose += not bracket.converged
        if index % 10 == 0:
            try:
                other_ways(run, log_baseline, generator)
            except Exception as error:  # noqa: BLE001
                failed.append((run, log_baseline, f"{type(error).__name__}: {error}"[:300]))
        if index % 100 == 0 and run.records == 1 and log_baseline > -300:
            try:
                limit = (1 + math.exp(log_baseline)) / 2
                found = calibrate(
                    limit, sample_rate=run.sample_rate, steps=run.steps, log_baseline=log_baseline
                )
                solved["found" if found.bound.success <= limit else "ABOVE THE LIMIT"] += 1
            except InputError:
                solved["refused"] += 1
            except Exception as error:  # noqa: BLE001
                failed.append((run, log_baseline, f"calibrate: {type(error).__name__}: {error}"[:160]))
    print(f"settings: {len(chosen)}; failed: {len(failed)}")
    print(f"wider than asked for: {loose}; noise solved for: {dict(solved)}")
    print(
        f"processor time of a bracket: median {1e3 * np.median(seconds):.1f} ms, 99th percentile "
        f"{1e3 * np.quantile(seconds, 0.99):.0f} ms, longest {1e3 * max(seconds):.0f} ms"
    )
    for run, log_baseline, why in failed:
        print(f"  {run}, log κ = {log_baseline:.6g}: {why}")


if __name__ == "__main__":
    main()
