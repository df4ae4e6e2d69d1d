"""Torch operations of every hot path, at two numbers of trials, today and at another commit.

python benchmarks/budgets.py                   # today's
python benchmarks/budgets.py --before 91786b5  # and those of a commit: docs/evidence/operations.md

Times differ from machine to machine, and operations do not. tests/test_budgets.py holds them below stated numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))
FEW, MANY = 10, 100


def paths() -> dict[str, Callable[[int], object]]:
    """Every path as a function of the number of trials, by public names alone: older code has them too."""
    from torch import nn

    from operations import operations  # pyright: ignore[reportMissingImports] - of tests/
    from remanence import (
        DPSGD,
        SGD,
        AnyModule,
        Criterion,
        Game,
        LinearReader,
        Loop,
        Perceptron,
        Reconstructor,
        Records,
        Reduction,
        StratifiedPrior,
        TransferHead,
        Weights,
        mean_squared_error,
        play,
    )  # fmt: skip

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    draws, classes = generator(), 3
    pool = Records(torch.rand(90, 4, 4, generator=draws), torch.arange(90) % classes)
    pool = Records(pool.features, pool.labels, embedding=pool.flat @ torch.rand(16, 12, generator=draws))
    public, own = pool[:60], pool[60:]
    known = Records(torch.randn(20, 8, generator=draws), torch.arange(20) % classes)

    def heads(**settings) -> Callable[[int], object]:
        recipe, prior = TransferHead(classes, 4, 0.05, **settings), StratifiedPrior(own, 2)
        return lambda trials: recipe.release(None, prior.sample(trials, generator()), generator())

    def networks(mechanism) -> Callable[[int], object]:
        def train(trials: int) -> object:
            targets = Records(torch.randn(trials, 1, 8), torch.zeros(trials, 1).long())
            return mechanism.release(known, targets, generator())

        return train

    def scored(reduction: Reduction) -> Callable[[int], object]:
        def score(trials: int) -> object:
            labels = torch.arange(4).expand(trials, 4)
            targets, guesses = (Records(torch.rand(trials, 4, 8), labels) for _ in range(2))
            return Criterion(mean_squared_error, 0.5, reduction).compare(targets, guesses)

        return score

    def game() -> Game:
        criterion = Criterion(mean_squared_error, 0.05, Reduction.CLASS)
        recipe = TransferHead(classes, 20, 0.1)
        return Game(recipe, StratifiedPrior(public), None, criterion, targets=StratifiedPrior(own))

    def learnt(steps: int, batch: int) -> int:
        attack = Reconstructor(steps=steps, batch=batch, width=16, shadows=100, conditional=False)
        return operations(lambda: play(game(), attack, trials=2))

    def checked(trials: int) -> object:
        return Weights({"weight": torch.zeros(trials, 3, 2), "bias": torch.zeros(trials, 2)}).not_finite()

    def audit(trials: int) -> object:
        from remanence.targets import digits_heads

        return play(digits_heads(), Reconstructor(steps=5), trials=trials // 2)

    network, loop = Perceptron((8, 4, 3)), Loop(label_smoothing=0.1, dropout=0.2)
    module = AnyModule(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)))
    counted = {
        "heads by SGD, 4 epochs": heads(),
        "heads by SGD, minibatches": heads(momentum=0.9, batch_size=4),
        "heads by Adam": heads(optimizer="adam"),
        "heads with hidden units": heads(hidden=5),
        "heads by a loop of AdamW": heads(optimizer="adamw", batch_size=4, loop=loop),
        "heads by DP-SGD": heads(noise_multiplier=1.0, sample_rate=0.5),
        "networks, 4 epochs": networks(SGD(network, 4, 0.1, 0.9, initial_seed=0)),
        "networks, own batches": networks(SGD(network, 4, 0.1, batch_size=5)),
        "modules": networks(SGD(module, 4, 0.1)),
        "DP-SGD, 4 steps": networks(DPSGD(network, 1.0, 4, 0.5, 1.0, 0.1)),
        "release checks": checked,
        "scoring, one guess for each record": scored(Reduction.EACH),
        "scoring, matched guesses": scored(Reduction.MATCHED),
        "what a guess achieves (60 records)": lambda _: StratifiedPrior(public).baseline(
            Criterion(mean_squared_error, 0.05, Reduction.CLASS)
        ),
        "a game of heads, linear reader": lambda trials: play(game(), LinearReader(60), trials=trials),
        "an audit of heads (digits, network of 5 steps), 5 and 50 trials": audit,
    }
    found: dict[str, Callable[..., object]] = {
        name: lambda trials, path=path: operations(lambda: path(trials)) for name, path in counted.items()
    }
    found["a step of learning and a look, batches of 10 and 100"] = lambda batch: (
        learnt(2, batch) - learnt(1, batch)
    )
    return found


def main() -> None:
    """Count, here and in the other tree, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", help="a commit")
    parser.add_argument("--json", action="store_true", help="today's alone, for a machine")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.json:
        print(json.dumps(_counts()))
        return
    now = _counts()
    before = _at(asked.before) if asked.before else {}
    if before:
        print(f"| torch operations | {asked.before}: {FEW} trials | {MANY} | now: {FEW} | {MANY} |")
        print("|---|--:|--:|--:|--:|")
    else:
        print(f"| torch operations | {FEW} trials | {MANY} |\n|---|--:|--:|")
    for name, counts in now.items():
        cells = [*(before.get(name, ["", ""]) if before else []), *counts]
        print(f"| {name} | {' | '.join(f'{cell:,}' if cell else '' for cell in cells)} |")


def _counts() -> dict[str, list[int]]:
    found = {}
    for name, count in paths().items():
        count(FEW)  # what only the first call does
        found[name] = [int(count(trials)) for trials in (FEW, MANY)]  # pyright: ignore[reportArgumentType]
    return found


def _at(commit: str) -> dict[str, list[int]]:
    """The same by the code of a commit, in a tree of its own."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(  # noqa: S603
            ["git", "archive", commit, "src", "papers"],  # noqa: S607
            cwd=ROOT, capture_output=True, check=True,
        ).stdout  # fmt: skip
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)  # noqa: S603, S607
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src{os.pathsep}{folder}/papers"}
        call = [sys.executable, __file__, "--json"]
        done = subprocess.run(call, capture_output=True, text=True, env=environment, check=True)  # noqa: S603
        return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
