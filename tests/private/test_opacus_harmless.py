"""Recording leaves no trace: training is bit for bit what it would have been, for every kind of module."""

import copy
import io
import pickle
import random
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from loops import bugs, made_private, private_parts, recording, step, unsound
from opacus.layers import DPLSTM
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from remanence import InputError
from remanence.private.canaries import crafted
from remanence.private.consistency import read_run
from remanence.private.opacus import RecordingWarning

STEPS = 4


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


def mlp(*layers):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, bugs.CLASSES))


def frozen_batch_norm():
    module = mlp(nn.BatchNorm1d(8))
    module[:3].requires_grad_(False)[2].running_mean.normal_()
    return module


KINDS = {
    "dense": lambda: mlp(nn.ReLU()),
    "dropout": lambda: mlp(nn.Dropout(0.5)),
    "random slopes": lambda: mlp(nn.RReLU()),
    "frozen batch norm": frozen_batch_norm,
    "recurrent": lambda: bugs.Steps(DPLSTM),
    "attention": bugs.Attention,
    "embeddings": bugs.Words,
    "a layer of one's own": lambda: mlp(Scaled(8)),
    "random numbers from elsewhere": lambda: mlp(DrawsElsewhere()),
    "adapters": bugs.Lora,
    "bfloat16": lambda: mlp().bfloat16(),
}


