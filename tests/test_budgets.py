"""No hot path takes more operations where there are more trials, nor a bound more FFTs where there are more steps.

A budget is what a path takes today and a fifth more. `python benchmarks/budgets.py` prints what each takes. Exact
odds of texts have theirs in tests/texts/test_probabilities.py.
"""

import numpy as np
import pytest
import torch
from torch import nn

from conftest import heads_game, pictures
from operations import operations
from remanence import (
    DPSGD,
    GLM,
    SGD,
    AnyModule,
    ClosedForm,
    Criterion,
    Gaussian,
    LeaveOneOut,
    LinearReader,
    Loop,
    Perceptron,
    Reconstructor,
    Records,
    Reduction,
    TransferHead,
    Weights,
    mean_squared_error,
    play,
)
from remanence.bounds import Person, dpsgd
from remanence.bounds.calibration import noise_for_epsilon
from remanence.bounds.engine import allocation
from remanence.bounds.engine import dpsgd as certified
from remanence.core.guess_coverage import most_met
from remanence.updates.span import Decomposed

FEW, MANY = 10, 100


def generator():
    return torch.Generator().manual_seed(0)


def test_release_checks_do_not_loop_over_trials():
    def checked(trials):
        release = Weights({"weight": torch.zeros(trials, 3, 2), "bias": torch.zeros(trials, 2)})
        return operations(release.not_finite)

    assert checked(10) == checked(1000) <= 30


def test_release_checks_find_every_number_that_is_not_finite():
    weight, count = torch.zeros(5, 3, 2), torch.ones(5, dtype=torch.int64)
    weight[1, 2, 1], weight[3, 0, 0] = torch.nan, -torch.inf
    found = Weights({"weight": weight, "count": count}).not_finite()
    assert found.tolist() == [False, True, False, True, False]


def heads(**settings):
    """Four passes over six pictures of three classes."""
    recipe, own = TransferHead(3, 4, 0.05, **settings), pictures(6)

    def train(trials):
        return recipe.release(None, own[None][torch.zeros(trials, dtype=torch.int64)], generator())

    return train


def networks(mechanism):
    """Four passes over twenty known records and one of eight numbers."""
    draws = generator()
    known = Records(torch.randn(20, 8, generator=draws), torch.arange(20) % 3)

    def train(trials):
        targets = Records(torch.randn(trials, 1, 8, generator=draws), torch.zeros(trials, 1).long())
        return mechanism.release(known, targets, generator())

    return train


