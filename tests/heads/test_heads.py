import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.heads.pictures import embed
from remanence.heads.transfer_head import TransferHead


def embedded(trials=3, count=6, numbers=12, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(trials, count, numbers, generator=generator).relu()
    labels = torch.arange(count).remainder(classes).expand(trials, -1)
    return Records(torch.zeros(trials, count, 2, 2), labels, embedding=inputs)


def test_a_mini_batch_of_everything_is_the_full_batch_and_half_batches_average_to_it_for_small_steps():
    targets = embedded(trials=1, count=6)
    full = TransferHead(3, 1, 1e-3).release(None, targets, torch.Generator().manual_seed(0))
    halves = TransferHead(3, 1, 1e-3, batch_size=3).release(None, targets, torch.Generator().manual_seed(0))
    start = TransferHead(3, 1, 1e-30).release(None, targets, torch.Generator().manual_seed(0))
    # Two half-batch steps at the same rate move twice as far as one full step, to first order in the rate.
    moved, twice = full["weight"] - start["weight"], halves["weight"] - start["weight"]
    torch.testing.assert_close(twice, 2 * moved, rtol=5e-3, atol=1e-7)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}, {"class_weights": (1.0, 3.0, 0.5)}], ids=str)
def test_an_incomplete_batch_is_trained_on_unless_it_is_dropped(settings):
    # Five equal records: whatever the order, a batch of three and one of two are two steps on all of them.
    same = embedded(trials=2, count=1)[:, torch.zeros(5, dtype=torch.int64)]

    def train(epochs, **batches):
        head = TransferHead(3, epochs, 0.1, **settings, **batches)
        return head.release(None, same, torch.Generator().manual_seed(0))["weight"]

    torch.testing.assert_close(train(2, batch_size=3), train(4), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(train(2, batch_size=3, drop_last=True), train(2), rtol=1e-4, atol=1e-6)


def private_by_hand(head, targets, generator, runs):
    """DP-SGD on the whole weight matrix, without the span, for one set of records."""
    inputs = torch.cat([targets.embedding[0], torch.ones(targets.batch_shape[1], 1)], 1).double()
    labels = nn.functional.one_hot(targets.labels[0], head.classes).double()
    weights = torch.zeros(runs, head.classes, inputs.shape[1], dtype=torch.float64)
    velocity = torch.zeros_like(weights)
    count = len(inputs)
    for _ in range(head.steps):
        residual = (weights @ inputs.mT).softmax(1) - labels.mT  # (runs, classes, records)
        norms = residual.norm(dim=1) * inputs.norm(dim=1)
        residual = residual * (head.max_grad_norm / norms.clamp(min=head.max_grad_norm))[:, None]
        residual = residual * (torch.rand(runs, 1, count, generator=generator) < head.sample_rate)
        noise = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
        gradient = residual @ inputs + head.noise_multiplier * head.max_grad_norm * noise
        gradient = gradient / (head.sample_rate * count) + head.weight_decay * weights
        velocity = head.momentum * velocity + gradient
        weights = weights - head.learning_rate * velocity
    return weights


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.7, "weight_decay": 0.2}, {"sample_rate": 0.5}, {"count": 12}], ids=str
)
def test_private_heads_have_the_law_of_dp_sgd(settings):
    settings = {"count": 4, **settings}  # twelve records of five numbers have a singular Gram matrix
    count = settings.pop("count")
    head = TransferHead(3, 10, 0.5, initialisation=0.0, noise_multiplier=0.8, max_grad_norm=1.0, **settings)
    runs = 20_000
    targets = embedded(trials=1, count=count, numbers=5)
    many = targets[torch.zeros(runs, dtype=torch.int64)]
    ours = head.release(None, many, torch.Generator().manual_seed(0))
    ours = torch.cat([ours["weight"], ours["bias"].unsqueeze(2)], 2).double().flatten(1)
    theirs = private_by_hand(head, targets, torch.Generator().manual_seed(1), runs).flatten(1)
    # Means of 20,000 normal-like variables differ by five standard errors with probability below 1e-6 each.
    scale = theirs.std(0)
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * scale * math.sqrt(2 / runs)).all()
    spread = (torch.cov(ours.mT) - torch.cov(theirs.mT)).abs() / torch.outer(scale, scale)
    # A covariance's standard error is at most √2·s²·√(2/runs).
    assert (spread < 5 * 2 / math.sqrt(runs)).all()


