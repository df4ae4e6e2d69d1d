"""What recording an Opacus run costs: the same loop with and without `record`, alternating, as a ratio.

    python benchmarks/recording.py [--repeats 5]

The loop is timed inside the `with`, and what happens when the `with` ends (reading the canaries) on its own.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from remanence.games.recorded_runs.canaries import crafted
from remanence.integrations.opacus import record


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * width, 10),
    )


def run(folder: Path | None, *, width: int, batch: int, steps: int) -> tuple[float, float]:
    """Seconds of the loop, and seconds after it."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    canaries = crafted(500, (1, 8, 8), 10, seed=1)
    images = torch.tensor(pixels).float().view(-1, 1, 8, 8) / 8 - 1
    data = TensorDataset(
        torch.cat([images, canaries.inserted.features]),
        torch.cat([torch.tensor(labels), canaries.inserted.labels]),
    )
    plain, engine = network(width), PrivacyEngine()
    made: Any = engine.make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    model, optimizer, loader = made
    recording = (
        nullcontext()
        if folder is None
        else record(engine, optimizer, model, loader, out=folder, canaries=canaries)
    )
    done, seconds = 0, 0.0
    with recording:
        started = time.perf_counter()
        while done < steps:
            for x, y in loader:
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                if done == steps:
                    break
        seconds = time.perf_counter() - started
        ended = time.perf_counter()
    return seconds, time.perf_counter() - ended


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("parameters  batch  steps  loop with / without  after the loop, in loops")
    for width, batch, steps in ((8, 64, 40), (16, 256, 20), (32, 256, 10)):
        numbers = sum(parameter.numel() for parameter in network(width).parameters())
        ratios, after = [], []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                plain, _ = run(None, width=width, batch=batch, steps=steps)
                recorded, rest = run(Path(folder) / "run", width=width, batch=batch, steps=steps)
            ratios.append(recorded / plain)
            after.append(rest / plain)
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(
            f"{numbers:10} {batch:6} {steps:6}  {middle:.2f} ({low:.2f} to {high:.2f})"
            f"        {statistics.median(after):.1f}"
        )


if __name__ == "__main__":
    main()
