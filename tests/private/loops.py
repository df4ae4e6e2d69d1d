"""What every loop of these tests begins with, one step of it, and the loops of `benchmarks/bugs.py`."""

import importlib.util
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from remanence.core.records import Records
from remanence.private.canaries import Canaries, Design
from remanence.private.consistency import read_run
from remanence.private.opacus import record

_SPEC = importlib.util.spec_from_file_location("bugs", Path(__file__).parents[2] / "benchmarks" / "bugs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
bugs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bugs)


def made_private(
    module, data, *, batch=10, noise=1.0, optimizer=lambda p: SGD(p, lr=0.1), loader=None, **settings
):
    """Engine, model, optimizer and loader; the criterion too where Opacus makes one."""
    engine = PrivacyEngine()
    return engine, *engine.make_private(
        module=module,
        optimizer=optimizer([p for p in module.parameters() if p.requires_grad]),
        data_loader=DataLoader(data, batch_size=batch, **(loader or {})),
        noise_multiplier=noise,
        **{"max_grad_norm": 1.0, **settings},
    )


def private_parts(seed=0):
    """The same for a linear model of random records."""
    torch.manual_seed(seed)
    return made_private(nn.Linear(16, 3), TensorDataset(torch.randn(60, 16), torch.randint(3, (60,))))


def last_one(loader):
    """The last record of the data as the only canary, and one beside it that was not trained on."""
    features, label = loader.dataset[len(loader.dataset) - 1]
    lists = Records(torch.stack([features, features + 1])[None], label.expand(1, 2))
    return Canaries(lists, torch.tensor([0]), Design.REAL)


def recording(engine, model, optimizer, loader, **settings):
    given = settings if "canaries" in settings else {**settings, "canaries": last_one(loader)}
    return record(engine, optimizer, model, loader, **given)


def step(model, optimizer, x, y, loss=cross_entropy):
    loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def deviations(folder):
    """The caveats of a recorded run, by their names."""
    return {caveat.id: caveat for caveat in read_run(folder).deviations()}


def unsound(folder, *, known=("seed-unknown",)):
    """What keeps a run from being PROTECTED, and was seen; of its seeds nothing was said."""
    found = deviations(folder).items()
    return {name: c.seen for name, c in found if (c.voids or c.contradicts) and name not in known}
