"""Pictures from the gradient of a layer that reads patches: vision transformers, mixers, convolutions like them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from typer.testing import CliRunner

from remanence import InputError
from remanence.cli.main import app
from remanence.updates.declared import LocalTraining
from remanence.updates.opening import rounding_of_difference
from remanence.updates.patches.fit import fit_patches
from remanence.updates.patches.model import patch_model
from remanence.updates.patches.reader import verify_pictures
from remanence.updates.rounding import Rounding, coarsest

FLOAT32 = 1.2e-7


class ViT(nn.Module):
    """A vision transformer of one layer, as people write them."""

    def __init__(self, positions=2, numbers=48):
        super().__init__()
        self.embed = nn.Conv2d(1, numbers, 8, 8)
        self.classes = nn.Parameter(0.02 * torch.randn(1, 1, numbers))
        self.places = nn.Parameter(0.02 * torch.randn(1, positions + 1, numbers))
        self.block = nn.TransformerEncoderLayer(
            numbers, 2, 48, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(numbers, 10)

    def forward(self, pictures):
        tokens = self.embed(pictures).flatten(2).mT
        tokens = torch.cat([self.classes.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.block(tokens)[:, 0])


class Mixer(nn.Module):
    """No embedding of positions: what mixes them tells them apart."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 8, 8)
        self.mix = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 2))
        self.head = nn.Linear(24, 5)

    def forward(self, pictures):
        tokens = self.stem(pictures).flatten(2)
        return self.head(nn.functional.gelu(tokens + self.mix(tokens)).mean(2))


def made(network, count, shape=(1, 8, 16), dtype=torch.float32):
    torch.manual_seed(0)
    model = network().eval().to(dtype)
    pictures, labels = torch.rand(count, *shape).to(dtype), torch.randint(5 if count < 8 else 10, (count,))
    named = dict(model.named_parameters())
    parts = torch.autograd.grad(cross_entropy(model(pictures), labels), list(named.values()))
    return model, pictures, labels, {name: part.clone() for name, part in zip(named, parts, strict=True)}


def distances(found, pictures):
    return torch.cdist(pictures.double().flatten(1), found.flatten(1)).amin(1) / pictures.double().flatten(
        1
    ).norm(dim=1)


def test_a_batch_of_eight_behind_a_vision_transformer_comes_back_exactly():
    model, pictures, labels, gradient = made(ViT, 8)
    patch = patch_model(model, (1, 8, 16))
    assert (patch.name, patch.places, patch.positions) == ("embed", "places", 2)
    found, named, patches = fit_patches(patch, gradient_of(gradient), precision=FLOAT32)
    assert (len(found), patches) == (8, 16)
    proof = verify_pictures(patch, gradient, found, named, rounding=Rounding(FLOAT32))
    assert (proof.count, proof.batch_size) == (8, 8)
    off = distances(found, pictures)
    assert off.max() < proof.error < 1e-2
    nearest = torch.cdist(found.flatten(1), pictures.double().flatten(1)).argmin(1)
    assert torch.equal(named, labels[nearest])


def gradient_of(gradient):
    return {name: value.double() for name, value in gradient.items()}


def test_one_picture_follows_by_linear_algebra_with_its_patches_in_place():
    model, pictures, labels, gradient = made(lambda: ViT(9, 24), 1, (1, 24, 24))
    patch = patch_model(model)  # the shape follows from the embeddings of positions
    assert patch.shape == (1, 24, 24)
    found, named, _ = fit_patches(patch, gradient_of(gradient), precision=FLOAT32, starts=1)
    assert distances(found, pictures).max() < 1e-4
    assert torch.equal(named, labels)


@pytest.mark.parametrize("network", [Mixer, lambda: nn.Sequential(
    nn.Conv2d(1, 24, 8, 8), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5))])  # fmt: skip
def test_mixers_and_convolutions_without_positions_are_solved_for_too(network):
    model, pictures, _, gradient = made(network, 3)
    patch = patch_model(model, (1, 8, 16))
    found, named, _ = fit_patches(patch, gradient_of(gradient), precision=FLOAT32)
    assert verify_pictures(patch, gradient, found, named, rounding=Rounding(FLOAT32)).count == 3
    assert distances(found, pictures).max() < 1e-3


