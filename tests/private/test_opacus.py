"""Opacus runs, recorded and audited: what is written is what ran, bugs are caught, correct runs are not accused."""

import copy
import json
import shutil
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import last_one, made_private, private_parts, recording, step, unsound
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from remanence import InputError, Records, RemanenceError
from remanence.auditing import AuditResult
from remanence.bounds import Segment, delta_upper, dpsgd, in_or_out
from remanence.private.audit_run import ClaimTest, audit_run
from remanence.private.canaries import Canaries, crafted, mislabelled, real
from remanence.private.consistency import read_run
from remanence.private.seeds import Stream, from_the_system, unknown
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy, Verdict

FEATURES, CLASSES, KNOWN = 120, 5, 150
TENSORS = ("indices", "starts", "settings", "sizes", "noise", "scores", "chosen")
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
    out: Path, *, canaries: Canaries, noise=3.0, batch=None, epochs=9, bug=None, divisor=DIVISOR, **settings
):
    """An ordinary Opacus loop."""
    torch.manual_seed(0)
    features, labels = torch.randn(KNOWN, FEATURES), torch.randint(CLASSES, (KNOWN,))
    inserted = canaries.inserted
    data = TensorDataset(torch.cat([features, inserted.features]), torch.cat([labels, inserted.labels]))
    parts = made_private(nn.Linear(FEATURES, CLASSES), data, batch=batch or len(data), noise=noise)
    _, model, optimizer, loader = parts
    optimizer.expected_batch_size = divisor or optimizer.expected_batch_size
    if bug is not None:
        bug(optimizer)
    with recording(*parts, out=out, canaries=canaries, **settings):
        for _ in range(epochs):
            for x, y in loader:
                step(model, optimizer, x, y)


def few(seed=0, candidates=1, count=40):
    return crafted(count, (FEATURES,), CLASSES, candidates=candidates, seed=seed)


def test_a_correct_run_is_neither_contradicted_nor_flagged(tmp_path):
    train(tmp_path / "run", canaries=few(), seed="os")
    result = audit_run(tmp_path / "run", policy=Policy(0.999))
    assert not [c.seen for c in result.strongest.caveats if c.contradicts or c.voids]
    assert result.verdict is Verdict.PROTECTED
    assert result.strongest.findings[0].p_value_of_the_claim > 0.05


@pytest.mark.parametrize(("candidates", "leaks"), [(1, True), (2, False)])
def test_what_is_counted_from_the_records_is_a_leak_of_who_is_in(tmp_path, candidates, leaks):
    """Of shortlists as many records are in, whichever was chosen."""
    canaries = few(candidates=candidates)
    count = KNOWN + len(canaries.inserted)
    train(tmp_path / "run", canaries=canaries, epochs=1, divisor=None, seed="os")
    seen = f"{count} records: divided by {count}. {count - 1} records: by {count - 1}."
    assert unsound(tmp_path / "run") == ({"counted-from-the-records": seen} if leaks else {})


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


def test_the_result_survives_storage_and_the_command_line(tmp_path, run):
    train(tmp_path / "halved", canaries=crafted(240, (FEATURES,), CLASSES, seed=5), bug=half_noise)
    code, printed, _ = run("run", "halved", "--max-success", 0.9, "--out", "out")
    assert code == 1
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
    test = entry.pop("findings")[0].items()
    entry["numbers"] |= {name: value for name, value in test if not isinstance(value, str | bool)}
    older = Evidence.from_json({**entry, "findings": []}, {})
    assert (older.findings, older.numbers) == (loaded.strongest.findings, loaded.strongest.numbers)
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
    train(tmp_path / "run", canaries=few(candidates=2, count=12), epochs=3, seed="os")
    result = audit_run(tmp_path / "run", policy=POLICY)
    exact = dpsgd(0.5, noise_multiplier=3.0, steps=3).success
    assert exact <= result.bounds[0].success <= exact * (1 + 1e-3)  # rounding is paid for


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda given: {"canaries": None}, "canaries cannot be used"),
        (lambda given: {"optimizer": given["optimizer"].original_optimizer}, "cannot be recorded"),
        (lambda given: setattr(given["optimizer"], "world_size", 2), "shared by several processes"),
        (lambda given: {"model": given["model"]._module}, "single records"),
        (
            lambda given: step(given["model"], given["optimizer"], *next(iter(given["loader"]))),
            "already begun",
        ),
        (lambda given: {"loader": DataLoader(given["loader"].dataset, None)}, "does not say which records"),
        (lambda given: {"loader": DataLoader(private_parts(1)[3].dataset)}, "not in the training data"),
        (lambda given: {"limits": 5.0}, "limits cannot be used"),
        (lambda given: {"limits": [0.0]}, "limits cannot be used"),
        (
            lambda given: given["optimizer"].param_groups[0].update(handle=threading.Lock()),
            "optimizer cannot be copied",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_recorded_is_refused_and_leaves_nothing(tmp_path, change, said):
    given = dict(zip(("engine", "model", "optimizer", "loader"), private_parts(), strict=True))
    given["canaries"] = last_one(given["loader"])
    given |= change(given) or {}
    with pytest.raises(InputError, match=said):
        recording(**given, out=tmp_path / "run").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_recording_needs_a_step_and_overwrites_nothing(tmp_path):
    with pytest.raises(InputError, match="No training step"):
        train(tmp_path / "a", canaries=few(), epochs=0)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="overwrite"):
        train(tmp_path / "d", canaries=few())
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "mine.txt"]
    with pytest.raises(InputError, match="cannot be read"):
        audit_run(tmp_path / "d", policy=POLICY)


