"""Balle et al. 2022, §VI-B: what the released model's training changes (activation, rate, initial weights)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from remanence.scale.progress import track
from remanence.training.perceptron import Perceptron
from remanence.training.sgd import SGD, optimizer_step
from remanence_papers.balle_games import ORACLE, Study, gallery, handwriting_split, recipe
from remanence_papers.reproduction import Cell, Outcome, Settings

_SHOWN = 10
_FOLLOWED = 200  # targets whose gradients are looked at in every step


def table_2(settings: Settings) -> Outcome:
    """One change at a time from the default, and the weights that a target never moves."""
    small = settings.small
    study = Study(settings, handwriting_split(settings), 400 if small else 3000, 128 if small else 256)
    plain = study.data.training(initial_seed=settings.seed)
    network, count = plain.network, 1000 if small else 16_000
    assert isinstance(network, Perceptron)
    changes = {"default: ELU, 0.2, LeCun": plain}
    changes |= {
        name: replace(plain, network=replace(network, activation=name)) for name in ("relu", "tanh", "gelu")
    }
    changes |= {f"learning rate {rate:g}": replace(plain, learning_rate=rate) for rate in (0.01, 0.05)}
    changes |= {
        f"{name} weights": replace(plain, network=replace(network, initialisation=name))
        for name in ("glorot", "he")
    }
    rows: list[dict[str, Cell]] = []
    shown: dict[str, Tensor] = {"target": study.data.targets.features[:_SHOWN]}
    for label, training in track(changes.items(), total=len(changes), what="trainings"):
        found = study.attack(training, study.shadows(training, count))
        still, lit = _never_moved(study, training)
        rows.append({"training": label, **study.cells(found), "never moved": still, "of lit pixels": lit})
        shown[label] = found.guesses.features[:_SHOWN, 0]
    return Outcome(
        study.data.name,
        rows,
        [gallery("Reconstructions", shown)],
        study.described(**recipe(plain), shadows=count),
        [
            ORACLE,
            "*never moved*: the share of all weights in which the gradient of the target's own loss is exactly 0 "
            f"in all steps, mean over {_FOLLOWED} targets. A weight of a pixel that is 0 never moves, whatever "
            "the activation; *of lit pixels* leaves those out. The paper: more than 60 % with ReLU, and a weaker "
            "attack there; neither rate nor initialisation matters.",
        ],
    )


def _never_moved(study: Study, training: SGD) -> tuple[float, float]:
    """The share of weights that the target's own gradient is 0 in throughout, of all and of those of lit pixels."""
    network, known, targets = training.network, study.data.known, study.data.targets[:_FOLLOWED, None]
    assert isinstance(network, Perceptron)
    assert training.initial_seed is not None
    start = network.initial(1, torch.Generator().manual_seed(training.initial_seed)).to(known.features.device)
    parameters = start.expand(len(targets), -1).contiguous()
    step = optimizer_step("sgd", training.learning_rate, momentum=training.momentum)
    moved = torch.zeros_like(parameters, dtype=torch.bool)
    for _ in range(training.epochs):
        own = network.clipped_sum(parameters, targets, max_norm=None)
        moved |= own != 0
        total = own + network.clipped_sum(parameters, known[None], max_norm=None)
        parameters = step(parameters, total / (len(known) + 1))
    first = moved[:, : network.sizes[0] * network.sizes[1]].unflatten(1, (network.sizes[1], -1))
    lit = (targets.flat != 0).expand(-1, network.sizes[1], -1)
    return float((~moved).float().mean()), float((~first)[lit].float().mean())
