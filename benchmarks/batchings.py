"""Every way of batching at ten settings: the best test that was played, the ceiling, and the peers', as Markdown.

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install -q numpy scipy lazy_loader numba dp-accounting riskcal PLD-accounting
    OMP_NUM_THREADS=1 PYTHONPATH=src /tmp/peers/bin/python benchmarks/batchings.py [poisson balls-in-bins ...]

The test knows everything but whether, and in which batches, the record was used, and plays the likelihood ratio: its
threshold comes from half of the draws without the record, its power is counted on as many draws with it. Where other
records matter (draws of a fixed size), their gradients are all 0 or all opposite to the record's, whichever tells more.
A peer that is not installed is left out. Times are of the processor.
"""

from __future__ import annotations

import importlib.metadata
import math
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from remanence.bounds import Bound, Person, Segment, dpsgd
from remanence.bounds.engine.allocation import allocation_bracket
from remanence.bounds.engine.dpsgd import _bracket

DRAWS = 20_000
LIMIT_S = 20  # of one answer of a peer
AT_ONCE = 2_000_000  # numbers
PEERS = ("dp-accounting", "riskcal", "PLD-accounting")


@dataclass(frozen=True)
class Setting:
    """One noise, so many batches in a pass, so many passes, and how often a guess succeeds."""

    noise: float
    batches: int
    passes: int
    baseline: float

    @property
    def run(self) -> Segment:
        return Segment(self.noise, 1 / self.batches, self.batches * self.passes)


SETTINGS = (
    Setting(1.1, 100, 10, 0.01),  # the README's
    Setting(2.0, 100, 1, 0.01),
    Setting(1.0, 100, 1, 0.01),
    Setting(0.5, 100, 1, 0.01),
    Setting(0.5, 10, 1, 0.1),
    Setting(1.0, 5, 4, 0.5),
    Setting(0.7, 30, 5, 0.01),
    Setting(4.0, 20, 50, 0.1),
    Setting(1.0, 500, 1, 0.001),
    Setting(3.0, 50, 20, 0.001),
)


