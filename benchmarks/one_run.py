"""The one-run audit: how often it accuses a correct mechanism, how often it catches half the noise, and real bugs.

python benchmarks/one_run.py              # ideal canaries, simulated
python benchmarks/one_run.py --opacus     # a CNN on scikit-learn's digits, trained by Opacus, with bugs put in
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from recording import network
from remanence import Policy, Records
from remanence.bounds.one_run import GaussianCurve, GuessCount
from remanence.games.recorded_runs.audit_run import audit_run
from remanence.games.recorded_runs.canaries import Canaries, crafted, mislabelled, real
from remanence.integrations.opacus import record

LEVEL, RUNS, SHARE = 0.05, 2000, 0.3


def correct(mu: float, canaries: int, guesses: int, generator: np.random.Generator) -> np.ndarray:
    """Right ones among the surest guesses about orthogonal canaries, the best attack, per run."""
    found = np.empty(RUNS, dtype=int)
    for run in range(RUNS):
        truth = generator.random(canaries) < 0.5
        log_odds = mu * truth + generator.normal(size=canaries) - mu / 2
        order = np.argsort(-np.abs(log_odds))[:guesses]
        found[run] = ((log_odds > 0) == truth)[order].sum()
    return found


def simulated() -> None:
    print(
        "claimed μ  canaries  guessed  rejects from  false CONTRADICTED  half the noise caught  a quarter caught"
    )
    generator = np.random.default_rng(0)
    for mu in (0.5, 1.0, 2.0):
        for canaries in (500, 1000, 2000):
            guesses = round(SHARE * canaries)
            low, high = 0, guesses + 1
            while high - low > 1:
                middle = (low + high) // 2
                rejects = GuessCount(middle, guesses, canaries).rejects(GaussianCurve(mu), LEVEL)
                low, high = (low, middle) if rejects else (middle, high)
            rates = [(correct(k * mu, canaries, guesses, generator) >= high).mean() for k in (1, 2, 4)]
            print(
                f"{mu:9} {canaries:9} {guesses:8} {high:13} {rates[0]:19.4f} {rates[1]:22.3f} {rates[2]:17.3f}"
            )


def less_noise(factor: float) -> Callable[[DPOptimizer], None]:
    def bug(optimizer: DPOptimizer) -> None:
        add_noise = optimizer.add_noise

        def add() -> None:
            told = optimizer.noise_multiplier
            optimizer.noise_multiplier = factor * told
            add_noise()
            optimizer.noise_multiplier = told

        optimizer.add_noise = add

    return bug


def batch_clipping(optimizer: DPOptimizer) -> None:
    def clip() -> None:
        sums = [sample.sum(0) for sample in optimizer.grad_samples]
        norm = torch.cat([part.flatten() for part in sums]).norm()
        for parameter, part in zip(optimizer.params, sums, strict=True):
            parameter.summed_grad = part * (optimizer.max_grad_norm / norm).clamp(max=1)  # pyright: ignore

    optimizer.clip_and_accumulate = clip


def repeated_seed(optimizer: DPOptimizer) -> None:
    add_noise = optimizer.add_noise

    def add() -> None:
        optimizer.generator = torch.Generator().manual_seed(7)
        add_noise()

    optimizer.add_noise = add


def train(
    out: Path,
    canaries: Canaries,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    bug=None,
    poisson: bool = True,
) -> None:
    torch.manual_seed(0)
    data = TensorDataset(
        torch.cat([images, canaries.inserted.features]), torch.cat([labels, canaries.inserted.labels])
    )
    plain, engine = network(16), PrivacyEngine()
    made: Any = engine.make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=0.5, momentum=0.5),
        data_loader=DataLoader(data, batch_size=256, shuffle=not poisson),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    model, optimizer, loader = made
    if bug is not None:
        bug(optimizer)
    with record(engine, optimizer, model, loader, out=out, canaries=canaries):
        for _ in range(4):
            for x, y in loader:
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()


def opacus() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels).float().view(-1, 1, 8, 8) / 8 - 1, torch.tensor(classes)
    held_out = Records(images[:500], labels[:500])
    strong = crafted(500, (1, 8, 8), 10, seed=0)
    rest = images[500:], labels[500:]
    runs = {
        "correct, crafted": (strong, {}),
        "correct, mislabelled": (mislabelled(held_out, 10, seed=0), {}),
        "correct, real": (real(held_out, seed=0), {}),
        "half the noise": (strong, {"bug": less_noise(1 / 2)}),
        "a quarter of the noise": (strong, {"bug": less_noise(1 / 4)}),
        "clipping per batch": (strong, {"bug": batch_clipping}),
        "noise from a repeated seed": (strong, {"bug": repeated_seed}),
        "a shuffle accounted as Poisson": (strong, {"poisson": False}),
    }
    print(
        "run | verdict | found in 1000 | ceiling | p-value | noise multiplier at most | μ of any mechanism | caveats"
    )
    for name, (canaries, settings) in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder) / "run", canaries, *rest, **settings)
            result = audit_run(Path(folder) / "run", policy=Policy(0.75))
        best = result.strongest
        ceiling = "none" if not result.bounds else f"{1000 * result.bounds[0].success:.0f}"
        noise = best.findings.get("noise_multiplier_at_most")
        print(
            f"{name} | {result.verdict} | {1000 * best.main.rate:.0f} | {ceiling} | "
            f"{best.findings['p_value_of_the_claim']:.2f} | {'any' if noise is None else f'{noise:.2f}'} | "
            f"{best.findings['gaussian_mu_at_least']:.2f} | "
            f"{', '.join(caveat.id for caveat in best.caveats) or 'none'}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--opacus", action="store_true", help="train the network with and without bugs")
    opacus() if parser.parse_args().opacus else simulated()
