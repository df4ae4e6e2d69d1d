"""A gradient that somebody captured, and the command that takes it apart."""

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_exact import batch, leak
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot

from conftest import relu_network
from one_update import update
from remanence import AuditResult, Exact, InputError, Policy, SharedGradient, Verdict, play
from remanence.cli.main import main
from remanence.core.releases import Gradient
from remanence.updates import opening
from remanence.updates.captured import Captured
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense import reader as dense_reader
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import reconstruct_at_any_scale
from remanence.updates.inspection import inspect, open_update, read
from remanence.updates.watching import loss_of

FACTORY = """
import torch
from torch import nn

def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 200), nn.ReLU(), nn.Linear(200, 7))

def conv():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 7))

def mixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 200), nn.ReLU(), nn.Linear(200, 7), nn.Softmax(1))

def frozen():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())

def large():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(600, 1000), nn.ReLU(), nn.Linear(1000, 4000), nn.ReLU(), nn.Linear(4000, 7))

class Squeezed(nn.Sequential):
    def forward(self, x):
        return super().forward(x).squeeze(-1)

def one():
    torch.manual_seed(0)
    return Squeezed(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1))

class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)

def probe():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    trunk = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.Flatten(2), encoder, Mean())
    return nn.Sequential(trunk.requires_grad_(False), nn.Linear(4, 10))

def nothing():
    return 3

def still():
    return dense().requires_grad_(False)
"""


def made(name):
    namespace = {}
    exec(FACTORY, namespace)  # noqa: S102
    return namespace[name]()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FACTORY)
    inputs, labels = batch(6, 36, 7, 0)
    inputs = inputs.float().view(-1, 1, 6, 6)
    np.savez(tmp_path / "batch.npz", inputs=inputs.numpy(), labels=labels.numpy())
    for name in ("dense", "conv"):
        network = made(name)
        cross_entropy(network(inputs), labels).backward()
        save_file({n: p.grad for n, p in network.named_parameters()}, tmp_path / f"{name}.safetensors")
        torch.save({n: p.grad for n, p in network.named_parameters()}, tmp_path / f"{name}.pt")
        torch.save(network.state_dict(), tmp_path / f"{name}.weights.pt")
    return tmp_path


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["remanence", "update", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def saved(tensors, path):
    path = Path(path)
    if path.suffix == ".npz":
        np.savez(path, *[value.numpy() for value in tensors.values()])  # without names, as Flower's users do
    elif path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)


