"""The theorem for any mechanism: how often it accuses a correct one, how often it catches half the noise.

python benchmarks/one_run.py    # ideal canaries, simulated
"""

import numpy as np

from remanence.bounds.one_run import GaussianCurve, GuessCount

LEVEL, RUNS, SHARE = 0.05, 2000, 0.3


def correct(mu: float, canaries: int, guesses: int, generator: np.random.Generator) -> np.ndarray:
    """Right ones among the surest guesses about orthogonal canaries, the best attack, per run."""
    found = np.empty(RUNS, dtype=int)
    for run in range(RUNS):
        truth = generator.random(canaries) < 0.5
        log_odds = mu * truth + generator.normal(size=canaries) - mu / 2
        order = np.argsort(-np.abs(log_odds))[:guesses]
        found[run] = ((log_odds > 0) == truth)[order].sum()
    return found


def simulated() -> None:
    print(
        "claimed μ  canaries  guessed  rejects from  false CONTRADICTED  half the noise caught  a quarter caught"
    )
    generator = np.random.default_rng(0)
    for mu in (0.5, 1.0, 2.0):
        for canaries in (500, 1000, 2000):
            guesses = round(SHARE * canaries)
            low, high = 0, guesses + 1
            while high - low > 1:
                middle = (low + high) // 2
                rejects = GuessCount(middle, guesses, canaries).rejects(GaussianCurve(mu), LEVEL)
                low, high = (low, middle) if rejects else (middle, high)
            rates = [(correct(k * mu, canaries, guesses, generator) >= high).mean() for k in (1, 2, 4)]
            print(
                f"{mu:9} {canaries:9} {guesses:8} {high:13} {rates[0]:19.4f} {rates[1]:22.3f} {rates[2]:17.3f}"
            )


if __name__ == "__main__":
    simulated()
