"""The loops that people have: dicts, tokens, augmentation, loaders that run ahead, mixed precision, processes."""

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from remanence import InputError
from remanence.core.records import Records
from remanence.private.audit_run import audit_run
from remanence.private.canaries import Canaries, Design, crafted, draw
from remanence.private.consistency import read_run
from remanence.private.opacus import Reading, record
from remanence.private.recorder import RunRecorder
from remanence.results.verdict import Policy, Verdict

WORDS, LENGTH, CLASSES, KNOWN = 13, 6, 3, 60


class Texts(Dataset):
    """Records as a tokenizer makes them."""

    def __init__(self, tokens, labels, *, flips=False):
        self.tokens, self.labels, self.flips = tokens, labels, flips

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        tokens = self.tokens[place]
        tokens = tokens.flip(0) if self.flips and torch.rand(()) < 0.5 else tokens
        return {"input_ids": tokens, "labels": self.labels[place]}


class Classifier(nn.Module):
    """A model that is called as transformers are: by names, and with an answer that has fields."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 8), nn.Linear(8 * LENGTH, CLASSES)

    def forward(self, input_ids=None, labels=None):
        logits = self.out(self.words(input_ids).flatten(1))
        return {"logits": logits, "loss": None if labels is None else cross_entropy(logits, labels)}


READING = {"call": lambda model, tokens: model(input_ids=tokens)["logits"]}


def texts(*, flips=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(WORDS, (KNOWN + 40, LENGTH), generator=generator)
    labels = torch.randint(CLASSES, (KNOWN + 40,), generator=generator)
    shortlists = Records(tokens[KNOWN:, None], labels[KNOWN:, None])
    canaries = Canaries(shortlists, draw(40, 1, generator), Design.REAL)
    everything = torch.cat([tokens[:KNOWN], canaries.inserted.features])
    return Texts(everything, torch.cat([labels[:KNOWN], canaries.inserted.labels]), flips=flips), canaries


def private(data, *, batch=20, **settings):
    torch.manual_seed(1)
    plain, engine = Classifier(), PrivacyEngine()
    made = engine.make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        **settings,
    )
    return engine, *made


def train(model, optimizer, loader, *, epochs=3, autocast=False):
    for _ in range(epochs):
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def wrong(folder):
    """But for the seeds, of which nobody said a word, and canaries that are in or out of records that are counted."""
    found = [(c.id, c.seen) for c in read_run(folder).deviations() if c.contradicts or c.voids]
    return [(name, seen) for name, seen in found if name not in ("seed-unknown", "counted-from-the-records")]


@pytest.mark.parametrize("autocast", [False, True])
def test_batches_that_are_dicts_of_tokens_are_recorded_and_audited(tmp_path, autocast):
    data, canaries = texts()
    engine, model, optimizer, loader = private(data)
    with record(
        engine, optimizer, model, loader, out=tmp_path / "run", canaries=canaries, reading=Reading(**READING)
    ):
        train(model, optimizer, loader, autocast=autocast)
    assert wrong(tmp_path / "run") == []
    result = audit_run(tmp_path / "run", policy=Policy(0.95))
    assert result.strongest.findings[0].p_value_of_the_claim > 0.001


def test_records_that_change_whenever_they_are_read_are_not_made_again(tmp_path):
    data, canaries = texts(flips=True)
    engine, model, optimizer, loader = private(data)
    with pytest.raises(InputError, match="without random changes"):
        record(
            engine,
            optimizer,
            model,
            loader,
            out=tmp_path / "a",
            canaries=canaries,
            reading=Reading(**READING),
        ).__enter__()
    with record(engine, optimizer, model, loader, out=tmp_path / "run", reading=Reading(**READING)):
        train(model, optimizer, loader)
    ((name, seen),) = wrong(tmp_path / "run")
    assert name == "clipping-not-replayed"
    assert "differs from what was read, alone, when training began" in seen


class OneAhead:
    """A loader that fetches the next batch before it hands out this one."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches = iter(self.loader)
        waiting = next(batches)
        for batch in batches:
            yield waiting
            waiting = batch
        yield waiting


def test_a_loader_that_runs_ahead_does_not_shift_the_batches(tmp_path):
    data, _ = texts()
    data.tokens[:, 0] = torch.arange(len(data)) % WORDS
    data.tokens[:, 1] = torch.arange(len(data)) // WORDS  # every record carries its place
    engine, model, optimizer, loader = private(data)
    places = []

    def noted(batches):
        for batch in batches:
            tokens = batch["input_ids"]
            places.extend((tokens[:, 0] + WORDS * tokens[:, 1]).tolist())
            yield batch

    with record(engine, optimizer, model, loader, out=tmp_path / "run"):
        train(model, optimizer, noted(OneAhead(loader)), epochs=1)
    assert read_run(tmp_path / "run")._batches["indices"].tolist() == places
    ((name, seen),) = wrong(tmp_path / "run")
    assert (name, "own pass fails" in seen) == ("clipping-not-replayed", True)  # it was not told how to call


