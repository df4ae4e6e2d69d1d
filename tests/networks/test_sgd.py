import pytest
import torch
from torch import nn

from conftest import pictures
from remanence import SGD, AnyModule, InputError, Perceptron, Records
from remanence.core.records import concatenate


def data(count=12):
    records = pictures(count)
    return Records(records.features, records.labels)


def by_torch(mechanism, records, parameters):
    """The same training by PyTorch's modules and optimisers."""
    network, weights = mechanism.network, mechanism.class_weights
    layers = [nn.Linear(a, b) for a, b in zip(network.sizes, network.sizes[1:], strict=False)]
    for layer, (weight, bias) in zip(layers, network.layers(parameters), strict=True):
        layer.weight.data, layer.bias.data = weight[0].clone(), bias[0].clone()
    model = nn.Sequential(nn.Flatten(), layers[0], nn.ELU(), layers[1])
    options = {"lr": mechanism.learning_rate, "weight_decay": mechanism.weight_decay}
    if mechanism.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), momentum=mechanism.momentum, **options)
    else:
        optimizer = torch.optim.Adam(model.parameters(), **options)
    loss, orders = nn.CrossEntropyLoss(weights and torch.tensor(weights)), torch.Generator().manual_seed(3)
    for _ in range(mechanism.epochs):
        size = mechanism.batch_size or len(records)
        for part in mechanism._batches(1, len(records), size, orders, shared=True):
            optimizer.zero_grad()
            loss(model(records.features[part[0]]), records.labels[part[0]]).backward()
            optimizer.step()
    return torch.cat([tensor.detach().flatten() for layer in layers for tensor in (layer.weight, layer.bias)])


BATCHES = {"batch_size": 4, "order_seed": 3}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1, "momentum": 0.5},
        {"optimizer": "adam"},
        {"class_weights": (1.0, 5.0, 0.5)},
        {"class_weights": (1.0, 5.0, 0.5), **BATCHES},
        {"class_weights": (1.0, 5.0, 0.5), "initial_seed": None, **BATCHES},
    ],
    ids=str,
)
def test_networks_trained_together_equal_networks_trained_one_by_one(settings):
    mechanism = SGD(Perceptron((9, 4, 3)), 10, 0.1, **{"initial_seed": 3, **settings})
    records = data()
    known, targets = records[:8], records[8:][:, None]
    release = mechanism.release(known, targets, torch.Generator().manual_seed(3))["parameters"]
    starts = 1 if mechanism.initial_seed else len(targets)
    start = mechanism.network.initial(starts, torch.Generator().manual_seed(3)).expand(len(targets), -1)
    for trial in range(len(targets)):
        expected = by_torch(mechanism, concatenate([known, targets[trial]]), start[trial : trial + 1])
        torch.testing.assert_close(release[trial], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["elu", "relu", "gelu", "tanh"])
@pytest.mark.parametrize("sizes", [(9, 3), (9, 4, 3), (9, 5, 4, 1)], ids=str)
def test_gradients_as_differences_from_the_first_model_are_the_gradients(activation, sizes):
    network, records = Perceptron(sizes, activation), data()
    records = Records(records.features, records.labels.clamp(max=max(1, sizes[-1] - 1)))[None]
    parameters = network.initial(4, torch.Generator().manual_seed(0)).double()
    parameters = parameters[:1] + 0.1 * (parameters - parameters[:1])
    for mask in (None, torch.rand(1, 12, generator=torch.Generator().manual_seed(1)).double()):
        expected = network.clipped_sum(parameters, records, max_norm=None, mask=mask)
        torch.testing.assert_close(network.shared_sum(parameters, records, mask=mask), expected)


def test_a_pass_in_slices_is_the_same_pass(monkeypatch):
    from remanence.training import sgd

    mechanism = SGD(Perceptron((9, 4, 3)), 3, 0.1, initial_seed=0)
    records = data()
    whole = mechanism.release(records[:10], records[10:][:, None], torch.Generator())["parameters"]
    monkeypatch.setattr(sgd, "_CPU_BYTES", 1)
    sliced = mechanism.release(records[:10], records[10:][:, None], torch.Generator())["parameters"]
    torch.testing.assert_close(whole, sliced, rtol=1e-4, atol=1e-6)


def test_what_the_adversary_knows_is_the_same_in_every_model():
    records = data()
    targets = Records(records.features[[10] * 3][:, None], records.labels[[10] * 3][:, None])

    def models(**seeds):
        mechanism = SGD(Perceptron((9, 4, 3)), 2, 0.1, batch_size=4, **seeds)
        return mechanism.release(records[:10], targets, torch.Generator().manual_seed(0))["parameters"]

    both = models(initial_seed=0, order_seed=0)
    torch.testing.assert_close(both[0], both[1])
    assert not torch.allclose(*models(initial_seed=0)[:2])  # every model shuffles for itself
    assert not torch.allclose(*models(order_seed=0)[:2])  # and starts from its own weights


def test_records_that_a_network_cannot_read_are_refused_before_any_training():
    mechanism = SGD(AnyModule(nn.Sequential(nn.Flatten(), nn.Linear(8, 3))), 1, 0.1)
    with pytest.raises(InputError, match="cannot read the records"):
        mechanism.trials_at_once(data()[:1, None])


def test_models_with_batches_of_their_own_leave_room_for_them():
    many = SGD(Perceptron((9, 4, 3)), 1, 0.1, batch_size=10**6, order_seed=0)
    own = SGD(Perceptron((9, 4, 3)), 1, 0.1, batch_size=10**6)
    assert many.trials_at_once(data()[:1, None]) == 128
    assert own.trials_at_once(data()[:1, None]) == 1  # 9 million numbers each


def test_batches_cover_an_epoch_and_an_incomplete_one_belongs_to_it_unless_it_is_dropped():
    for drop_last, covered in ((False, 10), (True, 9)):
        mechanism = SGD(Perceptron((9, 4, 3)), 1, 0.1, batch_size=3, drop_last=drop_last)
        parts = list(mechanism._batches(2, 10, 3, torch.Generator().manual_seed(0), shared=False))
        seen = torch.cat(parts, 1)
        assert seen.shape == (2, covered)
        assert all(len(set(row)) == covered for row in seen.tolist())


WRONG = {
    "epochs": 0,
    "learning_rate": 0,
    "momentum": 1,
    "batch_size": 0,
    "optimizer": "?",
    "weight_decay": -1,
}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_settings_that_no_training_can_have_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        SGD(Perceptron((9, 4, 3)), **{"epochs": 1, "learning_rate": 0.1, name: value})


SPREADS = {"lecun": 1 / 400, "he": 2 / 400, "glorot": 2 / 410, "pytorch": 1 / 1200, 0.25: 0.25**2}  # squared


@pytest.mark.parametrize(("initialisation", "square"), SPREADS.items())
def test_initial_weights_have_the_spread_they_are_named_after(initialisation, square):
    network = Perceptron((400, 10), initialisation=initialisation)
    weights = network.initial(50, torch.Generator().manual_seed(0))[:, :4000]
    # 200,000 draws: a standard error of 0.16 %
    assert float(weights.std()) == pytest.approx(square**0.5, rel=0.01)


def test_products_are_rounded_inside_and_as_before_outside():
    from remanence.training.perceptron import _rounded_products

    def precision():
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cuda.matmul.allow_tf32

    before = precision()
    with _rounded_products():
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert precision() == before
