"""Networks with one output: read as two classes, and counted once."""

import copy

import numpy as np
import pytest
import torch
from test_captured import run
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from one_update import foreign_update, found_all, read, update
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense.layers import dense_head, has_one_logit
from remanence.updates.dense.proofs import independent_numbers
from remanence.updates.guard import reason_to_withhold


def bce(said, labels):
    return binary_cross_entropy_with_logits(said.flatten(), labels.to(said))


def network(width=64, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 1)] if width else [nn.Linear(30, 1)]
    return nn.Sequential(*layers).to(dtype)


def batch(count, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 30, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(2, (count,), generator=generator)


def test_one_logit_is_two_classes_whose_rows_are_one():
    model, (inputs, labels) = network(), batch(3)
    head, gradient = dense_head(model), update(model, inputs, labels, loss=bce)
    assert (head.classes, has_one_logit(head)) == (2, True)
    layers = head.layers_of(gradient)
    made = head.gradients(inputs.double(), labels)
    for (weight, bias), (own, shift) in zip(layers, made, strict=True):
        assert torch.allclose(weight, own / 3, atol=1e-6)
        assert bias is not None
        assert torch.allclose(bias, shift / 3, atol=1e-6)
    assert independent_numbers(layers) == int(layers[0][0].count_nonzero() + layers[1][0][1].count_nonzero())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_small_batches_behind_relu_are_proven_whole(count, dtype):
    model, (inputs, labels) = network(96, dtype), batch(count, dtype)
    reading = read(model, update(model, inputs, labels, loss=bce))
    assert reading.proof.batch_size == count
    assert found_all(reading, inputs, labels)


@pytest.mark.parametrize("kind", ["noise", "shuffled", "other", "stale"])
def test_foreign_updates_are_refused(kind):
    model, given = network(), batch(4)
    reading = read(model, foreign_update(kind, model, *given, loss=bce))
    assert not reading.belonging.is_one_step
    assert reading.proof.count == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_layer_blends_records_and_no_blend_is_claimed(seed):
    model = network(8, torch.float64, seed)
    inputs = batch(3, torch.float64, seed)[0] + 2  # records that activate the same neurons
    for factor in (1.0, 0.0131, -0.0131):
        proof = read(model, update(model, inputs, torch.zeros(3).long(), factor, bce)).proof
        claimed = proof.proposal.inputs[proof.proven]
        apart = (claimed[:, None] - inputs).norm(dim=-1) / inputs.norm(dim=-1)
        assert (apart.amin(1) < 1e-4).all()
        assert proof.batch_size in (None, 3)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_regression_is_not_claimed_as_a_classifier(count):
    model, (inputs, _) = network(), batch(count)
    targets = torch.linspace(-2, 3, count)
    loss = lambda said, y: mse_loss(said.flatten(), y)  # noqa: E731
    reading = read(model, update(model, inputs, targets, loss=loss))
    assert reading.belonging.is_one_step, "neurons balance whatever the loss"
    assert reading.proof.count == 0


def test_logistic_regression_gives_one_record_in_double_precision():
    for dtype, count, proven in ((torch.float64, 1, 1), (torch.float32, 1, 0), (torch.float64, 2, 0)):
        model, (inputs, labels) = network(0, dtype), batch(count, dtype)
        reading = read(model, update(model, inputs, labels, loss=bce))
        assert reading.proof.count == proven
        assert not proven or found_all(reading, inputs, labels)


def test_declared_steps_train_one_row_and_not_two():
    model, (inputs, labels) = network(), batch(4)
    after = copy.deepcopy(model)
    optimiser = torch.optim.SGD(after.parameters(), 0.1, momentum=0.9)
    for _ in range(5):
        optimiser.zero_grad()
        bce(after(inputs), labels).backward()
        optimiser.step()
    declared = Declared(LocalTraining(5, 0.1, momentum=0.9))
    why = reason_to_withhold(copy.deepcopy(model), model.state_dict(), after.state_dict(), declared)
    assert why == "4 samples can be read off it"


FACTORY = """
import torch
from torch import nn

class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)
"""


def test_the_command_reads_batches_and_updates_of_one_output(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FACTORY)
    model, (inputs, labels) = network(), batch(4)
    gradient = update(model, inputs, labels, loss=bce)
    torch.save({f"net.{name}": value for name, value in gradient.items()}, "update.pt")
    np.savez("batch.npz", inputs=inputs.numpy(), labels=labels.numpy())
    np.savez("wrong.npz", inputs=inputs.numpy(), labels=labels.numpy() + 1)
    for given in (("--gradient", "update.pt"), ("--batch", "batch.npz")):
        code, out, _ = run(capsys, monkeypatch, "net.py:Squeezed", *given, "--out", "out")
        assert code == 1
        assert "4 of 4 records are proven" in " ".join(out.split())
    code, _, err = run(capsys, monkeypatch, "net.py:Squeezed", "--batch", "wrong.npz", "--out", "out")
    assert code == 2
    assert "labels from 0 to 1" in err
    squares = update(model, inputs, labels.float(), loss=lambda said, y: mse_loss(said.flatten(), 3 * y))
    torch.save({f"net.{name}": value for name, value in squares.items()}, "squares.pt")
    code, _, _ = run(capsys, monkeypatch, "net.py:Squeezed", "--gradient", "squares.pt", "--out", "out")
    assert code == 3
    assert "update-one-output" in (tmp_path / "out" / "audit.json").read_text()
