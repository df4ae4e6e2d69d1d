"""Opacus runs, recorded and audited: what is written is what ran, bugs are caught, correct runs are not accused."""

import copy
import json
import shutil
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import last_one, made_private, step
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from remanence import InputError, Records, RemanenceError
from remanence.auditing import AuditResult
from remanence.bounds import Segment, delta_upper, dpsgd, in_or_out
from remanence.cli.main import main
from remanence.private.audit_run import ClaimTest, audit_run
from remanence.private.canaries import Canaries, crafted, mislabelled, real
from remanence.private.consistency import read_run
from remanence.private.opacus import Reading, record
from remanence.private.seeds import Stream, from_the_system, unknown
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy, Verdict

FEATURES, CLASSES, KNOWN = 120, 5, 150
DIVISOR = 100  # chosen without counting the records
POLICY = Policy(0.9)


def half_noise(optimizer):
    add_noise = optimizer.add_noise

    def add():
        told, optimizer.noise_multiplier = optimizer.noise_multiplier, optimizer.noise_multiplier / 2
        add_noise()
        optimizer.noise_multiplier = told

    optimizer.add_noise = add


def train(
    out: Path,
    *,
    canaries: Canaries | None,
    noise: float = 3.0,
    batch: int | None = None,
    epochs: int = 9,
    bug=None,
    seed: int = 0,
    physical: int | None = None,
    momentum: float = 0.0,
    schedule: bool = False,
    loader_of=None,
    seed_by=None,
    **settings,
):
    """An ordinary Opacus loop."""
    torch.manual_seed(seed)
    features, labels = torch.randn(KNOWN, FEATURES), torch.randint(CLASSES, (KNOWN,))
    if canaries is not None:
        features = torch.cat([features, canaries.inserted.features])
        labels = torch.cat([labels, canaries.inserted.labels])
    data = TensorDataset(features, labels)
    engine, private, optimizer, loader = made_private(
        nn.Linear(FEATURES, CLASSES),
        data,
        batch=batch or len(data),
        noise=noise,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum),
    )
    optimizer.expected_batch_size = DIVISOR
    if bug is not None:
        bug(optimizer)
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if schedule else None
    recorded = loader if loader_of is None else loader_of(data)
    settings = {"seed": seed_by, "out": out, "canaries": canaries, **settings}
    with record(engine, optimizer, private, recorded, **settings):
        for _ in range(epochs):
            batches = loader
            if physical:
                batches = BatchMemoryManager(
                    data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
                ).__enter__()
            for x, y in batches:
                step(private, optimizer, x, y)
            if rates is not None:
                rates.step()


def few(seed=0, candidates=1, count=40):
    return crafted(count, (FEATURES,), CLASSES, candidates=candidates, seed=seed)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"batch": 60, "physical": 16, "momentum": 0.9, "schedule": True},
    ],
    ids=str,
)
def test_a_correct_run_is_neither_contradicted_nor_flagged(tmp_path, how):
    train(tmp_path / "run", canaries=few(), seed_by="os", **{"epochs": 12, **how})
    result = audit_run(tmp_path / "run", policy=Policy(0.999))
    assert not [c.seen for c in result.strongest.caveats if c.contradicts or c.voids]
    assert result.verdict is Verdict.PROTECTED
    assert result.strongest.findings[0].p_value_of_the_claim > 0.05


def test_virtual_batches_record_the_logical_ones(tmp_path):
    train(tmp_path / "whole", canaries=few(), batch=60, epochs=4)
    train(tmp_path / "split", canaries=few(), batch=60, epochs=4, physical=16)
    whole, split = (read_run(tmp_path / name).tensors for name in ("whole", "split"))
    assert torch.equal(whole["indices"], split["indices"])
    assert torch.equal(whole["starts"], split["starts"])
    assert torch.allclose(whole["scores"], split["scores"], rtol=1e-4)


def test_canaries_alone_contradict_a_claim_of_more_noise_than_there_was(tmp_path):
    """Nothing but the guesses is left of a run whose accountant was told ten times the noise."""
    train(tmp_path / "run", canaries=crafted(240, (FEATURES,), CLASSES, seed=5), noise=1.0)
    run = read_run(tmp_path / "run")
    claimed = (Segment(10.0, 1.0, run.steps),)
    numbers = ClaimTest.of(replace(run, claimed=claimed)).findings()
    assert numbers["p_value_of_the_claim"] < 1e-3
    assert numbers["noise_multiplier_at_most"] < 10.0
    assert ClaimTest.of(run).p_value() > 0.05
    told = (1 + delta_upper(claimed, 0.0)) / 2
    assert told < audit_run(tmp_path / "run", policy=POLICY).strongest.numbers["best_attack_at_least"]