def test_a_recording_may_begin_in_the_middle_and_says_so(tmp_path):
    data, canaries = texts()
    engine, model, optimizer, loader = private(data)
    train(model, optimizer, loader, epochs=1)
    with pytest.raises(InputError, match="already begun"):
        record(engine, optimizer, model, loader, out=tmp_path / "a", canaries=canaries).__enter__()
    with record(engine, optimizer, model, loader, out=tmp_path / "run"):
        train(model, optimizer, loader, epochs=1)
    assert [name for name, _ in wrong(tmp_path / "run")] == ["recorded-in-part", "clipping-not-replayed"]


def as_it_is(drawn):
    return drawn


def logged(
    folder, *, noise=1.1, canaries=None, steps=60, seed=0, records=1000, changed=as_it_is, chosen=as_it_is
):
    """A run of some other framework, from its logs: a linear model whose canaries have orthogonal gradients."""
    generator = np.random.default_rng(seed)
    first = records - (0 if canaries is None else len(canaries.inserted))
    gradients = np.eye(220, dtype=np.float32)
    with RunRecorder(
        folder, records=records, max_grad_norm=1.0, claimed=[(1.1, 0.2, steps)], canaries=canaries
    ) as recording:
        for step in range(steps):
            batch = chosen(np.flatnonzero(generator.random(records) < 0.2))
            present = [] if canaries is None else canaries.rows[batch[batch >= first] - first].tolist()
            summed = generator.normal(size=220) + gradients[present].sum(0)
            noised = summed + noise * changed(generator.normal(size=220))
            parts = [{"weights": one[:200], "bias": one[200:]} for one in (summed, noised)]
            shown = None if canaries is None else gradients[: len(canaries)]
            recording.append(step, *parts, batch.tolist(), shown)


def test_any_framework_can_be_audited_from_its_logs(tmp_path):
    canaries = crafted(200, (4,), 2, seed=0)
    logged(tmp_path / "run", canaries=canaries)
    parts = {f"{part}-not-replayed" for part in ("sampling", "clipping", "noise", "update")}
    assert {name for name, _ in wrong(tmp_path / "run")} == parts | {"norm-from-data"}  # of a log, nothing is
    assert read_run(tmp_path / "run").noise.lower < 1.1 < read_run(tmp_path / "run").noise.upper
    result = audit_run(tmp_path / "run", policy=Policy(0.99))
    assert result.strongest.findings[0].p_value_of_the_claim > 0.001
    # A canary a step has 0.9 standard deviations, in a fifth of 60 steps.
    assert result.strongest.main.rate > 0.6
    logged(tmp_path / "half", canaries=canaries, noise=0.55, steps=15)
    result = audit_run(tmp_path / "half", policy=Policy(0.99))
    assert result.verdict is Verdict.CONTRADICTED


def one_bare(noise):
    noise[7] = 0
    return noise


def halves(sign):
    return lambda noise: np.concatenate([noise[:110], sign * noise[:110]])


@pytest.mark.parametrize(
    ("how", "named", "said"),
    [
        ({"noise": 0.9}, "noise-below-claim", "The noise is 0.8"),
        (
            {"changed": one_bare},
            "noise-below-claim",
            "Some numbers of `weights` have next to no noise in 60 steps.",
        ),
        ({"changed": halves(1)}, "noise-repeats", "66"),
        ({"changed": halves(-1)}, "noise-repeats", "66"),
        (
            {"chosen": lambda batch: np.union1d([3], batch)},
            "sampling-above-claim",
            "A record was in 60 of 60 steps, at a rate of 0.2.",
        ),
        ({"chosen": lambda batch: batch[:180]}, "sampling-not-poisson", "Batch sizes vary by"),
    ],
    ids=["less-noise", "one-bare", "halves", "negative-halves", "one-record", "one-size"],
)
def test_statistics_accuse_where_no_generator_can_be_replayed(tmp_path, how, named, said):
    logged(tmp_path / "run", **how)
    found = {caveat.id: caveat for caveat in read_run(tmp_path / "run").deviations()}
    assert found[named].seen.startswith(said)
    assert found[named].contradicts
    others = {caveat.id for caveat in found.values() if caveat.contradicts} - {named}
    assert others <= ({"sampling-not-poisson"} if "chosen" in how else set())


def test_logs_that_do_not_fit_together_are_refused(tmp_path):
    recording = RunRecorder(tmp_path / "run", records=10, max_grad_norm=1.0, claimed=[(1.0, 0.5, 9)])
    with pytest.raises(InputError, match="not recorded in order"):
        recording.append(1, np.zeros(3), np.zeros(3), [0])
    with pytest.raises(InputError, match="do not fit together"):
        recording.append(0, np.zeros(3), np.zeros(4), [0])
    with pytest.raises(InputError, match="No training step"):
        recording.finish()
    assert not list(tmp_path.iterdir())
