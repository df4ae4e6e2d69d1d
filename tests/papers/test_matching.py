"""Gradient matching: problems with one answer, labels, local steps, and an optimiser per problem."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import vmap

from conftest import gradient_game, relu_network
from remanence import Records, SharedGradient, play
from remanence_papers.gradients.matching import (
    DLG,
    IDLG,
    InvertingGradients,
    Matching,
    dense_angle,
    infer_labels,
    is_plain_dense,
    lbfgs,
    match_gradients,
)


def one_sample_release(**settings):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 24), nn.Sigmoid(), nn.Linear(24, 5)).double()
    mechanism = SharedGradient(network, (12,), **settings)
    inputs = torch.randn(3, 1, 12, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.tensor([[4], [0], [2]])
    return mechanism, inputs, labels, mechanism.release(None, Records(inputs, labels), torch.Generator())


STEPS = {"local_steps": 3, "learning_rate": 0.05}


@pytest.mark.parametrize(
    ("labels_by", "made"),
    [("optimise", {}), ("infer", {}), ("infer", STEPS), ("infer", {**STEPS, "momentum": 0.9})],
)
def test_a_single_sample_behind_a_smooth_network_is_found_after_several_local_steps_too(labels_by, made):
    mechanism, inputs, labels, release = one_sample_release(**made)
    settings = Matching("euclidean", "l-bfgs", labels_by, steps=300, restarts=4, learning_rate=1.0)
    found = match_gradients(mechanism, release.tensors, batch_size=1, settings=settings, seed=0)
    assert torch.equal(found.labels, labels)
    assert (found.inputs - inputs).norm() < (2e-2 if made else 1e-2) * inputs.norm()
    assert made or found.unexplained.max() < 1e-3


def test_an_update_of_local_steps_is_the_difference_of_the_weights():
    mechanism, inputs, labels, release = one_sample_release(local_steps=2, learning_rate=0.05, momentum=0.9)
    network = mechanism.module
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(inputs[0]), labels[0]).backward()
        optimiser.step()
    for name, parameter in network.named_parameters():
        assert torch.allclose((before[name] - parameter.detach()) / 0.05, release[name][0], atol=1e-12)


def test_the_angle_ignores_the_size_of_the_gradient():
    mechanism, inputs, _, release = one_sample_release()
    settings = Matching("cosine", "signed-adam", "infer", steps=150, restarts=2)
    larger = {name: 1000 * values for name, values in release.tensors.items()}
    found = [
        match_gradients(mechanism, each, batch_size=1, settings=settings, seed=0)
        for each in (release.tensors, larger)
    ]
    assert torch.allclose(found[0].inputs, found[1].inputs, atol=1e-6)
    # The angle leaves some freedom, but it must point at the input: far closer than an unrelated vector would be.
    cosine = torch.nn.functional.cosine_similarity(found[0].inputs, inputs, dim=-1)
    assert (cosine > 0.9).all()


@pytest.mark.parametrize("bias", [True, False])
def test_the_angle_of_dense_layers_is_that_of_their_gradients(bias):
    torch.manual_seed(0)
    first, last = nn.Linear(12, 9, bias=bias), nn.Linear(9, 5, bias=bias)
    mechanism = SharedGradient(nn.Sequential(first, nn.ReLU(), nn.Identity(), last).double(), (12,))
    assert is_plain_dense(mechanism)
    assert not is_plain_dense(replace(mechanism, max_grad_norm=1.0))
    assert not is_plain_dense(replace(mechanism, module=nn.Sequential(first, nn.Softmax(-1), last)))
    batch = Records(torch.randn(3, 4, 12), torch.randint(5, (3, 4)))
    seen = mechanism.release(None, batch, torch.Generator()).tensors
    x, labels = torch.randn(3, 4, 12).double().requires_grad_(), torch.randn(3, 4, 5).double().softmax(-1)
    update = vmap(mechanism.update, in_dims=(None, 0, 0))(mechanism.parameters, x, labels)
    flat = [torch.cat([tensors[name].flatten(1) for name in seen], 1) for tensors in (update, seen)]
    slow = 1 - torch.nn.functional.cosine_similarity(*flat)
    lengths = flat[1].norm(dim=1)
    unit = {name: value / lengths.view(-1, *[1] * (value.ndim - 1)) for name, value in seen.items()}
    fast = dense_angle(mechanism.module, mechanism.parameters, x, labels, unit)
    assert torch.allclose(fast, slow, atol=1e-12)
    slopes = [torch.autograd.grad(value.sum(), x, retain_graph=True)[0] for value in (fast, slow)]
    assert torch.allclose(*slopes, atol=1e-12)
    assert slopes[0].norm() > 1e-3


def test_more_restarts_never_explain_less():
    mechanism, _, _, release = one_sample_release()
    few = Matching("euclidean", "l-bfgs", "infer", steps=15, restarts=1, learning_rate=1.0)
    left = [
        match_gradients(mechanism, release.tensors, batch_size=1, settings=each, seed=0).unexplained
        for each in (few, replace(few, restarts=8))
    ]
    assert (left[1] <= left[0] + 1e-12).all()
    assert (left[1] < left[0]).any()


def test_label_counts_come_from_the_last_bias():
    network = relu_network(20, 64, 6, seed=0)
    mechanism = SharedGradient(network, (20,))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 8, 20, generator=generator).double()
    labels = torch.randint(6, (50, 8), generator=generator)
    release = mechanism.release(None, Records(inputs, labels), generator)
    dummy = torch.randn(50, 8, 20, generator=generator).double()
    found = infer_labels(mechanism, release.tensors, mechanism.parameters, dummy)
    assert (found == labels.sort(1).values).double().mean() > 0.95


def test_every_problem_has_an_optimiser_of_its_own():
    # Quadratics of very different curvature: a shared step would suit one of them at most.
    scales = torch.tensor([1.0, 1e3, 1e-3]).double()
    curvature = torch.arange(1, 7).double() * scales[:, None]
    goal = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()

    def objective(unknowns):
        return (curvature * (unknowns["x"] - goal).square()).sum(1)

    settings = Matching(optimiser="l-bfgs", steps=200, learning_rate=1.0, tolerance=1e-12)
    point, values = lbfgs(objective, {"x": torch.zeros(3, 6).double()}, settings)
    assert torch.allclose(point["x"], goal, atol=1e-6)
    curvature, goal = curvature[:1], goal[:1]
    alone, _ = lbfgs(objective, {"x": torch.zeros(1, 6).double()}, settings)
    assert torch.allclose(alone["x"], point["x"][:1], atol=1e-6)
    assert values.shape == (3,)


@pytest.mark.parametrize("attack", [DLG(4, steps=3), IDLG(4, steps=3), InvertingGradients(4, steps=3)])
def test_optimisation_plays_the_same_game_as_the_exact_attacks(attack):
    evidence = play(gradient_game(), attack, trials=3)
    assert evidence.main.trials == 12
    assert evidence.main.successes == 0, "three steps find nothing"
    assert "unexplained" in evidence.arrays
