"""Whole batches without a single exclusive neuron, from rank and sparsity."""

import pytest
import torch
from test_exact import layers_of, met

from conftest import relu_network
from one_update import read_update
from remanence import gradient_exposure
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import reconstruct
from remanence.updates.dense.sparse_columns import reconstruct_low_rank
from remanence.updates.rounding import Rounding


def batch(count, features, classes, seed):
    """Independent inputs, so that every neuron is active for about half of the samples."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, features, generator=generator).double()
    return inputs, torch.randint(classes, (count,), generator=generator)


PRECISION = {torch.float64: 2.2e-16, torch.float32: 1.2e-7}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("bias", "depth"), [(True, 1), (False, 1), (True, 2), (False, 2)])
def test_a_batch_without_exclusive_neurons_comes_back_whole(bias, depth, dtype):
    network = relu_network(60, *[256] * depth, 10, bias=bias, dtype=dtype, seed=1)
    inputs, labels = batch(16, 60, 10, 1)
    inputs = inputs.to(dtype).double()
    assert not gradient_exposure(network, inputs.to(dtype), labels).exposed.any()
    head = dense_head(network)
    layers = layers_of(head, network, inputs, labels)
    at_sight = reconstruct(head, layers, precision=PRECISION[dtype])
    assert len(at_sight.records) == 0, "exclusivity alone finds none"
    found = reconstruct_low_rank(head, layers, precision=PRECISION[dtype])
    back, false = met(found, inputs, labels, tolerance=1e-8 if dtype is torch.float64 else 1e-3)
    assert back.all()
    assert false == 0
    assert found.records.batch_size == 16, "the rank of the gradient is the batch size"
    assert found.unexplained.max() < (1e-10 if dtype is torch.float64 else 1e-5)


def test_a_repeated_sample_is_one_direction_and_no_false_samples_appear():
    network = relu_network(60, 256, 10, seed=0)
    inputs, labels = batch(10, 60, 10, 0)
    inputs = torch.cat([inputs, inputs[:1]])
    labels = torch.cat([labels, labels[:1]])
    head = dense_head(network)
    found = reconstruct_low_rank(head, layers_of(head, network, inputs, labels), precision=2.2e-16)
    assert met(found, inputs, labels)[1] == 0


def test_the_same_seed_gives_the_same_batch():
    network = relu_network(60, 256, 10, seed=2)
    inputs, labels = batch(14, 60, 10, 2)
    head = dense_head(network)
    layers = layers_of(head, network, inputs, labels)
    first, second = (reconstruct_low_rank(head, layers, precision=2.2e-16, seed=5) for _ in range(2))
    assert torch.allclose(first.records.inputs, second.records.inputs, atol=1e-9)


def test_a_batch_of_64_is_proven_whole_and_one_beyond_reach_claims_nothing():
    for count, width, whole in ((64, 512, True), (48, 120, False)):
        network = relu_network(100, width, 10, dtype=torch.float32, seed=3)
        inputs, labels = batch(count, 100, 10, 3)
        inputs, head = inputs.float().double(), dense_head(network)
        proof = read_update(head, layers_of(head, network, inputs, labels), Rounding(1.2e-7)).proof
        assert (proof.count, proof.batch_size, proof.explains_all) == (
            (64, 64, True) if whole else (0, None, False)
        )
        if whole:
            apart = torch.cdist(inputs, proof.proposal.inputs) / inputs.norm(dim=1, keepdim=True)
            assert apart.amin(1).max() < 1e-4
            assert torch.equal(proof.proposal.labels[apart.argmin(1)], labels)
