"""The prior-aware attacks on DP-SGD at the paper's scale, beside the ceiling and the simulated optimum; and speed.

python benchmarks/dpsgd.py --data mnist.npz --trials 10000        # Hayes et al. 2023: 784-10-10, T = 100, C = 0.1
python benchmarks/dpsgd.py --opacus                               # embedded digits, against a loop of Opacus runs
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from remanence import (
    DPSGD,
    Criterion,
    FinitePrior,
    Game,
    Perceptron,
    PriorAware,
    Records,
    bounds,
    mismatch,
    play,
)
from remanence.calibration import noise_for_epsilon
from remanence.mechanisms.networks import _clipping
from remanence.rounds import stream
from remanence.targets import digits_dpsgd

DELTA = 1e-5


def mnist(path: Path, count: int) -> Records:
    with np.load(path) as arrays:
        features, labels = arrays["xtr"][:count], arrays["ytr"][:count]
    return Records(torch.from_numpy(features).float() / 127.5 - 1, torch.from_numpy(labels).long())


def game_of(
    data: Records, *, epsilon: float, steps: int, rate: float, known: int, learning_rate: float
) -> Game:
    noise = noise_for_epsilon(epsilon, delta=DELTA, sample_rate=rate, steps=steps)
    network = Perceptron((784, 10, 10))
    mechanism = DPSGD(network, noise, steps, sample_rate=rate, max_grad_norm=0.1, learning_rate=learning_rate)
    ceiling = bounds.dpsgd(0.1, noise_multiplier=noise, sample_rate=rate, steps=steps)
    prior = FinitePrior(data[known : known + 10])
    return Game(mechanism, prior, data[:known], Criterion(mismatch, 0.5), bounds=(ceiling,))


def optimum(game: Game, device: str, trials: int = 200, draws: int = 2000) -> tuple[float, float]:
    """The best possible success in a full-batch run, simulated from the candidates' Gram matrices along it.

    Given the path, the log-likelihoods of the candidates are jointly normal with covariance S = Σ G_t / (σC)²
    and means S[:, z*] − diag(S) / 2; the likelihood attack picks the largest. Returns the mean and its
    standard error over paths.
    """
    game = game.to(device)
    mechanism, prior = game.mechanism, game.prior
    assert isinstance(mechanism, DPSGD)
    assert isinstance(prior, FinitePrior)
    targets = prior.sample(trials, stream(1, "targets", device))
    release = mechanism.release(game.known_data, targets, stream(1, "training", device))
    network = mechanism.network
    assert isinstance(network, Perceptron)
    total: Tensor | float = 0.0
    for step in range(mechanism.steps):
        inputs, deltas = network._backpropagate(release["parameters"][:, step], prior.candidates[None])
        factors = _clipping(inputs, deltas, mechanism.max_grad_norm)[0]
        gram: Tensor | float = 0.0
        for values, delta in zip(inputs, deltas, strict=True):
            gram = gram + (delta.mT @ delta) * (values.mT @ values + 1)
        total = total + gram * factors.unsqueeze(1) * factors.unsqueeze(2)
    assert isinstance(total, Tensor)
    covariance = total.double().cpu() / (mechanism.noise_multiplier * mechanism.max_grad_norm) ** 2
    count = covariance.shape[-1]
    factor = torch.linalg.cholesky(
        covariance + 1e-9 * torch.eye(count) * covariance.diagonal(dim1=1, dim2=2).amax()
    )
    generator = torch.Generator().manual_seed(2)
    star = torch.randint(count, (trials, draws), generator=generator)
    noise = torch.randn(trials, draws, count, generator=generator, dtype=torch.float64) @ factor.mT
    means = covariance.gather(1, star.unsqueeze(-1).expand(-1, -1, count))
    scores = noise + means - covariance.diagonal(dim1=1, dim2=2).unsqueeze(1) / 2
    success = (scores.argmax(-1) == star).double().mean(1)
    return float(success.mean()), float(success.std() / trials**0.5)


def paper_scale(path: Path, trials: int, device: str) -> None:
    data = mnist(path, 1009)
    print(
        f"torch {torch.__version__} on {device}; MNIST, 784-10-10 ELU, C = 0.1, δ = {DELTA:g}, {trials} trials, 95 %\n"
    )
    print("Full batch, T = 100, 999 known records, a shortlist of 10\n")
    print(
        "| ε | σ | likelihood | control | Algorithm 2 | simulated optimum | γ | share of γ's excess | seconds |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for epsilon in (1.0, 10.0, 100.0):
        game = game_of(data, epsilon=epsilon, steps=100, rate=1.0, known=999, learning_rate=9.0)
        play(game, PriorAware(), trials=64, device=device)  # loads kernels
        started = time.perf_counter()
        best = play(game, PriorAware(), trials=trials, device=device)
        seconds = time.perf_counter() - started
        plain = play(game, PriorAware(score="sum"), trials=trials, device=device)
        mean, error = optimum(game, device)
        ceiling = float(game.bounds[0].success)
        assert isinstance(game.mechanism, DPSGD)
        print(
            f"| {epsilon:g} | {game.mechanism.noise_multiplier:.4g} | {_rate(best.main)} | {best.control.rate:.3f} "
            f"| {_rate(plain.main)} | {mean:.3f} ± {2 * error:.3f} | {ceiling:.3f} "
            f"| {(best.main.rate - 0.1) / (ceiling - 0.1):.2f} | {seconds:.2f} |",
            flush=True,
        )


def poisson(path: Path, trials: int, device: str) -> None:
    data = mnist(path, 1009)
    print(
        f"{trials} trials, 95 %. Poisson batches, q = 0.02, T = 1000, 499 known records, a shortlist of 10\n"
    )
    print("| ε | σ | likelihood | control | Algorithm 3 (top) | Algorithm 2 (sum) | γ | seconds |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for epsilon in (4.0, 10.0, 20.0):
        game = game_of(data, epsilon=epsilon, steps=1000, rate=0.02, known=499, learning_rate=1.0)
        started = time.perf_counter()
        best = play(game, PriorAware(), trials=trials, device=device)
        seconds = time.perf_counter() - started
        others = [
            play(game, PriorAware(score=score), trials=trials, device=device) for score in ("top", "sum")
        ]
        assert isinstance(game.mechanism, DPSGD)
        columns = [
            f"{epsilon:g}", f"{game.mechanism.noise_multiplier:.4g}", _rate(best.main), f"{best.control.rate:.3f}",
            *(_rate(other.main) for other in others), f"{float(game.bounds[0].success):.3f}", f"{seconds:.1f}",
        ]  # fmt: skip
        print(f"| {' | '.join(columns)} |", flush=True)


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
        model, optimiser, loader = PrivacyEngine().make_private(
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


def _rate(found) -> str:
    return f"{found.rate:.3f} ({found.lower:.3f} to {found.upper:.3f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--poisson", action="store_true")
    parser.add_argument("--opacus", action="store_true")
    arguments = parser.parse_args()
    if arguments.opacus:
        torch.set_num_threads(1)
        against_opacus()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.data and not arguments.poisson:
        paper_scale(arguments.data, arguments.trials, device)
    if arguments.data and arguments.poisson:
        poisson(arguments.data, arguments.trials, device)