def test_the_result_survives_storage_and_the_command_line(tmp_path, monkeypatch, capsys):
    train(tmp_path / "halved", canaries=crafted(240, (FEATURES,), CLASSES, seed=5), bug=half_noise)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["remanence", "run", "halved", "--max-success", "0.9", "--out", "out"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "CONTRADICTED" in printed
    assert "gaussian mu at least" in (tmp_path / "out" / "report.html").read_text()
    loaded = AuditResult.load(tmp_path / "out")
    assert loaded.verdict is Verdict.CONTRADICTED
    assert loaded.strongest.main.lower == loaded.strongest.main.floor
    numbers = loaded.strongest.numbers
    least = Segment(numbers["noise_multiplier_at_most"], 1.0, int(numbers["steps"]))
    assert numbers["best_attack_at_least"] == pytest.approx(in_or_out(least).success)
    document = json.loads((tmp_path / "out" / "audit.json").read_text())
    entry = copy.deepcopy(document["evidence"][0])  # as older versions wrote it
    entry["numbers"] |= {
        name: v for name, v in entry.pop("findings")[0].items() if not isinstance(v, str | bool)
    }
    older = Evidence.from_json({**entry, "findings": []}, {})
    assert older.findings == loaded.strongest.findings
    assert older.numbers == loaded.strongest.numbers
    document["evidence"][0]["findings"][0]["p_value_of_the_claim"] = 0.5
    document["evidence"][0]["caveats"] = []
    (tmp_path / "out" / "audit.json").write_text(json.dumps(document))
    with pytest.raises(RemanenceError, match="does not follow"):
        AuditResult.load(tmp_path / "out")


def test_shortlists_and_every_design_are_found_where_there_is_no_noise(tmp_path):
    people = Records(torch.randn(60, FEATURES), torch.randint(CLASSES, (60,)))
    for index, canaries in enumerate(
        (
            real(people, seed=1),
            mislabelled(people, CLASSES, seed=1),
            few(seed=1),
            few(seed=2, candidates=5, count=12),
        )
    ):
        folder = tmp_path / str(index)
        train(folder, canaries=canaries, noise=1e-3, epochs=3)
        result = audit_run(folder, policy=POLICY)
        assert result.strongest.main.rate == 1.0
        assert 0.05 < result.strongest.control.rate < 0.8  # a stranger's coin is not found
        assert str(canaries.design) in result.threat_model["knows"][2]


def test_shortlists_of_two_have_the_ceiling_of_shortlists(tmp_path):
    train(tmp_path / "run", canaries=few(candidates=2, count=12), epochs=3, seed_by="os")
    result = audit_run(tmp_path / "run", policy=POLICY)
    exact = dpsgd(0.5, noise_multiplier=3.0, steps=3).success
    assert exact <= result.bounds[0].success <= exact * (1 + 1e-3)  # rounding is paid for


def test_wrong_use_is_refused_with_a_reason(tmp_path):
    with pytest.raises(InputError, match="canaries cannot be used"):
        train(tmp_path / "a", canaries=None)  # nothing that `remanence run` could look for
    with pytest.raises(InputError, match="No training step"):
        train(tmp_path / "a", canaries=few(), epochs=0)
    with pytest.raises(InputError, match="not in the training data"):
        train(
            tmp_path / "c",
            canaries=few(),
            loader_of=lambda data: DataLoader(TensorDataset(*(t[:-1] for t in data.tensors)), batch_size=10),
        )
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="overwrite"):
        train(tmp_path / "d", canaries=few())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
    with pytest.raises(InputError, match="cannot be read"):
        audit_run(tmp_path / "d", policy=POLICY)


def test_what_is_not_made_private_is_refused(tmp_path):
    model, engine = nn.Linear(FEATURES, CLASSES), PrivacyEngine()
    loader = DataLoader(TensorDataset(torch.randn(20, FEATURES), torch.randint(CLASSES, (20,))), batch_size=5)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="cannot be recorded"):
        record(engine, plain, model, loader, out=tmp_path / "x", canaries=few()).__enter__()
    private = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=5)
    with pytest.raises(InputError, match="single records"):
        record(engine, private, model, loader, out=tmp_path / "x", canaries=few()).__enter__()
    private.world_size = 2  # as Opacus' optimizers of several processes have
    with pytest.raises(InputError, match="shared by several processes"):
        record(engine, private, model, loader, out=tmp_path / "x", canaries=few()).__enter__()
    engine, model, private, loader = made_private(model, loader.dataset)
    step(model, private, *next(iter(loader)))
    with pytest.raises(InputError, match="already begun"):
        record(engine, private, model, loader, out=tmp_path / "x", canaries=few()).__enter__()
    assert not list(tmp_path.iterdir())


def manifest(folder, **other):
    whole = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**whole, **other}))
    return whole


def shorter(folder):
    """One step less, and the hash is that of the file."""
    path = folder / "run.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "settings": tensors["settings"][:-1].contiguous()}, path)
    manifest(folder, sha256=sha256(path.read_bytes()).hexdigest())


