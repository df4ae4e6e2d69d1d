"""Which heads are told apart from heads of the declared recipe, on scikit-learn's digits.

`python benchmarks/head_fit.py` prints a table: of heads that were made as declared (SGD on all ten pictures, 30 epochs
at 0.05) and of heads that were not, the share with a p-value of at most 5 %, for two initialisations. A second table is
about weak training from PyTorch's start: of 200 heads on other pictures of the same classes, the share that an audit
refuses at 1 %, and what the test itself says of its power. A third is about label smoothing of 0.1 that nobody
declared: the share of such heads that is refused at 1 %, and what the linear reader meets if it is told of the
smoothing and if it believes what was declared. `python benchmarks/head_fit.py smoothing` prints that one alone.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from sklearn.datasets import load_digits
from torch import nn

from remanence import LinearReader, Loop, head_game, play
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.belonging import LEVEL, fit
from remanence.heads.pictures import embed, embedding_of
from remanence.heads.transfer_head import TransferHead
from remanence_papers.inferring_reader import InferringReader


def main(right: int = 400, wrong: int = 20, weak: int = 200) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1
    digits = embed(Records(pictures, torch.tensor(labels)), backbone)
    own, public, unseen = digits[:10], digits[100:1000], digits[1000:]
    if sys.argv[1:] == ["smoothing"]:
        _smoothing(own, public, wrong)
        return

    def heads(recipe: TransferHead, records: Records, count: int) -> Weights:
        light = Records(records.labels[:, None], records.labels, embedding=records.embedding)
        places = torch.zeros(count, dtype=torch.int64)
        return recipe.release(None, light[None][places], _generator(1))

    def on_others(recipe: TransferHead, count: int) -> Weights:
        return recipe.release(None, StratifiedPrior(unseen, 1).sample(count, _generator(2)), _generator(3))

    def rejected(recipe: TransferHead, found: Weights, most: float = 0.05) -> str:
        values = [
            fit(recipe, own, public, found.take(slice(k, k + 1)), _generator(100 + k), others=0).p_value
            for k in range(len(found))
        ]
        return f"{sum(p <= most for p in values) / len(values):.3f}"

    rows: dict[str, list[str]] = {}
    for start in (0.002, "pytorch"):
        recipe = TransferHead(10, 30, 0.05, initialisation=start)
        other = replace(recipe, initialisation=0.002 if start == "pytorch" else "pytorch")
        cases = {
            f"as declared ({right} heads)": heads(recipe, own, right),
            "150 epochs": heads(replace(recipe, epochs=150), own, wrong),
            "33 epochs": heads(replace(recipe, epochs=33), own, wrong),
            "minibatches of 5": heads(replace(recipe, batch_size=5), own, wrong),
            "Adam at 0.01": heads(replace(recipe, optimizer="adam", learning_rate=0.01), own, wrong),
            "Adam at 0.001": heads(replace(recipe, optimizer="adam", learning_rate=0.001), own, wrong),
            "augmentation (shifts by a pixel)": _augmented(
                recipe, backbone, pictures[:10], own.labels, wrong
            ),
            "permuted labels": heads(recipe, replace(own, labels=own.labels.roll(1)), wrong),
            "other pictures of the same classes": on_others(recipe, wrong),
            "no training at all": heads(replace(recipe, learning_rate=1e-12), own, wrong),
            "weight decay 0.1": heads(replace(recipe, weight_decay=0.1), own, wrong),
            "momentum 0.9": heads(replace(recipe, momentum=0.9), own, wrong),
            "the other initialisation": heads(other, own, wrong),
        }
        for name, found in cases.items():
            rows.setdefault(name, []).append(rejected(recipe, found))
    print(
        "| how the head was made | rejected at 5 %, normal start (0.002) | PyTorch's start |\n|---|--:|--:|"
    )
    for name, shares in rows.items():
        print(f"| {name} | {' | '.join(shares)} |")
    print("\n| PyTorch's start, weak training | other pictures refused | by its own count |\n|---|--:|--:|")
    for epochs, rate in ((30, 0.05), (10, 0.05), (3, 0.05), (1, 0.05), (30, 0.01), (10, 0.01), (1, 0.001)):
        recipe = TransferHead(10, epochs, rate, initialisation="pytorch")
        power = fit(recipe, own, public, heads(recipe, own, 1), _generator(4)).power
        refused = rejected(recipe, on_others(recipe, weak), LEVEL)
        print(f"| {epochs} epochs at {rate} | {refused} | {power} |", flush=True)
    _smoothing(own, public, wrong)


def _smoothing(own: Records, public: Records, count: int) -> None:
    """Where undeclared smoothing goes unnoticed, does it matter to the attack?"""
    print(
        "\n| label smoothing 0.1, not declared | refused | reader told | reader not told |\n|---|--:|--:|--:|"
    )
    for epochs in (30, 60, 150):
        declared = TransferHead(10, epochs, 0.05, initialisation="pytorch")
        smoothed = replace(declared, loop=Loop(label_smoothing=0.1))
        heads = smoothed.release(None, own[None][torch.zeros(count, dtype=torch.int64)], _generator(1))
        refused = sum(
            not fit(declared, own, public, heads.take(slice(k, k + 1)), _generator(100 + k), others=0).belongs
            for k in range(count)
        )
        game = head_game(embedding_of(own), own.features, own.labels, smoothed, prior=public).heads
        readers = LinearReader(), InferringReader(candidates=(declared,))
        told, not_told = (play(game, reader, trials=100).main for reader in readers)
        cells = [f"{each.rate:.3f} ({each.lower:.2f} to {each.upper:.2f})" for each in (told, not_told)]
        print(f"| SGD 0.05, {epochs} epochs | {refused / count:.2f} | {' | '.join(cells)} |", flush=True)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _augmented(
    recipe: TransferHead, backbone: nn.Module, pictures: torch.Tensor, labels: torch.Tensor, count: int
) -> Weights:
    """By a plain loop whose pictures move by a pixel in every epoch."""
    heads = []
    for seed in range(count):
        torch.manual_seed(seed)
        head = nn.Linear(96, 10)
        if isinstance(recipe.initialisation, float):
            nn.init.normal_(head.weight, std=recipe.initialisation)
            nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(head.parameters(), lr=recipe.learning_rate)
        for _ in range(recipe.epochs):
            shift = torch.randint(-1, 2, (2,)).tolist()
            moved = torch.roll(pictures, shift, (1, 2))
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(backbone(moved).detach()), labels).backward()
            optimizer.step()
        heads.append(Weights({name: each.detach()[None] for name, each in head.state_dict().items()}))
    return Weights.concatenate(heads)


if __name__ == "__main__":
    main()
