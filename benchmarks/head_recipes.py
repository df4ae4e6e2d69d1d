"""Heads by plain PyTorch loops, declared right and wrong: which are refused?

`python benchmarks/head_recipes.py` prints a table on scikit-learn's digits, two of each class. `--data
olivetti-faces.npz` or `mnist.npz` takes other pictures. Every loop below has PyTorch's own objects and knows
nothing of this project. Each head is compared with heads that its declared recipe makes: declared right, one in twenty
should have a p-value of at most 5 %. The wrong ones are the same loop without training, on other pictures, with other
labels or with a third of the epochs, and the right head declared as plain SGD; an audit refuses them at 1 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

from remanence import Loop, Records, TransferHead
from remanence.heads.belonging import LEVEL, fit
from remanence.heads.pictures import embed, embedding_of
from remanence.heads.reading import read_head

EPOCHS = 30
START = TransferHead(10, EPOCHS, 0.05, initialisation="pytorch")
Make = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(head: nn.Module) -> torch.optim.Optimizer:
    """Without anything."""
    return torch.optim.SGD(head.parameters(), lr=0.05)


def momentum(head: nn.Module) -> torch.optim.Optimizer:
    """As in many tutorials."""
    return torch.optim.SGD(head.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)


def adam(head: nn.Module) -> torch.optim.Optimizer:
    """At a rate that people use for heads."""
    return torch.optim.Adam(head.parameters(), lr=0.01)


def adamw(head: nn.Module) -> torch.optim.Optimizer:
    """With its usual decay."""
    return torch.optim.AdamW(head.parameters(), lr=0.01)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    """Down to nothing."""
    return CosineAnnealingLR(optimizer, EPOCHS)


def warm(optimizer: torch.optim.Optimizer) -> Any:
    """Five epochs up, and then down to nothing."""
    parts = [LinearLR(optimizer, 0.1, 1.0, 5), CosineAnnealingLR(optimizer, EPOCHS - 5)]
    return SequentialLR(optimizer, parts, [5])


@dataclass
class Plain:
    """A training loop as people write it."""

    make: Make = sgd
    epochs: int = EPOCHS
    build: Callable[[int], nn.Module] = lambda numbers: nn.Linear(numbers, 10)
    batch: int | None = None
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    half: torch.dtype | None = None

    def train(self, features: Tensor, labels: Tensor) -> nn.Module:
        """One head."""
        head = self.build(features.shape[1])
        optimizer = self.make(head)
        scheduler = None if self.schedule is None else self.schedule(optimizer)
        for _ in range(self.epochs):
            for inputs, wanted in DataLoader(
                TensorDataset(features, labels), self.batch or len(labels), shuffle=True
            ):
                optimizer.zero_grad()
                self.loss(head(inputs), wanted).backward()
                optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return head.eval() if self.half is None else head.eval().to(self.half)


def layers(*sizes: int, between: Callable[[], nn.Module] = nn.ReLU) -> Callable[[int], nn.Module]:
    def build(numbers: int) -> nn.Module:
        widths = (numbers, *sizes, 10)
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after), between()]
        return nn.Sequential(*parts[:-1])

    return build


def _scheduled(schedule: Callable[[torch.optim.Optimizer], Any], make: Make = sgd) -> TransferHead:
    """The rate as PyTorch's own scheduler sets it in every epoch."""
    optimizer = make(nn.Linear(2, 10))
    scheduler, rates = schedule(optimizer), []
    for _ in range(EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    base = ADAMW if make is adamw else START
    return replace(base, loop=Loop(schedule=tuple(rate / base.learning_rate for rate in rates)))


def _looped(recipe: TransferHead = START, **words: Any) -> TransferHead:
    return replace(recipe, loop=Loop(**words))


ADAM = replace(START, optimizer="adam", learning_rate=0.01)
ADAMW = replace(ADAM, optimizer="adamw", weight_decay=0.01)
MOMENTUM = replace(START, learning_rate=0.02, momentum=0.9, weight_decay=5e-4)
CASES: dict[str, tuple[Plain, TransferHead]] = {
    "SGD": (Plain(), START),
    "SGD, momentum, decay": (Plain(momentum), MOMENTUM),
    "Adam": (Plain(adam), ADAM),
    "AdamW": (Plain(adamw), ADAMW),
    "cosine schedule": (Plain(schedule=cosine), _scheduled(cosine)),
    "AdamW, warm-up, cosine schedule": (Plain(adamw, schedule=warm), _scheduled(warm, adamw)),
    "label smoothing 0.1": (
        Plain(loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
        _looped(label_smoothing=0.1),
    ),
    "dropout 0.5": (
        Plain(build=lambda numbers: nn.Sequential(nn.Dropout(0.5), nn.Linear(numbers, 10))),
        _looped(dropout=0.5),
    ),
    "minibatches of 8": (Plain(batch=8), replace(START, batch_size=8)),
    "Adam, minibatches of 8": (Plain(adam, batch=8), replace(ADAM, batch_size=8)),
    "published in float16": (Plain(half=torch.float16), START),
    "published in bfloat16": (Plain(half=torch.bfloat16), START),
    "no bias": (Plain(build=lambda numbers: nn.Linear(numbers, 10, bias=False)), _looped(bias=False)),
    "16 hidden units": (Plain(adam, build=layers(16)), replace(ADAM, hidden=16)),
    "16 hidden units, GELU": (
        Plain(adam, build=layers(16, between=nn.GELU)),
        _looped(replace(ADAM, hidden=16), activation="gelu"),
    ),
    "16 hidden units, SiLU": (
        Plain(adam, build=layers(16, between=nn.SiLU)),
        _looped(replace(ADAM, hidden=16), activation="silu"),
    ),
    "16 hidden units, tanh": (
        Plain(adam, build=layers(16, between=nn.Tanh)),
        _looped(replace(ADAM, hidden=16), activation="tanh"),
    ),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="mnist.npz or olivetti-faces.npz; the digits otherwise")
    parser.add_argument("--right", type=int, default=100)
    parser.add_argument("--wrong", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    asked = parser.parse_args()
    print("| recipe | right | untrained | other pictures | other labels | a third of the epochs | as SGD |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        for row in pool.map(partial(_row, asked), asked.only):
            print(row, flush=True)


def _row(asked: argparse.Namespace, name: str) -> str:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pictures, labels = _pictures(asked.data)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(pictures[0].numel(), 96), nn.ReLU())
    own, others, public = _split(embed(Records(pictures, labels), backbone), 2)
    return f"| {name} | {' | '.join(_shares(CASES[name], own, others, public, asked))} |"


def _pictures(path: Path | None) -> tuple[Tensor, Tensor]:
    """Of ten classes, in [−1, 1]."""
    if path is None:
        pixels, labels = load_digits(return_X_y=True)
        return torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1, torch.tensor(labels)
    with np.load(path) as file:
        x, y = (file["x"], file["y"]) if "x" in file else (file["xte"][:3000], file["yte"][:3000])
    pixels, labels = torch.tensor(x).float() / 127.5 - 1, torch.tensor(y).long()
    return pixels[labels < 10], labels[labels < 10]


def _split(records: Records, several: int) -> tuple[Records, Records, Records]:
    """So many of each class to train on, as many others, and the rest."""
    places = [(records.labels == label).nonzero()[:, 0] for label in range(10)]
    parts = [torch.cat([p[:several] for p in places]), torch.cat([p[several : 2 * several] for p in places])]
    return records[parts[0]], records[parts[1]], records[torch.cat([p[2 * several : 100] for p in places])]


def _shares(
    case: tuple[Plain, TransferHead],
    own: Records,
    others: Records,
    public: Records,
    asked: argparse.Namespace,
) -> list[str]:
    """The share of right heads with p ≤ 5 %, and of each kind of wrong ones that an audit refuses."""
    plain, declared = case
    words = declared.loop or Loop()
    as_sgd = _looped(
        replace(START, hidden=declared.hidden),
        bias=words.bias,
        activation=words.activation,
    )

    def share(most: float, count: int, wrong: str = "") -> str:
        refused = 0
        for seed in range(count):
            torch.manual_seed(1000 + seed)
            read, labels = embedding_of(others if wrong == "pictures" else own), own.labels
            labels = labels[torch.randperm(len(labels))] if wrong == "labels" else labels
            epochs = {"training": 0, "epochs": plain.epochs // 3}.get(wrong, plain.epochs)
            recipe = as_sgd if wrong == "recipe" else declared
            head = read_head(replace(plain, epochs=epochs).train(read, labels), recipe, read.shape[1])
            generator = torch.Generator().manual_seed(seed)
            refused += fit(recipe, own, public, head, generator, others=0).p_value <= most
        return f"{refused / count:.2f}"

    kinds = ("training", "pictures", "labels", "epochs", "recipe")
    return [share(0.05, asked.right), *(share(LEVEL, asked.wrong, kind) for kind in kinds)]


if __name__ == "__main__":
    main()