def power(loss: Callable[[bool, int], np.ndarray], baseline: float, per_draw: int) -> tuple[float, float]:
    """The power of the likelihood ratio test of that level, and its standard error; the level's error is included."""
    chunk = max(1, AT_ONCE // per_draw)
    found = {
        present: np.concatenate(
            [loss(present, min(chunk, DRAWS - start)) for start in range(0, DRAWS, chunk)]
        )
        for present in (False, True)
    }
    threshold = float(np.quantile(found[False], 1 - baseline))
    rate = float((found[True] > threshold).mean())
    slope = math.exp(threshold)  # of power over level
    error = math.sqrt(rate * (1 - rate) / DRAWS + slope**2 * baseline * (1 - baseline) / DRAWS)
    return rate, error


def sampled(
    setting: Setting, generator: np.random.Generator, others: float, left_out: bool
) -> tuple[float, float]:
    """Independent steps: the record is in with the sampling rate, and where it is not, another one is."""
    rate, noise = 1 / setting.batches, setting.noise

    def density(noisy: np.ndarray, mean: float) -> np.ndarray:
        return np.exp(-0.5 * ((noisy - mean) / noise) ** 2)

    def loss(present: bool, count: int) -> np.ndarray:
        inside = generator.random((count, setting.run.steps)) < rate
        own = 1.0 if present else 0.0 if left_out else others
        noisy = np.where(inside, own, others) + noise * generator.standard_normal(inside.shape)
        without = rate * density(noisy, 0.0 if left_out else others) + (1 - rate) * density(noisy, others)
        present_density = rate * density(noisy, 1.0) + (1 - rate) * density(noisy, others)
        return np.log(present_density / without).sum(axis=1)

    return power(loss, setting.baseline, setting.run.steps)


def thrown(setting: Setting, generator: np.random.Generator) -> tuple[float, float]:
    """Balls in bins: one of the batches of each pass."""

    def loss(present: bool, count: int) -> np.ndarray:
        total = np.zeros(count)
        for _ in range(setting.passes):
            noisy = setting.noise * generator.standard_normal((count, setting.batches))
            noisy[:, 0] += present
            total += np.log(np.exp((noisy - 0.5) / setting.noise**2).mean(axis=1))
        return total

    return power(loss, setting.baseline, setting.batches)


def known_order(setting: Setting, generator: np.random.Generator) -> tuple[float, float]:
    """A shuffle whose order the adversary knows, or a loader that does not shuffle."""

    def loss(present: bool, count: int) -> np.ndarray:
        noisy = present + setting.noise * generator.standard_normal((count, setting.passes))
        return ((noisy - 0.5) / setting.noise**2).sum(axis=1)

    return power(loss, setting.baseline, setting.passes)


def secret_order(setting: Setting, generator: np.random.Generator, others: float) -> tuple[float, float]:
    """A shuffle whose order is secret: one batch of each pass misses one of the others and has the record instead."""

    def loss(present: bool, count: int) -> np.ndarray:
        total = np.zeros(count)
        for _ in range(setting.passes):
            noisy = setting.noise * generator.standard_normal((count, setting.batches))
            absent, there = -others, 1.0 - others  # beside as many others in every other batch
            noisy[:, 0] += there if present else absent
            for mean, sign in ((there, 1.0), (absent, -1.0)):
                exponents = (mean * noisy - mean**2 / 2) / setting.noise**2
                total += sign * np.log(np.exp(exponents).mean(axis=1))
        return total

    return power(loss, setting.baseline, setting.batches)


def put_in(
    setting: Setting, generator: np.random.Generator, records: int, left_out: bool
) -> tuple[float, float]:
    """Draws of 100 for a person with several records: all others are opposite, or where they are left out 0."""
    counts, apart = np.arange(records + 1), 1 if left_out else 2
    weights = hypergeom.pmf(counts, 100 * setting.batches, records, 100)

    def loss(present: bool, count: int) -> np.ndarray:
        inside = generator.choice(counts, (count, setting.run.steps), p=weights / weights.sum()) * present
        noisy = apart * inside + setting.noise * generator.standard_normal(inside.shape)
        moved = apart * counts
        ratios = [
            w * np.exp((noisy * m - m**2 / 2) / setting.noise**2) for w, m in zip(weights, moved, strict=True)
        ]
        return np.log(sum(ratios)).sum(axis=1)

    return power(loss, setting.baseline, setting.run.steps)


def replaced(setting: Setting, generator: np.random.Generator) -> tuple[float, float]:
    """Balls in bins, against a training on another record whose gradients are opposite."""

    def loss(present: bool, count: int) -> np.ndarray:
        total = np.zeros(count)
        for _ in range(setting.passes):
            noisy = setting.noise * generator.standard_normal((count, setting.batches))
            noisy[:, 0] += 1.0 if present else -1.0
            for sign in (1.0, -1.0):
                total += sign * np.log(np.exp((sign * noisy - 0.5) / setting.noise**2).mean(axis=1))
        return total

    return power(loss, setting.baseline, setting.batches)


def attack(batches: str, setting: Setting, bound: Bound, seed: int) -> tuple[float, float]:
    """The best test for a way of batching, in the comparison that the bound names."""
    generator = np.random.default_rng(seed)
    if batches == "balls-in-bins":
        return thrown(setting, generator)
    if batches == "shuffled":
        return known_order(setting, generator)
    if batches == "shuffled, order secret":
        return max(secret_order(setting, generator, others) for others in (0.0, -1.0))
    if batches == "poisson":
        return sampled(setting, generator, 0.0, left_out=True)
    if batches == "balls-in-bins, replaced":
        return replaced(setting, generator)
    left_out = "same batches without" in bound.assumptions[3]
    if batches == "fixed, 5 records":
        return put_in(setting, generator, 5, left_out)
    return max(sampled(setting, generator, others, left_out) for others in (0.0, -1.0))


def dual(pmf: Any, baseline: float) -> float:
    """The least of e^ε·κ + δ(ε) over a privacy loss distribution's lattice."""
    losses = (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization
    masses = np.asarray(pmf._probs)
    kept = losses > -600
    losses, masses = losses[kept], masses[kept]
    above = np.append(np.cumsum(masses[::-1])[::-1][1:], 0.0)
    without = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1][1:], 0.0)
    values = np.exp(np.minimum(losses, 600)) * (baseline - without) + above + pmf._infinity_mass
    return float(min(values.min(), 1.0))


