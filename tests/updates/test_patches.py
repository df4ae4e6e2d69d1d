"""Pictures from the gradient of a layer that reads patches: vision transformers, mixers, convolutions like them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import networks
from networks import Heap, Mixer, ViT
from one_update import after_steps, off, update
from remanence import InputError
from remanence.updates.declared import LocalTraining
from remanence.updates.patches.fit import fit_patches
from remanence.updates.patches.model import patch_model
from remanence.updates.patches.reader import verify_pictures
from remanence.updates.rounding import Rounding, coarsest

FLOAT32 = Rounding(1.2e-7)


def made(network, count, shape=(1, 8, 16), dtype=torch.float32):
    torch.manual_seed(0)
    model = network().eval().to(dtype)
    pictures, labels = torch.rand(count, *shape).to(dtype), torch.randint(5 if count < 8 else 10, (count,))
    return model, pictures, labels, update(model, pictures, labels)


def solved(patch, sent, rounding=FLOAT32, training=None, **options):
    """Pictures, labels and their proof from one update."""
    one = {name: value.double() for name, value in sent.items()}
    if training is not None and training.steps > 1:
        options["along"] = training.along
    found, named, _ = fit_patches(
        patch, one, precision=coarsest([one], rounding), is_difference=bool(rounding.tensors), **options
    )
    return found, named, verify_pictures(patch, sent, found, named, rounding=rounding, training=training)


def assert_found(found, named, pictures, labels, most=1e-4):
    assert off(found, pictures).amin(0).max() < most
    nearest = torch.cdist(found.flatten(1), pictures.double().flatten(1)).argmin(1)
    assert torch.equal(named, labels[nearest])


def test_a_batch_of_eight_behind_a_vision_transformer_comes_back_exactly():
    model, pictures, labels, gradient = made(ViT, 8)
    patch = patch_model(model, (1, 8, 16))
    assert (patch.name, patch.places, patch.positions) == ("embed", "places", 2)
    found, named, proof = solved(patch, gradient)
    assert (proof.count, proof.batch_size) == (8, 8)
    assert off(found, pictures).amin(0).max() < proof.error < 1e-2
    assert_found(found, named, pictures, labels, most=1e-2)


def test_one_picture_follows_by_linear_algebra_with_its_patches_in_place():
    model, pictures, labels, gradient = made(lambda: ViT(9, 24), 1, (1, 24, 24))
    patch = patch_model(model)  # the shape follows from the embeddings of positions
    assert patch.shape == (1, 24, 24)
    found, named, _ = solved(patch, gradient, starts=1)
    assert_found(found, named, pictures, labels)


@pytest.mark.parametrize("network", [Mixer, lambda: nn.Sequential(
    nn.Conv2d(1, 24, 8, 8), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5))])  # fmt: skip
def test_mixers_and_convolutions_without_positions_are_solved_for_too(network):
    model, pictures, labels, gradient = made(network, 3)
    found, named, proof = solved(patch_model(model, (1, 8, 16)), gradient)
    assert proof.count == 3
    assert_found(found, named, pictures, labels, most=1e-3)


@pytest.mark.parametrize(("count", "factor", "outputs"), [
    (1, 0.01, 10), (2, 0.5, 10), (4, 37.0, 10), (1, 1.0, 1), (2, 1.0, 1),
])  # fmt: skip
def test_a_factor_hides_no_picture_and_one_output_is_read_as_two_classes(count, factor, outputs):
    model, pictures, labels, sent = made(ViT, count)
    if outputs == 1:
        model.head = nn.Linear(48, 1)
        labels = torch.tensor([1, 0])[:count]
        sent = update(model, pictures, labels)
    found, named, proof = solved(
        patch_model(model, (1, 8, 16)), {name: factor * value for name, value in sent.items()}
    )
    assert proof.count == count
    assert_found(found, named, pictures, labels)


@pytest.mark.parametrize(("part", "steps", "proven"), [
    ("places", 2, 0), ("block", 1, 1), ("block", 2, 1), ("head", 1, 0),
])  # fmt: skip
def test_frozen_parts_are_not_trained_when_an_update_is_made_again(part, steps, proven):
    model, pictures, labels, _ = made(ViT, 1)
    getattr(model, part).requires_grad_(False)
    patch, training = patch_model(model, (1, 8, 16)), LocalTraining(steps, 0.05)
    sent, rounding = after_steps(model, pictures, labels, training)
    found, _, proof = solved(patch, sent, rounding, training)
    assert proof.count == proven
    assert not proven or off(found, pictures).amin(0).max() < 1e-4


@pytest.mark.parametrize(("count", "steps", "rate", "momentum", "decay"), [
    (1, 20, 0.1, 0.0, 0.0), (1, 5, 1.0, 0.9, 1e-2), (2, 2, 0.01, 0.0, 0.0),
])  # fmt: skip
def test_several_local_steps_hide_no_single_picture_and_claim_no_others(count, steps, rate, momentum, decay):
    model, pictures, labels, _ = made(ViT, count)
    training = LocalTraining(steps, rate, momentum, decay)
    patch = patch_model(model, (1, 8, 16))
    sent, rounding = after_steps(model, pictures, labels, training)
    found, named, proof = solved(patch, sent, rounding, training)
    assert proof.count == (count == 1)
    if count == 1:
        assert_found(found, named, pictures, labels)
        one_step_less = replace(training, steps=steps - 1)
        wrong = verify_pictures(patch, sent, found, named, rounding=rounding, training=one_step_less)
        assert not wrong.explains_all


def test_what_cannot_be_computed_anew_claims_no_picture():
    """Under dropout, after steps that nobody declared, and where a layer's columns are another picture's."""
    model, pictures, labels, gradient = made(ViT, 1)
    patch = patch_model(model, (1, 8, 16))
    shuffled = gradient["embed.weight"].flatten(1)[:, torch.randperm(64)].view_as(gradient["embed.weight"])
    moved, rounding = after_steps(
        model.train(), pictures, labels, LocalTraining(3, 0.05, 0.9)
    )  # dropout of 0.1
    for sent, coarse in ((moved, rounding), ({**gradient, "embed.weight": shuffled}, FLOAT32)):
        found, _, proof = solved(patch, sent, coarse, starts=2)
        assert (len(found), proof.count) == (1, 0)


def test_wrong_pictures_wrong_labels_and_foreign_updates_prove_nothing():
    model, pictures, labels, gradient = made(ViT, 2)
    patch = patch_model(model, (1, 8, 16))
    true, other = (
        pictures.double(),
        {n: v + 0.01 * v.std() * torch.randn_like(v) for n, v in gradient.items()},
    )
    for given, count in (
        ((gradient, true, labels), 2),
        ((gradient, true + 1e-3 * torch.randn_like(true), labels), 0),
        ((gradient, true, (labels + 1) % 5), 0),
        ((gradient, true[:1], labels[:1]), 0),
        ((other, true, labels), 0),
    ):
        assert verify_pictures(patch, *given, rounding=FLOAT32).count == count
    for foreign in (other, {name: torch.randn_like(value) for name, value in gradient.items()}):
        assert solved(patch, foreign, starts=1)[2].count == 0


@pytest.mark.parametrize("network", [
    nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 2)),
    nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    ViT().requires_grad_(False),
])  # fmt: skip
def test_networks_without_patches_are_refused(network):
    with pytest.raises(InputError, match="patches"):
        patch_model(network)


def test_the_command_proves_pictures_and_refuses_nothing_that_it_cannot_read(run):
    _, pictures, labels, gradient = made(lambda: ViT(4, 40), 1, (1, 16, 16))
    torch.manual_seed(1)
    save_file(gradient, "own.safetensors")
    save_file({n: torch.randn_like(v) for n, v in gradient.items()}, "noise.safetensors")
    for label in (int(labels), 12):
        np.savez(f"{label}.npz", inputs=pictures.numpy(), labels=np.array([label]))
    for options, code in (
        (("--gradient", "own.safetensors"), 1),
        (("--gradient", "noise.safetensors"), 3),
        (("--batch", f"{int(labels)}.npz"), 1),
        (("--batch", "12.npz"), 2),
    ):
        found, *said = run("update", f"{networks.__file__}:vit", *options, "--out", "out")
        told = " ".join(" ".join(said).split())
        assert found == code, told
        assert ("The one record is proven" in told) == (code == 1)
        assert ("labels from 12 to 12" if code == 2 else "only if the whole update can be recomputed") in told
        if code != 2:
            assert ("Send less." in Path("out/report.html").read_text()) == (code == 1)
            assert ("patches-open" in Path("out/audit.json").read_text()) == (code == 3)


def test_half_precision_proves_right_pictures_and_no_others():
    model, pictures, labels, gradient = made(ViT, 2)
    patch, sent = patch_model(model, (1, 8, 16)), {name: part.half() for name, part in gradient.items()}
    strangers = torch.rand(pictures.shape, generator=torch.Generator().manual_seed(1))
    for guess, count in ((pictures, 2), (strangers, 0), (pictures.flip(0), 0), (0.5 * pictures, 0)):
        rounding = Rounding(float(torch.finfo(torch.float16).eps))
        proof = verify_pictures(patch, sent, guess.double(), labels, rounding=rounding)
        assert proof.count == count
        assert count == 0 or proof.unexplained < 1e-3  # large tensors are looked at in half precision too


def test_an_order_of_patches_that_the_network_cannot_tell_is_not_claimed():
    model, pictures, labels, gradient = made(Heap, 2)
    patch = patch_model(model, (1, 8, 16))
    for order in ([0, 1], [1, 0]):
        shown = patch.pictures(patch.patches(pictures.double())[:, order])
        proof = verify_pictures(patch, gradient, shown, labels, rounding=FLOAT32)
        assert (proof.count, proof.is_ordered) == (2, False)
    model, pictures, labels, gradient = made(Mixer, 2)
    patch = patch_model(model, (1, 8, 16))
    assert verify_pictures(patch, gradient, pictures.double(), labels, rounding=FLOAT32).is_ordered


@pytest.mark.parametrize(("dtype", "worst"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2)])
def test_half_precision_hides_no_picture_and_the_error_is_stated(dtype, worst):
    model, pictures, labels, gradient = made(lambda: ViT(2, 96), 1)
    sent = {name: value.to(dtype).double() for name, value in gradient.items()}
    found, named, proof = solved(patch_model(model, (1, 8, 16)), sent, Rounding(torch.finfo(dtype).eps))
    assert proof.count == 1
    assert torch.equal(named, labels)
    assert off(found, pictures).amin(0).max() < min(proof.error, worst)
