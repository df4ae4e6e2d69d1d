"""What it costs an adversary that nobody told them how a head was trained, on scikit-learn's digits.

`python benchmarks/unknown_recipe.py` prints a table: of ten pictures, how many the linear reader meets if it is told
the recipe, if it infers the recipe from each head, and if it believes a tutorial's default (SGD at 0.01, 30 epochs,
PyTorch's start). None of the recipes is one that it tries, but for those that are marked.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from sklearn.datasets import load_digits
from torch import nn

from remanence import LinearReader, Loop, Records, TransferHead, play
from remanence.heads.game import head_game
from remanence.heads.pictures import embed, embedding_of
from remanence.results.evidence import Evidence
from remanence_papers.inferring_reader import InferringReader, plausible

PYTORCH = TransferHead(10, 30, 0.05, initialisation="pytorch")
ADAM = replace(PYTORCH, optimizer="adam", learning_rate=0.01)
RECIPES = {
    "SGD 0.05, 30 epochs": PYTORCH,
    "the same from 0": replace(PYTORCH, initialisation=0.0),
    "150 epochs": replace(PYTORCH, epochs=150),
    "150 epochs from 0": replace(PYTORCH, epochs=150, initialisation=0.0),
    "momentum 0.9, decay 5e-4": replace(PYTORCH, learning_rate=0.02, momentum=0.9, weight_decay=5e-4),
    "minibatches of 5": replace(PYTORCH, batch_size=5),
    "weight decay 0.05": replace(PYTORCH, weight_decay=0.05),
    "Adam 0.01": ADAM,
    "Adam 0.01 from 0": replace(ADAM, initialisation=0.0),
    "Adam 0.003, 50 epochs": replace(ADAM, epochs=50, learning_rate=0.003),
    "AdamW 0.005, decay 0.1": replace(ADAM, optimizer="adamw", learning_rate=0.005, weight_decay=0.1),
    "label smoothing 0.1": replace(PYTORCH, loop=Loop(label_smoothing=0.1)),
    "dropout 0.5": replace(PYTORCH, loop=Loop(dropout=0.5)),
    "16 hidden units, SGD 0.5": replace(PYTORCH, hidden=16, learning_rate=0.5),
}
DEFAULT = replace(PYTORCH, learning_rate=0.01)


def main(trials: int = 100) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1
    digits = embed(Records(pictures, torch.tensor(labels)), backbone)
    own, public = digits[:10], digits[100:1000]
    print("| recipe | told | inferred | control | fits | a default | s |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, recipe in RECIPES.items():
        game = head_game(embedding_of(own), own.features, own.labels, recipe, prior=public).heads
        default = replace(DEFAULT, hidden=recipe.hidden)
        told = play(game, LinearReader(), trials=trials)
        started = time.process_time()
        inferred = play(game, InferringReader(), trials=trials)
        seconds = time.process_time() - started
        wrong = play(game, InferringReader(candidates=(default,)), trials=trials)
        fits = float((inferred.arrays["p_value"] > 0.01).double().mean())
        tried = " (tried)" if recipe in set(plausible(recipe)) else ""
        cells = [_cell(told), _cell(inferred), f"{inferred.control.rate:.3f}", f"{fits:.2f}", _cell(wrong)]
        print(f"| {name}{tried} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


def _cell(found: Evidence) -> str:
    rate = found.main
    return f"{rate.rate:.3f} ({rate.lower:.2f} to {rate.upper:.2f})"


if __name__ == "__main__":
    main()