ROUND = ["--before", "dense.weights.pt", "--after", "sent.safetensors"]
WAYS = {  # of sending one step at a rate of 0.05: the tensors, their file, options, and what is said besides
    "gradient": (lambda w, g: g, "sent.safetensors", [], ""),
    "state dict": (lambda w, g: g, "sent.pt", [], ""),
    "DataParallel": (lambda w, g: {f"module.{n}": v for n, v in g.items()}, "sent.pt", [], ""),
    "compiled": (lambda w, g: {f"module._orig_mod.{n}": v for n, v in g.items()}, "sent.pt", [], ""),
    "difference": (lambda w, g: {n: (w[n] - 0.05 * g[n]) - w[n] for n in g}, "sent.pt", [], "its sign was flipped"),
    "with a rate": (
        lambda w, g: {n: (w[n] - 0.05 * g[n]) - w[n] for n in g}, "sent.pt", ["--learning-rate", "0.05"], ""
    ),
    "weights as update": (lambda w, g: {n: w[n] - 0.05 * g[n] for n in g}, "sent.pt", [], "holds weights, not an"),
    "weights after": (lambda w, g: {n: w[n] - 0.05 * g[n] for n in g}, "sent.safetensors", ROUND, ""),
    "without names": (
        lambda w, g: {n: w[n] - 0.05 * g[n] for n in w}, "sent.npz",
        ["--before", "before.npz", "--after", "sent.npz"], "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_update_gives_its_batch_away_however_it_is_sent(folder, capsys, monkeypatch, way):
    make, file, options, said = WAYS[way]
    weights, gradient = (torch.load(name, weights_only=True) for name in ("dense.weights.pt", "dense.pt"))
    saved(make(weights, gradient), file)
    saved(weights, "before.npz")
    options = options if "--after" in options else ["--gradient", file, *options]
    code, out, _ = run(
        capsys, monkeypatch, "net.py:dense", *options, "--max-success", "0.99", "--out", "result"
    )
    assert code == 1, "a proven record is a fact, whatever the limit"
    assert all(
        phrase in " ".join(out.split())
        for phrase in ("EXPOSED", "Leak map", "6 of 6 records are proven", said)
    )
    assert ("its sign was flipped" in out) == (way == "difference")
    result = AuditResult.load(folder / "result")
    assert (result.strongest.main.successes, result.strongest.main.trials) == (6, 6)
    assert result.strongest.control.successes == 0
    leaks = result.subject["leak_map"]
    assert [entry["name"] for entry in leaks] == ["1", "3"]
    assert max(entry["unexplained"] for entry in leaks) < 1e-3


@pytest.mark.parametrize(
    ("keep", "complaint"), [(slice(3), "3 arrays"), (slice(None, None, -1), "another shape")]
)
def test_arrays_without_names_must_be_the_network_s_in_their_order(
    folder, capsys, monkeypatch, keep, complaint
):
    arrays = [value.numpy() for value in torch.load("dense.weights.pt", weights_only=True).values()]
    np.savez("wrong.npz", *arrays[keep])
    code, _, err = run(capsys, monkeypatch, "net.py:dense", "--after", "wrong.npz", "--out", "result")
    assert code == 2
    assert complaint in err


def test_several_gradients_count_every_sample(folder, capsys, monkeypatch):
    twice = ["--gradient", "dense.safetensors", "--gradient", "dense.pt"]
    code, out, _ = run(capsys, monkeypatch, "net.py:dense", *twice, "--json", "--out", "result")
    assert code == 1
    assert json.loads(out)["evidence"][0]["main"]["trials"] == 12


def test_an_own_batch_is_reported_sample_by_sample(folder, capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, "net.py:dense", "--batch", "batch.npz", "--out", "result")
    assert code == 1
    assert "samples expose their inputs" in out
    assert "exclusive per sample" in out


def test_behind_convolutions_features_are_at_stake(folder, capsys, monkeypatch):
    options = ["--gradient", "conv.safetensors", "--input-shape", "1,6,6", "--out", "result"]
    code, out, _ = run(capsys, monkeypatch, "net.py:conv", *options)
    assert code == 1
    assert "64 features that enter 3" in out


def test_a_probe_on_a_frozen_vision_transformer_is_read_by_its_features(folder, capsys, monkeypatch):
    pictures, labels = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(2)
    torch.save(update(made("probe").eval(), pictures, labels), "probe.pt")
    asked = ("--gradient", "probe.pt", "--input-shape", "1,8,8", "--out", "out")
    code, out, _ = run(capsys, monkeypatch, "net.py:probe", *asked)
    assert code == 1
    assert "2 of 2 records are proven" in " ".join(out.split())


def test_the_command_reads_batches_and_updates_of_one_output(folder, capsys, monkeypatch):
    model, inputs, labels = made("one"), batch(4, 30, 7, 0)[0].float(), torch.tensor([0, 1, 1, 0])
    torch.save(update(model, inputs, labels, loss=loss_of), "update.pt")
    torch.save(
        update(model, inputs, 3 * labels, loss=lambda said, y: mse_loss(said, y.float())), "squares.pt"
    )
    for name, answers in (("own", labels), ("wrong", labels + 1)):
        np.savez(f"{name}.npz", inputs=inputs.numpy(), labels=answers.numpy())
    for given, code, told in (
        (("--gradient", "update.pt"), 1, "4 of 4 records are proven"),
        (("--batch", "own.npz"), 1, "4 of 4 records are proven"),
        (("--batch", "wrong.npz"), 2, "labels from 0 to 1"),
        (("--gradient", "squares.pt"), 3, "No record is proven"),
    ):
        found, out, err = run(capsys, monkeypatch, "net.py:one", *given, "--out", "out")
        assert found == code, given
        assert told in " ".join((out + err).split())
    assert "update-one-output" in (folder / "out" / "audit.json").read_text()


@pytest.mark.parametrize("change", [lambda value: value + 0.05, lambda value: value * 1.01])
def test_an_update_of_other_weights_is_refused_and_gets_no_verdict(folder, capsys, monkeypatch, change):
    weights = torch.load("dense.weights.pt", weights_only=True)
    torch.manual_seed(1)
    torch.save(
        {name: change(value) * (1 + 0.01 * torch.randn_like(value)) for name, value in weights.items()},
        "other.pt",
    )
    options = ["--weights", "other.pt", "--gradient", "dense.pt", "--out", "result"]
    code, _, err = run(capsys, monkeypatch, "net.py:dense", *options)
    assert code == 2
    assert "off balance" in err
    assert "--weights" in err
    assert not (folder / "result").exists()


def spoil(**changes):
    gradient = torch.load("dense.pt", weights_only=True)
    for name, change in changes.items():
        gradient[name.replace("_", ".")] = change(gradient[name.replace("_", ".")])
    torch.save(gradient, "spoilt.pt")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"1_weight": lambda g: g[:, :5].contiguous()}, "gradient of 1.weight has another shape"),
        ({"3_bias": lambda g: g * torch.nan}, "gradient of 3.bias is not finite"),
        ({"1_weight": lambda g: g.to(torch.float8_e4m3fn)}, "gradient of 1.weight is in a format"),
        ({"1_weight": lambda g: (g * 100).to(torch.int8)}, "gradient of 1.weight is in a format"),
        (
            dict.fromkeys(("1_weight", "1_bias", "3_weight", "3_bias"), torch.zeros_like),
            "zero everywhere",
        ),
    ],
)
def test_a_gradient_that_cannot_be_used_is_refused_by_layer(folder, capsys, monkeypatch, changes, complaint):
    spoil(**changes)
    code, _, err = run(capsys, monkeypatch, "net.py:dense", "--gradient", "spoilt.pt", "--out", "result")
    assert code == 2
    assert complaint in err
    assert all(word in err for word in ("needs:", "got:", "try:"))
    assert not (folder / "result").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["net.py:dense"], "exactly one of an update"),
        (
            ["net.py:dense", "--batch", "batch.npz", "--gradient", "dense.pt"],
            "exactly one of an update",
        ),
        (["net.py:dense", "--gradient", "conv.safetensors"], "missing 1.bias, 1.weight"),
        (["net.py:dense", "--gradient", "absent.pt"], "no such file"),
        (["net.py:dense", "--gradient", "dense.pt", "--learning-rate", "0"], "learning_rate"),
        (["net.py:dense", "--gradient", "dense.pt", "--longest", "0"], "longest"),
        (["net.py:dense", "--gradient", "net.py"], "cannot be read"),
        (["net.py:dense", "--batch", "net.py"], "file is not a zip file"),
        (["net.py:dense", "--gradient", "dense.pt", "--weights", "conv.weights.pt"], "weights do not fit"),
        (
            ["net.py:dense", "--gradient", "dense.pt", "--input-shape", "3,x"],
            "shape of an input cannot be read",
        ),
        (["net.py:mixed", "--gradient", "dense.pt"], "a softmax or a sigmoid at its end belongs to the loss"),
        (["net.py:frozen", "--gradient", "dense.pt"], "no fully connected layer"),
        (["net.py:conv", "--gradient", "conv.pt"], "--input-shape 3,32,32"),
        (["net.py:nothing", "--gradient", "dense.pt"], "no network to audit"),
        (["net.py:still", "--gradient", "dense.pt"], "this network is entirely frozen"),
        (["digits-gradient", "--gradient", "dense.pt"], "no network to audit"),
    ],
)
def test_wrong_input_ends_with_a_sentence(folder, capsys, monkeypatch, arguments, complaint):
    code, _, err = run(capsys, monkeypatch, *arguments, "--out", "result")
    assert code == 2
    assert complaint in err.lower().replace("needs: ", "needs: ")
    assert not (folder / "result").exists()


