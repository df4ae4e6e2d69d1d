"""Built-in updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remanence.core.examples import example

if TYPE_CHECKING:
    from remanence.game import Game


def digits_gradient() -> Game:
    """One shared gradient of 8 pictures of digits on a 64-256-10 ReLU network in float32: whole batches come back."""
    import torch
    from torch import nn

    from remanence.core.errors import Criterion, Reduction, relative_error
    from remanence.core.priors import EmpiricalPrior, Uninformed
    from remanence.core.records import Records
    from remanence.game import Game
    from remanence.updates.shared_gradient import SharedGradient

    digits = example("digits", scale=8.0)
    data = Records(digits.features.float() - 1, digits.labels)  # pixels in [−1, 1]
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.125, 0.125, generator=generator)
    criterion = Criterion(relative_error(), reduction=Reduction.MATCHED, label_scale=1.0)
    targets = EmpiricalPrior(data, set_size=8)
    return Game(SharedGradient(network, (64,)), Uninformed(), None, criterion, targets=targets)
