"""Private heads from above: what a guess achieves, what noise leaves of an attack, and when nothing is proven."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import pictures
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
from remanence.core.attack import Attack, Reconstruction
from remanence.core.guess_coverage import good_guess, most_met
from remanence.core.oblivious import Oblivious
from remanence.core.releases import Weights
from remanence.reconstructor.attack import Reconstructor
from remanence.report import words
from remanence.report.remedies import remedies

PRIVATE = TransferHead(3, 15, 0.05, noise_multiplier=30.0, max_grad_norm=1.0)


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
    counted = most_met(records, Criterion(mean_squared_error, threshold))
    assert best <= counted <= 1.35 * best + 1  # threes are not all that a disc asks for
    guess = good_guess(records, Criterion(mean_squared_error, threshold))
    met = int((mean_squared_error(records, guess) <= threshold).sum())
    assert 0.6 * best <= met <= best


def test_equal_records_are_all_met_by_one_guess():
    records = Records(torch.tensor([[0.3, 0.7]] * 40 + [[9.0, 9.0]] * 3), torch.zeros(43))
    for threshold in (0.0, 1e-20, 1e-3):
        assert most_met(records, Criterion(mean_squared_error, threshold)) == 40


def test_a_guess_between_the_records_is_found():
    angles = torch.arange(24) * (2 * math.pi / 24)
    ring = Records(torch.stack([angles.cos(), angles.sin()], 1), torch.zeros(24))
    criterion = Criterion(
        mean_squared_error, 0.5 * 1.01**2
    )  # a disc of radius 1.01 holds the ring, from its centre
    guess = good_guess(ring, criterion)
    assert int((mean_squared_error(ring, guess) <= criterion.threshold).sum()) == 24
    on_it = (mean_squared_error(ring[None, :], ring[:, None]) <= criterion.threshold).sum(1).max()
    assert int(on_it) < 12


def test_several_records_of_a_class_cost_as_much_as_a_person_who_has_them():
    mechanism, share = NoisySum(noise_multiplier=2.0), 0.01
    one = bounds.of(mechanism, share).success
    three = bounds.of(mechanism, 3 * share, person=bounds.Person(3)).success
    assert bounds.of_classes(mechanism, [share], [1]).success == pytest.approx(one, rel=1e-9)
    assert bounds.of_classes(mechanism, [share, share], [3, 1]).success == pytest.approx(
        (one + three) / 2, rel=1e-9
    )
    assert bounds.of_classes(mechanism, [share, 1.0], [1, 1]).success == pytest.approx(
        (one + 1) / 2, rel=1e-9
    )
    assert bounds.of_classes(mechanism, [1.0], [1]).success == 1
    assert bounds.of_classes(mechanism, [0.5], [9]).success == 1


def public():
    found = pictures(900)
    return Records(found.features, found.labels, embedding=found.embedding)


def own(count=3):
    return pictures(count, seed=5)


def private_game(recipe=PRIVATE, count=3, **settings):
    mine = own(count)
    return head_game(
        mine.embedding, mine.features, mine.labels, recipe, prior=public(), settings=HeadAudit(**settings)
    )


def test_a_private_head_has_a_ceiling_on_average_and_a_plain_one_has_none():
    strict = private_game(threshold=0.003)
    (ceiling,) = strict.bounds
    guess = strict.baseline()
    assert guess.value < ceiling.success < 0.1
    result = audit(strict, [Oblivious()], policy=Policy(0.1), trials=30)
    assert result.verdict is Verdict.UNPROVEN  # on average over pictures is no proof for these
    assert "DP-SGD" in ceiling.name
    assert "on average over records" in words.found(result)
    assert "no attack exceeds" in str(result)
    assert not any("CONTRADICTED" in remedy for remedy in remedies(result))
    assert private_game(replace(PRIVATE, noise_multiplier=None), threshold=0.003).bounds == ()
    assert private_game(replace(PRIVATE, noise_multiplier=0.0), threshold=0.003).bounds == ()
    little_noise = private_game(replace(PRIVATE, noise_multiplier=0.1), threshold=0.003)
    assert little_noise.bounds[0].success > 0.99


def test_the_ceiling_grows_with_the_threshold_the_steps_and_the_pictures_of_a_class():
    base = private_game(threshold=0.003).bounds[0].success
    assert private_game(threshold=0.1).bounds[0].success > base
    assert private_game(replace(PRIVATE, epochs=60), threshold=0.003).bounds[0].success > base
    assert private_game(count=6, threshold=0.003).bounds[0].success > 2 * base


def test_the_attack_stays_below_what_is_proven():
    noise = replace(PRIVATE, noise_multiplier=4.0)
    result = audit(private_game(noise), [Reconstructor(steps=60, batch=32, width=16)], trials=60)
    assert result.strongest.main.lower <= result.bounds[0].success
    assert result.verdict is not Verdict.CONTRADICTED


def group_ceiling(game, recipe, count):
    guesses = game.heads.prior.class_baselines(game.criterion, [0.0, 1.0, 2.0])
    return bounds.of_classes(recipe, [guess.value for guess in guesses], [count] * 3).success


def test_pictures_of_a_class_may_depend_on_each_other():
    game = private_game(count=6, threshold=0.003)
    assert game.bounds[0].success == pytest.approx(group_ceiling(game, PRIVATE, 2), rel=1e-6)
    assert any("may depend on each other" in assumption for assumption in game.bounds[0].assumptions)


def test_a_ceiling_of_one_proves_nothing():
    (ceiling,) = private_game(replace(PRIVATE, noise_multiplier=0.1), threshold=0.003).bounds
    assert (
        words.proven(replace(ceiling, log_success=0.0)) == "Nothing is proven: the ceiling is 1000 in 1000."
    )


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


class Means(Attack[Weights]):
    """Draws the mean of each class, whatever was released."""

    info = Oblivious.info

    def check(self, knowledge):
        pass

    def prepare(self, knowledge, generator):
        prior = knowledge.prior
        means = torch.stack(
            [prior.records.features[prior.records.labels == c].mean(0) for c in prior.classes]
        )
        return lambda release: Reconstruction(
            Records(means.expand(len(release), *means.shape), prior.classes.expand(len(release), -1))
        )


def test_pictures_that_are_easy_to_guess_are_neither_exposed_nor_a_contradiction():
    # Yours happen to be close to the mean of their class, and nothing comes out of such heads.
    known = public()
    held = torch.arange(300) % 4 > 0  # what the adversary has of each class
    means = torch.stack([known.features[known.labels == label][held].mean(0) for label in range(3)])
    mine = own(3)
    game = head_game(
        mine.embedding, means + 0.01, mine.labels, PRIVATE, prior=known, settings=HeadAudit(threshold=0.003)
    )
    result = audit(game, [Means()], trials=200, policy=Policy(0.1))
    evidence = result.strongest
    assert evidence.main.rate == 1
    assert evidence.control.rate == 1  # so does what comes out of heads on other pictures
    assert game.bounds[0].success < 0.1
    assert not evidence.tells
    assert evidence.baseline.value < 0.1  # which is for pictures at random
    assert result.verdict is Verdict.UNPROVEN  # on average over pictures is no proof for these
    assert AuditResult.from_json(result.to_json(), {}).verdict is Verdict.UNPROVEN
    settings = HeadAudit(threshold=0.003)
    recipe = replace(PRIVATE, noise_multiplier=None)
    plain = head_game(mine.embedding, means + 0.01, mine.labels, recipe, prior=known, settings=settings)
    assert audit(plain, [Means()], trials=200, policy=Policy(0.1)).verdict is Verdict.UNPROVEN


def test_the_control_of_a_head_is_what_comes_out_of_heads_on_other_pictures():
    game = private_game(replace(PRIVATE, noise_multiplier=None), threshold=0.3)
    attack = Reconstructor(steps=250, batch=64, width=48)
    evidence = play(game, attack, trials=60)
    assert evidence.arrays["control_public_error"].shape == evidence.arrays["error"].shape
    assert evidence.main.lower > evidence.control.upper
    assert len(torch.unique(evidence.arrays["control_error"][:, 0])) > 20  # one picture, many heads


def test_records_that_are_met_on_the_edge_are_counted():
    different = torch.zeros(2, 20)
    different[1, :7] = 1.0  # their mean is half off in seven of twenty: 0.0875
    assert most_met(Records(different, torch.zeros(2)), Criterion(mean_squared_error, 0.0875)) == 2
    for count in (28, 56):
        corners = Records(torch.eye(count), torch.zeros(count))
        assert most_met(corners, Criterion(mean_squared_error, (count - 1) / count**2)) == count
    one = torch.rand(784, generator=torch.Generator().manual_seed(0))
    for features in (one, torch.full((12288,), 25.37)):
        same = Records(features.expand(30, -1), torch.zeros(30))
        assert most_met(same, Criterion(mean_squared_error, 0.0)) == 30
