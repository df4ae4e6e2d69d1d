"""How long an audit of a small convolutional network of one's own takes without a GPU: 28 × 28, 9,098 parameters.

`python benchmarks/own_module.py` trains 500 shadows on sixty known digits and one unknown, and a narrow reconstructor.
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch import nn

from remanence import (
    SGD,
    AnyModule,
    Criterion,
    EmpiricalPrior,
    Game,
    Reconstructor,
    Records,
    mean_squared_error,
    play,
)


def main() -> None:
    """Print the rates and the seconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pixels, labels = load_digits(return_X_y=True)
    pictures = nn.functional.interpolate(torch.tensor(pixels).float().view(-1, 1, 8, 8) / 16, (28, 28))
    digits = Records(pictures, torch.tensor(labels))
    layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    network = AnyModule(nn.Sequential(*layers, nn.Linear(784, 10)))
    criterion = Criterion(mean_squared_error, 0.05)
    targets = EmpiricalPrior(digits[60:120])
    game = Game(
        SGD(network, 20, 0.1, 0.9), EmpiricalPrior(digits[200:1200]), digits[:60], criterion, targets=targets
    )
    found = play(game, Reconstructor(shadows=500, steps=300, width=16), trials=50)
    print(f"{network.numbers:,} parameters: {found.main}; control {found.control}")
    print(f"{time.process_time():.0f} s of processor")


if __name__ == "__main__":
    main()
