"""Exact reconstruction: all that is exposed comes back, nothing else does, and the residual says which."""

import pytest
import torch

from conftest import relu_network
from one_update import update
from remanence import InputError, gradient_exposure
from remanence.updates.dense import peeling
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import Remainder, reconstruct

SIZES = [(True, 1), (False, 1), (True, 3), (False, 2)]


def batch(count, features, classes, seed):
    """Correlated inputs, as pictures are: a common mean, and fewer directions than features."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(features // 2, features, generator=generator).double()
    mean = torch.randn(features, generator=generator).double()
    inputs = mean + 0.6 * torch.randn(count, features // 2, generator=generator).double() @ directions / 5
    return inputs, torch.randint(classes, (count,), generator=generator)


def leak(network, inputs, labels):
    """The gradient as the network itself computes it, with a dimension for trials."""
    sent = update(network, inputs.to(next(network.parameters())), labels)
    return {name: value[None] for name, value in sent.items()}


def sent(network, inputs, labels):
    """The dense layers of a network, and a batch's update of them."""
    head = dense_head(network)
    return head, head.layers_of(update(network, inputs.to(next(network.parameters())), labels))


def attack(network, inputs, labels, **options) -> Remainder:
    precision = torch.finfo(next(network.parameters()).dtype).eps
    return reconstruct(*sent(network, inputs, labels), precision=precision, **options)


def met(found: Remainder, inputs, labels, tolerance=1e-3):
    """Which inputs came back with the right label; and how many of the returned ones are no input."""
    guesses, names = found.records.inputs, found.records.labels
    if not len(guesses):
        return torch.zeros(len(inputs), dtype=torch.bool), 0
    near = torch.cdist(inputs, guesses) < tolerance * inputs.norm(dim=1)[:, None]
    near &= labels[:, None] == names
    return near.any(1), int((~near.any(0)).sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("bias", "depth"), SIZES)
def test_exactly_the_exposed_samples_come_back_at_first_sight(bias, depth, dtype):
    exposed = 0
    # Eight batches of which some samples are exposed, and a crowd, whose shared neurons pass for no sample.
    for seed, count, width in [*((seed, 8, 150) for seed in range(8)), (0, 40, 400)]:
        network = relu_network(40, *[width] * depth, 7, bias=bias, dtype=dtype, seed=seed)
        inputs, labels = batch(count, 40, 7, seed)
        inputs = inputs.to(dtype).double()
        exposure = gradient_exposure(network, inputs.to(dtype), labels)
        found = attack(network, inputs, labels, peel=False)
        back, false = met(found, inputs, labels)
        assert false == 0
        assert torch.equal(back, exposure.exposed)
        exposed += int(exposure.exposed.sum())
        if back.any():
            assert found.records.batch_size == count
    assert 8 <= exposed < 104, "the problem must be neither empty nor trivial"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("bias", "depth"), SIZES)
def test_peeling_recovers_whole_batches_to_the_last_digits(bias, depth, dtype):
    limit = 1e-10 if dtype is torch.float64 else 1e-4
    hidden = 0
    for seed in range(4):
        network = relu_network(40, *[250] * depth, 7, bias=bias, dtype=dtype, seed=seed)
        inputs, labels = batch(8, 40, 7, seed)
        inputs = inputs.to(dtype).double()
        hidden += int((~gradient_exposure(network, inputs.to(dtype), labels).exposed).sum())
        found = attack(network, inputs, labels)
        back, false = met(found, inputs, labels, tolerance=limit)
        assert back.all()
        assert false == 0
        assert found.unexplained.max() < limit
    assert hidden >= 3, "some samples must have no exclusive neuron to begin with"


def test_a_shared_neuron_becomes_exclusive_once_the_other_sample_is_known():
    # Neuron 0 is the first sample's alone; neuron 1 is shared by both, so the second has none of its own.
    network = relu_network(2, 2, 3)
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))
        network[0].bias.zero_()
    inputs, labels = torch.tensor([[2.0, 1.0], [1.0, 2.0]]).double(), torch.tensor([0, 2])
    assert gradient_exposure(network, inputs, labels).exposed.tolist() == [True, False]
    once = attack(network, inputs, labels, peel=False)
    assert met(once, inputs, labels)[0].tolist() == [True, False]
    assert once.unexplained[0] > 0.01, "half of the batch is not explained yet"
    assert met(attack(network, inputs, labels), inputs, labels)[0].all()