@pytest.mark.parametrize(
    ("labels", "complaint"), [([0, 7], "labels from 0 to 6"), ([], "at least one input")]
)
def test_labels_without_a_class_and_no_labels_are_refused(folder, capsys, monkeypatch, labels, complaint):
    inputs = np.zeros((len(labels), 36), np.float32)
    np.savez("wrong.npz", inputs=inputs, labels=np.array(labels, dtype=int))
    code, _, err = run(capsys, monkeypatch, "net.py:dense", "--batch", "wrong.npz", "--out", "result")
    assert code == 2
    assert complaint in err


def test_proven_records_agree_with_a_comparison_by_hand():
    network = relu_network(36, 120, 7, seed=3)
    inputs, labels = batch(8, 36, 7, 3)
    game = Captured(SharedGradient(network, (36,)), Gradient(leak(network, inputs, labels)), batch_size=8)
    evidence = play(game, Exact())
    guess = Exact().prepare(game.knowledge, torch.Generator())(game.gradients).records
    close = torch.cdist(inputs, guess.features[0]).amin(1) < 1e-2 * inputs.norm(dim=1)
    assert evidence.main.successes == int(close.sum()) == 8


def test_layers_that_are_kept_as_stored_are_attacked_like_others():
    network = relu_network(2100, 2000, 7, dtype=torch.float32, seed=3)  # above four million weights
    inputs, labels = batch(4, 2100, 7, 3)
    gradient = Gradient(leak(network, inputs.float(), labels))
    guess = Exact().prepare(
        Captured(SharedGradient(network, (2100,)), gradient).knowledge,
        torch.Generator(),
    )(gradient)
    off = torch.cdist(inputs.double(), guess.records.features[0]).amin(1) / inputs.norm(dim=1)
    assert off.max() < 1e-4


