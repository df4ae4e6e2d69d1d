"""A gradient that somebody captured, and the command that takes it apart."""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_exact import batch, leak
from test_update_texts import texts
from test_update_texts import update as update_of_texts
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot

import networks
from conftest import relu_network
from networks import Tiny
from one_update import off, update
from remanence import AuditResult, Exact, InputError, Policy, SharedGradient, Verdict, play
from remanence.core.releases import Gradient
from remanence.updates import opening
from remanence.updates.captured import Captured
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense import reader as dense_reader
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import reconstruct_at_any_scale
from remanence.updates.inspection import inspect, open_update, read
from remanence.updates.opening import check_gradient
from remanence.updates.watching import loss_of


@pytest.fixture
def ask(run):
    """The command on one of `networks`, in a folder with updates of two of them: its exit code and what it said."""
    inputs, labels = batch(6, 36, 7, 0)
    inputs = inputs.float().view(-1, 1, 6, 6)
    np.savez("batch.npz", inputs=inputs.numpy(), labels=labels.numpy())
    for name in ("dense", "conv"):
        model = getattr(networks, name)()
        gradient = update(model, inputs, labels)
        save_file(gradient, f"{name}.safetensors")
        torch.save(gradient, f"{name}.pt")
        torch.save(model.state_dict(), f"{name}.weights.pt")

    def asked(network, *options, out="out"):
        code, *said = run("update", f"{networks.__file__}:{network}", *options, "--out", out)
        return code, " ".join(" ".join(said).split())

    return asked


def audited():
    return json.loads(Path("out/audit.json").read_text())


