"""Stands in for your own training: an ordinary Opacus loop inside `record`, which writes the folder `recording`.

Its seeds are fixed, so that the walk prints the same every time. Your own training says seed="os" instead.
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from remanence.private.canaries import crafted
from remanence.private.opacus import record


def main() -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    canaries = crafted(
        12, (20,), 4, candidates=5, seed=0
    )  # twelve records, each drawn from a shortlist of five
    features = torch.cat([torch.randn(300, 20), canaries.inserted.features])
    labels = torch.cat([torch.randint(4, (300,)), canaries.inserted.labels])
    batches, noise = (torch.Generator().manual_seed(seed) for seed in (5, 6))
    loader = DataLoader(TensorDataset(features, labels), batch_size=30, generator=batches)
    model, engine = nn.Linear(20, 4), PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        noise_generator=noise,
    )
    with record(engine, optimizer, model, loader, out="recording", canaries=canaries, seed="secret"):
        for _ in range(3):
            for inputs, wanted in loader:
                cross_entropy(model(inputs), wanted).backward()
                optimizer.step()
                optimizer.zero_grad()


main()
