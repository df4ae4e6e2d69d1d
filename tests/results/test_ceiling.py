"""Attacks against proven ceilings: the two sides of the inequality in one place."""

import math
from dataclasses import replace

import pytest
import torch

from conftest import dpsgd_game, synthetic
from remanence import (
    DPSGD,
    GLM,
    Criterion,
    FinitePrior,
    Game,
    GradientBased,
    InputError,
    Logistic,
    NoisySum,
    Oblivious,
    Perceptron,
    PriorAware,
    Records,
    RetrainAndCompare,
    bounds,
    mean_squared_error,
    mismatch,
    play,
)
from remanence.testing import check_mechanism
from remanence_papers import companions


def shortlist(candidates: Records, weights: list[float] | None) -> FinitePrior:
    return FinitePrior(candidates, torch.empty(0) if weights is None else torch.tensor(weights))


def sum_game(count: int, noise: float, weights=None) -> Game:
    """Orthogonal candidates."""
    prior = shortlist(Records(torch.eye(count, dtype=torch.float64), torch.zeros(count)), weights)
    criterion = Criterion(mismatch, 0.5)
    ceiling = bounds.gaussian(prior.baseline(criterion).value, noise_multiplier=noise)
    return Game(NoisySum(noise), prior, synthetic(20, features=count), criterion, bounds=(ceiling,))


@pytest.mark.parametrize("attack", [RetrainAndCompare(), Oblivious()], ids=repr)
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0, 20.0])
@pytest.mark.parametrize(
    ("candidates", "weights"), [(2, None), (8, None), (32, None), (4, [7.0, 1.0, 1.0, 1.0])]
)
def test_no_attack_beats_the_bound(attack, noise, candidates, weights):
    game = sum_game(candidates, noise, weights)
    evidence = play(game, attack, trials=600, confidence=1 - 1e-5)
    assert evidence.baseline.value == pytest.approx(0.7 if weights else 1 / candidates)
    assert evidence.main.lower <= game.bounds[0].success


def test_clipping_keeps_every_record_within_the_norm():
    mechanism = NoisySum(noise_multiplier=1e-12, max_norm=2.0)
    far = Records(torch.full((3, 1, 4), 100.0).double(), torch.zeros(3, 1))
    released = mechanism.release(None, far, torch.Generator())["sum"]
    assert released.norm(dim=1).tolist() == pytest.approx([2.0] * 3)
    check_mechanism(mechanism, synthetic(5), synthetic(3)[:, None])
    assert math.isclose(float(mechanism.settings()["max_norm"] or 0), 2.0)


def test_a_record_that_is_never_clipped_has_a_lower_ceiling_of_its_own():
    recorded = [0.1] * 40 + [0.05] * 60
    shift = math.sqrt(sum(norm**2 for norm in recorded)) / (4.0 * 0.1)
    own = companions.individual(0.1, norms=recorded, noise_multiplier=4.0, max_grad_norm=0.1)
    assert own.success == pytest.approx(bounds.gaussian(0.1, noise_multiplier=1 / shift).success, rel=1e-6)
    assert own.success < bounds.dpsgd(0.1, noise_multiplier=4.0, steps=100).success
    assert any("conditional on the run" in assumption for assumption in own.assumptions)


def test_recorded_norms_are_rounded_to_the_safe_side_where_batches_are_sampled():
    settings = {"noise_multiplier": 0.8, "sample_rate": 0.1}
    between = companions.individual(0.1, norms=[0.51] * 50, **settings).success
    half, whole = (companions.individual(0.1, norms=[norm] * 50, **settings).success for norm in (0.5, 1.0))
    exact = bounds.dpsgd(0.1, noise_multiplier=0.8 / 0.51, sample_rate=0.1, steps=50)
    assert half < exact.lower <= between < whole
    assert whole == pytest.approx(bounds.dpsgd(0.1, steps=50, **settings).success, rel=1e-3)