def forged(folder):
    tensors = load_file(folder / "run.safetensors")
    save_file({**tensors, "chosen": tensors["scores"][:, 0].sign().long()}, folder / "run.safetensors")


def test_what_is_not_a_whole_recording_is_refused_with_a_sentence(tmp_path):
    train(tmp_path / "run", canaries=few(candidates=2, count=12), epochs=3, seed_by="os")
    assert audit_run(tmp_path / "run", policy=POLICY).verdict is Verdict.PROTECTED
    refused = {
        "manifest.json": lambda folder: (folder / "manifest.json").unlink(),
        "it has format 6, and this version reads format 7": lambda folder: manifest(folder, format=6),
        "run.safetensors: ": lambda folder: (folder / "run.safetensors").unlink(),
        "is not about 3 steps": shorter,
        "not the file that was recorded": forged,
    }
    for said, change in refused.items():
        shutil.copytree(tmp_path / "run", tmp_path / said)
        change(tmp_path / said)
        with pytest.raises(InputError, match=said):
            audit_run(tmp_path / said, policy=POLICY)
    whole = manifest(tmp_path / "run")
    for name in set(whole) - {"remanence", "format"}:
        for worse in (None, [], {"mean": None}, -1):
            manifest(tmp_path / "run", **{**whole, name: worse})
            with pytest.raises(InputError, match=rf"manifest.json: at \$\.{name}"):
                audit_run(tmp_path / "run", policy=POLICY)


class ElsewhereGenerator:
    """A generator whose state nobody can read, as a secure one's."""

    device = torch.device("meta")

    def get_state(self):
        raise RuntimeError("not here")


def test_a_generator_that_cannot_be_read_protects_nobody():
    stream = Stream("the generator of the noise", ElsewhereGenerator())
    assert stream.next(ElsewhereGenerator(), lambda generator: generator) is None
    assert stream.why == "the state of the generator of the noise cannot be read (RuntimeError)"
    assert unknown("os", [stream, Stream("the generator of the batches", None)]) == stream.why


def test_the_system_s_entropy_fills_the_whole_state():
    """All 624 words, as NumPy's generator of the same kind reads them; a seed would fill 32 bits."""
    ours = from_the_system(torch.device("cpu"))
    words = ours.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64).astype(np.uint32)
    theirs = np.random.MT19937()
    theirs.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.rand(1000, generator=ours) * 2**24
    assert drawn.tolist() == (theirs.random_raw(1000) % 2**24).tolist()
    again = from_the_system(torch.device("cpu"))
    assert not torch.equal(again.get_state(), from_the_system(torch.device("cpu")).get_state())


def test_one_seed_for_noise_and_batches_is_not_two():
    streams = [Stream(what, torch.Generator().manual_seed(11)) for what in ("noise", "batches")]
    assert unknown("secret", streams) == "noise and batches come from one seed"
    assert "which is public" in unknown("secret", [streams[0], Stream("batches", torch.Generator())])


@pytest.mark.parametrize(("habit", "workers"), [("breaks off", 0), ("evaluates", 0), ("breaks off", 2)])
def test_no_habit_of_a_loop_confuses_the_batches(tmp_path, habit, workers):
    torch.manual_seed(0)
    features = torch.randn(KNOWN, FEATURES)
    features[:, 0] = torch.arange(KNOWN)  # every record carries its place
    data = TensorDataset(features, torch.randint(CLASSES, (KNOWN,)))
    work = {"num_workers": workers, "persistent_workers": workers > 0}
    engine, private, optimizer, loader = made_private(
        nn.Linear(FEATURES, CLASSES), data, batch=30, loader=work
    )
    places = []
    with record(engine, optimizer, private, loader, out=tmp_path / "run", canaries=last_one(loader)):
        for _ in range(3):
            for index, (x, y) in enumerate(loader):
                if index == 2 and habit == "breaks off":
                    break  # with a batch in hand that no step uses
                places += x[:, 0].int().tolist()
                step(private, optimizer, x, y)
                if index == 2 and habit == "evaluates":  # on the training data, in the middle of an epoch
                    private.eval()
                    for other, _ in loader:
                        private(other)
                    private.train()
    assert read_run(tmp_path / "run").tensors["indices"].tolist() == places


def test_a_recording_stands_beside_what_the_loop_put_into_its_folder(tmp_path):
    out = tmp_path / "run"
    train(out, canaries=few(), reading=Reading(loss=_leaving(out)))
    assert read_run(out).steps == 9
    assert (out / "model.pt").exists()


def _leaving(out):
    def loss(logits, labels):
        out.mkdir(exist_ok=True)
        (out / "model.pt").write_bytes(b"")
        return cross_entropy(logits, labels)

    return loss