def train(kind, out=None, *, private=None, workers=0, physical=None):
    """A loop, recorded or not; returns all that it leaves behind."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    data = TensorDataset(torch.randn(56, 1, 8, 8), torch.randint(bugs.CLASSES, (56,)))
    plain, work = KINDS[kind](), {"num_workers": workers}
    engine, model, optimizer, *criterion, loader = made_private(
        plain, data, optimizer=lambda p: torch.optim.Adam(p, lr=0.05), loader=work, **(private or {})
    )
    call = model if callable(model) else plain
    if kind == "frozen batch norm":
        plain[2].eval()
    loss = criterion[0] if criterion else cross_entropy

    def left():
        return type(loader), dict(vars(loader)), sorted(vars(optimizer)), dict(plain._forward_pre_hooks)

    before = left()
    watched = nullcontext() if out is None else recording(engine, model, optimizer, loader, out=out)
    with watched:
        for done, (x, y) in enumerate(bugs.batches(loader, optimizer, physical)):
            loss(call(x.bfloat16() if kind == "bfloat16" else x).float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if done == STEPS - 1:
                break
    assert left() == before
    randomness = torch.rand(3), torch.tensor(random.gauss(0, 1)), torch.tensor(np.random.rand())  # noqa: NPY002
    modes = torch.tensor([module.training for module in plain.modules()])
    moments = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return [*plain.state_dict().values(), *moments, modes, *randomness], engine.accountant.history


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, {}) for kind in KINDS),
        ("dense", {"private": {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}}),
        ("dense", {"private": {"grad_sample_mode": "functorch"}}),
        ("dense", {"private": {"grad_sample_mode": "ew"}}),
        ("dense", {"private": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}}),
        ("dense", {"physical": 4}),
        ("dense", {"workers": 2}),
        ("dense", {"private": {"wrap_model": False}}),
    ],
    ids=str,
)
def test_training_is_bit_for_bit_the_same(kind, how, tmp_path):
    (alone, told), (recorded, told_too) = train(kind, **how), train(kind, tmp_path / "run", **how)
    assert told == told_too
    for one, other in zip(alone, recorded, strict=True):
        assert torch.equal(one, other)
    assert "physical" in how or read_run(tmp_path / "run").steps == STEPS
    assert unsound(tmp_path / "run") == {}


def one_step(engine, model, optimizer, loader):
    step(model, optimizer, *next(iter(loader)))


def plain_again(engine, model, optimizer, loader):
    """Whether nothing of a recording is left."""
    hooks = model._module._forward_pre_hooks, optimizer.original_optimizer._optimizer_step_pre_hooks
    generators = optimizer.generator, loader.batch_sampler.generator
    samplers = type(loader.batch_sampler) is type(private_parts()[3].batch_sampler)
    return not any(hooks) and generators == (None, None) and "add_noise" not in vars(optimizer) and samplers


def test_two_recordings_at_once_closed_in_any_order_and_in_threads_leave_nothing(tmp_path):
    parts = [private_parts(seed) for seed in range(2)]
    recordings = [recording(*part, out=tmp_path / str(place)) for place, part in enumerate(parts)]
    for each in recordings:
        each.__enter__()
    threads = [threading.Thread(target=one_step, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in recordings:  # the first that was opened is the first that is closed
        each.__exit__(None, None, None)
    for place, part in enumerate(parts):
        assert plain_again(*part)
        assert read_run(tmp_path / str(place)).steps == 1


def test_one_loader_is_recorded_once_at_a_time(tmp_path):
    parts = private_parts()
    with recording(*parts, out=tmp_path / "a"):
        with pytest.raises(InputError, match="recorded already"):
            recording(*parts, out=tmp_path / "b").__enter__()
        one_step(*parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_what_was_recorded_is_kept_when_training_fails(tmp_path):
    parts = private_parts()

    def failing():
        with recording(*parts, out=tmp_path / "run"):
            one_step(*parts)
            one_step(*parts)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert unsound(tmp_path / "run")["recording-stopped"].startswith("After 2 steps: ZeroDivisionError")


def test_what_was_recorded_is_kept_when_recording_fails_and_training_goes_on(tmp_path, monkeypatch):
    _, model, *_ = parts = private_parts()
    with recording(*parts, out=tmp_path / "run"):
        one_step(*parts)
        before = copy.deepcopy(list(model.parameters()))
        monkeypatch.setattr("remanence.private.opacus.Clipping.of", lambda *_: 1 / 0)
        with pytest.warns(RecordingWarning, match="after 1 steps: ZeroDivisionError"):
            one_step(*parts)
    assert not torch.equal(before[0], next(iter(model.parameters())))
    assert unsound(tmp_path / "run")["recording-stopped"].startswith("After 1 steps: ZeroDivisionError")


def test_copies_of_the_model_and_the_loader_are_plain_ones(tmp_path):
    """`AveragedModel` copies the module. What the recorder hung onto it does nothing there, and nothing stays."""
    _, model, _, loader = parts = private_parts()
    plain, stored = model._module, io.BytesIO()
    with recording(*parts, out=tmp_path / "run"):
        averaged = AveragedModel(plain)
        torch.save(plain, stored)
        for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):  # noqa: S301
            assert sum(len(y) for _, y in other) > 0
        one_step(*parts)
        averaged.update_parameters(plain)
        with torch.no_grad():
            averaged(torch.randn(2, 16))
    stored.seek(0)
    assert torch.load(stored, weights_only=False)(torch.ones(1, 16)).shape == (1, 3)
    assert unsound(tmp_path / "run") == {}
    assert read_run(tmp_path / "run").steps == 1


@pytest.mark.parametrize("where", ["copying", "training"])
def test_a_failure_leaves_nothing_behind_and_the_next_recording_works(tmp_path, where):
    _, model, *_ = parts = private_parts()
    model._module.handle = threading.Lock() if where == "copying" else None  # which nobody can copy
    error, said = (InputError, "cannot be copied") if where == "copying" else (ZeroDivisionError, None)
    with pytest.raises(error, match=said), recording(*parts, out=tmp_path / "a"):
        raise ZeroDivisionError
    assert plain_again(*parts)
    assert not list(tmp_path.iterdir())
    del model._module.handle
    with recording(*parts, out=tmp_path / "b", seed="os"):
        one_step(*parts)
    assert plain_again(*parts)
    assert unsound(tmp_path / "b", known=()) == {}


def test_crafted_canaries_are_never_blank():
    canaries = crafted(500, (1, 8, 8), 10, seed=0)
    assert bool((canaries.shortlists.features != 0).flatten(2).any(2).all())
