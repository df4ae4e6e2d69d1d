"""Attacks against proven ceilings: the two sides of the inequality in one place."""

import math

import pytest
import torch

from conftest import synthetic
from remanence import (
    Criterion,
    FinitePrior,
    Game,
    NoisySum,
    Oblivious,
    Policy,
    Records,
    RetrainAndCompare,
    Verdict,
    audit,
    bounds,
    mismatch,
    play,
)
from remanence.testing import check_mechanism


def sum_game(candidates: Records, *, noise: float, claimed: float | None = None, weights=None) -> Game:
    prior = FinitePrior(candidates, torch.empty(0) if weights is None else torch.tensor(weights))
    criterion = Criterion(mismatch, 0.5)
    ceiling = bounds.gaussian(prior.baseline(criterion).value, noise_multiplier=claimed or noise)
    return Game(
        NoisySum(noise), prior, synthetic(20, features=candidates.flat.shape[1]), criterion, bounds=(ceiling,)
    )


def orthogonal(count: int) -> Records:
    return Records(torch.eye(count, dtype=torch.float64), torch.zeros(count))


def opposite() -> Records:
    return Records(torch.tensor([[1.0], [-1.0]]).double(), torch.zeros(2))


@pytest.mark.parametrize("attack", [RetrainAndCompare(), Oblivious()], ids=repr)
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("candidates", [2, 8, 32])
def test_no_attack_beats_the_bound(attack, noise, candidates):
    game = sum_game(orthogonal(candidates), noise=noise)
    evidence = play(game, attack, trials=600, confidence=1 - 1e-5)
    assert evidence.main.lower <= game.bounds[0].success


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_two_opposite_candidates_meet_the_bound_exactly(noise):
    # ±1 with noise σ: the best guess is the sign, right with Φ(1/σ); and γ(1/2) = Φ(Φ⁻¹(1/2) + 1/σ).
    game = sum_game(opposite(), noise=noise)
    evidence = play(game, RetrainAndCompare(repeats=400), trials=6000, confidence=1 - 1e-6)
    assert evidence.main.lower <= game.bounds[0].success <= evidence.main.upper + 0.005


def test_training_with_half_the_noise_it_claims_is_contradicted():
    honest = audit(sum_game(opposite(), noise=2.0), trials=2000, policy=Policy(0.6))
    liar = audit(sum_game(opposite(), noise=1.0, claimed=2.0), trials=2000, policy=Policy(0.6))
    assert honest.verdict is not Verdict.CONTRADICTED
    assert liar.verdict is Verdict.CONTRADICTED
    assert liar.verdict.exit_code == 1


def test_enough_noise_is_proven_to_protect():
    result = audit(sum_game(orthogonal(100), noise=3.0), trials=200, policy=Policy(0.05))
    assert result.verdict is Verdict.PROTECTED
    assert result.bounds[0].success == pytest.approx(0.0232, abs=1e-4)


def test_an_uneven_prior_is_bounded_from_its_largest_weight():
    game = sum_game(orthogonal(4), noise=1.0, weights=[7.0, 1.0, 1.0, 1.0])
    evidence = play(game, RetrainAndCompare(), trials=2000, confidence=1 - 1e-6)
    assert evidence.baseline.value == pytest.approx(0.7)
    assert evidence.main.lower <= game.bounds[0].success


def test_clipping_keeps_every_record_within_the_norm():
    mechanism = NoisySum(noise_multiplier=1e-12, max_norm=2.0)
    far = Records(torch.full((3, 1, 4), 100.0).double(), torch.zeros(3, 1))
    released = mechanism.release(None, far, torch.Generator())["sum"]
    assert released.norm(dim=1).tolist() == pytest.approx([2.0] * 3)
    check_mechanism(mechanism, synthetic(5), synthetic(3)[:, None])
    assert math.isclose(float(mechanism.settings()["max_norm"] or 0), 2.0)
