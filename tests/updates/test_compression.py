"""Updates that were filtered, and noise that is what it is said to be."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_batches import batch, network
from test_captured import ask, audited  # noqa: F401

from one_update import update
from remanence import Policy
from remanence.core.exceptions import MisfitError
from remanence.updates.declared import Declared
from remanence.updates.dense.belonging import realised_noise
from remanence.updates.dense.layers import dense_head
from remanence.updates.inspection import inspect, open_update


def codes(values, levels):
    step = values.abs().max() / (levels // 2)
    return (values / step).round() * step


def largest(values, share):
    floor = values.abs().flatten().topk(max(1, round(share * values.numel()))).values[-1]
    return values.where(values.abs() >= floor, 0.0)


FILTERS = {
    "int8": lambda v: codes(v, 255),
    "int4": lambda v: codes(v, 15),
    "int3": lambda v: codes(v, 7),
    "sign": torch.sign,
    "topk": lambda v: largest(v, 0.1),
}


def records(kind, count, numbers):
    if kind == "one-hot":
        return torch.eye(numbers)[torch.randint(numbers, (count,))]
    return (torch.rand(count, numbers) < 0.3).float() if kind == "binary" else torch.randn(count, numbers)


def dense_update(kind, seed=0, count=4, width=60):
    model = network(40, width, 5, seed=seed)
    inputs, labels = records(kind, count, 40), torch.randint(5, (count,))
    return model, update(model, inputs, labels)


def opened(model, sent):
    return open_update(model, sent, Declared())


def claimed(subject):
    return sum(entry.proven for entry in inspect(subject, policy=Policy(0.1), target="here").evidence)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("width", [32, 200])
def test_an_update_that_was_compressed_is_refused(name, width):
    for seed in range(3):
        model, sent = dense_update("normal", seed, count=2, width=width)
        with pytest.raises(MisfitError, match="balance"):
            opened(model, {key: FILTERS[name](value) for key, value in sent.items()})


@pytest.mark.parametrize("kind", ["one-hot", "binary"])
@pytest.mark.parametrize("foreign", ["columns", "network", "stale"])
def test_updates_of_few_different_numbers_are_asked_whether_they_belong(kind, foreign):
    for seed in range(3):
        model, sent = dense_update(kind, seed)
        assert claimed(opened(model, sent)) > 0, "genuine"
        if foreign == "columns":
            sent["0.weight"] = sent["0.weight"][:, torch.randperm(40)]
        elif foreign == "network":
            sent = dense_update(kind, seed + 10)[1]
        else:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter *= 1 + 0.1 * torch.randn_like(parameter)
        with pytest.raises(MisfitError):
            opened(model, sent)


@pytest.mark.parametrize("coarse", [torch.bfloat16, torch.float16])
def test_numbers_that_were_rounded_before_they_were_stored_count_as_rounded(coarse):
    model, sent = dense_update("normal", 1, width=200)
    subject = opened(model, {key: value.to(coarse).float() for key, value in sent.items()})
    assert subject.rounding.is_coarse
    assert claimed(subject) == claimed(opened(model, {k: v.to(coarse) for k, v in sent.items()})) > 0
    wide = opened(model, {key: value.double() for key, value in sent.items()})
    assert wide.rounding.relative == pytest.approx(1.2e-7, rel=0.1)


def test_declared_noise_is_measured_and_has_a_ceiling(ask):  # noqa: F811
    gradient = load_file("dense.safetensors")
    torch.manual_seed(0)
    save_file({n: v + 0.5 * torch.randn_like(v) for n, v in gradient.items()}, "noisy.safetensors")
    for noise, code, said in (
        ([], 2, "--noise-multiplier"),
        (["--noise-multiplier", "6"], 2, "not the declared one"),  # twice the noise that is there
        (["--noise-multiplier", "3"], 3, "UNPROVEN"),
    ):
        found, told = ask("dense", "--gradient", "noisy.safetensors", "--batch-size", "6", *noise)
        assert found == code
        assert said in told
        assert Path("out").exists() == (code == 3)
    mechanism = audited()["threat_model"]["mechanism"]
    assert (mechanism["noise_multiplier"], mechanism["max_grad_norm"]) == (3.0, 1.0)
    (bound,) = audited()["bounds"]
    assert bound["success"] == pytest.approx(0.5 * math.erfc(-(-1.2815516 + 1 / 3) / 2**0.5), abs=1e-3)


@pytest.mark.parametrize(("sizes", "deviation", "count"), [((30, 500, 5), 0.01, 500), ((64, 100), 0.25, 64)])
def test_the_noise_is_read_off_the_balance_of_neurons_or_the_columns_sums(sizes, deviation, count):
    model = network(*sizes)
    sent, head = update(model, *batch(4, model)), dense_head(model)
    assert realised_noise(head, head.layers_of(sent))[0] < 1e-7
    noisy = {name: value + deviation * torch.randn_like(value) for name, value in sent.items()}
    found, numbers = realised_noise(head, head.layers_of(noisy))
    assert numbers == count
    assert found == pytest.approx(deviation, rel=5 / (2 * count) ** 0.5)
