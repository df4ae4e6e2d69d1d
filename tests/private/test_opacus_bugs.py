"""Bugs in correct loops: what recomputation does not support is never PROTECTED. Correct loops are made again."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from remanence.bounds import dpsgd
from remanence.private.audit_run import audit_run
from remanence.private.consistency import read_run
from remanence.private.opacus_batches import RecordMarks
from remanence.results.verdict import Verdict

_SPEC = importlib.util.spec_from_file_location("bugs", Path(__file__).parents[2] / "benchmarks" / "bugs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
bugs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bugs)

CERTAIN = {  # what differs from the claim beyond doubt, and by what name
    "half the noise": "noise-below-claim",
    "a quarter of the noise": "noise-below-claim",
    "no noise on the last bias": "noise-below-claim",
    "the same noise in every layer": "noise-repeats",
    "layers after the first reuse their noise": "noise-repeats",
    "noise from a repeated seed": "noise-repeats",
    "noise repeats after a while": "noise-repeats",
    "the update is not noised": "noise-below-claim",
    "clipped at 10 C, noise at C": "clipping-not-per-record",
    "clipping per batch": "clipping-not-per-record",
    "a shuffle accounted as Poisson": "sampling-not-poisson",
    "ghost: all coefficients are 1": "clipping-not-per-record",
    "ghost: clipped at 10 C": "clipping-not-per-record",
    "one record is in every batch": "sampling-above-claim",
    "the norm shrinks before the noise": "noise-below-claim",
    "two drawn batches to a step": "sampling-above-claim",
}
PART = {  # which part of a step is not made again, where none differs beyond doubt
    "seeds are the steps, own generator": "noise-not-replayed",
    "seeds are the steps": "seed-unknown",
    "the head is stepped once more": "update-not-replayed",
    "the body is trained beside": "update-not-replayed",
    "the norm is the batch's median": "norm-from-data",
    "a layer of one's own mixes the batch": "clipping-not-replayed",
    "the data are there twice": "records-duplicated",
    "a body in train mode with BatchNorm statistics": "update-not-replayed",
    **dict.fromkeys(
        (
            "Rademacher noise",
            "uniform noise",
            "no noise on one weight",
            "no noise on the bias of one class",
            "no noise on one neuron",
            "half of each tensor repeats the other half",
            "half of each tensor is the negative of the other",
            "one direction is spared",
            "an own generator, seeded by the step",
            "an own generator, seeded by the gradient",
            "noise cut at 3.5 deviations",
            "a shifted tape",
            "half a record is added once more",
            "signs of the raw sum",
            "the noise follows the gradients",
        ),
        "noise-not-replayed",
    ),
    **dict.fromkeys((name for name in bugs.FOUND if name.startswith("the norm")), "norm-from-data"),
    **dict.fromkeys(
        (
            "20 records come three times as often",
            "batches of one size",
            "batches with large gradients are skipped",
            "a record of each batch is left out",
        ),
        "sampling-not-replayed",
    ),
    **dict.fromkeys(
        (
            "records are mixed up in the loop",
            "records are normalised by their batch",
            "the loss weighs classes by their batch",
            "a data set mixes records",
            "a batch is centred when it is put together",
        ),
        "clipping-not-replayed",
    ),
    **dict.fromkeys(
        (
            "division by the real batch size",
            "the rate is divided by the batch",
            "the rate follows the gradients",
            "the decay follows the gradients",
            "momentum remembers raw gradients",
            "a bias counts the records",
            "the update grows with the raw gradients",
        ),
        "update-not-replayed",
    ),
    **dict.fromkeys([*bugs.LATER, *bugs.LATEST], "update-not-replayed"),
    "the loss weighs classes by the last batch": "clipping-not-replayed",
    "dropout is up to the last batch": "clipping-not-replayed",
    "only the larger half of a batch is used": "clipping-not-replayed",
    **dict.fromkeys(
        (
            "a hook divides by the batch's deviation",
            "the loss looks at the last batch once in a while",
            "dropout is seeded by the batch",
            "records are changed before they come",
            "records are weighed by their place",
        ),
        "clipping-not-replayed",
    ),
    "the noise is seeded inside the loop": "seed-unknown",
    "the batches are seeded inside the loop": "seed-unknown",
    "the sampler leaves empty batches out": "sampling-not-replayed",
    "a second loss, after the noise": "noise-not-replayed",
    **dict.fromkeys(
        (
            "the same batches in every epoch",
            "the generator is set back at every step",
            "the generator is forked at every step",
        ),
        "seed-unknown",
    ),
}
BUGS = {**bugs.TODAY, **bugs.FOUND, **bugs.OWN, **bugs.LATER, **bugs.LATEST}


def recorded(folder, **settings):
    bugs.run(folder, seed=1, **{"epochs": 2, "canaries": 20, **settings})
    return read_run(folder)


def deviations(folder, **settings):
    return {caveat.id: caveat for caveat in recorded(folder, **settings).deviations()}


@pytest.mark.parametrize("name", BUGS)
def test_no_bug_is_protected_and_the_part_is_named(name, tmp_path):
    run = recorded(tmp_path / "run", **BUGS[name])
    found = {caveat.id: caveat for caveat in run.deviations()}
    wanted = CERTAIN.get(name) or PART[name]
    assert wanted in found
    assert found[wanted].seen
    assert found[wanted].contradicts is (name in CERTAIN)
    assert found[wanted].contradicts or found[wanted].voids


def test_the_headline_has_the_number(tmp_path):
    said = {
        name: deviations(tmp_path / str(place), network=bugs.cnn, **BUGS[name])[CERTAIN[name]].seen
        for place, name in enumerate(
            (
                "half the noise",
                "no noise on the last bias",
                "clipping per batch",
                "the update is not noised",
            )
        )
    }
    assert said["half the noise"] == "The noise is 0.50 of what was claimed."
    assert said["no noise on the last bias"] == "The noise on `4.bias` is missing."
    assert re.fullmatch(
        r"The sum is off by 0\.\d+ clipping norms per record, in \d+ of \d+ steps\.",
        said["clipping per batch"],
    )
    assert said["the update is not noised"] == "The noise is missing."


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("the update is not noised", Verdict.CONTRADICTED), ("a bias counts the records", Verdict.UNPROVEN)],
)
def test_what_was_measured_decides_without_a_p_value(name, verdict, tmp_path):
    bugs.run(tmp_path / "run", seed=1, epochs=1, canaries=20, **BUGS[name])
    result = audit_run(tmp_path / "run", policy=bugs.POLICY)
    assert result.verdict is verdict
    assert result.bounds == ()
    assert result.strongest.findings[0].p_value_of_the_claim > 1e-3


NOT_PROVEN = {
    "adaptive clipping": {"norm-from-data", "noise-not-replayed", "seed-unknown"},
    "no word about seeds": {"seed-unknown"},
}


@pytest.mark.parametrize("name", bugs.CORRECT)
def test_every_correct_loop_is_made_again(name, tmp_path):
    run = recorded(tmp_path / "run", **bugs.CORRECT[name])
    found = run.deviations()
    assert not [caveat.seen for caveat in found if caveat.contradicts]
    assert {caveat.id for caveat in found if caveat.voids} == NOT_PROVEN.get(name, set())
    assert run.recording.manifest["rounding"] < (0.5 if name == "autocast" else 1e-4)


def test_a_correct_loop_is_protected_and_the_ceiling_pays_for_rounding(tmp_path):
    bugs.run(tmp_path / "run", seed=1, epochs=2, canaries=20, autocast=True)
    result = audit_run(tmp_path / "run", policy=bugs.POLICY)
    assert result.verdict is Verdict.PROTECTED
    run = read_run(tmp_path / "run")
    assert run.recording.manifest["rounding"] > 1e-4
    assert result.bounds[0].success > dpsgd(0.5, schedule=list(run.claimed)).success


def test_the_owners_assertion_is_on_the_page(tmp_path):
    found = deviations(tmp_path / "run", **bugs.CORRECT["the owner's own seeds"])
    assert "seed-asserted" in found
    assert not found["seed-asserted"].voids


@pytest.mark.parametrize("name", [name for name in bugs.CORRECT if "noise," in name or "projected" in name])
def test_post_processing_is_named(name, tmp_path):
    assert "limited to" in deviations(tmp_path / "run", **bugs.CORRECT[name])["post-processed"].seen


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
    assert "noise-not-replayed" in found
    run = read_run(tmp_path / "run")
    assert run.claimed[0].noise_multiplier == 1.0
    assert run.noise.lower < 1.0 < run.noise.upper


def test_a_schedule_that_is_called_when_the_loss_says_so_is_not_made_again(tmp_path):
    calls = []

    def step(loop):
        loop.step()
        calls.append(loop)
        if len(calls) in (2, 3, 7):
            loop.memory["rates"].step()

    def bug(loop):
        loop.memory["rates"] = torch.optim.lr_scheduler.ExponentialLR(loop.optimizer, 0.8)

    found = deviations(tmp_path / "run", bug=bug, step=step)
    assert "in every step, or after every epoch" in found["update-not-replayed"].seen


def test_a_schedule_that_reads_the_batches_is_not_made_again(tmp_path):
    """It was run ahead, before there was any batch."""
    sizes = []

    def step(loop):
        sizes.append(len(loop.optimizer.grad_samples[0]))
        loop.step()
        loop.memory["rates"].step()

    def bug(loop):
        rule = lambda call: sizes[call - 1] / 60 if 0 < call <= len(sizes) else 1.0  # noqa: E731
        loop.memory["rates"] = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, rule)

    found = deviations(tmp_path / "run", bug=bug, step=step)
    assert found["update-not-replayed"].seen.startswith("Lr of group 0 is")


@pytest.mark.parametrize(
    ("records", "batch", "said"),
    [
        (480, 48, "480 records: divided by 48. 479 records: by 47."),
        (481, 48, "481 records: divided by 43. 480 records: by 48 and 10 batches an epoch, not 11."),
        (485, 48, None),
    ],
)
def test_what_is_counted_from_the_records_is_a_leak_of_who_is_in(tmp_path, records, batch, said):
    found = {}
    for candidates in (1, 2):
        torch.manual_seed(0)
        canaries = bugs.crafted(20, (1, 8, 8), bugs.CLASSES, candidates=candidates, seed=1)
        inside = canaries.inserted
        features = torch.cat([torch.randn(records - len(inside), 1, 8, 8), inside.features])
        labels = torch.cat([torch.randint(bugs.CLASSES, (records - len(inside),)), inside.labels])
        module, engine = bugs.mlp(dropout=False), bugs.PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=bugs.DataLoader(bugs.TensorDataset(features, labels), batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        folder = tmp_path / str(candidates)
        with bugs.record(engine, optimizer, model, loader, out=folder, canaries=canaries, seed="os"):
            for x, y in loader:
                bugs.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        found[candidates] = {caveat.id: caveat for caveat in read_run(folder).deviations()}
    assert "counted-from-the-records" not in found[2]  # as many records, whichever was chosen
    if said is None:
        assert "counted-from-the-records" not in found[1]
    else:
        assert found[1]["counted-from-the-records"].seen.startswith(said)
        assert found[1]["counted-from-the-records"].voids


def test_records_that_change_on_the_way_are_told():
    features = torch.arange(12.0).view(4, 3)
    marks = RecordMarks(4, lambda index: features[[index]])
    assert marks.check(features, [0, 1, 2, 3]) == ""
    assert "alone" in marks.check(features - features.mean(0), [0, 1, 2, 3])
    padded = torch.cat([features, torch.zeros(4, 2)], 1)  # of a longer batch
    assert marks.check(padded, [0, 1, 2, 3]) == ""


def test_a_patched_library_draws_no_noise_for_the_recorder(tmp_path, monkeypatch):
    """Whoever makes torch's own functions give less does not make the recorder expect less."""
    normal = torch.normal
    monkeypatch.setattr(torch, "normal", lambda *args, **kwargs: normal(*args, **kwargs) / 2)
    assert deviations(tmp_path / "run")["noise-below-claim"].seen == "The noise is 0.50 of what was claimed."
