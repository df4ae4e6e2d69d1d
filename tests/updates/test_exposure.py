"""Who is exposed: patterns with known answers, and which networks can be read."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from conftest import relu_network
from networks import ViT
from remanence import InputError, gradient_exposure
from remanence.updates.dense.layers import dense_head, head_inputs


def signs_network(rows) -> nn.Sequential:
    """The first layer's neurons are the given rows, so that patterns can be read off the inputs."""
    network = relu_network(len(rows[0]), len(rows), 3)
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor(rows, dtype=torch.float64))
        network[0].bias.zero_()
    return network


@pytest.mark.parametrize(("rows", "inputs", "exclusive", "insecure"), [
    # Neurons: x₁ > 0, x₂ > 0, x₁ + x₂ > 0, −x₁ > 0. One exclusive neuron in the last ReLU layer is not two.
    ([[1, 0], [0, 1], [1, 1], [-1, 0]], [[1, 0], [0, 1], [-1, 0]], [1, 1, 1], [False, False, False]),
    ([[1, 0], [2, 0], [0, 1], [1, 1]], [[1, 0], [0, 1]], [2, 1], [True, False]),
    ([[1, 0], [2, 0], [0, 1], [1, 1]], [[1, 0]], [3], [True]),
])  # fmt: skip
def test_exclusive_neurons_are_counted_and_a_batch_is_insecure_only_if_all_samples_are(
    rows, inputs, exclusive, insecure
):
    exposure = gradient_exposure(
        signs_network(rows), torch.tensor(inputs).double(), torch.arange(len(inputs))
    )
    assert exposure.exclusive.tolist() == [exclusive]
    assert exposure.exposed.all()
    assert exposure.insecure.tolist() == insecure
    assert exposure.is_insecure_batch == all(insecure)


def test_a_neuron_without_loss_behind_it_exposes_nobody():
    network = signs_network([[1, 0], [0, 1]])
    with torch.no_grad():
        network[2].weight[:, 0] = 0
    exposure = gradient_exposure(network, torch.eye(2).double(), torch.tensor([0, 1]))
    assert exposure.exposed.tolist() == [False, True]


class Functional(nn.Module):
    """Convolutions, then dense layers whose ReLU is a function and whose names are in no order."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(12, 4)
        self.first = nn.Linear(18, 12)
        self.conv = nn.Conv2d(1, 2, 2)

    def forward(self, images):
        features = torch.tanh(self.conv(images)).flatten(1)
        return self.last(functional.relu(self.first(features)))


def test_the_dense_part_is_found_in_any_module():
    torch.manual_seed(0)
    network = Functional()
    images = torch.randn(5, 1, 4, 4)
    head = dense_head(network, images)
    assert head.names == ("first", "last")
    assert not head.is_whole_network
    _, logits = head.forward(head_inputs(network, head, images))
    assert torch.allclose(logits.float(), network(images), atol=1e-6)
    exposure = gradient_exposure(network, images, torch.tensor([0, 1, 2, 3, 0]))
    assert "features" in str(exposure)


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()), "no fully connected layer"),
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "behind tanh"),
        (nn.Sequential(nn.Linear(4, 5), nn.Softmax(1), nn.Linear(5, 3)), "behind a single layer"),
        (nn.Sequential(nn.Linear(4, 3)), "behind a single layer"),
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Softmax(-1)), "does not end in"),
    ],
)
def test_networks_without_a_dense_relu_part_are_refused(network, complaint):
    shape = (2, 1, 4, 4) if isinstance(network[0], nn.Conv2d) else (2, 4)
    with pytest.raises(InputError, match=complaint) as error:
        gradient_exposure(network, torch.zeros(shape), torch.tensor([0, 1]))
    assert "needs:" in str(error.value)


def test_inputs_of_the_wrong_shape_are_refused_by_name():
    with pytest.raises(InputError, match="cannot read the inputs"):
        gradient_exposure(relu_network(4, 5, 3), torch.zeros(2, 6).double(), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="2 inputs and 1 labels"):
        gradient_exposure(relu_network(4, 5, 3), torch.zeros(2, 4).double(), torch.tensor([0]))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (Recurrent(), torch.zeros(2, 5, 4)),
        (ViT(), torch.zeros(2, 1, 8, 16)),
        (Words(), torch.zeros(2, 5, dtype=torch.int64)),
    ],
    ids=["lstm", "vit", "words"],
)
def test_of_other_networks_the_features_are_read_that_enter_their_last_layer(network, inputs):
    head = dense_head(network.eval(), inputs)
    assert head.names == ("head",)
    assert not head.is_whole_network
    with pytest.raises(InputError) as error:  # without an example: a sentence, and never a crash
        dense_head(network)
    assert all(word in str(error.value) for word in ("needs:", "got:", "try:"))
