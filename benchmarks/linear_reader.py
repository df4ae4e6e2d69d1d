"""The linear reader beside the network that starts from it, over ten recipes, on scikit-learn's digits.

`python benchmarks/linear_reader.py` prints a table of what each recovers, its control, and the seconds it took.
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch import nn

from remanence.core.records import Records
from remanence.game import play
from remanence.heads.game import head_game
from remanence.heads.linear_reader import LinearReader
from remanence.heads.transfer_head import TransferHead
from remanence.reconstructor.attack import Reconstructor

RECIPES = {
    "SGD 0.05, 30 epochs, start 0.002": TransferHead(10, 30, 0.05),
    "the same, PyTorch's start": TransferHead(10, 30, 0.05, initialisation="pytorch"),
    "150 epochs": TransferHead(10, 150, 0.05, initialisation="pytorch"),
    "momentum 0.9": TransferHead(10, 30, 0.05, momentum=0.9, initialisation="pytorch"),
    "minibatches of 5": TransferHead(10, 30, 0.05, batch_size=5, initialisation="pytorch"),
    "weight decay 0.1": TransferHead(10, 30, 0.05, 0.1, initialisation="pytorch"),
    "Adam 0.01": TransferHead(10, 30, 0.01, optimizer="adam", initialisation="pytorch"),
    "Adam 0.001": TransferHead(10, 30, 0.001, optimizer="adam", initialisation="pytorch"),
    "16 hidden units, SGD 0.5": TransferHead(10, 30, 0.5, hidden=16, initialisation="pytorch"),
    "DP-SGD, noise 1": TransferHead(10, 30, 0.05, noise_multiplier=1.0),
}


def main(trials: int = 50, steps: int = 150) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    pixels, labels = load_digits(return_X_y=True)
    pictures, answers = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1, torch.tensor(labels)
    public = Records(pictures[100:1000], answers[100:1000])
    print("| recipe | linear reader | control | s | network | control | s |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, recipe in RECIPES.items():
        game = head_game(backbone, pictures[:10], answers[:10], recipe, prior=public)
        cells = []
        for attack in (LinearReader(), Reconstructor(steps=steps)):
            started = time.perf_counter()
            found = play(game, attack, trials=trials)
            cells += [
                f"{found.main.rate:.3f}",
                f"{found.control.rate:.3f}",
                f"{time.perf_counter() - started:.0f}",
            ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