@pytest.mark.parametrize("factor", [-0.1, pytest.param(1, marks=pytest.mark.slow)])
def test_a_large_update_is_attacked_once_and_its_control_once(folder, capsys, monkeypatch, factor):
    network, (inputs, labels), tried = made("large"), batch(5, 600, 7, 3), []
    cross_entropy(network(inputs.float()), labels).backward()
    save_file({n: factor * p.grad for n, p in network.named_parameters()}, "large.safetensors")

    def counted(head, layers, **options):
        tried.append(1)
        return reconstruct_at_any_scale(head, layers, **options)

    monkeypatch.setattr(dense_reader, "reconstruct_at_any_scale", counted)
    code, out, _ = run(
        capsys, monkeypatch, "net.py:large", "--gradient", "large.safetensors", "--out", "result"
    )
    assert code == 1
    assert "5 of 5 records are proven" in out
    assert ("its sign was flipped" in out) == (factor < 0)
    assert sum(tried) <= 4, "each in both signs at most"


TEXTS = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_update_texts import Tiny

def make():
    return Tiny()
"""


@pytest.mark.parametrize("as_update", [False, True])
def test_an_update_of_a_transformer_is_read_for_its_texts(tmp_path, capsys, monkeypatch, as_update):
    from test_update_texts import Tiny, texts
    from test_update_texts import update as update_of_texts

    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(TEXTS.format(folder=str(Path(__file__).parent)))
    model = Tiny()
    ids = texts(4)
    gradient = update_of_texts(model.eval(), ids)
    if as_update:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        save_file(before, "before.safetensors")
        save_file({name: value - 0.5 * gradient[name] for name, value in before.items()}, "after.safetensors")
        options = ["--before", "before.safetensors", "--after", "after.safetensors"]
    else:
        save_file(gradient, "gradient.safetensors")
        options = ["--gradient", "gradient.safetensors"]
    code, out, _ = run(capsys, monkeypatch, "model.py:make", *options, "--longest", "12", "--out", "result")
    assert code == 1
    assert "4 of 4 records are proven by recomputing the update, and so is their number." in out
    stored = (tmp_path / "result" / "audit.json").read_text()
    assert AuditResult.load(tmp_path / "result").verdict is Verdict.EXPOSED
    assert str(ids[0].tolist())[1:-1] not in stored, "no text is stored"
    drawn = ET.parse(tmp_path / "result" / "leak-map.svg")  # noqa: S314  # our own
    words = " ".join(drawn.getroot().itertext())
    assert "blocks.0.queries" in words
    assert "exact" in words


def test_each_input_has_a_folder_of_its_own(folder, capsys, monkeypatch):
    for file in ("dense.safetensors", "dense.pt"):
        run(capsys, monkeypatch, "net.py:dense", "--gradient", file)
        assert (folder / "remanence-runs" / f"net-dense-{file}").exists()


def test_outputs_in_a_dict_or_a_tuple_and_weights_that_are_no_parameters():
    class Wrapped(torch.nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.inner, self.wrap = relu_network(6, 12, 3), wrap

        def forward(self, x):
            return self.wrap(self.inner(x))

    for wrap in (lambda said: {"logits": said}, lambda said: (said, None)):
        assert dense_head(Wrapped(wrap)).names == ("inner.0", "inner.2")
    network = relu_network(6, 12, 3)
    torch.nn.utils.parametrizations.weight_norm(network[0])
    gradient = {name: torch.ones(1, *p.shape) for name, p in network.named_parameters()}
    with pytest.raises(InputError, match="'0' is not in the update"):
        dense_head(network).layers_of(gradient)


@pytest.mark.parametrize("loss", [
    lambda said, labels: (said - one_hot(labels, 7)).square().mean(),
    lambda said, labels: binary_cross_entropy_with_logits(said, one_hot(labels, 7).float()),
])  # fmt: skip
def test_another_loss_is_named_and_not_called_another_network(folder, capsys, monkeypatch, loss):
    network, held = made("dense"), np.load(folder / "batch.npz")
    loss(network(torch.tensor(held["inputs"])), torch.tensor(held["labels"])).backward()
    save_file({n: p.grad for n, p in network.named_parameters()}, folder / "other.safetensors")
    arguments = ("net.py:dense", "--gradient", "other.safetensors", "--input-shape", "1,6,6", "--out", "out")
    code, _, error = run(capsys, monkeypatch, *arguments)
    assert code in (1, 3), error  # what has neurons of its own is proven, whatever the loss
    assert ("update-other-loss" in (folder / "out" / "audit.json").read_text()) == (code == 3)


def test_buffers_of_a_network_are_no_unknown_tensors(tmp_path):
    from remanence.updates.opening import check_gradient

    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    recorded = {name: torch.ones_like(value) for name, value in network.state_dict().items()}
    assert check_gradient(network, recorded, "update").keys() == dict(network.named_parameters()).keys()


def test_a_proven_number_of_records_counts_and_a_declared_one_does_not(folder, capsys, monkeypatch):
    weights, gradient = (torch.load(name, weights_only=True) for name in ("dense.weights.pt", "dense.pt"))
    save_file({name: weights[name] - 0.05 * gradient[name] for name in gradient}, "after.safetensors")
    options = ["--before", "dense.weights.pt", "--after", "after.safetensors", "--batch-size", "9"]
    for rate in ([], ["--learning-rate", "0.05"]):
        code, _, error = run(
            capsys, monkeypatch, "net.py:dense", *options, *rate, "--input-shape", "1,6,6", "--out", "out"
        )
        assert code == 1, error
        document = json.loads((folder / "out" / "audit.json").read_text())
        assert document["subject"]["updates"][0] == {"proven": 6, "different_records": 6}
        assert document["evidence"][0]["main"]["trials"] == 6
        stated = document["threat_model"]["mechanism"]
        assert stated.get("optimizer") == ("sgd" if rate else None)
        assert stated.get("learning_rate") == (0.05 if rate else None)
        assert "Equal records count once" in (folder / "out" / "report.html").read_text()


def test_another_batch_in_every_step_proves_true_records_and_no_batch_size():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    inputs, labels = torch.rand(8, 64), torch.randint(10, (8,))
    optimiser = torch.optim.SGD(network.parameters(), 0.05)
    for part in (slice(4), slice(4, 8)):
        optimiser.zero_grad()
        cross_entropy(network(inputs[part]), labels[part]).backward()
        optimiser.step()
    after = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(before)
    (proof,) = read(open_update(network, after, Declared(LocalTraining(2, 0.05)), is_after=True))
    proven = proof.proposal.inputs[proof.proven]
    assert (0 < len(proven) < 8, proof.batch_size) == (True, None)
    assert (torch.cdist(proven, inputs.double()).amin(1) < 1e-4 * inputs.norm(dim=1).max()).all()


def test_a_network_is_recognised_once_and_every_stage_runs_once(monkeypatch):
    """64-256-10 with a batch that needs every stage: at sight, parallel rows, the span, and sparse directions."""
    runs = Counter()

    def counting(module, name):
        work = getattr(module, name)

        def counted(*arguments, **options):
            runs[name] += 1
            return work(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    for module, name in (
        (opening, "dense_head"), (dense_reader, "reconstruct_at_any_scale"), (dense_reader, "parallel_rows"),
        (dense_reader, "fit_in_span"), (dense_reader, "reconstruct_low_rank"), (opening, "belonging"),
    ):  # fmt: skip
        counting(module, name)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    inputs, labels = torch.randn(40, 64), torch.randint(10, (40,))
    cross_entropy(network(inputs), labels).backward()
    gradient = {name: value.grad for name, value in network.named_parameters()}
    subject = open_update(network, gradient, Declared(input_shape=(64,)))
    found = inspect(subject, policy=Policy(0.1), target="here")
    assert found.strongest.attack == "exact"
    assert len(found.evidence) == 1
    assert runs["dense_head"] == runs["belonging"] == 1
    # The update and its control, in either sign.
    assert runs["reconstruct_at_any_scale"] <= 4
    assert max(runs["fit_in_span"], runs["reconstruct_low_rank"]) <= 2
    assert runs["parallel_rows"] <= 4
    assert found.threat_model["mechanism"].keys() == {"name", "network", "parameters"}, "no more was declared"