def transcript_game(noise: float, rate: float, steps: int, *, weights=None, momentum: float = 0.0) -> Game:
    run = {"noise_multiplier": noise, "sample_rate": rate, "steps": steps}
    game = dpsgd_game(**run, max_grad_norm=0.1, momentum=momentum)
    prior = shortlist(game.prior.candidates, weights)
    ceiling = bounds.dpsgd(prior.baseline(game.criterion).value, **run)
    return replace(game, prior=prior, bounds=(ceiling,))


UNEVEN = [6.0, 1.0, 1.0, 2.0, 1.0]
GRID = [(0.6, 0.1, 20), (1.0, 0.5, 8), (3.0, 1.0, 6), (8.0, 1.0, 20)]
ATTACKS = [
    PriorAware(),
    PriorAware(score="sum"),
    PriorAware(score="top"),
    PriorAware(subtract="nothing"),
    PriorAware(within=Criterion(mean_squared_error, 1.0)),
    GradientBased(matched=True, starts=1),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=["best", "sum", "top", "nothing", "within", "optimised"])
@pytest.mark.parametrize(("noise", "rate", "steps"), GRID)
@pytest.mark.parametrize(("weights", "momentum"), [(None, 0.0), (UNEVEN, 0.9)], ids=["uniform", "uneven"])
def test_no_attack_on_a_transcript_beats_its_bound(attack, noise, rate, steps, weights, momentum):
    game = transcript_game(noise, rate, steps, weights=weights, momentum=momentum)
    # 48 settings: together a false alarm has a chance of at most 48 · 5e-7.
    trials = 60 if isinstance(attack, GradientBased) else 250
    evidence = play(game, attack, trials=trials, confidence=1 - 1e-6)
    assert evidence.main.lower <= game.bounds[0].success


def crowded_game(noise: float) -> Game:
    """Six copies of one record but for a hair, together likelier than a seventh that alone is likelier than each."""
    data = dpsgd_game().known_data
    assert data is not None
    crowd = Records(
        data.features[:1] + 1e-3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),
        data.labels[:1].expand(6),
    )
    candidates = Records(
        torch.cat([crowd.features, data.features[3:4]]), torch.cat([crowd.labels, data.labels[3:4]])
    )
    prior = FinitePrior(candidates, torch.tensor([1.0] * 6 + [3.0]))
    mechanism = dpsgd_game(noise_multiplier=noise, max_grad_norm=0.1).mechanism
    return Game(mechanism, prior, data[5:], Criterion(mean_squared_error, 1e-3))


def test_where_close_is_enough_the_greatest_mass_beats_the_likeliest_candidate():
    # Without a signal the likeliest candidate is right with 3 in 9, and the middle of the crowd with 6 in 9.
    game = crowded_game(noise=500.0)
    likeliest = play(game, PriorAware(), trials=600, confidence=1 - 1e-4).main
    heaviest = play(game, PriorAware(within=game.criterion), trials=600, confidence=1 - 1e-4).main
    assert heaviest.lower < 6 / 9 < heaviest.upper
    assert likeliest.upper < heaviest.lower


def test_a_mass_needs_a_likelihood():
    with pytest.raises(InputError, match="likelihood"):
        play(crowded_game(1.0), PriorAware(score="sum", within=Criterion()), trials=2)


@pytest.mark.parametrize("settings", [{"steps": 7}, {"steps": 7, "sample_rate": 0.3}], ids=str)
def test_a_mechanism_s_own_bound_is_that_of_its_settings(settings):
    mechanism = DPSGD(Perceptron((4, 3)), noise_multiplier=1.5, learning_rate=2.0, **settings)
    assert bounds.of(mechanism, 0.1) == bounds.dpsgd(0.1, noise_multiplier=1.5, **settings)
    with pytest.raises(InputError, match="no proven ceiling"):
        bounds.of(GLM(Logistic()), 0.1)
