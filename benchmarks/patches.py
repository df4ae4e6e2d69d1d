"""Pictures from updates of vision transformers: which batches come back whole, and how long that takes.

python benchmarks/patches.py
A random transformer of two layers for each seed, float32, 10 classes; pictures are random numbers, in patches of 8 × 8
with three channels. *proven*: pictures from which the whole update was recomputed; *off*: the worst of them, relative.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.attacks.gradients.patch_fit import fit_patches
from remanence.attacks.gradients.patch_models import patch_model
from remanence.games.gradients.captured_patches import verify_pictures
from remanence.games.gradients.rounding import Rounding

SIZES = (
    (1, 16, 192),
    (1, 4, 96),
    (2, 4, 96),
    (4, 4, 96),
    (8, 2, 96),
    (8, 4, 96),
)  # pictures, patches of each, outputs


class Transformer(nn.Module):
    def __init__(self, positions: int, numbers: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, numbers, 8, 8)
        self.one = nn.Parameter(0.02 * torch.randn(1, 1, numbers))
        self.places = nn.Parameter(0.02 * torch.randn(1, positions + 1, numbers))
        layer = nn.TransformerEncoderLayer(
            numbers, 4, 2 * numbers, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(numbers, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        tokens = self.embed(pictures).flatten(2).mT
        tokens = torch.cat([self.one.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.blocks(tokens)[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further batch after so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    print(
        f"{'pictures':>8}{'patches':>9}{'outputs':>9}{'seed':>6}{'proven':>8}{'off':>10}{'seconds of processor':>22}"
    )
    for count, positions, numbers in SIZES:
        for seed in range(options.seeds):
            if time.perf_counter() - started > options.seconds:
                return
            torch.manual_seed(seed)
            model = Transformer(positions, numbers).eval()
            width = positions if positions == 2 else int(positions**0.5)
            shape = (3, 8 * positions // width, 8 * width)
            pictures, labels = torch.rand(count, *shape), torch.randint(10, (count,))
            named = dict(model.named_parameters())
            parts = torch.autograd.grad(cross_entropy(model(pictures), labels), list(named.values()))
            gradient = {name: part.double() for name, part in zip(named, parts, strict=True)}
            begun = time.process_time()
            patch = patch_model(model, shape)
            found, said, _ = fit_patches(patch, gradient, precision=1.2e-7)
            proof = verify_pictures(patch, gradient, found, said, rounding=Rounding(1.2e-7))
            true = pictures.double().flatten(1)
            off = (
                torch.cdist(true, found.flatten(1)).amin(1) / true.norm(dim=1)
                if proof.proven
                else torch.ones(1)
            )
            print(
                f"{count:8}{positions:9}{numbers:9}{seed:6}{proof.proven:8}{float(off.max()):10.1e}"
                f"{time.process_time() - begun:22.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
