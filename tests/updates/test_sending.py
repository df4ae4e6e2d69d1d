"""Updates that show signs of a filter, and noise that is what it is said to be."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_captured import folder, run  # noqa: F401

from remanence import AuditResult, Verdict
from remanence.updates.belonging import realised_noise
from remanence.updates.dense_layers import dense_head
from remanence.updates.sending import codes_of, looks_compressed


def an_update(seed=0):
    torch.manual_seed(seed)
    return {"1.weight": torch.randn(60, 40), "1.bias": torch.randn(60)}


def codes(values, levels):
    step = values.abs().max() / (levels // 2)
    return (values / step).round() * step


def largest(values, share):
    floor = values.abs().flatten().topk(max(1, round(share * values.numel()))).values[-1]
    return values.where(values.abs() >= floor, 0.0)


FILTERS = {
    "int8": lambda v: codes(v, 255),
    "int4": lambda v: codes(v, 15),
    "sign": torch.sign,
    "topk": lambda v: largest(v, 0.1),
}


def test_signs_of_compression_are_seen_and_plain_updates_have_none():
    update = an_update()
    assert looks_compressed(update) is None
    relu_like = {"w": torch.randn(60, 40) * (torch.rand(60, 1) > 0.5)}
    assert looks_compressed(relu_like) is None, "neurons that nobody activates are no compression"
    for name, change in FILTERS.items():
        assert looks_compressed({key: change(value) for key, value in update.items()}) is not None, name
    step = float(update["1.weight"].abs().max()) / 127
    coarse = codes_of({"1.weight": FILTERS["int8"](update["1.weight"])})
    assert coarse is not None
    assert coarse.absolute == pytest.approx(step / 2, rel=1e-3)


@pytest.mark.parametrize("name", ["topk", "sign"])
def test_a_compressed_update_is_unproven_and_says_why(folder, capsys, monkeypatch, name):  # noqa: F811
    sent = {key: FILTERS[name](value) for key, value in load_file("dense.safetensors").items()}
    save_file({key: value.contiguous() for key, value in sent.items()}, "sent.safetensors")
    code, out, _ = run(
        capsys, monkeypatch, "net.py:dense", "--gradient", "sent.safetensors", "--out", "result"
    )
    assert code == 3
    assert "update-compressed" in out
    assert "No record is proven." in out
    assert AuditResult.load(folder / "result").verdict is Verdict.UNPROVEN


def test_declared_noise_is_measured_and_has_a_ceiling(folder, capsys, monkeypatch):  # noqa: F811
    gradient = load_file("dense.safetensors")
    torch.manual_seed(0)
    save_file({n: v + 0.5 * torch.randn_like(v) for n, v in gradient.items()}, "noisy.safetensors")
    options = ["--gradient", "noisy.safetensors", "--batch-size", "6", "--out", "result"]
    code, _, err = run(capsys, monkeypatch, "net.py:dense", *options)
    assert code == 2
    assert "--noise-multiplier" in err
    code, _, err = run(capsys, monkeypatch, "net.py:dense", *options, "--noise-multiplier", "6")
    assert code == 2, "twice the noise that is there"
    assert "not the declared one" in err
    assert not (folder / "result").exists()
    code, out, _ = run(capsys, monkeypatch, "net.py:dense", *options, "--noise-multiplier", "3", "--json")
    assert code == 3
    (bound,) = json.loads(out)["bounds"]
    assert bound["success"] == pytest.approx(0.5 * math.erfc(-(-1.2815516 + 1 / 3) / 2**0.5), abs=1e-3)


def test_the_noise_is_read_off_the_balance_of_the_neurons():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(30, 500), torch.nn.ReLU(), torch.nn.Linear(500, 5))
    inputs, labels = torch.randn(4, 30), torch.randint(5, (4,))
    torch.nn.functional.cross_entropy(network(inputs), labels).backward()
    named = {name: p.grad for name, p in network.named_parameters()}
    head = dense_head(network)
    assert realised_noise(head, head.layers_of(named))[0] < 1e-7
    noisy = {name: value + 0.01 * torch.randn_like(value) for name, value in named.items()}
    found, neurons = realised_noise(head, head.layers_of(noisy))
    assert neurons == 500
    assert found == pytest.approx(0.01, rel=5 / 1000**0.5)
