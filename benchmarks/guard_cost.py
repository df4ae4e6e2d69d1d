"""What the guard withholds on MNIST, and what a count of exclusive neurons would let through.

python benchmarks/guard_cost.py --mnist mnist.npz

Untrained 784-width-10 and one trained for an epoch, float32. *exclusive*: batches in which a sample has an exclusive
neuron; *withheld*: batches from which the guard proves a sample; *missed*: withheld ones without an exclusive neuron.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence import GradientGuard, gradient_exposure


def network(width: int, data: tuple[Tensor, Tensor], *, trained: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
    if trained:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for chosen in torch.randperm(len(data[0])).split(64):
            optimiser.zero_grad()
            cross_entropy(model(data[0][chosen]), data[1][chosen]).backward()
            optimiser.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mnist", type=Path, default=Path("mnist.npz"))
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 64, 128])
    parser.add_argument("--pixels", choices=["0 to 1", "standardised", "centred"], help="only these")
    options = parser.parse_args()
    held = np.load(options.mnist)
    pixels = torch.from_numpy(held["xtr"]).flatten(1).float() / 255
    labels = torch.from_numpy(held["ytr"]).long()
    prepared = {
        "0 to 1": pixels,
        "standardised": (pixels - 0.1307) / 0.3081,
        "centred": pixels - pixels.mean(0),
    }
    print(f"{'pixels':13} {'width':>5} {'epochs':>6} {'batch':>5} {'batches':>7} {'exclusive':>9} {'withheld':>8} "
          f"{'samples proven':>14} {'missed':>17} {'seconds':>8}", flush=True)  # fmt: skip
    for name, inputs in prepared.items():
        if options.pixels not in (None, name):
            continue
        for width, trained in ((128, False), (512, False), (512, True)):
            model = network(width, (inputs, labels), trained=trained)
            for size in options.sizes:
                started, counts = time.perf_counter(), np.zeros(4, dtype=int)
                for seed in range(options.batches):
                    chosen = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[:size]
                    model.zero_grad(set_to_none=True)
                    exposure = gradient_exposure(model, inputs[chosen], labels[chosen])
                    guard, alone = GradientGuard(model), bool(exposure.exposed.any())
                    cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
                    read = not guard.allows()
                    counts += (alone, read, guard.proven, read and not alone)
                spent = (time.perf_counter() - started) / options.batches
                print(f"{name:13} {width:5} {int(trained):6} {size:5} {options.batches:7} {counts[0]:9} {counts[1]:8} "
                      f"{counts[2]:14} {counts[3]:17} {spent:8.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
