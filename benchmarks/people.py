"""People: ceilings by number of records, their times, and dp-accounting beside them.

`python benchmarks/people.py docs` prints docs/evidence/people.md and draws docs/people.svg. dp-accounting 0.6 is
asked where it is installed, for the ε of a group: its Gaussian mixture, as it composes and as it reads ε off. It has no
balls in bins (random allocation) to compare with. Times are those of the processor, of one thread: other work on the
machine does not change them much.
"""

import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from remanence.bounds import Person, Segment, dpsgd, epsilon_upper
from remanence.bounds.engine.dpsgd import _bracket

RUN = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 1000}
BASELINE, DELTA = 0.01, 1e-5
COUNTS = (1, 2, 3, 5, 8, 12, 20, 32, 64)
SETTINGS = 200


def timed(work):
    started = time.process_time()
    return work(), time.process_time() - started


def ceilings() -> None:
    print("## The README's setting\n\nσ = 1.1, q = 0.01, 1000 steps, a shortlist of 100: at most, in 1000.\n")
    print("| records | Poisson | noise for 50 in 1000 |\n|---|---|---|")
    from remanence import calibrate

    for count in COUNTS:
        bound = dpsgd(BASELINE, **RUN, person=Person(count))
        needed = calibrate(0.05, BASELINE, sample_rate=0.01, steps=1000, person=Person(count))
        print(
            f"| {count} | {1000 * bound.lower:.2f} to {1000 * bound.success:.2f} | {needed.noise_multiplier:.3f} |"
        )


def speed() -> None:
    generator, times, many, wide = np.random.default_rng(0), [], [], 0
    for _ in range(SETTINGS):
        records = int(2 ** generator.uniform(0, 6))
        run = Segment(
            math.sqrt(records) * 10 ** generator.uniform(-0.2, 0.7),
            10 ** generator.uniform(-3, -0.5),
            int(10 ** generator.uniform(1, 4.5)),
        )
        baseline = 10 ** generator.uniform(-6, -0.3)
        _bracket.cache_clear()
        found, seconds = timed(
            lambda run=run, kappa=baseline, records=records: dpsgd(
                kappa, schedule=[run], person=Person(records)
            )
        )
        times.append(1e3 * seconds)
        many += [1e3 * seconds] if records > 8 else []
        wide += not found.converged
    middle, high = statistics.median(times), np.quantile(times, 0.99)
    print(f"\n## Times\n\n{SETTINGS} random settings with 1 to 64 records: certificate in {middle:.0f} ms in the "
          f"median, {high:.0f} ms at the 99th percentile, {statistics.median(many):.0f} ms in the median of the "
          f"{len(many)} with more than 8; {wide} wider than 1e-4.")  # fmt: skip


def beside_dp_accounting() -> None:
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld  # pyright: ignore
    except ImportError:
        print("\ndp-accounting is not installed.")
        return
    print("\n## ε of a group at δ = 1e-5, σ = 1.1 √k, q = 0.01, 1000 steps\n")
    print("| records | ours | dp-accounting | ours took | it took | ratio |\n|---|---|---|---|---|---|")
    for count in (1, 2, 5, 20):
        noise = 1.1 * math.sqrt(count)
        ours, seconds = timed(lambda n=noise, k=count: epsilon_upper(Segment(n, 0.01, 1000, k), DELTA))

        def theirs(noise: float = noise, count: int = count) -> float:
            weights = [math.comb(count, j) * 0.01**j * 0.99 ** (count - j) for j in range(count + 1)]
            step = pld.from_mixture_gaussian_mechanism(
                noise, list(range(count + 1)), weights, value_discretization_interval=1e-4
            )
            return step.self_compose(1000).get_epsilon_for_delta(DELTA)

        other, spent = timed(theirs)
        print(
            f"| {count} | {ours:.4f} | {other:.4f} | {seconds:.2f} s | {spent:.2f} s | {spent / seconds:.1f} |"
        )


def picture(path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    counts = list(range(1, 26))
    for noise, style in ((1.1, "-"), (2.0, "--"), (4.0, ":")):
        settings = {**RUN, "noise_multiplier": noise}
        most = [1000 * dpsgd(BASELINE, **settings, person=Person(count)).success for count in counts]
        axes.plot(counts, most, style, label=f"noise multiplier {noise:g}")
    axes.axhline(1000 * BASELINE, color="grey", linewidth=0.8)
    axes.annotate("a guess", (25, 1000 * BASELINE), ha="right", va="bottom", fontsize=9, color="grey")
    axes.set(xlabel="records of one person", ylabel="times in 1000, at most", ylim=(0, 1020), xlim=(1, 25))
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    ceilings()
    speed()
    beside_dp_accounting()
    picture(Path(sys.argv[1]) / "people.svg")