NETWORK = Perceptron((8, 4, 3))
MODULE = AnyModule(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)))
LOOP = Loop(label_smoothing=0.1, dropout=0.2)
TRAINING = {
    "heads by SGD": (heads(), 136),
    "heads by SGD, minibatches": (heads(momentum=0.9, batch_size=4, weight_decay=0.1), 260),
    "heads with class weights": (heads(class_weights=(1.0, 2.0, 3.0)), 163),
    "heads by Adam": (heads(optimizer="adam"), 304),
    "heads with hidden units": (heads(hidden=5), 406),
    "heads by a loop of AdamW": (heads(optimizer="adamw", batch_size=4, loop=LOOP), 912),
    "heads by DP-SGD": (heads(noise_multiplier=1.0, sample_rate=0.5), 590),
    "networks": (networks(SGD(NETWORK, 4, 0.1, 0.9, initial_seed=0)), 1069),
    "networks, own batches": (networks(SGD(NETWORK, 4, 0.1, batch_size=5)), 3551),
    "networks by Adam": (networks(SGD(NETWORK, 4, 0.1, optimizer="adam")), 784),
    "modules": (networks(SGD(MODULE, 4, 0.1)), 1690),
    "DP-SGD": (networks(DPSGD(NETWORK, 1.0, 4, 0.5, 1.0, 0.1)), 1062),
    "DP-SGD, final weights": (networks(DPSGD(NETWORK, 1.0, 4, 0.5, 1.0, 0.1, final_only=True)), 1033),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training_does_not_loop_over_trials(name):
    train, most = TRAINING[name]
    train(2)  # what only the first call does
    assert operations(lambda: train(FEW)) == operations(lambda: train(MANY)) <= most


@pytest.mark.parametrize("reduction", list(Reduction))
def test_scoring_does_not_loop_over_trials(reduction):
    criterion = Criterion(mean_squared_error, 0.5, reduction)

    def score(trials):
        labels = torch.arange(4).expand(trials, 4)
        targets, guesses = (Records(torch.rand(trials, 4, 8), labels) for _ in range(2))
        return operations(lambda: criterion.compare(targets, guesses))

    assert score(10) == score(1000) <= 40


def test_a_game_of_heads_does_not_loop_over_trials():
    def played(trials):
        return operations(lambda: play(heads_game(), LinearReader(60), trials=trials))

    played(2)
    assert played(FEW) == played(MANY) <= 5000


def test_a_step_of_learning_does_not_loop_over_its_batch():
    def learnt(steps, batch):
        attack = Reconstructor(steps=steps, batch=batch, width=16, shadows=80, conditional=False)
        return operations(lambda: play(heads_game(), attack, trials=2))

    learnt(1, 8)
    few = [learnt(2, batch) - learnt(1, batch) for batch in (8, 40)]
    assert max(few) - min(few) <= 10  # shadows are shuffled anew when all have been seen
    assert max(few) <= 700  # a step, and a look at held-out shadows


def test_leaving_records_out_one_after_the_other_takes_no_loop_over_them():
    def left_out(count):
        features = torch.randn(count, 6, generator=generator(), dtype=torch.float64)
        data, criterion = Records(features, features.sum(1)), Criterion(mean_squared_error, 0.1)
        game = LeaveOneOut(GLM(Gaussian(), penalty=1.0), data, criterion)
        return operations(lambda: play(game, ClosedForm()))

    left_out(20)
    few, many = left_out(20), left_out(200)
    assert few <= 2500
    assert many <= 1.1 * few  # Newton's steps differ; one operation per record would be 180 more


def test_the_span_of_an_update_is_found_for_all_of_its_records_at_once():
    def found(records):
        left, right = (torch.randn(40, records, generator=generator()) for _ in range(2))
        return operations(lambda: Decomposed.of(left @ right.mT).at(1.0))

    assert found(2) == found(8) <= 100
    assert found(30) <= 100


def test_what_a_guess_can_meet_is_counted_for_many_records_at_once():
    records = Records(torch.rand(120, 3, generator=generator()), torch.zeros(120))
    assert operations(lambda: most_met(records, Criterion(mean_squared_error, 0.05))) <= 800


@pytest.fixture
def transforms(monkeypatch):
    """How many FFTs some work takes; one lattice of three laws takes six."""
    counted = []
    for name in ("rfft", "irfft"):
        own = getattr(np.fft, name)
        monkeypatch.setattr(
            np.fft, name, lambda *args, own=own, **more: counted.append(1) or own(*args, **more)
        )

    def count(work):
        certified._bracket.cache_clear()
        allocation.allocation_bracket.cache_clear()
        counted.clear()
        work()
        return len(counted)

    return count


@pytest.mark.parametrize("steps", [100, 1000, 100_000, 1_000_000])
@pytest.mark.parametrize(
    ("batches", "most"), [("poisson", 12), ("shuffled", 0), ("fixed", 24), ("balls-in-bins", 28)]
)
def test_a_certificate_takes_a_few_transforms_however_many_steps(transforms, batches, most, steps):
    run = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": steps}
    assert transforms(lambda: dpsgd(0.01, **run, person=Person(batches=batches))) <= most


def test_baselines_share_lattices_and_noise_is_found_in_a_few(transforms):
    run = {"sample_rate": 0.01, "steps": 1000}
    assert transforms(lambda: dpsgd(np.linspace(0.01, 0.5, 20), noise_multiplier=1.1, **run)) <= 36
    assert transforms(lambda: noise_for_epsilon(4.0, delta=1e-5, **run)) <= 20