def saved(tensors, path):
    path = Path(path)
    if path.suffix == ".npz":
        np.savez(path, *map(np.asarray, tensors.values()))  # without names, as Flower's users do
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
    "old minus new, with a rate": (
        lambda w, g: {n: w[n] - (w[n] - 0.05 * g[n]) for n in g}, "sent.pt", ["--learning-rate", "0.05"], ""
    ),
    "weights as update": (lambda w, g: {n: w[n] - 0.05 * g[n] for n in g}, "sent.pt", [], "holds weights, not an"),
    "weights after": (lambda w, g: {n: w[n] - 0.05 * g[n] for n in g}, "sent.safetensors", ROUND, ""),
    "big-endian": (
        lambda w, g: {n: v.numpy().astype(">f4") for n, v in g.items()}, "sent.npz", [], ""
    ),
    "without names": (
        lambda w, g: {n: w[n] - 0.05 * g[n] for n in w}, "sent.npz",
        ["--before", "before.npz", "--after", "sent.npz"], "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_update_gives_its_batch_away_however_it_is_sent(ask, way):
    make, file, options, said = WAYS[way]
    weights, gradient = (torch.load(name, weights_only=True) for name in ("dense.weights.pt", "dense.pt"))
    saved(make(weights, gradient), file)
    saved(weights, "before.npz")
    options = options if "--after" in options else ["--gradient", file, *options]
    code, told = ask("dense", *options, "--max-success", "0.99")
    assert code == 1, "a proven record is a fact, whatever the limit"
    assert all(phrase in told for phrase in ("EXPOSED", "Leak map", "6 of 6 records are proven", said))
    assert ("its sign was flipped" in told) == (way in ("difference", "old minus new, with a rate"))
    result = AuditResult.load("out")
    assert (result.strongest.main.successes, result.strongest.main.trials) == (6, 6)
    assert result.strongest.control.successes == 0
    leaks = result.subject["leak_map"]
    assert [entry["name"] for entry in leaks] == ["1", "3"]
    assert max(entry["unexplained"] for entry in leaks) < 1e-3


@pytest.mark.parametrize(("network", "options", "records", "said"), [
    ("dense", ["--gradient", "dense.safetensors", "--gradient", "dense.pt"], 12, "EXPOSED"),
    ("dense", ["--batch", "batch.npz"], 6, "6 of 6 samples expose their inputs."),
    ("conv", ["--gradient", "conv.safetensors", "--input-shape", "1,6,6"], 6, "64 features that enter 3"),
    ("probe", ["--gradient", "probe.pt", "--input-shape", "1,8,8"], 2, "2 of 2 records are proven"),
])  # fmt: skip
def test_the_command_reads_several_updates_own_batches_and_features(ask, network, options, records, said):
    pictures, labels = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(2)
    torch.save(update(networks.probe().eval(), pictures, labels), "probe.pt")
    code, told = ask(network, *options)
    assert code == 1
    assert said in told
    assert audited()["evidence"][0]["main"]["trials"] == records


def test_the_command_reads_batches_and_updates_of_one_output(ask):
    model, inputs, labels = networks.one(), batch(4, 30, 7, 0)[0].float(), torch.tensor([0, 1, 1, 0])
    squares = update(model, inputs, 3 * labels, loss=lambda said, y: mse_loss(said, y.float()))
    torch.save(update(model, inputs, labels, loss=loss_of), "update.pt")
    torch.save(squares, "squares.pt")
    for name, answers in (("own", labels), ("wrong", labels + 1)):
        np.savez(f"{name}.npz", inputs=inputs.numpy(), labels=answers.numpy())
    for given, code, said in (
        (("--gradient", "update.pt"), 1, "4 of 4 records are proven"),
        (("--batch", "own.npz"), 1, "4 of 4 records are proven"),
        (("--batch", "wrong.npz"), 2, "labels from 0 to 1"),
        (("--gradient", "squares.pt"), 3, "No record is proven"),
    ):
        found, told = ask("one", *given)
        assert found == code, given
        assert said in told
    assert "update-one-output" in Path("out/audit.json").read_text()


def test_more_records_than_declared_and_an_update_that_stays_open_are_called_that(ask):
    inputs, labels = batch(300, 36, 7, 0)
    for name, count in (("smooth", 6), ("crowd", 300)):
        sent = update(networks.dense(), inputs[:count].float(), labels[:count], label_smoothing=0.1)
        torch.save(sent, f"{name}.pt")
    code, told = ask("dense", "--gradient", "smooth.pt", "--batch-size", "2")
    assert code == 1
    assert "The batch size is larger than the declared 2." in told
    assert "dense-open" not in Path("out/audit.json").read_text()
    code, told = ask("dense", "--gradient", "crowd.pt", "--local-steps", "3", "--learning-rate", "0.1")
    assert code == 3
    assert "dense-open" in Path("out/audit.json").read_text()


@pytest.mark.parametrize("change", [lambda value: value + 0.05, lambda value: value * 1.01])
def test_an_update_of_other_weights_is_refused_and_gets_no_verdict(ask, change):
    weights = torch.load("dense.weights.pt", weights_only=True)
    torch.manual_seed(1)
    moved = {name: change(value) * (1 + 0.01 * torch.randn_like(value)) for name, value in weights.items()}
    torch.save(moved, "other.pt")
    code, told = ask("dense", "--weights", "other.pt", "--gradient", "dense.pt")
    assert code == 2
    assert "off balance" in told
    assert "--weights" in told
    assert not Path("out").exists()


SPOILT = {
    "short.pt": {"1.weight": lambda g: g[:, :5].contiguous()},
    "nan.pt": {"3.bias": lambda g: g * torch.nan},
    "float8.pt": {"1.weight": lambda g: g.to(torch.float8_e4m3fn)},
    "int8.pt": {"1.weight": lambda g: (g * 100).to(torch.int8)},
    "zero.pt": dict.fromkeys(("1.weight", "1.bias", "3.weight", "3.bias"), torch.zeros_like),
}
ARRAYS = {"few.npz": slice(3), "turned.npz": slice(None, None, -1)}
LABELS = {"seven.npz": [0, 7], "none.npz": []}


def of(network, file, *options):
    return [network, "--gradient", file, *options]


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["dense"], "exactly one of an update"),
    (of("dense", "dense.pt", "--batch", "batch.npz"), "exactly one of an update"),
    (of("dense", "conv.safetensors"), "missing 1.bias, 1.weight"),
    (of("dense", "absent.pt"), "no such file"),
    (of("dense", "dense.pt", "--learning-rate", "0"), "learning_rate"),
    (of("dense", "dense.pt", "--learning-rate", "1e-300"), "too large to compute with"),
    (of("dense", "dense.pt", "--input-shape", "99999,99999"), "at most 268,435,456 numbers"),
    (of("unshifted", "dense.pt"), "bias of layer '1' is not in the update"),
    (of("picky", "dense.pt", "--input-shape", "35"), "assertionerror: 36 numbers are needed"),
    (["dense", "--batch", "batch.npz", "--local-steps", "3"], "several steps cannot be recomputed"),
    (["dense", "--batch", "batch.npz", "--local-steps", "9", "--learning-rate", "1e30"], "training does not diverge"),
    (["dense", "--batch", "batch.npz", "--noise-multiplier", "1", "--batch-size", "6"], "computed without noise"),
    (of("dense", "dense.pt", "--longest", "0"), "longest"),
    (of("dense", networks.__file__), "cannot be read"),
    (["dense", "--batch", networks.__file__], "file is not a zip file"),
    (of("dense", "dense.pt", "--weights", "conv.weights.pt"), "weights do not fit"),
    (of("dense", "dense.pt", "--input-shape", "3,x"), "shape of an input cannot be read"),
    (of("mixed", "dense.pt"), "a softmax or a sigmoid at its end belongs to the loss"),
    (of("frozen", "dense.pt"), "no fully connected layer"),
    (of("conv", "conv.pt"), "--input-shape 3,32,32"),
    (of("nothing", "dense.pt"), "no network to audit"),
    (of("still", "dense.pt"), "this network is entirely frozen"),
    (of("dense", "short.pt"), "gradient of 1.weight has another shape"),
    (of("dense", "nan.pt"), "gradient of 3.bias is not finite"),
    (of("dense", "float8.pt"), "gradient of 1.weight is in a format"),
    (of("dense", "int8.pt"), "gradient of 1.weight is in a format"),
    (of("dense", "zero.pt"), "zero everywhere"),
    (["dense", "--after", "few.npz"], "3 arrays"),
    (["dense", "--after", "turned.npz"], "another shape"),
    (["dense", "--batch", "seven.npz"], "labels from 0 to 6"),
    (["dense", "--batch", "none.npz"], "at least one input"),
])  # fmt: skip
def test_wrong_input_ends_with_a_sentence(ask, arguments, complaint):
    gradient, weights = (torch.load(f"dense.{kind}pt", weights_only=True) for kind in ("", "weights."))
    for name, changes in SPOILT.items():
        torch.save(gradient | {layer: change(gradient[layer]) for layer, change in changes.items()}, name)
    for name, kept in ARRAYS.items():
        np.savez(name, *[value.numpy() for value in weights.values()][kept])
    for name, labels in LABELS.items():
        np.savez(name, inputs=np.zeros((len(labels), 36), np.float32), labels=np.array(labels, dtype=int))
    code, told = ask(*arguments)
    assert code == 2
    assert complaint in told.lower()
    assert all(word in told for word in ("needs:", "got:", "try:"))
    assert not Path("out").exists()


