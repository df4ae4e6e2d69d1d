"""The loops that people have: dicts, tokens, augmentation, loaders that run ahead, mixed precision, processes."""

import pytest
import torch
from loops import made_private, recording, unsound
from torch import nn
from torch.nn.functional import cross_entropy

from remanence import InputError
from remanence.bounds import Segment
from remanence.core.records import Records
from remanence.private.audit_run import audit_run
from remanence.private.canaries import Canaries, Design, draw
from remanence.private.consistency import RecordedRun
from remanence.private.opacus import Reading, RecordingWarning
from remanence.private.opacus_batches import RecordMarks
from remanence.private.own_pass import features_and_labels
from remanence.private.recording import PARTS
from remanence.results.verdict import Policy

WORDS, LENGTH, CLASSES, KNOWN = 13, 6, 3, 60


class Texts(list):
    """Records as a tokenizer makes them. The first few are turned around, or not, whenever they are read."""

    turned = 0

    def __getitem__(self, place):
        tokens, label = super().__getitem__(place)
        turned = place < self.turned and torch.rand(()) < 0.5
        return {"input_ids": tokens.flip(0) if turned else tokens, "labels": label}


class Classifier(nn.Module):
    """A model that is called as transformers are: by names, and with an answer that has fields."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 8), nn.Linear(8 * LENGTH, CLASSES)

    def forward(self, input_ids=None, labels=None):
        logits = self.out(self.words(input_ids).flatten(1))
        return {"logits": logits, "loss": None if labels is None else cross_entropy(logits, labels)}


READING = Reading(call=lambda model, tokens: model(input_ids=tokens)["logits"])


@pytest.fixture
def loop():
    """The parts of a loop over texts, their canaries, and the loop."""
    generator = torch.manual_seed(0)
    tokens = torch.randint(WORDS, (KNOWN + 40, LENGTH))
    labels = torch.randint(CLASSES, (KNOWN + 40,))
    shortlists = Records(tokens[KNOWN:, None], labels[KNOWN:, None])
    canaries = Canaries(shortlists, draw(40, 1, generator), Design.REAL)
    known = zip(tokens[:KNOWN], labels[:KNOWN], strict=True)
    inserted = zip(canaries.inserted.features, canaries.inserted.labels, strict=True)
    data = Texts([*known, *inserted])
    parts = _, model, optimizer, loader = made_private(Classifier(), data, batch=20)

    def train():
        for _ in range(3):
            for batch in loader:
                model(**batch)["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()

    return parts, canaries, train


KNOWN_TO_BE = (
    "seed-unknown",
    "counted-from-the-records",
)  # of canaries that are in or out, and no word about seeds


def test_batches_that_are_dicts_of_tokens_are_recorded_and_audited(tmp_path, loop):
    parts, canaries, train = loop
    with recording(*parts, out=tmp_path / "run", canaries=canaries, reading=READING):
        train()
    assert unsound(tmp_path / "run", known=KNOWN_TO_BE) == {}
    result = audit_run(tmp_path / "run", policy=Policy(0.95))
    assert result.strongest.findings[0].p_value_of_the_claim > 0.001


def test_records_that_change_whenever_they_are_read_are_not_made_again(tmp_path, loop):
    parts, canaries, train = loop
    data = parts[3].dataset
    data.turned = 10**6
    with pytest.raises(InputError, match="without random changes"):
        recording(*parts, out=tmp_path / "a", canaries=canaries, reading=READING).__enter__()
    data.turned = KNOWN  # the canaries stay as they are
    with recording(*parts, out=tmp_path / "run", canaries=canaries, reading=READING):
        train()
    ((name, seen),) = unsound(tmp_path / "run", known=KNOWN_TO_BE).items()
    assert name == "clipping-not-replayed"
    assert "differs from what was read, alone, when training began" in seen


def test_a_recorder_that_was_not_told_how_to_call_the_model_says_so_and_training_goes_on(tmp_path, loop):
    parts, canaries, train = loop
    with (
        pytest.warns(RecordingWarning, match="Training goes on"),
        recording(*parts, out=tmp_path / "run", canaries=canaries),
    ):
        train()
    assert {"recording-stopped", "clipping-not-replayed"} <= unsound(tmp_path / "run").keys()


def one_run(noise=1.0, batches=lambda batch: batch, claimed=None, **manifest):
    """A run of which nothing was replayed, so that its numbers speak alone: noise by step and tensor, and batches."""
    steps, records, generator = 60, 1000, torch.Generator().manual_seed(0)
    sizes = torch.tensor([200, 20])
    drawn = (1.1 * noise * torch.randn(steps, 220, generator=generator).double()).square()
    chosen = [
        batches((torch.rand(records, generator=generator) < 0.2).nonzero().flatten()) for _ in range(steps)
    ]
    tensors = {
        "sizes": sizes,
        "noise": torch.stack([part.sum(1) for part in drawn.split(sizes.tolist(), 1)], 1),
        "indices": torch.cat(chosen).int(),
        "starts": torch.tensor([0, *map(len, chosen)]).cumsum(0),
        "settings": torch.tensor([[1.0, 1.1]], dtype=torch.float64).expand(steps, 2),
    }
    manifest = {"steps": steps, "records": records, "tensors": ["weights", "bias"], "rate": 0.1} | manifest
    manifest = {"noted": {}, "replayed": dict.fromkeys(PARTS, 0), "seed": "os"} | manifest
    return RecordedRun(manifest, tensors, claimed or (Segment(1.1, 0.2, steps),))


def bare(place):
    noise = torch.ones(60, 220)
    noise[place] = 0.5
    return noise


NOISE, SAMPLING = "noise-below-claim", "sampling-above-claim"
LATER = Segment(1.1, 0.2, 30), Segment(1.2, 0.2, 30)
RARER = Segment(1.1, 0.2, 20), Segment(1.1, 0.19, 40)


@pytest.mark.parametrize(
    ("how", "named", "said"),
    [
        ({"noise": 0.9}, NOISE, "The noise is 0.90 of what was claimed."),
        ({"noise": bare((slice(None), slice(200, None)))}, NOISE, "The noise on `bias` is 0.4"),
        ({"noise": bare(7)}, NOISE, "The noise in step 8 is 0.5"),
        ({"claimed": LATER}, NOISE, "Its multiplier was 1.1 in step 31, 1.2 accounted for."),
        ({"claimed": RARER, "rate": 0.2}, SAMPLING, "Drawn at a rate of 0.2, 0.19 accounted for."),
        ({"claimed": (Segment(1.1, 0.15, 60),)}, SAMPLING, "Batches of 197.7 records on average, 150.0"),
        ({"claimed": (Segment(1.1, 0.2, 59),)}, "steps-unaccounted", "60 steps were taken, 59 were counted."),
        ({"batches": lambda batch: batch[:180]}, "sampling-not-poisson", "Batch sizes vary by"),
    ],
    ids=["less-noise", "one-tensor", "one-step", "told", "rate", "batches", "steps", "one-size"],
)
def test_statistics_accuse_where_nothing_was_replayed(how, named, said):
    found = {caveat.id: caveat for caveat in one_run(**how).deviations()}
    assert found[named].seen.startswith(said)
    assert found[named].contradicts
    others = {caveat.id for caveat in found.values() if caveat.contradicts} - {named}
    assert others <= ({"sampling-not-poisson"} if "batches" in how else set())


def test_nothing_but_replay_is_missing_from_a_run_whose_statistics_are_right():
    run = one_run()
    assert {caveat.contradicts for caveat in run.deviations()} == {False}
    assert len([caveat for caveat in run.deviations() if caveat.voids]) == len(PARTS)
    assert "recording-stopped" not in {caveat.id for caveat in run.deviations()}
    found = {name.removeprefix("measured_"): value for name, value in run.measured().items()}
    assert found["noise_multiplier_from"] < 1.1 < found["noise_multiplier_to"]
    assert found["noise_multiplier"] == pytest.approx(float(run.tensors["noise"].sum() / (60 * 220)) ** 0.5)
    assert found["sample_rate"] == len(run.tensors["indices"]) / 60_000


def test_steps_that_were_counted_and_not_seen_are_named():
    found = {caveat.id: caveat for caveat in one_run(claimed=(Segment(1.1, 0.2, 61),)).deviations()}
    assert found["recording-stopped"].seen == "The accountant counted 61 steps, 60 were seen."


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ((40, 0), "20 of 60"),
        ((60, 3), "3 of 60"),
        ((40, 30), "30 of 60"),
        ((0, 0), "60 of 60"),
        ((60, 0), ""),
    ],
)
def test_steps_that_were_not_replayed_are_counted(seen, said):
    noted = {part: {"count": seen[1], "why": "no reason"} for part in PARTS if seen[1]}
    run = one_run(replayed=dict.fromkeys(PARTS, seen[0]), noted=noted)
    found = [caveat.seen for caveat in run.deviations() if caveat.voids]
    why = "No reason" if seen[1] else "The recorder did not see what it is made from"
    assert found == ([f"{why}, in {said} steps."] * len(PARTS) if said else [])


@pytest.mark.parametrize(
    ("records", "batches", "divisor", "said"),
    [
        (480, 10, 48, "480 records: divided by 48. 479 records: by 47."),
        (481, 11, 43, "481 records: divided by 43. 480 records: by 48 and 10 batches an epoch, not 11."),
        (101, 2, 50, "101 records: divided by 50. 100 records: by 100 and 1 batches an epoch, not 2."),
        (100, 1, 100, "100 records: divided by 100. 99 records: by 99."),
        (494, 11, 44, "494 records: divided by 44. 495 records: by 45."),
        (493, 11, 44, None),
        (485, 11, 44, None),
    ],
)
def test_a_divisor_that_one_record_changes_is_named(records, batches, divisor, said):
    run = one_run(records=records, divisor=divisor, canaries={"candidates": 1})
    run.manifest["batches"] = batches
    assert [caveat.seen for caveat in run._of_counting()] == ([] if said is None else [said])
    run.manifest["canaries"]["candidates"] = 2  # as many records, whichever was chosen
    assert list(run._of_counting()) == []


@pytest.mark.parametrize(("features", "labels"), [("y", "label"), ("target", "labels"), ("x", "target")])
def test_of_a_batch_with_names_the_surest_name_is_the_label(features, labels):
    batch = {features: torch.rand(3, 2), labels: torch.tensor([0, 1, 1])}
    found = features_and_labels(batch)
    assert torch.equal(found[0], batch[features])
    assert torch.equal(found[1], batch[labels])


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
)
def test_a_changed_bit_of_a_record_is_seen_and_equal_ones_are_duplicates(dtype):
    records = torch.arange(12).reshape(4, 3).to(dtype)
    records[3] = records[0]
    marks = RecordMarks(4, lambda index: (records[index : index + 1], torch.zeros(1)))
    assert marks.duplicates() == 1
    batch = records[[2, 1]].clone()
    assert marks.check((batch, torch.zeros(2)), [2, 1]) == ""
    batch.view(torch.uint8)[1, 0] ^= 1
    assert "record 1 differs" in marks.check((batch, torch.zeros(2)), [2, 1])