@pytest.mark.parametrize(("count", "factor"), [(1, 0.01), (2, 0.5), (4, 37.0)])
def test_an_update_that_was_multiplied_hides_no_picture(count, factor):
    model, pictures, labels, gradient = made(ViT, count)
    patch, sent = patch_model(model, (1, 8, 16)), {name: factor * value for name, value in gradient.items()}
    found, named, _ = fit_patches(patch, gradient_of(sent), precision=FLOAT32)
    assert verify_pictures(patch, sent, found, named, rounding=Rounding(FLOAT32)).count == count
    assert distances(found, pictures).max() < 1e-4
    nearest = torch.cdist(found.flatten(1), pictures.double().flatten(1)).argmin(1)
    assert torch.equal(named, labels[nearest])


@pytest.mark.parametrize(("part", "steps", "proven"), [
    ("places", 2, 0), ("block", 1, 1), ("block", 2, 1), ("head", 1, 0),
])  # fmt: skip
def test_frozen_parts_are_not_trained_when_an_update_is_made_again(part, steps, proven):
    model, pictures, labels, _ = made(ViT, 1)
    getattr(model, part).requires_grad_(False)
    patch, rate, training = patch_model(model, (1, 8, 16)), 0.05, LocalTraining(steps, 0.05)
    before = {name: value.clone() for name, value in patch.trained.items()}
    free = {name: value for name, value in model.named_parameters() if value.requires_grad}
    optimiser = torch.optim.SGD(free.values(), rate)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(model(pictures), labels).backward()
        optimiser.step()
    sent = {name: (before[name] - value.detach()).double() / rate for name, value in free.items()}
    rounding = rounding_of_difference({name: value.float() for name, value in before.items()}).times(1 / rate)
    along = training.along if steps > 1 else None
    found, named, _ = fit_patches(
        patch, sent, precision=coarsest([sent], rounding), along=along, is_difference=True
    )
    proof = verify_pictures(patch, sent, found, named, rounding=rounding, training=training)
    assert proof.count == proven
    assert not proven or distances(found, pictures).max() < 1e-4


@pytest.mark.parametrize("count", [1, 2])
def test_one_output_is_read_as_two_classes(count):
    torch.manual_seed(0)
    model = ViT()
    model.head = nn.Linear(48, 1)
    model.eval()
    pictures, labels = torch.rand(count, 1, 8, 16), torch.tensor([1, 0])[:count]
    named = dict(model.named_parameters())
    loss = binary_cross_entropy_with_logits(model(pictures).flatten(), labels.float())
    sent = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    patch = patch_model(model, (1, 8, 16))
    found, told, _ = fit_patches(patch, gradient_of(sent), precision=FLOAT32)
    assert verify_pictures(patch, sent, found, told, rounding=Rounding(FLOAT32)).count == count
    assert distances(found, pictures).max() < 1e-4
    assert torch.equal(told, labels[torch.cdist(found.flatten(1), pictures.double().flatten(1)).argmin(1)])


@pytest.mark.parametrize(("count", "steps", "rate", "momentum", "decay"), [
    (1, 20, 0.1, 0.0, 0.0), (1, 5, 1.0, 0.9, 1e-2), (2, 2, 0.01, 0.0, 0.0),
])  # fmt: skip
def test_several_local_steps_hide_no_single_picture_and_claim_no_others(count, steps, rate, momentum, decay):
    model, pictures, labels, _ = made(ViT, count)
    training = LocalTraining(steps, rate, momentum, decay)
    optimiser = torch.optim.SGD(model.parameters(), rate, momentum, weight_decay=decay)
    patch = patch_model(model, (1, 8, 16))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(model(pictures), labels).backward()
        optimiser.step()
    sent = {name: (before[name] - value.detach()).double() / rate for name, value in model.named_parameters()}
    rounding = rounding_of_difference(before).times(1 / rate)
    precision = coarsest([sent], rounding)
    found, named, _ = fit_patches(patch, sent, precision=precision, along=training.along, is_difference=True)
    proof = verify_pictures(patch, sent, found, named, rounding=rounding, training=training)
    assert proof.count == (count == 1)
    if count > 1:
        return
    assert distances(found, pictures).max() < 1e-4
    one_step_less = replace(training, steps=steps - 1)
    wrong = verify_pictures(patch, sent, found, named, rounding=rounding, training=one_step_less)
    assert not wrong.explains_all


