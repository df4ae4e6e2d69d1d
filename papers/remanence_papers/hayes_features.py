"""Hayes et al. 2023, Figure 2: DP-SGD on the last layer of a network that was trained elsewhere."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from remanence.core.records import Records
from remanence.private.optimised import GradientBased
from remanence.private.prior_aware import PriorAware
from remanence.scale.progress import track
from remanence.training.perceptron import Perceptron
from remanence_papers.companions import dpsgd_renyi
from remanence_papers.datasets import handwriting, load_arrays
from remanence_papers.hayes_games import (
    STEPS,
    accuracy,
    measure,
    mechanism_of,
    over_epsilon,
    shortlist_game,
    table_1,
)
from remanence_papers.reproduction import Cell, Outcome, Settings

EPSILONS = (1.0, 10.0, 100.0)
PAPER_ACCURACY = {1.0: 0.6188, 10.0: 0.8909, 100.0: 0.9127}  # Figure 2; 0.9391 without noise
RATES = (0.3, 1.0, 3.0, 10.0, 30.0)
BACKBONE = "CIFAR-10 through a MobileNetV2 trained on ImageNet, which stands in for the paper's WRN-28-10"
SMALL = (
    "scikit-learn's digits through the hidden layer of a perceptron trained on 700 others, a stand-in for CIFAR-10 "
    "and a WRN-28-10 trained on ImageNet"
)


def figure_2(settings: Settings) -> Outcome:
    """Four methods at ε = 1, 10 and 100, with the accuracy of the model."""
    train, test, name = _embedded_digits(settings) if settings.small else _cifar(settings)
    known, trials = 499, settings.trials or (100 if settings.small else 4000)
    searched = max(1, trials // 5)  # each is a search
    rows: list[dict[str, Cell]] = []
    for epsilon in track(EPSILONS, total=3, what="values of ε"):
        plain = mechanism_of(train, epsilon=epsilon, max_grad_norm=1.0)
        linear = replace(plain, network=Perceptron((train.flat.shape[1], 10)))
        tried = [replace(linear, learning_rate=rate) for rate in RATES]
        accuracies = [accuracy(mechanism, train[: known + 1], test, settings) for mechanism in tried]
        best = max(range(len(RATES)), key=accuracies.__getitem__)
        game = shortlist_game(train, tried[best], candidates=10, known=known)
        cells = measure(game, {"prior-aware": PriorAware()}, settings, trials, train[known:])
        matched = measure(
            game, {"gradient-based": GradientBased(matched=True, starts=2)}, settings, searched, train[known:]
        )
        renyi = dpsgd_renyi(0.1, noise_multiplier=linear.noise_multiplier, steps=STEPS)
        row: dict[str, Cell] = {"epsilon": epsilon, **cells, "gradient-based": matched["gradient-based"]}
        row |= {"Rényi bound": float(renyi.success), "accuracy": accuracies[best]}
        row["learning rate"] = RATES[best]
        rows.append(row | ({} if settings.small else {"paper's accuracy": PAPER_ACCURACY[epsilon]}))
    lines = ("Rényi bound", "bound", "prior-aware", "gradient-based", "guess")
    notes = [
        f"*accuracy*: mean of 8 models on {len(test)} test pictures, at the best of five learning rates.",
        "The gradient-based attack searches a vector of features, not a picture, tries every label, and takes the "
        f"nearest candidate ({searched} trials).",
    ]
    used = {**table_1(known, trials, candidates=10), "clipping norm": 1.0}
    return Outcome(name, rows, [over_epsilon(rows, lines)], used, notes)


def _cifar(settings: Settings) -> tuple[Records, Records, str]:
    arrays = load_arrays(settings, "cifar10-features.npz", "ftr", "ytr", "fte", "yte")
    parts = {name: torch.from_numpy(array) for name, array in arrays.items()}
    train, test = (Records(_unit(parts[f"f{part}"]), parts[f"y{part}"].long()) for part in ("tr", "te"))
    return train, test, BACKBONE


def _embedded_digits(settings: Settings) -> tuple[Records, Records, str]:
    data = handwriting(settings)[0]
    public, private = data[-700:], data[:-700]
    features = _trained_features(public)
    private = Records(_unit(features(private.features)), private.labels)
    return private[:600], private[600:], SMALL


def _trained_features(public: Records, width: int = 64, steps: int = 400) -> torch.nn.Module:
    """The hidden layer of a perceptron fitted to public records, without privacy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = torch.nn.Sequential(torch.nn.Linear(public.flat.shape[1], width), torch.nn.ELU())
        model = torch.nn.Sequential(hidden, torch.nn.Linear(width, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(public.features), public.labels).backward()
        optimiser.step()
    return hidden.requires_grad_(False)


def _unit(features: Tensor) -> Tensor:
    """Every record's features at length 1, which needs no other record."""
    return features.float() / features.float().norm(dim=1, keepdim=True)
