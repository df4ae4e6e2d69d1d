"""Filters before they are switched on, updates that show signs of one, and noise that is what it is said to be."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_captured import folder, run  # noqa: F401

from remanence import AuditResult, InputError, Verdict
from remanence.updates.belonging import realised_noise
from remanence.updates.dense_layers import dense_head
from remanence.updates.sending import _FILTERS, Filter, codes_of, looks_compressed


def an_update(seed=0):
    torch.manual_seed(seed)
    return {"1.weight": torch.randn(60, 40), "1.bias": torch.randn(60)}


def test_each_filter_does_what_it_says():
    update, generator = an_update(), torch.Generator().manual_seed(0)

    def sent(text):
        return Filter.parse(text).apply(update, generator)["1.weight"]

    assert (sent("topk=0.1") != 0).double().mean() == pytest.approx(0.1, abs=1e-3)
    assert set(sent("sign").unique().tolist()) == {-1.0, 1.0}
    assert len(sent("int4").unique()) <= 15
    assert (sent("int8") - update["1.weight"]).abs().max() <= update["1.weight"].abs().max() / 127 / 2 * 1.001
    assert torch.linalg.matrix_rank(sent("low-rank=3")) == 3
    clipped = Filter.parse("clip=0.5").apply(update, generator)
    assert sum(float(v.square().sum()) for v in clipped.values()) == pytest.approx(0.25, rel=1e-4)
    assert sent("percentile=50,0.01").abs().max() == pytest.approx(0.01)
    assert (sent("percentile=50,0.01") == 0).double().mean() == pytest.approx(0.5, abs=0.05)
    assert (sent("svt") != 0).double().mean() == pytest.approx(0.1, abs=0.03)
    noisy = sent("clip-noise=1,2")
    assert noisy.std() == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("text", ["median", "topk=x", "topk=-1", "sign=3", "clip-noise=1,2,3"])
def test_a_filter_that_nobody_knows_is_named_with_those_that_are(text):
    with pytest.raises(InputError, match="clip-noise=1,1"):
        Filter.parse(text)


def test_only_noise_has_a_ceiling():
    for name in _FILTERS:
        assert bool(Filter.parse(name).ceilings(10)) == (name == "clip-noise")
    # Two clipped updates differ by twice the norm: multiplier 2 is noise of once their distance.
    (bound,) = Filter.parse("clip-noise=1,2").ceilings(10)
    assert float(bound.success) == pytest.approx(0.38914, abs=1e-4)


def test_signs_of_compression_are_seen_and_plain_updates_have_none():
    update, generator = an_update(), torch.Generator().manual_seed(0)
    assert looks_compressed(update) is None
    relu_like = {"w": torch.randn(60, 40) * (torch.rand(60, 1) > 0.5)}
    assert looks_compressed(relu_like) is None, "neurons that nobody activates are no compression"
    for text in ("int8", "int4", "sign", "topk=0.1", "svt"):
        assert looks_compressed(Filter.parse(text).apply(update, generator)) is not None, text
    step = float(update["1.weight"].abs().max()) / 127
    coarse = codes_of({"1.weight": Filter.parse("int8").apply(update, generator)["1.weight"]})
    assert coarse is not None
    assert coarse.absolute == pytest.approx(step / 2, rel=1e-3)


@pytest.mark.parametrize("text", ["topk=0.1", "sign"])
def test_a_compressed_update_is_unproven_and_says_why(folder, capsys, monkeypatch, text):  # noqa: F811
    sent = Filter.parse(text).apply(load_file("dense.safetensors"), torch.Generator().manual_seed(0))
    save_file({name: value.contiguous() for name, value in sent.items()}, "sent.safetensors")
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


def test_a_filter_is_measured_before_and_after(folder, capsys, monkeypatch):  # noqa: F811
    options = ["net.py:dense", "--batch", "batch.npz", "--out", "result", "--filter"]
    code, out, _ = run(capsys, monkeypatch, *options, "clip=0.1")
    assert code == 1
    assert "6 of 6 samples recovered before it, 6 of 6 after it." in " ".join(out.split())
    code, out, _ = run(capsys, monkeypatch, *options, "clip-noise=1,1")
    assert code == 3
    assert "6 of 6 samples recovered before it, 0 of 6 after it. No attack exceeds" in " ".join(out.split())
    code, _, err = run(capsys, monkeypatch, "net.py:dense", "--gradient", "dense.pt", "--filter", "sign")
    assert code == 2
    assert "--batch" in err
