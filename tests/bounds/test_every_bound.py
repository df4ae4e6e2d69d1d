"""Random small mechanisms, every bound that we offer, and the exact best attack: no bound is below it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from remanence import NoisySum, bounds
from remanence.bounds import Segment, dpsgd
from remanence.bounds.bound import Baselines
from remanence.bounds.engine.bracket import Bracket
from remanence.bounds.frontier import frontier
from remanence.core.references import REMANENCE
from remanence_papers import companions

ROUNDING = 1e-9  # of the optimum, which is computed in floating point too


def more(seeds):
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds]


def random_law(generator, size, *, sparse):
    law = generator.gamma(generator.choice([0.2, 1.0, 5.0]), size=size) + 1e-12
    if sparse:
        law[generator.random(size) < 0.3] = 0.0
        law[0] += 1e-3
    return law / law.sum()


def hockey_stick(one, other, epsilon):
    return float(np.maximum(one - math.exp(min(epsilon, 700.0)) * other, 0).sum())


def renyi_divergence(one, other, order):
    used = one > 0
    if (other[used] == 0).any():
        return math.inf
    ratios = one[used] / other[used]
    if math.isinf(order):
        return float(np.log(ratios.max()))
    return float(np.log((other[used] * ratios**order).sum()) / (order - 1))


def check_discrete(seed):
    """n candidates with a prior, m outcomes, a law for each candidate and one without the target."""
    generator = np.random.default_rng(seed)
    candidates, outcomes = int(generator.integers(2, 6)), int(generator.integers(2, 8))
    sparse = generator.random() < 0.3
    laws = np.array([random_law(generator, outcomes, sparse=sparse) for _ in range(candidates)])
    blend = generator.choice([0.0, 0.5, 0.9])  # from laws with nothing in common to nearly equal ones
    absent = random_law(generator, outcomes, sparse=False)
    laws = (1 - blend) * laws + blend * absent
    uniform, drawn = generator.random() < 0.5, random_law(generator, candidates, sparse=False)
    prior = np.full(candidates, 1 / candidates) if uniform else drawn
    optimum = float((prior[:, None] * laws).max(axis=0).sum())
    kappa = float(prior.max())

    both = [pair for law in laws for pair in ((law, absent), (absent, law))]

    def delta(epsilon):
        return max(hockey_stick(*pair, epsilon) for pair in both)

    found = {}
    for epsilon in (0.0, 0.3, 2.0):
        if (least := delta(epsilon)) < 1:
            found[f"({epsilon}, δ)"] = bounds.approximate_dp(kappa, epsilon=epsilon, delta=least).success
    if (most := max(renyi_divergence(*pair, math.inf) for pair in both)) < math.inf:
        found["pure"] = bounds.pure_dp(kappa, epsilon=most).success
    orders = [1.1, 2.0, 8.0, math.inf]
    curve = [max(renyi_divergence(law, absent, order) for law in laws) for order in orders]
    if max(curve) < math.inf:
        found["Rényi"] = bounds.renyi(kappa, order=orders, epsilon=curve).success
        found["profile"] = bounds.profile(kappa, delta_at=lambda epsilon: min(delta(epsilon), 1.0)).success
    if uniform:
        mixed = laws.mean(axis=0)
        told = (
            sum(float((law[law > 0] * np.log(law[law > 0] / mixed[law > 0])).sum()) for law in laws)
            / candidates
        )
        found["Fano"] = companions.fano(candidates, mutual_information=max(told, 0.0)).success
    weights = np.array([1.0, math.exp(0.7)]) / (1 + math.exp(0.7))  # two of the candidates, as 1 : e^ε
    pair = float((weights[:, None] * laws[:2]).max(axis=0).sum())
    assert pair == pytest.approx(companions.pair_success(0.7, hockey_stick(laws[0], laws[1], 0.7)), rel=1e-12)
    assert companions.epsilon_from_pair(min(float(laws[:2].max(axis=0).sum()) / 2, 1 - 1e-12)) <= max(
        renyi_divergence(laws[0], laws[1], math.inf), renyi_divergence(laws[1], laws[0], math.inf)
    )
    for name, ceiling in found.items():
        assert ceiling >= optimum * (1 - ROUNDING), (seed, name, ceiling, optimum)
    return len(found)


@pytest.mark.parametrize("block", [0, *more(range(10, 30))])
def test_no_bound_is_below_the_best_attack_on_a_hundred_mechanisms(block):
    assert sum(check_discrete(100 * block + seed) for seed in range(100)) > 400


def normal(x, mean, noise):
    return np.exp(-0.5 * ((x - mean) / noise) ** 2) / (noise * math.sqrt(2 * math.pi))


def check_gaussian(seed):
    """Numbers between −1 and 1 as records, one noisy sum of those that were sampled: exact integrals."""
    generator = np.random.default_rng(seed)
    noise = float(np.exp(generator.uniform(-1.2, 1.5)))
    rate = float(generator.choice([1.0, generator.uniform(0.05, 1)]))
    values = generator.uniform(-1, 1, int(generator.integers(2, 7)))
    values[: int(generator.integers(0, 3))] = generator.choice([-1.0, 1.0])
    prior = random_law(generator, len(values), sparse=False)
    x = np.linspace(-3 - 9 * noise, 3 + 9 * noise, 6001)
    width, kappa = x[1] - x[0], float(prior.max())
    absent = normal(x, 0.0, noise)
    laws = np.array([(1 - rate) * absent + rate * normal(x, value, noise) for value in values])
    optimum = float((prior[:, None] * laws).max(axis=0).sum() * width)
    run = {"noise_multiplier": noise, "sample_rate": rate}
    assert bounds.dpsgd(kappa, **run).success >= optimum - 1e-8
    assert companions.dpsgd_renyi(kappa, **run).success >= optimum - 1e-8
    assert bounds.dpsgd(kappa, **run, person=bounds.Person(batches="fixed")).success >= optimum - 1e-8
    norms = [float(np.abs(values).max())]
    assert companions.individual(kappa, norms=norms, **run).success >= optimum - 1e-8
    # Which of two records: the Neyman–Pearson curve itself.
    order = np.argsort(-laws[0] / laws[1])
    size, power = np.cumsum(laws[1][order]) * width, np.cumsum(laws[0][order]) * width
    for level in (0.01, 0.2):
        assert bounds.true_positives(level, **run).success >= float(np.interp(level, size, power)) - 1e-5
    # Two records of a class, independent or not; a guess counts if it meets either.
    joint = np.outer(prior, prior)
    if generator.random() < 0.5:
        joint = np.diag(prior) if generator.random() < 0.5 else 0.5 * joint + 0.5 * np.diag(prior)
    met = np.zeros((len(values), len(x)))
    for i, first in enumerate(values):
        for j, second in enumerate(values):
            for guess in {i, j}:
                met[guess] += joint[i, j] * normal(x, first + second, noise)
    best = float(met.max(axis=0).sum() * width)
    mechanism = NoisySum(noise_multiplier=noise)
    assert bounds.of_classes(mechanism, [kappa], [2]).success >= best - 1e-8


@pytest.mark.parametrize("seed", [*range(12), *more(range(1000, 1500))])
def test_no_ceiling_of_a_noisy_sum_is_below_its_best_attack(seed):
    check_gaussian(seed)


def test_ceilings_rise_with_the_baseline_and_with_epsilon_by_construction():
    # Brackets of 1e-4 may come out in the wrong order; what holds at a larger baseline holds at a smaller one.
    logs = tuple(math.log(kappa) for kappa in (0.2, 0.1, 0.3))
    brackets = [Bracket(-1.2, -1.0, -0.5), Bracket(-1.1, -0.9, -0.6), Bracket(-1.3, -1.05, -0.45)]
    found = Baselines(logs, single=False).bound("a bound", brackets, (), REMANENCE)
    assert found.log_success.tolist() == [-1.05, -1.05, -1.05]
    assert found.log_lower.tolist() == [-1.1, -1.1, -1.1]
    assert found.log_complement.tolist() == [-0.45, -0.45, -0.45]
    baselines = np.linspace(0.1, 0.1001, 10)
    found = dpsgd(baselines, schedule=Segment(0.9, 0.03, 300))
    assert (np.diff(found.success) >= 0).all()
    points = frontier("epsilon", [4.0, 4.0002, 4.0001, 4.0003], steps=50, sample_rate=0.1)
    assert points[0].success_upper <= points[2].success_upper <= points[1].success_upper
