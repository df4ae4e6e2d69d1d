"""Where brackets are hardest: small sampling rates and baselines, whose losses are a few rare large jumps.

`python benchmarks/rare_losses.py` prints how many of 300 random settings are wider than asked for, and the times.
"""

import math
import time

import numpy as np

from remanence.bounds import Segment
from remanence.bounds.engine.dpsgd import dpsgd_bracket


def main() -> None:
    generator, widths, times = np.random.default_rng(11), [], []
    for _ in range(300):
        noise, rate = 10 ** generator.uniform(-0.5, 0.8), 10 ** generator.uniform(-5, 0)
        steps, baseline = int(10 ** generator.uniform(0, 6)), 10 ** generator.uniform(-12, -0.05)
        started = time.process_time()
        found = dpsgd_bracket(Segment(noise, rate, steps), math.log(baseline))
        times.append(time.process_time() - started)
        if not found.converged:
            widths.append(found.log_upper - found.log_lower)
    print(
        "q 1e-5 to 1, T 1 to 1e6, σ 0.3 to 6, κ 1e-12 to 0.9: log-uniform, 300 settings, relative width 1e-4."
    )
    print(f"Wider than that: {len(widths)}, the widest {max(widths, default=0.0):.1e}.")
    print(f"CPU: median {1e3 * np.median(times):.0f} ms, 99 % {1e3 * np.quantile(times, 0.99):.0f} ms, "
          f"slowest {1e3 * max(times):.0f} ms.")  # fmt: skip


if __name__ == "__main__":
    main()