def ask_dp_accounting(setting: Setting) -> float:
    from dp_accounting.pld import privacy_loss_distribution  # pyright: ignore[reportMissingImports]

    step = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=setting.noise, sampling_prob=1 / setting.batches, value_discretization_interval=1e-4,
        use_connect_dots=True,
    )  # fmt: skip
    return dual(step.self_compose(setting.run.steps)._pmf_remove.to_dense_pmf(), setting.baseline)


def ask_riskcal(setting: Setting) -> float:
    from riskcal.calibration.dpsgd import get_beta_for_dpsgd  # pyright: ignore[reportMissingImports]

    run = setting.run
    return 1 - float(
        get_beta_for_dpsgd(
            run.noise_multiplier, run.sample_rate, run.steps, alpha=setting.baseline, grid_step=1e-4
        )
    )


def ask_pld_accounting(setting: Setting) -> float:
    import PLD_accounting as peer  # pyright: ignore[reportMissingImports]

    pld = peer.gaussian_allocation_pld(
        params=peer.PrivacyParams(sigma=setting.noise, num_steps=setting.batches, num_epochs=setting.passes),
        config=peer.AllocationSchemeConfig(loss_discretization=1e-2),
    )
    return dual(pld._pmf_remove.to_dense_pmf(), setting.baseline)


ASKED = {
    "poisson": {"dp-accounting": ask_dp_accounting, "riskcal": ask_riskcal},
    "balls-in-bins": {"PLD-accounting": ask_pld_accounting},
}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    return work(), time.process_time() - started


def apart(work: Callable[[], float]) -> tuple[float, float] | None:
    """The same in a process of its own; None where that takes longer than the limit of processor time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        sender.send(timed(work))

    process = context.Process(target=child)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        process.join()


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Print the page, or the tables of the ways of batching that are named."""
    warnings.simplefilter("ignore")
    ways = sys.argv[1:] or [
        *("poisson", "balls-in-bins", "balls-in-bins, replaced", "fixed", "fixed, 5 records"),
        *("shuffled", "shuffled, order secret"),
    ]
    if installed("PLD-accounting"):
        ask_pld_accounting(Setting(2.0, 10, 1, 0.1))  # compiles
    print("# Every way of batching: attack, ceiling, peers\n")
    print(
        "`benchmarks/batchings.py` prints this page. In 1000; the attack with two standard errors. ", end=""
    )
    print("Versions: " + ", ".join(f"{name} {installed(name) or 'missing'}" for name in PEERS) + ".\n")
    for batches in ways:
        peers = {name: ask for name, ask in ASKED.get(batches, {}).items() if installed(name)}
        title = {"shuffled": "shuffled, order known"}.get(batches, batches)
        title = title.replace("fixed", "draws of a fixed size")
        print(f"## {title}\n")
        print(
            "| σ | batches × passes | guess | attack | test that exists | ceiling | ms |"
            + "".join(f" {name} | s |" for name in peers)
        )
        print("|---|---|---|---|---|---|---|" + "---|---|" * len(peers))
        for seed, setting in enumerate(SETTINGS):
            way, _, detail = batches.partition(", ")
            person = Person(5 if "5" in detail else 1, way, "replaced" in detail)  # pyright: ignore[reportArgumentType]
            allocation_bracket.cache_clear()
            _bracket.cache_clear()
            bound, seconds = timed(lambda s=setting, p=person: dpsgd(s.baseline, schedule=s.run, person=p))
            rate, error = attack(batches, setting, bound, seed)
            tested = "–" if detail else f"{1e3 * bound.lower:.3f}"
            row = (
                f"| {setting.noise:g} | {setting.batches} × {setting.passes} | {1e3 * setting.baseline:g} "
                f"| {1e3 * rate:.2f} ± {2e3 * error:.2f} | {tested} | {1e3 * bound.success:.3f} "
                f"| {1e3 * seconds:.0f} |"
            )
            for ask in peers.values():
                answer = apart(lambda ask=ask, s=setting: ask(s))
                row += f" {1e3 * answer[0]:.3f} | {answer[1]:.2f} |" if answer else f" – | > {LIMIT_S} |"
            print(row, flush=True)
        print()


if __name__ == "__main__":
    main()
