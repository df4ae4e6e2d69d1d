"""Does a head say more about four pictures of a class than their mean? On scikit-learn's digits.

`python benchmarks/four_of_a_class.py` trains linear heads on forty digits, four of each class, and sorts the four
embeddings of one class along the direction in which the class varies most. It prints how far off they are (mean squared
error, held-out heads on digits that were not seen) as the usual ones of each place, and read by ridge regression from
the class's own row, from all rows, and from the true mean of the four. Each has the penalty that is best here.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from remanence import Records, StratifiedPrior, TransferHead
from remanence.heads.pictures import embed, embedding_of, without_pictures

SEVERAL, SHADOWS, HELD_OUT, AT_ONCE = 4, 8000, 1000, 1000
PENALTIES = tuple(10.0**power for power in range(-7, 0))
RECIPES = {
    "SGD 0.05, 30 epochs, from 0": TransferHead(10, 30, 0.05, initialisation=0.0),
    "SGD 0.05, 150 epochs, from 0": TransferHead(10, 150, 0.05, initialisation=0.0),
    "SGD 0.05, 30 epochs, PyTorch's start": TransferHead(10, 30, 0.05, initialisation="pytorch"),
    "Adam 0.01, 100 epochs, from 0": TransferHead(10, 100, 0.01, optimizer="adam", initialisation=0.0),
}


def heads(prior: StratifiedPrior, count: int, recipe: TransferHead, along: Tensor) -> tuple[Tensor, Tensor]:
    """Rows less their mean, `(heads, rows, numbers)`, and the first class sorted, `(heads, 4, numbers)`."""
    generator, rows, wanted = torch.Generator().manual_seed(len(prior.records)), [], []
    for _ in range(0, count, AT_ONCE):
        sets = prior.sample(AT_ONCE, generator)
        made = recipe.release(None, sets, generator)
        both = torch.cat([made["weight"], made["bias"].unsqueeze(2)], 2)
        four = embedding_of(sets)[:, :SEVERAL]
        order = (four @ along).argsort(1)
        rows.append(both - both.mean(1, keepdim=True))
        wanted.append(four.gather(1, order.unsqueeze(2).expand_as(four)))
    return torch.cat(rows), torch.cat(wanted)


def off(seen: Tensor, wanted: Tensor, asked: Tensor, truth: Tensor) -> float:
    """The mean squared error of the best ridge regression."""
    seen, wanted, asked, truth = (each.flatten(1).double() for each in (seen, wanted, asked, truth))
    centre, usual = seen.mean(0), wanted.mean(0)
    values, vectors = torch.linalg.eigh((seen - centre).mT @ (seen - centre) / len(seen))
    products = vectors.mT @ (seen - centre).mT @ (wanted - usual) / len(seen)
    turned, values = (asked - centre) @ vectors, values.clamp(min=0)

    def error(penalty: float) -> float:
        drawn = usual + turned @ (products / (values + penalty * values.mean())[:, None])
        return float((drawn - truth).square().mean())

    return min(map(error, PENALTIES))


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1
    digits = without_pictures(embed(Records(pictures, torch.tensor(labels)), backbone))
    ours, others = (StratifiedPrior(part, SEVERAL) for part in (digits[:1300], digits[1300:]))
    first = embedding_of(ours.records)[ours.records.labels == 0]
    along = torch.linalg.svd(first - first.mean(0), full_matrices=False).Vh[0]
    print("| recipe | usual ones | own row | all rows | the true mean |\n|---|--:|--:|--:|--:|")
    for name, recipe in RECIPES.items():
        rows, four = heads(ours, SHADOWS, recipe, along)
        asked, truth = heads(others, HELD_OUT, recipe, along)
        usual = float((truth - four.mean(0)).square().mean())
        cells = [
            off(rows[:, 0], four, asked[:, 0], truth),
            off(rows, four, asked, truth),
            off(four.mean(1), four, truth.mean(1), truth),
        ]
        print(f"| {name} | {' | '.join(f'{each:.4f}' for each in (usual, *cells))} |", flush=True)


if __name__ == "__main__":
    main()
