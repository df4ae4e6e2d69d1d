"""Recording leaves no trace: training is bit for bit what it would have been, for every kind of module."""

import copy
import io
import pickle
import random
import threading

import numpy as np
import pytest
import torch
from loops import last_one, made_private, step
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from remanence import InputError
from remanence.core.records import Records
from remanence.private.canaries import Canaries, Design, crafted, draw
from remanence.private.consistency import read_run
from remanence.private.opacus import RecordingWarning, record

CLASSES, KNOWN, STEPS = 3, 40, 4


class Last(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent, self.out = recurrent, nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(self.recurrent(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.attention = nn.Embedding(11, 8), DPMultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x):
        words = self.words(x)
        return self.out(self.attention(words, words, words)[0].mean(1))


class Scaled(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.scale


class DrawsElsewhere(nn.Module):
    """Random numbers from NumPy and Python, which have states of their own."""

    def forward(self, x):
        return x + 0.01 * np.random.standard_normal() + 0.01 * random.gauss(0, 1) if self.training else x  # noqa: NPY002


class Adapted(nn.Module):
    """A frozen layer with a trained low-rank one beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def frozen_batch_norm():
    body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).requires_grad_(False)
    body[1].running_mean.normal_()
    return nn.Sequential(body, nn.Linear(8, CLASSES))


def flat(*layers):
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


KINDS = {
    "dense": lambda: flat(nn.Linear(16, 8), nn.ReLU()),
    "dropout": lambda: flat(nn.Linear(16, 8), nn.Dropout(0.5)),
    "random slopes": lambda: flat(nn.Linear(16, 8), nn.RReLU()),
    "frozen batch norm": frozen_batch_norm,
    "recurrent": lambda: Last(DPLSTM(4, 6, batch_first=True)),
    "attention": Attention,
    "a layer of one's own": lambda: flat(nn.Linear(16, 8), Scaled(8)),
    "random numbers from elsewhere": lambda: flat(nn.Linear(16, 8), DrawsElsewhere()),
    "adapters": Adapted,
    "bfloat16": lambda: nn.Linear(16, CLASSES).bfloat16(),
}


def data_for(kind, seed=0):
    """Records that fit the model, and canaries like them."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"recurrent": (5, 4), "attention": (6,)}.get(kind, (16,))
    features = torch.randn(KNOWN + 16, *shape, generator=generator)
    if kind == "attention":
        features = torch.randint(11, (KNOWN + 16, *shape), generator=generator)
    labels = torch.randint(CLASSES, (KNOWN + 16,), generator=generator)
    shortlists = Records(features[KNOWN:, None], labels[KNOWN:, None])
    canaries = Canaries(shortlists, draw(16, 1, generator), Design.REAL)
    inserted = canaries.inserted
    data = TensorDataset(
        torch.cat([features[:KNOWN], inserted.features]), torch.cat([labels[:KNOWN], inserted.labels])
    )
    return data, canaries


def train(kind, out=None, *, private=None, workers=0, physical=None, closing=None):
    """A loop, recorded or not; returns all that it leaves behind."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    data, canaries = data_for(kind)
    plain, work = KINDS[kind](), {"num_workers": workers}
    engine, private, optimizer, *criterion, loader = made_private(
        plain, data, optimizer=lambda p: torch.optim.Adam(p, lr=0.05), loader=work, **(private or {})
    )
    call = private if callable(private) else plain
    if kind == "frozen batch norm":
        plain[0].eval()
    loss = criterion[0] if criterion else cross_entropy
    before = type(loader), dict(vars(loader)), sorted(vars(optimizer)), dict(plain._forward_pre_hooks)

    def loop():
        batches = loader
        if physical:
            manager = BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
            )
            batches = manager.__enter__()
        for done, (x, y) in enumerate(batches):
            loss(call(x.bfloat16() if kind == "bfloat16" else x).float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if done == STEPS - 1:
                break

    if out is None:
        loop()
    else:
        with record(engine, optimizer, private, loader, out=out, canaries=canaries):
            loop()
    after = type(loader), dict(vars(loader)), sorted(vars(optimizer)), dict(plain._forward_pre_hooks)
    assert after == before
    randomness = torch.rand(3), torch.tensor(random.gauss(0, 1)), torch.tensor(np.random.rand())  # noqa: NPY002
    modes = torch.tensor([module.training for module in plain.modules()])
    moments = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return [*plain.state_dict().values(), *moments, modes, *randomness], engine.accountant.history


def not_replayed(folder):
    """What is not made again, but for the seeds, of which nobody said a word, and 44 or so canaries in or out."""
    found = [caveat for caveat in read_run(folder).deviations() if caveat.contradicts or caveat.voids]
    return {caveat.id for caveat in found} - {"seed-unknown", "counted-from-the-records"}


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_bit_for_bit_the_same(kind, tmp_path):
    alone, told = train(kind)
    recorded, told_too = train(kind, tmp_path / "run")
    assert told == told_too
    for one, other in zip(alone, recorded, strict=True):
        assert torch.equal(one, other)
    assert read_run(tmp_path / "run").steps == STEPS
    assert not_replayed(tmp_path / "run") == set()


@pytest.mark.parametrize(
    "how",
    [
        {"private": {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}},
        {"private": {"grad_sample_mode": "functorch"}},
        {"private": {"grad_sample_mode": "ew"}},
        {"private": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}},
        {"physical": 4},
        {"workers": 2},
        {"private": {"wrap_model": False}},
    ],
    ids=str,
)
def test_so_it_is_however_gradients_are_made(how, tmp_path):
    alone, _ = train("dense", **how)
    recorded, _ = train("dense", tmp_path / "run", **how)
    for one, other in zip(alone, recorded, strict=True):
        assert torch.equal(one, other)
    assert not_replayed(tmp_path / "run") == set()


def private_parts(seed=0, records=60):
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(records, 16), torch.randint(CLASSES, (records,)))
    return made_private(nn.Linear(16, CLASSES), data)


def recording(engine, optimizer, model, loader, **settings):
    return record(engine, optimizer, model, loader, canaries=last_one(loader), **settings)


def one_step(model, optimizer, loader):
    step(model, optimizer, *next(iter(loader)))


def test_two_recordings_at_once_closed_in_any_order_and_in_threads_leave_nothing(tmp_path):
    plain = DataLoader.__iter__
    parts = [private_parts(seed) for seed in range(2)]
    recordings = []
    for place, (engine, model, optimizer, loader) in enumerate(parts):
        recordings.append(recording(engine, optimizer, model, loader, out=tmp_path / str(place)))
        recordings[-1].__enter__()
        assert len(iter(loader)) == len(loader)
    threads = [threading.Thread(target=one_step, args=part[1:]) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in recordings:  # the first that was opened is the first that is closed
        each.__exit__(None, None, None)
    assert DataLoader.__iter__ is plain
    for place, (_, _, optimizer, loader) in enumerate(parts):
        assert "Followed" not in repr(iter(loader))
        assert "add_noise" not in vars(optimizer)
        assert read_run(tmp_path / str(place)).steps == 1


def test_one_loader_is_recorded_once_at_a_time(tmp_path):
    engine, model, optimizer, loader = private_parts()
    with recording(engine, optimizer, model, loader, out=tmp_path / "a"):
        with pytest.raises(InputError, match="recorded already"):
            recording(engine, optimizer, model, loader, out=tmp_path / "b").__enter__()
        one_step(model, optimizer, loader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_what_was_recorded_is_kept_when_training_fails(tmp_path):
    engine, model, optimizer, loader = private_parts()

    def failing():
        with recording(engine, optimizer, model, loader, out=tmp_path / "run"):
            one_step(model, optimizer, loader)
            one_step(model, optimizer, loader)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    run = read_run(tmp_path / "run")
    assert run.steps == 2
    assert "recording-stopped" in not_replayed(tmp_path / "run")
    assert "ZeroDivisionError" in run.manifest["noted"]["recording-stopped"]["why"]


def test_what_was_recorded_is_kept_when_recording_fails_and_training_goes_on(tmp_path, monkeypatch):
    engine, model, optimizer, loader = private_parts()
    with recording(engine, optimizer, model, loader, out=tmp_path / "run"):
        one_step(model, optimizer, loader)
        before = copy.deepcopy(list(model.parameters()))
        monkeypatch.setattr("remanence.private.opacus.Clipping.of", lambda *_: 1 / 0)
        with pytest.warns(RecordingWarning, match="after 1 steps: ZeroDivisionError"):
            one_step(model, optimizer, loader)
    assert not torch.equal(before[0], next(iter(model.parameters())))
    run = read_run(tmp_path / "run")
    assert run.steps == 1
    assert "recording-stopped" in {caveat.id for caveat in run.deviations()}


def test_copies_of_the_model_and_the_loader_are_plain_ones(tmp_path):
    """`AveragedModel` copies the module. What the recorder hung onto it does nothing there, and nothing stays."""
    engine, model, optimizer, loader = private_parts()
    plain = model._module
    with recording(engine, optimizer, model, loader, out=tmp_path / "run"):
        averaged = AveragedModel(plain)
        stored = io.BytesIO()
        torch.save(plain, stored)
        for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):  # noqa: S301
            assert type(other) is type(private_parts()[3])
            assert sum(len(y) for _, y in other) > 0
        one_step(model, optimizer, loader)
        averaged.update_parameters(plain)
        with torch.no_grad():
            averaged(torch.randn(2, 16))
    assert not plain._forward_pre_hooks
    stored.seek(0)
    again = torch.load(stored, weights_only=False)
    assert torch.equal(again(torch.ones(1, 16)), again(torch.ones(1, 16)))
    assert not_replayed(tmp_path / "run") == set()
    assert read_run(tmp_path / "run").steps == 1


@pytest.mark.parametrize("where", ["copying", "training"])
def test_a_failure_leaves_nothing_behind_and_the_next_recording_works(tmp_path, where):
    engine, model, optimizer, loader = private_parts()
    if where == "copying":
        model._module.handle = threading.Lock()  # which nobody can copy
        with pytest.raises(InputError, match="cannot be copied"):
            recording(engine, optimizer, model, loader, out=tmp_path / "a").__enter__()
        del model._module.handle
    else:
        with (
            pytest.raises(ZeroDivisionError),
            recording(engine, optimizer, model, loader, out=tmp_path / "a"),
        ):
            raise ZeroDivisionError
    assert not model._module._forward_pre_hooks
    assert not optimizer.original_optimizer._optimizer_step_pre_hooks
    assert "add_noise" not in vars(optimizer)
    assert not list(tmp_path.iterdir())
    with recording(engine, optimizer, model, loader, out=tmp_path / "b", seed="os"):
        one_step(model, optimizer, loader)
    assert optimizer.generator is None
    assert loader.batch_sampler.generator is None
    assert not_replayed(tmp_path / "b") == set()


def test_crafted_canaries_are_never_blank():
    canaries = crafted(500, (1, 8, 8), 10, seed=0)
    assert bool((canaries.shortlists.features != 0).flatten(2).any(2).all())
