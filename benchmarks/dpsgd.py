"""How fast DP-SGD's runs and the attack on them go: thousands at once on a device, and against a loop of Opacus runs.

python benchmarks/dpsgd.py --data FOLDER --trials 10000    # MNIST, 784-10-10: full batch, and q = 0.02 with T = 1000
python benchmarks/dpsgd.py --opacus                        # embedded digits
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from remanence import DPSGD, FinitePrior, PriorAware, play
from remanence.targets import digits_dpsgd
from remanence_papers.datasets import handwriting
from remanence_papers.hayes_games import mechanism_of, shortlist_game
from remanence_papers.reproduction import Settings


def at_the_papers_scale(folder: Path, trials: int, device: str) -> None:
    data = handwriting(Settings("paper", folder))[0]
    full = mechanism_of(data, epsilon=10.0)
    sampled = mechanism_of(data, epsilon=10.0, sample_rate=0.02, steps=1000)
    for mechanism, known, count in ((full, 999, trials), (sampled, 499, max(1, trials // 10))):
        game = shortlist_game(data, mechanism, candidates=10, known=known)
        play(game, PriorAware(), trials=min(64, count), device=device)  # loads kernels
        started = time.perf_counter()
        found = play(game, PriorAware(), trials=count, device=device)
        seconds = time.perf_counter() - started
        print(
            f"q = {mechanism.sample_rate:g}, T = {mechanism.steps}, {count} trials on {device}: training and attack "
            f"{seconds:.2f} s; {found.main}",
            flush=True,
        )


def against_opacus(trials: int = 3) -> None:
    import warnings

    warnings.simplefilter("ignore")
    from opacus import PrivacyEngine  # pyright: ignore[reportMissingImports]
    from torch.utils.data import DataLoader, TensorDataset

    game = digits_dpsgd()
    mechanism, prior, known = game.mechanism, game.prior, game.known_data
    assert isinstance(mechanism, DPSGD)
    assert isinstance(prior, FinitePrior)
    assert known is not None
    play(game, PriorAware(), trials=64)
    started = time.perf_counter()
    play(game, PriorAware(), trials=512)
    ours = 512 / (time.perf_counter() - started)
    started = time.perf_counter()
    for trial in range(trials):
        features = torch.cat([known.features, prior.candidates.features[trial : trial + 1]])
        labels = torch.cat([known.labels, prior.candidates.labels[trial : trial + 1]])
        model = torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.ELU(), torch.nn.Linear(10, 10))
        optimiser = torch.optim.SGD(model.parameters(), lr=mechanism.learning_rate)
        loader = DataLoader(TensorDataset(features, labels), batch_size=len(labels))
        engine: Any = PrivacyEngine()
        model, optimiser, loader = engine.make_private(
            module=model, optimizer=optimiser, data_loader=loader, noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=mechanism.max_grad_norm, poisson_sampling=False,
        )  # fmt: skip
        for _ in range(mechanism.steps):
            for batch, target in loader:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(batch), target).backward()
                optimiser.step()
    theirs = trials / (time.perf_counter() - started)
    print(f"digits-dpsgd (501 records, 64-10-10, 100 full-batch steps), {torch.get_num_threads()} thread: "
          f"ours {ours:.1f} trials/s with the attack, a loop over Opacus {theirs:.3f} trials/s without one, "
          f"ratio {ours / theirs:.0f}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--opacus", action="store_true")
    arguments = parser.parse_args()
    if arguments.opacus:
        torch.set_num_threads(1)
        against_opacus()
    if arguments.data:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        at_the_papers_scale(arguments.data, arguments.trials, device)
