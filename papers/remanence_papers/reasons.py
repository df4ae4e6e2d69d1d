"""Where a number of ours is below the paper's: what its reason was tested by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.scale.progress import track
from remanence.updates.dense.exposure import head_exposure
from remanence.updates.dense.layers import dense_head
from remanence_papers.datasets import handwriting
from remanence_papers.hayes_games import NORM, accuracy, mechanism_of, table_1
from remanence_papers.pan_data import scenarios
from remanence_papers.reproduction import Cell, Outcome, Panel, Row, Settings, curve, interval

_RATES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)  # learning rates times the clipping norm
_PAPER_ACCURACY = "above 0.9"  # Appendix A, on MNIST


def accuracies(settings: Settings) -> Outcome:
    """The test accuracy of Hayes' networks over learning rates and draws of the training set, without noise too."""
    data, name = handwriting(settings)
    size, held_out = (500, 700) if settings.small else (1000, 10_000)
    draws = settings.trials or (2 if settings.small else 10)
    rows: list[Row] = []
    cases: list[tuple[float | None, float]] = [(e, r) for e in (10.0, 100.0, None) for r in _RATES]
    for epsilon, rate in track(cases, total=len(cases), what="learning rates"):
        mechanism = replace(mechanism_of(data, epsilon=epsilon or 100.0), learning_rate=rate / NORM)
        mechanism = replace(mechanism, noise_multiplier=0.0) if epsilon is None else mechanism
        found = [
            accuracy(mechanism, train, data[-held_out:], settings)
            for train in _drawn(data[:-held_out], size, draws, settings.seed)
        ]
        rows.append(
            {
                "epsilon": "no noise" if epsilon is None else epsilon,
                "learning rate": mechanism.learning_rate,
                "accuracy": {"rate": sum(found) / draws, "lower": min(found), "upper": max(found)},
            }
        )
    best = [max(own, key=_mean_accuracy) for own in _by_epsilon(rows)]
    rows = [
        {**row, "best": "best" if row in best else "", "paper": None if settings.small else _PAPER_ACCURACY}
        for row in rows
    ]
    panel = Panel(
        "accuracy",
        "learning rate",
        "accuracy",
        [curve(f"ε = {own[0]['epsilon']}", own, "learning rate", "accuracy") for own in _by_epsilon(rows)],
    )
    used = {**table_1(size - 1, draws * 8), "draws of the training set": draws, "test records": held_out}
    notes = [
        "Each accuracy is the mean over draws of the training set, eight networks each, with the least and the "
        "greatest draw. *best*: the learning rate with the best accuracy at its ε.",
        "*no noise*: gradients are clipped, and nothing is added. The gap to 0.9 in those rows is not caused by noise.",
    ]
    return Outcome(name, rows, [panel], used, notes)


def _drawn(data: Records, size: int, draws: int, seed: int) -> list[Records]:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return [data[index] for index in order.split(size)[:draws]]


def _by_epsilon(rows: Sequence[Row]) -> list[list[Row]]:
    return [
        [row for row in rows if row["epsilon"] == each] for each in dict.fromkeys(r["epsilon"] for r in rows)
    ]


def _mean_accuracy(row: Row) -> float:
    cell = row["accuracy"]
    assert isinstance(cell, dict)
    return cell["rate"]


def scalings(settings: Settings) -> Outcome:
    """Pan's share of insecure batches of 8 over the scaling of pixels and the initial weights of one wide layer."""
    every = scenarios(settings)
    scenario = every[0 if settings.small else 1]  # RetinaMNIST
    width, batches = (256 if settings.small else 1000), settings.trials or (100 if settings.small else 1000)
    generator = torch.Generator().manual_seed(settings.seed)
    chosen = [torch.randperm(len(scenario.data), generator=generator)[:8] for _ in range(batches)]
    rows: list[Row] = []
    scaled = _scaled(scenario.data.features.double(), scenario.shape)
    cases = [(name, inputs, start) for name, inputs in scaled.items() for start in _STARTS]
    for name, inputs, start in track(cases, total=len(cases), what="scalings"):
        head = dense_head(_network(inputs.shape[1], width, scenario.classes, start, settings.seed))
        found = [head_exposure(head, inputs[index], scenario.data.labels[index]) for index in chosen]
        once = sum(bool((each.exclusive[0] >= 1).all()) for each in found)
        row: dict[str, Cell] = {"pixels": name, "initial weights": start}
        insecure = sum(each.is_insecure_batch for each in found)
        row["insecure batches"] = interval(SuccessRate(insecure, batches))
        row["one exclusive neuron each"] = interval(SuccessRate(once, batches))
        rows.append(row | {"paper": None if settings.small else "above 0.6"})
    note = (
        "The paper's pixels and initial weights are not known. A batch is insecure if each of its samples has two "
        "exclusive neurons; *one exclusive neuron each* counts the batches where each has one. *standardised*: each "
        "colour has mean 0 and deviation 1 over all pictures; *pixel by pixel*: each number has."
    )
    return Outcome(scenario.name, rows, (), {"width": width, "batch size": 8, "batches": batches}, [note])


def _scaled(inputs: Tensor, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The same pictures, from [−1, 1], in four scalings."""
    colours = inputs.view(len(inputs), shape[0], -1)
    middle, spread = colours.mean((0, 2), keepdim=True), colours.std((0, 2), keepdim=True)
    return {
        "[−1, 1]": inputs,
        "[0, 1]": (inputs + 1) / 2,
        "standardised": ((colours - middle) / spread).flatten(1),
        "pixel by pixel": (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-6),
    }


_STARTS = {
    "PyTorch's": lambda layer: layer.reset_parameters(),
    "He": lambda layer: (nn.init.kaiming_normal_(layer.weight), nn.init.zeros_(layer.bias)),
    "Glorot": lambda layer: (nn.init.xavier_uniform_(layer.weight), nn.init.zeros_(layer.bias)),
    "He, normal biases": lambda layer: (nn.init.kaiming_normal_(layer.weight), nn.init.normal_(layer.bias)),
}


def _network(size: int, width: int, classes: int, start: str, seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, classes)).double()
        for layer in (network[0], network[2]):
            _STARTS[start](layer)
    return network
