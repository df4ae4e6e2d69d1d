"""What recording an Opacus run costs: the same loop alone, made again with one canary, and with 500, as ratios.

    python benchmarks/recording.py [--repeats 3]

Every run is a process of its own, so that its peak of memory is its own. Recorded means all of it: the loop inside the
`with`, and what happens when the `with` ends.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from remanence.private.canaries import crafted
from remanence.private.opacus import record


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


def perceptron(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


# network, width, expected batch, steps, canaries
LOOPS = {
    "CNN, 10k": (network, 16, 256, 48, 500),
    "CNN, 94k": (network, 64, 256, 32, 500),
    "MLP, 5M": (perceptron, 2200, 64, 32, 500),
}


def run(name: str, folder: Path | None, how: str = "canaries") -> dict[str, float]:
    """Seconds, and the peak of memory in gigabytes."""
    make, width, batch, steps, count = LOOPS[name]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    canaries = crafted(count if how == "canaries" else 1, (1, 8, 8), 10, seed=1)
    images, labels = torch.randn(1800, 1, 8, 8), torch.randint(10, (1800,))
    data = TensorDataset(
        torch.cat([images, canaries.inserted.features]), torch.cat([labels, canaries.inserted.labels])
    )
    plain, engine = make(width), PrivacyEngine()
    made: Any = engine.make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    model, optimizer, loader = made
    recording = (
        nullcontext()
        if folder is None
        else record(engine, optimizer, model, loader, out=folder, canaries=canaries, seed="os")
    )
    done, started = 0, time.process_time()
    with recording:
        while done < steps:
            for x, y in loader:
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                if done == steps:
                    break
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "peak": peak, "parameters": sum(p.numel() for p in plain.parameters())}


def apart(name: str, how: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, "--how", how]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--how", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory() as folder:
            print(
                json.dumps(run(given.one, None if given.how == "alone" else Path(folder) / "run", given.how))
            )
        return
    print(
        "loop | parameters | batch | steps | replayed / alone | with 500 canaries / alone | peak memory of each"
    )
    for name, (_, _, batch, steps, _) in LOOPS.items():
        runs = {
            how: [apart(name, how) for _ in range(given.repeats)] for how in ("alone", "replayed", "canaries")
        }
        median = {how: statistics.median(one["seconds"] for one in every) for how, every in runs.items()}
        ratios = " | ".join(f"{median[how] / median['alone']:.2f}" for how in ("replayed", "canaries"))
        peaks = ", ".join(f"{every[0]['peak']:.2f}" for every in runs.values())
        print(
            f"{name} | {runs['alone'][0]['parameters']:,.0f} | {batch} | {steps} | {ratios} | {peaks} GB",
            flush=True,
        )


if __name__ == "__main__":
    main()