def test_what_cannot_be_computed_anew_claims_no_picture():
    """Under dropout, after steps that nobody declared, and where a layer's columns are another picture's."""
    model, pictures, labels, gradient = made(ViT, 1)
    patch = patch_model(model, (1, 8, 16))
    shuffled = gradient["embed.weight"].flatten(1)[:, torch.randperm(64)].view_as(gradient["embed.weight"])
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = torch.optim.SGD(
        model.train().parameters(), 0.05, momentum=0.9
    )  # dropout of 0.1 inside the block
    for _ in range(3):
        optimiser.zero_grad()
        cross_entropy(model(pictures), labels).backward()
        optimiser.step()
    moved = {n: (before[n] - value.detach()).double() for n, value in model.named_parameters()}
    rounding = rounding_of_difference(before)
    for sent, coarse in ((moved, rounding), ({**gradient, "embed.weight": shuffled}, Rounding(FLOAT32))):
        one = gradient_of(sent)
        precision, even = coarsest([one], coarse), bool(coarse.tensors)
        found, named, _ = fit_patches(patch, one, precision=precision, is_difference=even, starts=2)
        assert len(found) == 1
        assert verify_pictures(patch, sent, found, named, rounding=coarse).count == 0


def test_wrong_pictures_wrong_labels_and_foreign_updates_prove_nothing():
    model, pictures, labels, gradient = made(ViT, 2)
    patch = patch_model(model, (1, 8, 16))
    true = pictures.double()
    assert verify_pictures(patch, gradient, true, labels, rounding=Rounding(FLOAT32)).count == 2
    other = {name: value + 0.01 * value.std() * torch.randn_like(value) for name, value in gradient.items()}
    for wrong in (
        (gradient, true + 1e-3 * torch.randn_like(true), labels),
        (gradient, true, (labels + 1) % 5),
        (gradient, true[:1], labels[:1]),
        (other, true, labels),
    ):
        assert verify_pictures(patch, *wrong, rounding=Rounding(FLOAT32)).count == 0
    for foreign in (other, {name: torch.randn_like(value) for name, value in gradient.items()}):
        found, named, _ = fit_patches(patch, gradient_of(foreign), precision=FLOAT32, starts=1)
        assert verify_pictures(patch, foreign, found, named, rounding=Rounding(FLOAT32)).count == 0


def test_patches_that_span_everything_are_left_open():
    model, _, _, gradient = made(ViT, 30)
    patch = patch_model(model, (1, 8, 16))
    found, named, _ = fit_patches(patch, gradient_of(gradient), precision=FLOAT32, starts=1)
    assert (len(found), len(named)) == (0, 0)


@pytest.mark.parametrize("network", [
    nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 2)),
    nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    ViT().requires_grad_(False),
])  # fmt: skip
def test_networks_without_patches_are_refused(network):
    with pytest.raises(InputError, match="patches"):
        patch_model(network)