def test_a_name_that_is_not_a_factory_is_no_network(run):
    code, _, told = run("update", "digits-gradient", "--gradient", "dense.pt")
    assert code == 2
    assert "no network to audit" in told.lower()


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
    game = Captured(SharedGradient(network, (2100,)), gradient)
    guess = Exact().prepare(game.knowledge, torch.Generator())(gradient)
    assert off(guess.records.features[0], inputs).amin(0).max() < 1e-4


@pytest.mark.parametrize("factor", [-0.1, pytest.param(1, marks=pytest.mark.slow)])
def test_a_large_update_is_attacked_once_and_its_control_once(ask, monkeypatch, factor):
    (inputs, labels), tried = batch(5, 600, 7, 3), []
    save_file(update(networks.large(), inputs.float(), labels, factor), "large.safetensors")

    def counted(head, layers, **options):
        tried.append(1)
        return reconstruct_at_any_scale(head, layers, **options)

    monkeypatch.setattr(dense_reader, "reconstruct_at_any_scale", counted)
    code, told = ask("large", "--gradient", "large.safetensors")
    assert code == 1
    assert "5 of 5 records are proven" in told
    assert ("its sign was flipped" in told) == (factor < 0)
    assert sum(tried) <= 4, "each in both signs at most"


@pytest.mark.parametrize("as_update", [False, True])
def test_an_update_of_a_transformer_is_read_for_its_texts(ask, as_update):
    model, ids = Tiny(), texts(4)
    gradient, before = update_of_texts(model.eval(), ids), model.state_dict()
    save_file(gradient, "gradient.safetensors")
    save_file(before, "before.safetensors")
    save_file({name: value - 0.5 * gradient[name] for name, value in before.items()}, "after.safetensors")
    options = ["--gradient", "gradient.safetensors"]
    if as_update:
        options = ["--before", "before.safetensors", "--after", "after.safetensors"]
    code, told = ask("Tiny", *options, "--longest", "12")
    assert code == 1
    assert "4 of 4 records are proven by recomputing the update, and so is their number." in told
    assert AuditResult.load("out").verdict is Verdict.EXPOSED
    assert str(ids[0].tolist())[1:-1] not in Path("out/audit.json").read_text(), "no text is stored"
    words = " ".join(ET.parse("out/leak-map.svg").getroot().itertext())  # noqa: S314  # our own
    assert "blocks.0.queries" in words
    assert "exact" in words


