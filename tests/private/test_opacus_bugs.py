"""Bugs that were put into correct loops: each is named for what it is, and none passes."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from remanence.private.audit_run import audit_run
from remanence.private.consistency import read_run
from remanence.private.opacus_batches import RecordMarks
from remanence.private.opacus_replica import Reading, Replica
from remanence.results.verdict import Verdict

_SPEC = importlib.util.spec_from_file_location("bugs", Path(__file__).parents[2] / "benchmarks" / "bugs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
bugs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bugs)

NAMES = {
    "half the noise": "noise-below-claim",
    "a quarter of the noise": "noise-below-claim",
    "no noise on the last bias": "noise-below-claim",
    "the same noise in every layer": "noise-repeats",
    "layers after the first reuse their noise": "noise-repeats",
    "noise from a repeated seed": "noise-repeats",
    "noise repeats after a while": "noise-repeats",
    "seeds are the steps, own generator": "seeded-in-the-loop",
    "seeds are the steps": "seeded-in-the-loop",
    "Rademacher noise": "noise-not-gaussian",
    "uniform noise": "noise-not-gaussian",
    "the update is not noised": "update-not-from-gradient",
    "the head is stepped once more": "update-not-from-gradient",
    "the body is trained beside": "trained-outside",
    "clipped at 10 C, noise at C": "clipped-elsewhere",
    "clipping per batch": "clipping-not-per-record",
    "the norm is the batch's median": "norm-from-the-batch",
    "division by the real batch size": "divided-by-the-real-batch",
    "a layer of one's own mixes the batch": "records-mixed",
    "the data are there twice": "records-duplicated",
    "a shuffle accounted as Poisson": "sampling-not-poisson",
    "a body in train mode with BatchNorm statistics": "buffers-changed",
}


def deviations(folder, **settings):
    bugs.run(folder, seed=1, epochs=2, canaries=40, **settings)
    return {caveat.id: caveat for caveat in read_run(folder).deviations()}


@pytest.mark.parametrize("name", bugs.BUGS)
def test_every_bug_is_named(name, tmp_path):
    dropout = len(name) % 2 == 0  # half of them in a model with dropout, where gradients cannot be replayed
    found = deviations(tmp_path / "run", dropout=dropout, **bugs.BUGS[name])
    assert NAMES[name] in found
    caveat = found[NAMES[name]]
    assert caveat.contradicts or caveat.voids
    assert caveat.seen


def test_the_headline_has_the_number(tmp_path):
    said = {
        name: deviations(tmp_path / str(place), network=bugs.cnn, **bugs.BUGS[name])[NAMES[name]].seen
        for place, name in enumerate(
            (
                "half the noise",
                "no noise on the last bias",
                "clipped at 10 C, noise at C",
                "the body is trained beside",
            )
        )
    }
    assert said["half the noise"].startswith("Measured noise 0.50 (0.50 to 0.51)")
    assert said["half the noise"].endswith("claimed 1.00.")
    assert said["no noise on the last bias"] == "The noise on `4.bias` is missing."
    assert said["clipped at 10 C, noise at C"] == "Clipped at 10, accounted at 1."
    assert said["the body is trained beside"] == "`0.weight` changed, and is not the optimizer's."


def test_what_was_measured_decides_without_a_p_value(tmp_path):
    bugs.run(tmp_path / "run", seed=1, epochs=1, canaries=20, **bugs.BUGS["the update is not noised"])
    result = audit_run(tmp_path / "run", policy=bugs.POLICY)
    assert result.verdict is Verdict.CONTRADICTED
    assert result.verdict.exit_code == 1
    assert result.bounds == ()
    assert result.strongest.numbers["p_value_of_the_claim"] > 1e-3


@pytest.mark.parametrize("name", bugs.CORRECT)
def test_no_correct_loop_is_named(name, tmp_path):
    settings = {"epochs": 2, "canaries": 40, **bugs.CORRECT[name]}
    bugs.run(tmp_path / "run", seed=2, **settings)
    assert [c.seen for c in read_run(tmp_path / "run").deviations() if c.contradicts or c.voids] == []


def test_an_attribute_that_nobody_accounts_for_is_not_held_against_the_run(tmp_path):
    """The optimizer's attribute says 2, the accountant was told 1, and the noise is 1."""

    def bug(loop):
        add_noise = loop.optimizer.add_noise
        hook = loop.optimizer.step_hook

        def add():
            loop.optimizer.noise_multiplier = 1.0
            add_noise()
            loop.optimizer.noise_multiplier = 2.0

        def told(optimizer):
            optimizer.noise_multiplier = 1.0
            hook(optimizer)
            optimizer.noise_multiplier = 2.0

        loop.optimizer.add_noise = add
        loop.optimizer.attach_step_hook(told)
        loop.optimizer.noise_multiplier = 2.0

    found = deviations(tmp_path / "run", bug=bug)
    assert "noise-below-claim" not in found
    run = read_run(tmp_path / "run")
    assert run.claimed[0].noise_multiplier == 1.0
    assert run.noise.lower < 1.0 < run.noise.upper


class Words(nn.Module):
    """Every word of a text on its own, and nothing that depends on another text."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 6), nn.Linear(48, bugs.CLASSES)
        self.together = nn.Flatten(0, 1)

    def forward(self, x):
        words = self.together(x[:, 0])  # (records · words, numbers)
        return self.out(nn.functional.dropout(self.inner(words), 0.1, self.training).view(len(x), -1))


def test_records_that_are_folded_into_rows_are_not_mixed():
    replica = Replica(Words(), [], Reading())
    replica._trained = list(replica._inner.parameters())
    assert replica.layer_that_mixes(torch.randn(6, 1, 8, 8)) is None
    mixing = nn.Sequential(Words(), bugs.BatchNormalised())
    replica = Replica(mixing, [], Reading())
    replica._trained = list(replica._inner.parameters())
    assert replica.layer_that_mixes(torch.randn(6, 1, 8, 8)) == "1"


def test_records_that_are_nearly_the_same_are_counted():
    marks = RecordMarks()
    features = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    features[10] = features[20] + 1e-4
    features[30] = features[40]
    for start in range(0, 300, 100):
        marks.add([[features[start : start + 100]]], list(range(start, start + 100)))
    assert marks.duplicates() == 1
    assert marks.near_duplicates() == 2
