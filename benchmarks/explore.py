"""How fast the page answers: `python benchmarks/explore.py` (needs the extras dev and explore)."""

import itertools
import random
import statistics
import time

from starlette.testclient import TestClient

from remanence.report.explore.server import application

NOISES, RATES, STEPS, CANDIDATES = (
    (0.6, 0.8, 1.1, 2.0, 5.0),
    (0.001, 0.01, 0.1, 1.0),
    (100, 1000, 10000),
    (10, 100, 1000),
)


def main() -> None:
    with TestClient(application(), base_url="http://127.0.0.1:8000") as page:
        measure(page)


def measure(page: TestClient) -> None:
    settings = list(itertools.product(NOISES, RATES, STEPS, CANDIDATES))
    draw = random.Random(0)  # noqa: S311
    draw.shuffle(settings)
    print(
        f"{'question':12} {'median':>9} {'9 in 10':>9} {'slowest':>9}   (milliseconds, {len(settings)} settings)"
    )
    for name in ("estimate", "bound", "budget", "noise-curve"):
        taken = []
        for noise, rate, steps, candidates in settings[: 60 if name == "budget" else None]:
            # Slightly other noise each time, so that no answer is remembered.
            given = {
                "noise_multiplier": noise * (1 + 1e-3 * draw.random()),
                "sample_rate": rate,
                "steps": steps,
            }
            started = time.perf_counter()
            answer = page.get(f"/api/{name}", params={**given, "candidates": candidates, "delta": 1e-5})
            taken.append(1000 * (time.perf_counter() - started))
            assert answer.status_code == 200
        taken.sort()
        print(
            f"{name:12} {statistics.median(taken):9.0f} {taken[int(0.9 * len(taken))]:9.0f} {taken[-1]:9.0f}"
        )


if __name__ == "__main__":
    main()
