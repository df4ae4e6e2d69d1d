"""Private heads from above: what a guess achieves, what noise leaves of an attack, and when nothing is proven."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import Playing, pictures
from remanence import (
    Criterion,
    HeadAudit,
    NoisySum,
    Policy,
    Records,
    SuccessRate,
    TransferHead,
    Verdict,
    audit,
    bounds,
    head_game,
    mean_squared_error,
    play,
)
from remanence.auditing import AuditResult
from remanence.core.attack import Reconstruction
from remanence.core.guess_coverage import good_guess, most_met
from remanence.core.oblivious import Oblivious
from remanence.reconstructor.attack import Reconstructor
from remanence.report import words
from remanence.report.remedies import remedies

PRIVATE = TransferHead(3, 15, 0.05, noise_multiplier=30.0, max_grad_norm=1.0)
PLAIN = replace(PRIVATE, noise_multiplier=None)
OWN, PUBLIC = pictures(3, seed=5), pictures(900)


def private_game(recipe=PRIVATE, own=OWN, threshold=0.003):
    settings = HeadAudit(threshold=threshold)
    return head_game(own.embedding, own.features, own.labels, recipe, prior=PUBLIC, settings=settings)


def ceiling_of(**changes):
    (ceiling,) = private_game(**changes).bounds
    return ceiling


def within(threshold):
    return Criterion(mean_squared_error, threshold)


def most_in_a_disc(points, radius):
    """By hand: a disc that holds the most points can be moved until two are on its edge, or one at its centre."""
    centres = list(points)
    for one, other in itertools.combinations(points, 2):
        apart = other - one
        if 0 < np.dot(apart, apart) <= 4 * radius**2:
            height = math.sqrt(radius**2 - np.dot(apart, apart) / 4)
            side = np.array([-apart[1], apart[0]]) / np.linalg.norm(apart)
            centres += [(one + other) / 2 + height * side, (one + other) / 2 - height * side]
    return max(int((np.linalg.norm(points - c, axis=1) <= radius * (1 + 1e-9)).sum()) for c in centres)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.4, 2.0])
def test_the_count_is_never_below_the_best_disc_and_close_to_it(seed, threshold):
    points = np.random.default_rng(seed).normal(size=(60, 2))
    records = Records(torch.tensor(points), torch.zeros(60))
    best = most_in_a_disc(points, math.sqrt(2 * threshold))
    assert (
        best <= most_met(records, within(threshold)) <= 1.35 * best + 1
    )  # threes are not all that a disc asks for
    met = int((mean_squared_error(records, good_guess(records, within(threshold))) <= threshold).sum())
    assert 0.6 * best <= met <= best


HALVES = torch.zeros(2, 20)
HALVES[1, :7] = 1.0  # their mean is half off in seven of twenty: 0.0875
RANDOM = torch.rand(784, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("features", "threshold", "met"),
    [
        *(
            (torch.tensor([[0.3, 0.7]] * 40 + [[9.0, 9.0]] * 3), threshold, 40)
            for threshold in (0.0, 1e-20, 1e-3)
        ),
        (RANDOM.expand(30, -1), 0.0, 30),
        (torch.full((30, 12288), 25.37), 0.0, 30),
        (HALVES, 0.0875, 2),
        *((torch.eye(count), (count - 1) / count**2, count) for count in (28, 56)),
    ],
)
def test_records_that_are_equal_or_met_on_the_edge_are_counted(features, threshold, met):
    assert most_met(Records(features, torch.zeros(len(features))), within(threshold)) == met


def test_a_guess_between_the_records_is_found():
    angles = torch.arange(24) * (2 * math.pi / 24)
    ring = Records(torch.stack([angles.cos(), angles.sin()], 1), torch.zeros(24))
    criterion = within(0.5 * 1.01**2)  # a disc of radius 1.01 holds the ring, from its centre
    assert int((mean_squared_error(ring, good_guess(ring, criterion)) <= criterion.threshold).sum()) == 24
    on_it = (mean_squared_error(ring[None, :], ring[:, None]) <= criterion.threshold).sum(1).max()
    assert int(on_it) < 12


@pytest.mark.parametrize(
    ("shares", "counts", "expected"),
    [
        ([0.01], [1], lambda one, three: one),
        ([0.01, 0.01], [3, 1], lambda one, three: (one + three) / 2),
        ([0.01, 1.0], [1, 1], lambda one, three: (one + 1) / 2),
        ([1.0], [1], lambda one, three: 1),
        ([0.5], [9], lambda one, three: 1),
    ],
)
def test_several_records_of_a_class_cost_as_much_as_a_person_who_has_them(shares, counts, expected):
    mechanism = NoisySum(noise_multiplier=2.0)
    one = bounds.of(mechanism, 0.01).success
    three = bounds.of(mechanism, 0.03, person=bounds.Person(3)).success
    found = bounds.of_classes(mechanism, shares, counts).success
    assert found == pytest.approx(expected(one, three), rel=1e-9)


def test_a_private_head_has_a_ceiling_on_average_and_a_plain_one_has_none():
    strict = private_game()
    (ceiling,) = strict.bounds
    assert strict.baseline().value < ceiling.success < 0.1
    result = audit(strict, [Oblivious()], policy=Policy(0.1), trials=30)
    assert result.verdict is Verdict.UNPROVEN  # on average over pictures is no proof for these
    assert "DP-SGD" in ceiling.name
    assert "on average over records" in words.found(result)
    assert "no attack exceeds" in str(result)
    assert not any("CONTRADICTED" in remedy for remedy in remedies(result))
    assert private_game(PLAIN).bounds == private_game(replace(PRIVATE, noise_multiplier=0.0)).bounds == ()
    little = ceiling_of(recipe=replace(PRIVATE, noise_multiplier=0.1))
    assert little.success > 0.99
    assert words.proven(replace(little, log_success=0.0)) == "Nothing is proven: the ceiling is 1000 in 1000."


def test_the_ceiling_grows_with_the_threshold_the_steps_and_the_pictures_of_a_class():
    base, two = ceiling_of().success, pictures(6, seed=5)
    assert ceiling_of(threshold=0.1).success > base
    assert ceiling_of(recipe=replace(PRIVATE, epochs=60)).success > base
    game = private_game(own=two)
    (ceiling,) = game.bounds
    assert ceiling.success > 2 * base
    guesses = [guess.value for guess in game.heads.prior.class_baselines(game.criterion, [0.0, 1.0, 2.0])]
    assert ceiling.success == pytest.approx(bounds.of_classes(PRIVATE, guesses, [2] * 3).success, rel=1e-6)
    assert any("may depend on each other" in assumption for assumption in ceiling.assumptions)


def test_the_attack_stays_below_what_is_proven():
    game = private_game(replace(PRIVATE, noise_multiplier=4.0), threshold=None)
    result = audit(game, [Reconstructor(steps=60, batch=32, width=16)], trials=60)
    assert result.strongest.main.lower <= result.bounds[0].success
    assert result.verdict is not Verdict.CONTRADICTED


def test_equal_records_of_a_class_exceed_the_ceiling_of_one_record_and_not_the_one_of_a_group():
    # Five copies of one of fifty unit vectors: what a permutation test may well miss, the sum shows.
    generator, candidates, trials, noise, copies = torch.Generator().manual_seed(0), 50, 20_000, 4.0, 5
    drawn = torch.randint(candidates, (trials,), generator=generator)
    shown = noise * torch.randn(trials, candidates, generator=generator, dtype=torch.float64)
    shown[torch.arange(trials), drawn] += copies
    met = SuccessRate(int((shown.argmax(1) == drawn).sum()), trials, confidence=0.999)
    mechanism = NoisySum(noise_multiplier=noise)
    assert bounds.of(mechanism, 1 / candidates).success < met.lower
    assert met.upper < bounds.of_classes(mechanism, [1 / candidates], [copies]).success


def class_means(records):
    return torch.stack([records.features[records.labels == label].mean(0) for label in range(3)])


def draw_means(knowledge, _):
    """The mean of each class, whatever was released."""
    means = class_means(knowledge.prior.records)
    return lambda release: Reconstruction(
        Records(means.expand(len(release), *means.shape), torch.arange(3).expand(len(release), -1))
    )


def test_pictures_that_are_easy_to_guess_are_neither_exposed_nor_a_contradiction():
    # Yours happen to be close to the mean of their class, and nothing comes out of such heads.
    held = class_means(PUBLIC[torch.arange(900) // 3 % 4 > 0])  # of what the adversary has of each class
    mine = replace(OWN, features=held + 0.01)
    game = private_game(own=mine)
    result = audit(game, [Playing(draw_means)], trials=200, policy=Policy(0.1))
    evidence = result.strongest
    assert evidence.main.rate == 1
    assert evidence.control.rate == 1  # so does what comes out of heads on other pictures
    assert game.bounds[0].success < 0.1
    assert not evidence.tells
    assert evidence.baseline.value < 0.1  # which is for pictures at random
    assert result.verdict is Verdict.UNPROVEN  # on average over pictures is no proof for these
    assert AuditResult.from_json(result.to_json(), {}).verdict is Verdict.UNPROVEN
    plain = audit(private_game(PLAIN, mine), [Playing(draw_means)], trials=200, policy=Policy(0.1))
    assert plain.verdict is Verdict.UNPROVEN


def test_the_control_of_a_head_is_what_comes_out_of_heads_on_other_pictures():
    game = private_game(PLAIN, threshold=0.3)
    evidence = play(game, Reconstructor(steps=250, batch=64, width=48), trials=60)
    assert evidence.arrays["control_public_error"].shape == evidence.arrays["error"].shape
    assert evidence.main.lower > evidence.control.upper
    assert len(torch.unique(evidence.arrays["control_error"][:, 0])) > 20  # one picture, many heads
