"""Which heads are told apart from heads of the declared recipe, on scikit-learn's digits.

`python benchmarks/head_fit.py` prints a table: of heads that were made as declared (SGD on all ten pictures, 30 epochs
at 0.05) and of heads that were not, the share with a p-value of at most 5 %, for two initialisations.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from sklearn.datasets import load_digits
from torch import nn

from remanence.data.records import Records
from remanence.data.releases import Weights
from remanence.games.heads.fit import fit
from remanence.mechanisms.heads.embedding import embed
from remanence.mechanisms.heads.transfer_head import TransferHead


def main(right: int = 400, wrong: int = 20) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1
    digits = embed(Records(pictures, torch.tensor(labels)), backbone)
    own, public, others = digits[:10], digits[100:1000], digits[1000:1010]

    def heads(recipe: TransferHead, records: Records, count: int) -> Weights:
        light = Records(records.labels[:, None], records.labels, embedding=records.embedding)
        places = torch.zeros(count, dtype=torch.int64)
        return recipe.release(None, light[None][places], torch.Generator().manual_seed(1))

    def rejected(recipe: TransferHead, found: Weights) -> str:
        values = [
            fit(
                recipe, own, public, found.take(slice(k, k + 1)), torch.Generator().manual_seed(100 + k)
            ).p_value
            for k in range(len(found))
        ]
        return f"{sum(p <= 0.05 for p in values) / len(values):.3f}"

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
            "other pictures": heads(recipe, others, wrong),
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