def test_each_input_has_a_folder_of_its_own(ask, run):
    for file in ("dense.safetensors", "dense.pt"):
        run("update", f"{networks.__file__}:dense", "--gradient", file)
        assert Path("remanence-runs", f"networks-dense-{file}").exists()


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
def test_another_loss_is_named_and_not_called_another_network(ask, loss):
    held = np.load("batch.npz")
    own = update(networks.dense(), torch.tensor(held["inputs"]), torch.tensor(held["labels"]), loss=loss)
    save_file(own, "other.safetensors")
    code, told = ask("dense", "--gradient", "other.safetensors", "--input-shape", "1,6,6")
    assert code in (1, 3), told  # what has neurons of its own is proven, whatever the loss
    assert ("update-other-loss" in Path("out/audit.json").read_text()) == (code == 3)


def test_buffers_of_a_network_are_no_unknown_tensors():
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    recorded = {name: torch.ones_like(value) for name, value in network.state_dict().items()}
    assert check_gradient(network, recorded, "update").keys() == dict(network.named_parameters()).keys()


@pytest.mark.parametrize("rate", [None, 0.05])
def test_a_proven_number_of_records_counts_and_a_declared_one_does_not(ask, rate):
    weights, gradient = (torch.load(name, weights_only=True) for name in ("dense.weights.pt", "dense.pt"))
    save_file({name: weights[name] - 0.05 * gradient[name] for name in gradient}, "sent.safetensors")
    declared = [] if rate is None else ["--learning-rate", rate]
    code, told = ask("dense", *ROUND, "--batch-size", "9", *declared, "--input-shape", "1,6,6")
    assert code == 1, told
    document = audited()
    assert document["subject"]["updates"][0] == {"proven": 6, "different_records": 6}
    assert document["evidence"][0]["main"]["trials"] == 6
    stated = document["threat_model"]["mechanism"]
    assert (stated.get("optimizer"), stated.get("learning_rate")) == (rate and "sgd", rate)
    assert "Equal records count once" in Path("out/report.html").read_text()


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
