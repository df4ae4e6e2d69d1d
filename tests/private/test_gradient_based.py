"""Reconstruction by optimisation against a whole transcript, where the answer is known."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import dpsgd_game
from remanence import (
    DPSGD,
    AnyModule,
    Criterion,
    EmpiricalPrior,
    Game,
    GradientBased,
    IncompatibleGameError,
    Perceptron,
    PriorAware,
    Records,
    Uninformed,
    mean_squared_error,
    play,
)
from remanence.private.optimised import ClassGaussians
from remanence.private.prior_aware import log_likelihood


def game(**settings) -> Game:
    """Nobody gives the adversary a shortlist, and close is enough."""
    listed = dpsgd_game(**{"steps": 12, "max_grad_norm": 0.5, **settings})
    targets, close = (
        EmpiricalPrior(listed.prior.candidates),
        Criterion(mean_squared_error, 1e-2, label_scale=1.0),
    )
    return replace(listed, prior=Uninformed(), criterion=close, targets=targets)


@pytest.mark.parametrize("attack", [GradientBased(), GradientBased(loss="equation-1", starts=3)], ids=repr)
def test_without_noise_the_record_and_its_label_come_back(attack):
    # All five starts end in a local minimum in about 2 % of trials: five or more of 30 have a chance of 1e-4.
    evidence = play(game(noise_multiplier=1e-3, steps=8), attack, trials=30)
    assert evidence.main.successes > 25
    assert evidence.label_rate.successes > 25
    assert evidence.control.rate < 0.7  # five records, one in five is the same
    assert float(evidence.arrays["iterations"].max()) < attack.most_iterations  # the loss was flat before


def test_much_noise_leaves_nothing_to_find():
    evidence = play(game(noise_multiplier=50.0), GradientBased(), trials=40)
    assert evidence.main.lower < 0.05


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_likelihood_is_that_of_the_mixture(rate):
    mechanism = dpsgd_game(noise_multiplier=0.7, sample_rate=rate, max_grad_norm=0.5).mechanism
    generator = torch.Generator().manual_seed(0)
    own, left = (torch.randn(6, generator=generator).double() * 0.2 for _ in range(2))
    noise = torch.distributions.Normal(torch.zeros(6).double(), 0.7 * 0.5)
    there, absent = noise.log_prob(left - own).sum(), noise.log_prob(left).sum()
    exact = torch.log((1 - rate) * absent.exp() + rate * there.exp()) - absent
    assert float(log_likelihood(mechanism, own @ left, own.norm())) == pytest.approx(float(exact))  # pyright: ignore


def test_a_label_that_the_adversary_knows_is_not_searched_for():
    one = game(noise_multiplier=1e-3)
    wrong = play(one, GradientBased(labels=(1,)), trials=12).arrays["loss"]
    right = play(one, GradientBased(), trials=12).arrays["loss"]
    assert bool((right <= wrong + 1e-5 * wrong.abs()).all())
    assert bool((right < wrong - 1).any())


def test_the_gradient_in_the_features_is_the_one_of_any_module():
    # The perceptron's shortcut must be as differentiable as torch.func's way.
    network, known = dpsgd_game().mechanism.network, dpsgd_game().known_data
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ELU(), torch.nn.Linear(5, 3)).double()
    flat = torch.cat([part.detach().flatten() for part in module.parameters()])[None]
    vector = torch.randn(1, network.numbers, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slopes = []
    for kind in (network, AnyModule(module)):
        records = replace(known, features=known.features.double().requires_grad_())
        inner, norms = kind.projections(flat, vector, records[None], max_norm=0.7)
        slopes.append(torch.autograd.grad((inner + norms).sum(), records.features)[0])
    assert torch.allclose(slopes[0], slopes[1])
    assert float(slopes[0].abs().max()) > 1e-3


def test_matched_to_a_shortlist_it_is_weaker_than_the_attack_that_knew_the_shortlist():
    listed = dpsgd_game(noise_multiplier=0.4, steps=8, max_grad_norm=0.5)
    matched = play(listed, GradientBased(matched=True, starts=2), trials=64)
    aware = play(listed, PriorAware(), trials=64)
    assert matched.main.lower > 0.2  # a guess among five
    assert aware.main.rate >= matched.main.rate


@pytest.mark.parametrize("matched", [False, True])
def test_a_shortlist_is_used_or_refused(matched):
    wrong = game() if matched else dpsgd_game()
    with pytest.raises(IncompatibleGameError, match="prior-aware"):
        play(wrong, GradientBased(matched=matched), trials=2)


def test_any_module_and_pictures_of_any_shape_play():
    generator = torch.Generator().manual_seed(0)
    data = Records(torch.rand(12, 1, 4, 4, generator=generator), torch.randint(3, (12,), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ELU(), nn.Flatten(), nn.Linear(12, 3))
    mechanism = DPSGD(AnyModule(module), 1e-3, 3, max_grad_norm=0.5, learning_rate=0.5)
    pictures = Game(
        mechanism, Uninformed(), data[1:], Criterion(mean_squared_error, 1e-2), EmpiricalPrior(data[:1])
    )
    attack = GradientBased(labels=(int(data.labels[0]),), starts=1, most_iterations=100)
    assert play(pictures, attack, trials=2).main.successes == 2


def test_the_prior_is_a_gaussian_of_each_class():
    generator = torch.Generator().manual_seed(0)
    known = Records(torch.randn(60, 4, generator=generator), torch.arange(60) % 2)
    places = torch.randn(3, 2, 4, generator=generator)
    found = ClassGaussians.of(known, torch.tensor([1, 0]))(places)
    ridge = 1e-3 * float(known.features.max() - known.features.min()) ** 2
    for start, label in enumerate((1, 0)):
        own = known.features[known.labels == label].double()
        covariance = own.T.cov(correction=0) + ridge * torch.eye(4)
        law = torch.distributions.MultivariateNormal(own.mean(0), covariance)
        density = law.log_prob(places[:, start].double()) + 2 * math.log(2 * math.pi)  # the same for all
        expected = -density - math.log(31 / 61)
        torch.testing.assert_close(found[:, start], expected, rtol=1e-5, atol=1e-5)


def test_what_records_look_like_helps_where_noise_hides_them():
    """Records on a plane of 12 dimensions: under noise, the prior takes the search back to the plane."""
    generator = torch.Generator().manual_seed(1)
    plane = torch.randn(2, 12, generator=generator)
    features = torch.randn(220, 2, generator=generator) @ plane / 4
    records = Records(features, (features[:, 0] > 0).long())
    mechanism = DPSGD(
        Perceptron((12, 6, 2)), noise_multiplier=0.3, steps=10, max_grad_norm=0.5, learning_rate=0.5
    )
    close, targets = Criterion(mean_squared_error, 1e-2), EmpiricalPrior(records[:20])
    attack = GradientBased(starts=2, most_iterations=300)
    plain, informed = (
        play(Game(mechanism, prior, records[120:], close, targets), attack, trials=20).arrays
        for prior in (Uninformed(), EmpiricalPrior(records[20:120]))
    )
    assert float(informed["error"].median()) < 0.5 * float(plain["error"].median())
    assert float(informed["control_error"].median()) > 2 * float(informed["error"].median())