def test_what_is_left_unexplained_is_the_gradient_of_the_others():
    network = relu_network(40, 120, 7, seed=3)
    inputs, labels = batch(8, 40, 7, 3)
    found = attack(network, inputs, labels, peel=False)
    back, _ = met(found, inputs, labels)
    assert 0 < int(back.sum()) < 8
    head = dense_head(network)
    rest, whole = head.gradients(inputs[~back], labels[~back])[0][0], head.gradients(inputs, labels)[0][0]
    assert found.unexplained[0] == pytest.approx(float(rest.norm() / whole.norm()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("bias", "classes"), [(True, 2), (True, 3), (False, 3), (False, 4)])
def test_few_classes_bring_no_false_samples(bias, classes, dtype):
    back = []
    for seed in range(10):
        network = relu_network(40, 200, classes, bias=bias, dtype=dtype, seed=seed)
        inputs, labels = batch(8, 40, classes, seed)
        inputs = inputs.to(dtype).double()
        came_back, false = met(attack(network, inputs, labels), inputs, labels)
        assert false == 0
        back.append(came_back)
    assert torch.cat(back).float().mean() > 0.5


def test_samples_that_the_network_is_sure_of_come_back_in_float32():
    # 1 − p_y is rounded at the size of 1, so that a loss vector of 1e-4 is off by a part in a thousand.
    sure = 0
    for seed in range(6):
        network = relu_network(40, 200, 7, dtype=torch.float32, seed=seed)
        inputs, _ = batch(8, 40, 7, seed)
        inputs = inputs.float()
        with torch.no_grad():
            network[2].weight *= 40
            labels = network(inputs).argmax(1)
            missing = 1 - network.double()(inputs.double()).softmax(1).amax(1)
            network.float()
        exposed = gradient_exposure(network, inputs, labels).exposed & (missing > 1e-6)
        back, false = met(attack(network, inputs.double(), labels, peel=False), inputs.double(), labels)
        assert false == 0
        assert back[exposed].all()
        sure += int((exposed & (missing < 1e-4)).sum())
    assert sure >= 3


@pytest.mark.parametrize("network", [relu_network(4, 9, 2, bias=False), relu_network(4, 9, 9, 3, bias=False)])
def test_an_input_known_up_to_its_scale_is_refused(network):
    if len(network) > 3:
        network[2].bias = torch.nn.Parameter(torch.ones(9).double())
    with pytest.raises(InputError, match="scale of the inputs of layer '0'"):
        attack(network, *batch(3, 4, 2, 0))


def test_a_batch_larger_than_the_slots_fills_them():
    network = relu_network(40, 300, 7, seed=1)
    inputs, labels = batch(8, 40, 7, 1)
    found = attack(network, inputs, labels, slots=3)
    assert found.records.inputs.shape == (3, 40)


@pytest.mark.parametrize(("count", "seed"), [(4, 0), (8, 1), (12, 2)])
def test_in_a_large_network_neurons_with_a_twin_give_the_same_batch(monkeypatch, count, seed):
    network = relu_network(30, 160, 5, seed=seed)
    inputs, labels = batch(count, 30, 5, seed)
    head, layers = sent(network, inputs, labels)
    every = reconstruct(head, layers, precision=2.2e-16)
    monkeypatch.setattr(peeling, "LARGE", 0)
    tested = peeling.worth_testing(head, layers[0], layers[0][0].abs().amax(-1) > 0, 1e-6)
    assert 0 < tested.sum() < 100  # most neurons are shared, and are not looked at
    some = reconstruct(head, layers, precision=2.2e-16)
    assert len(some.records) == len(every.records) > 0
    assert torch.cdist(some.records.inputs, every.records.inputs).amin(1).max() < 1e-9


def test_shares_of_a_plain_mean_are_one_over_a_whole_number_and_others_stay_as_they_are():
    network = relu_network(40, 200, 7, dtype=torch.float32, seed=2)
    inputs, labels = batch(8, 40, 7, 2)
    head, layers = sent(network, inputs, labels)
    plain = reconstruct(head, layers, precision=1.2e-7)
    scaled = reconstruct(head, [(0.7312 * w, 0.7312 * b) for w, b in layers], precision=1.2e-7)
    for found, share in ((plain, 1 / 8), (scaled, 0.7312 / 8)):
        assert met(found, inputs, labels, 1e-6)[0].all()
        assert found.records.shares.numpy() == pytest.approx(share, rel=1e-5)
    assert (plain.records.shares == 1 / 8).all()
