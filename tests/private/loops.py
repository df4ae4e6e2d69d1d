"""What every loop of these tests begins with, and one step of it."""

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader

from remanence.core.records import Records
from remanence.private.canaries import Canaries, Design


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


def last_one(loader):
    """The last record of the data as the only canary, and one beside it that was not trained on."""
    features, label = loader.dataset[len(loader.dataset) - 1]
    lists = Records(torch.stack([features, features + 1])[None], label.expand(1, 2))
    return Canaries(lists, torch.tensor([0]), Design.REAL)


def step(model, optimizer, x, y, loss=cross_entropy):
    loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