def test_the_command_proves_pictures_and_refuses_nothing_that_it_cannot_read(tmp_path):
    model, _, _, gradient = made(lambda: ViT(4, 40), 1, (1, 16, 16))
    here = str(Path(__file__).parent)
    (tmp_path / "net.py").write_text(
        f"import sys\nsys.path.insert(0, {here!r})\nfrom test_patches import ViT\n\n"
        "def make():\n    return ViT(4, 40)\n"
    )
    save_file(gradient, tmp_path / "update.safetensors")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    arguments = ["update", f"{tmp_path / 'net.py'}:make", "--before", str(tmp_path / "weights.safetensors")]
    out = ["--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, [*arguments, "--gradient", str(tmp_path / "update.safetensors"), *out])
    assert run.exit_code == 1, run.output
    told = " ".join(run.output.split())
    assert "The one record is proven" in told
    assert "Records count only if the whole update can be recomputed from them." in told
    assert "Send less." in (tmp_path / "out" / "report.html").read_text()
    torch.manual_seed(1)
    save_file({n: torch.randn_like(v) for n, v in gradient.items()}, tmp_path / "noise.safetensors")
    run = CliRunner().invoke(app, [*arguments, "--gradient", str(tmp_path / "noise.safetensors"), *out])
    assert run.exit_code != 1, run.output
    assert "patches-open" in (tmp_path / "out" / "audit.json").read_text()


def test_half_precision_proves_right_pictures_and_no_others():
    model, pictures, labels, gradient = made(ViT, 2)
    reader, sent = patch_model(model, (1, 8, 16)), {name: part.half() for name, part in gradient.items()}
    precision = float(torch.finfo(torch.float16).eps)

    def verified(guess):
        return verify_pictures(reader, sent, guess.double(), labels, rounding=Rounding(precision))

    def proven(guess):
        return verified(guess).count

    assert proven(pictures) == 2
    assert (
        verified(pictures).unexplained < 1e-3
    )  # of the large tensors, which are looked at in half precision too
    assert proven(torch.rand(pictures.shape, generator=torch.Generator().manual_seed(1))) == 0
    assert proven(pictures.flip(0)) == 0
    assert proven(0.5 * pictures) == 0


class Heap(nn.Module):
    """Attention without positions: it reads the patches of a picture as a heap."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 24, 8, 8)
        self.block = nn.TransformerEncoderLayer(24, 2, 32, activation="gelu", batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, pictures):
        return self.head(self.block(self.embed(pictures).flatten(2).mT).mean(1))


def test_an_order_of_patches_that_the_network_cannot_tell_is_not_claimed():
    model, pictures, labels, gradient = made(Heap, 2)
    patch = patch_model(model, (1, 8, 16))
    for order in ([0, 1], [1, 0]):
        shown = patch.pictures(patch.patches(pictures.double())[:, order])
        proof = verify_pictures(patch, gradient, shown, labels, rounding=Rounding(FLOAT32))
        assert (proof.count, proof.is_ordered) == (2, False)
    model, pictures, labels, gradient = made(Mixer, 2)
    patch = patch_model(model, (1, 8, 16))
    assert verify_pictures(patch, gradient, pictures.double(), labels, rounding=Rounding(FLOAT32)).is_ordered


@pytest.mark.parametrize(("dtype", "worst"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2)])
def test_half_precision_hides_no_picture_and_the_error_is_stated(dtype, worst):
    model, pictures, labels, gradient = made(lambda: ViT(2, 96), 1)
    sent = {name: value.to(dtype).double() for name, value in gradient.items()}
    patch, precision = patch_model(model, (1, 8, 16)), torch.finfo(dtype).eps
    found, named, _ = fit_patches(patch, sent, precision=precision)
    proof = verify_pictures(patch, sent, found, named, rounding=Rounding(precision))
    assert proof.count == 1
    assert torch.equal(named, labels)
    assert distances(found, pictures).max() < min(proof.error, worst)


def test_a_batch_that_is_about_to_be_sent_gives_its_pictures_away_too(tmp_path):
    here = str(Path(__file__).parent)
    (tmp_path / "net.py").write_text(
        f"import sys\nsys.path.insert(0, {here!r})\nimport torch\nfrom test_patches import ViT\n\n"
        "def make():\n    torch.manual_seed(0)\n    return ViT(4, 40)\n"
    )
    pictures = np.random.default_rng(0).random((1, 1, 16, 16), dtype=np.float32)
    arguments = ["update", f"{tmp_path / 'net.py'}:make", "--batch", str(tmp_path / "batch.npz")]
    np.savez(tmp_path / "batch.npz", inputs=pictures, labels=np.array([3]))
    run = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert run.exit_code == 1, run.output
    assert "The one record is proven" in " ".join(run.output.split())
    np.savez(tmp_path / "batch.npz", inputs=pictures, labels=np.array([12]))
    run = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert isinstance(run.exception, InputError)
    assert run.exception.got == "labels from 12 to 12"