def manifest(folder, **other):
    whole = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**whole, **other}))
    return whole


def rewritten(folder, name, change):
    """One tensor is another one, and the hash is that of the file."""
    path = folder / "run.safetensors"
    tensors = load_file(path)
    save_file({**tensors, name: change(tensors[name]).contiguous()}, path)
    manifest(folder, sha256=sha256(path.read_bytes()).hexdigest())


def forged(folder):
    tensors = load_file(folder / "run.safetensors")
    save_file({**tensors, "chosen": tensors["scores"][:, 0].sign().long()}, folder / "run.safetensors")


# What a recorder never writes. Each would end in a traceback, or count for something.
IMPOSSIBLE = [
    *(
        (name, change)
        for name in TENSORS
        for change in (lambda t: t[:-1], lambda t: t[None], lambda t: t.bfloat16())
    ),
    *(
        (name, change)
        for name in ("indices", "starts", "sizes", "noise", "settings")
        for change in (torch.neg,)
    ),
    *((name, lambda t: t * torch.nan) for name in ("noise", "settings", "scores")),
    ("chosen", lambda t: t + 7),
    ("chosen", lambda t: t - 1),
    ("indices", lambda t: t + 1000),
    ("sizes", lambda t: 0 * t),
    ("starts", lambda t: t.flip(0)),
    ("starts", lambda t: t // 2),
]


def test_what_is_not_a_whole_recording_is_refused_with_a_sentence(tmp_path):
    train(tmp_path / "run", canaries=few(candidates=2, count=12), epochs=3, seed="os")
    assert audit_run(tmp_path / "run", policy=POLICY).verdict is Verdict.PROTECTED
    refused = {
        "manifest.json": lambda folder: (folder / "manifest.json").unlink(),
        "it has format 6, and this version reads format 7": lambda folder: manifest(folder, format=6),
        "run.safetensors: ": lambda folder: (folder / "run.safetensors").unlink(),
        "not the file that was recorded": forged,
    }
    for said, change in refused.items():
        shutil.copytree(tmp_path / "run", tmp_path / said)
        change(tmp_path / said)
        with pytest.raises(InputError, match=said):
            audit_run(tmp_path / said, policy=POLICY)
    for name, change in IMPOSSIBLE:
        shutil.copytree(tmp_path / "run", tmp_path / "other", dirs_exist_ok=True)
        rewritten(tmp_path / "other", name, change)
        with pytest.raises(InputError, match=r"run\.safetensors: .*its [a-z]+ "):
            audit_run(tmp_path / "other", policy=POLICY)
    whole = manifest(tmp_path / "run")
    for other in (
        {"steps": 4},
        {"tensors": ["weight"]},
        {"records": 3},
        {"canaries": {**whole["canaries"], "count": 3}},
    ):
        manifest(tmp_path / "run", **{**whole, **other})
        with pytest.raises(InputError, match=r"run.safetensors: "):
            audit_run(tmp_path / "run", policy=POLICY)
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
    first, second = (from_the_system(torch.device("cpu")).get_state() for _ in range(2))
    assert not torch.equal(first, second)


def test_one_seed_for_noise_and_batches_is_not_two():
    streams = [Stream(what, torch.Generator().manual_seed(11)) for what in ("noise", "batches")]
    assert unknown("secret", streams) == "noise and batches come from one seed"
    assert "which is public" in unknown("secret", [streams[0], Stream("batches", torch.Generator())])


def one_ahead(loader):
    """The batches of a loader that fetches the next one before it hands out this one."""
    waiting = None
    for batch in loader:
        if waiting is not None:
            yield waiting
        waiting = batch
    yield waiting


@pytest.mark.parametrize(
    ("habit", "workers"), [("breaks off", 0), ("evaluates", 0), ("fetches ahead", 0), ("breaks off", 2)]
)
def test_no_habit_of_a_loop_confuses_the_batches(tmp_path, habit, workers):
    torch.manual_seed(0)
    features = torch.randn(KNOWN, FEATURES)
    features[:, 0] = torch.arange(KNOWN)  # every record carries its place
    data = TensorDataset(features, torch.randint(CLASSES, (KNOWN,)))
    work = {"num_workers": workers, "persistent_workers": workers > 0}
    parts = _, private, optimizer, loader = made_private(
        nn.Linear(FEATURES, CLASSES), data, batch=30, loader=work
    )
    places, out = [], tmp_path / "run"
    with recording(*parts, out=out):
        for _ in range(3):
            batches = one_ahead(loader) if habit == "fetches ahead" else loader
            for index, (x, y) in enumerate(batches):
                if index == 2 and habit == "breaks off":
                    break  # with a batch in hand that no step uses
                places += x[:, 0].int().tolist()
                step(private, optimizer, x, y)
                if index == 2 and habit == "evaluates":  # on the training data, in the middle of an epoch
                    private.eval()
                    for other, _ in loader:
                        private(other)
                    private.train()
        out.mkdir()
        (out / "model.pt").write_bytes(b"")  # a loop may store its own in the same folder
    assert read_run(out).tensors["indices"].tolist() == places
    assert (out / "model.pt").exists()
    drawn_in_vain = () if habit == "fetches ahead" else ("sampling-not-replayed",)
    assert unsound(out, known=("seed-unknown", *drawn_in_vain)) == {}
