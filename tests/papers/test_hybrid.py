"""Behind convolutions: features exactly, then pictures that have them."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.updates.dense.layers import dense_head
from remanence_papers.gradients.hybrid import PictureGenerator, extractor_of, hybrid_attack, invert_features


def network_and_batch():
    torch.manual_seed(0)
    front = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten()
    network = nn.Sequential(*front, nn.Linear(8 * 64, 100), nn.ReLU(), nn.Linear(100, 4))
    line, flat = torch.linspace(-1, 1, 8), torch.ones(8)
    smooth = torch.stack([torch.outer(line, line), torch.outer(line, flat), torch.outer(flat, line)])
    return network, (0.8 * smooth)[:, None], torch.tensor([0, 3, 1])


def gradient_of(network, inputs, labels):
    named = dict(network.named_parameters())
    found = torch.autograd.grad(cross_entropy(network(inputs), labels), list(named.values()))
    return dict(zip(named, found, strict=True))


def test_both_stages_rebuild_smooth_pictures():
    network, inputs, labels = network_and_batch()
    pictures, named, found = hybrid_attack(
        network, gradient_of(network, inputs, labels), (1, 8, 8), precision=1.2e-7, steps=250
    )
    assert sorted(named.tolist()) == sorted(labels.tolist())
    extract = extractor_of(network, dense_head(network, inputs))
    features = torch.cdist(extract(inputs).detach().double(), found.records.inputs)
    assert (features.amin(1) < 1e-4 * extract(inputs).norm(dim=1)).all(), "stage one is exact"
    errors = torch.cdist(inputs.flatten(1), pictures.flatten(1)).amin(1).square() / 64
    assert (errors < 0.02).all(), "stage two is close; an unrelated smooth picture is at 0.3 or more"
    assert float(torch.pdist(inputs.flatten(1)).square().min() / 64) > 0.1


def test_every_picture_has_a_generator_of_its_own():
    generator = PictureGenerator(3, (1, 8, 8), width=4)
    before = generator()
    before[0].square().sum().backward()
    # Weights are grouped by picture: the first picture's loss touches the first group alone.
    slopes = generator.last.weight.grad.flatten(1).abs().sum(1)
    assert slopes[0] > 0
    assert torch.equal(slopes[1:], torch.zeros(2))


def test_the_same_seed_draws_the_same_pictures_and_leaves_the_global_one_alone():
    network, inputs, _ = network_and_batch()
    extract = extractor_of(network, dense_head(network, inputs))
    features = extract(inputs).detach()
    state = torch.get_rng_state()
    first, second = (invert_features(extract, features, (1, 8, 8), steps=3, seed=4) for _ in range(2))
    assert torch.allclose(first, second, atol=1e-5)
    assert torch.equal(state, torch.get_rng_state())