def test_without_noise_and_with_loose_clipping_private_training_is_ordinary_training():
    targets = embedded()
    plain = TransferHead(3, 10, 0.1, weight_decay=0.01)
    private = TransferHead(3, 10, 0.1, weight_decay=0.01, noise_multiplier=0.0, max_grad_norm=1e6)
    ours, theirs = (h.release(None, targets, torch.Generator().manual_seed(0)) for h in (plain, private))
    torch.testing.assert_close(ours["weight"], theirs["weight"], rtol=1e-4, atol=1e-6)


def test_embedding_is_what_the_backbone_says_and_leaves_its_modes_alone():
    backbone = nn.Sequential(nn.Dropout(0.5).eval(), nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5))
    records = Records(torch.randn(5, 2, 2), torch.zeros(5))
    found = embed(records, backbone, batch=2).embedding
    assert [module.training for module in backbone] == [False, True, True, True]
    torch.testing.assert_close(found, backbone[2](records.features.flatten(1)))
    with pytest.raises(InputError, match="cannot read"):
        embed(Records(torch.zeros(2, 5, 5), torch.zeros(2)), backbone)
    silent = nn.Identity()
    silent.register_forward_pre_hook(Mock(side_effect=RuntimeError))
    with pytest.raises(InputError, match="RuntimeError"):
        embed(records, silent)


def test_what_a_head_cannot_be_trained_on_is_refused():
    targets = embedded()
    bare = Records(targets.features, targets.labels)
    for head, known, own, says in (
        (TransferHead(3, 1), None, bare, "no embeddings"),
        (TransferHead(2, 1), None, targets, "no class in the head"),
        (TransferHead(3, 1, task=(0, 1)), None, targets, "no class in the head"),
        (TransferHead(3, 1), targets[0], targets, "targets alone"),
    ):
        with pytest.raises(InputError, match=says):
            head.release(known, own, torch.Generator())


WRONG = {
    "classes": [1],
    "hidden": [0, (4, 3), "many"],
    "initialisation": ["foo", -1.0, None],
    "class_weights": [(1.0,), (1.0, -1.0, 1.0), 3],
    "task": [3],
    "weight_decay": [-1.0, math.inf],
    "noise_multiplier": [-1.0, "much"],
    "sample_rate": [0.0, 2.0, None],
    "max_grad_norm": [0.0, None],
}
NOT_PRIVATE = {"optimizer": "adam", "class_weights": (1.0, 2.0, 1.0), "hidden": 4}
REFUSED = [*((name, {name: value}) for name in WRONG for value in WRONG[name])]
REFUSED += [(name, {name: value, "noise_multiplier": 1.0}) for name, value in NOT_PRIVATE.items()]


@pytest.mark.parametrize(("name", "settings"), REFUSED)
def test_a_recipe_that_no_head_can_have_or_dp_sgd_cannot_train_is_refused(name, settings):
    with pytest.raises(InputError, match=name):
        TransferHead(**{"classes": 3, "epochs": 1, **settings})


def test_numbers_of_numpy_will_do():
    assert TransferHead(np.int64(3), np.int64(10), np.float32(0.1)).classes == 3


@pytest.mark.parametrize(
    ("count", "shape", "numbers", "settings"),
    [(10, (3, 96, 96), 512, {}), (1000, (2,), 8, {}), (300, (2,), 8, {"noise_multiplier": 1.0})],
)
def test_heads_that_are_trained_at_once_fit_into_memory_with_their_pictures_and_products(
    count, shape, numbers, settings
):
    seen = torch.zeros(1, count, numbers)
    one = Records(torch.zeros(1, count, *shape), torch.zeros(1, count), embedding=seen)
    at_once = TransferHead(3, 1, **settings).trials_at_once(one)
    pictures, products = one.features.numel(), count**2
    assert 1 <= at_once <= 2**26 / (4 * (pictures + products))
