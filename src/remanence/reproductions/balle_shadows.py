"""Balle et al. 2022: the informed adversary's reconstructor network against a small classifier."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from remanence.adversary import Knowledge
from remanence.attacks.reconstructor import Reconstructor
from remanence.attacks.shadows import ShadowFarm, Shadows, split
from remanence.errors import mean_squared_error, nearest_neighbour_errors
from remanence.mechanisms.mechanism import Mechanism
from remanence.mechanisms.networks import Perceptron
from remanence.mechanisms.queried import Queried
from remanence.mechanisms.sgd import SGD
from remanence.priors import EmpiricalPrior
from remanence.records import Records
from remanence.releases import Release
from remanence.reproductions.datasets import DIGITS, MNIST, load_arrays
from remanence.reproductions.reproduction import Cell, Curve, Outcome, Panel, Settings, interval
from remanence.statistics import SuccessRate

PAPER_BLACK_BOX = 0.011
PAPER_CROSSING = 8000


@dataclass(frozen=True)
class Split:
    """Known records, the adversary's own, and the targets; pixels in [0, 1]."""

    known: Records
    public: Records
    targets: Records
    name: str


def reconstructor(settings: Settings) -> Outcome:
    """White box over the number of shadows, black box, and an initialisation that nobody knows."""
    data = _split(settings)
    sizes = (data.known.flat.shape[1], 10, 10)
    training = SGD(Perceptron(sizes), 100, 0.2, 0.9, initial_seed=settings.seed)
    counts = (250, 1000, 3000) if settings.small else (1000, 4000, 8000, 16000, 59000)
    oracle = nearest_neighbour_errors(data.targets, data.public)
    started = time.perf_counter()
    knowledge = Knowledge(training, EmpiricalPrior(data.public), data.known)
    shadows = ShadowFarm(split(knowledge)[0], _generator(settings, 0)).stored(max(counts))
    seconds = time.perf_counter() - started
    rows: list[dict[str, Cell]] = []
    shown: dict[str, Tensor] = {"target": data.targets.features[:10]}

    def play(label: str, mechanism: Mechanism[Release], own: Shadows) -> None:
        before = time.perf_counter()
        steps = 1000 if settings.small else 6000
        attack = Reconstructor(steps=steps, batch=128 if settings.small else 256)
        informed = replace(knowledge, mechanism=mechanism)
        reconstruct = attack.learn(informed, _generator(settings, 1), own)
        learning = time.perf_counter() - before
        release = mechanism.release(data.known, data.targets[:, None], _generator(settings, 2))
        guesses = reconstruct(release).records
        others = data.targets[torch.arange(len(data.targets)).roll(1)][:, None]
        errors = mean_squared_error(data.targets[:, None], guesses).flatten().cpu()
        strangers = mean_squared_error(others, guesses).flatten().cpu()
        threshold = float(oracle.mean())
        rows.append(
            {
                "adversary": label,
                "shadows": len(own),
                "mean error": float(errors.mean()),
                "± (two errors)": 2 * float(errors.std()) / len(errors) ** 0.5,
                "oracle": threshold,
                "below the oracle": interval(SuccessRate(int((errors <= threshold).sum()), len(errors))),
                "control": interval(SuccessRate(int((strangers <= threshold).sum()), len(errors))),
                "seconds of learning": round(learning),
            }
        )
        shown[f"{label}, {len(own):,}"] = guesses.features[:10, 0]

    for count in counts:
        play("weights", training, shadows.take(torch.arange(count, device=shadows.targets.labels.device)))
    probes = data.known[: 100 if settings.small else 200]
    for answers in ("logits", "top"):
        asked = Queried(training, probes, answers)
        play("logits" if answers == "logits" else "top 3, two decimals", asked, _asked(asked, shadows))
    blind = replace(training, initial_seed=None)
    few = counts[1]
    unknown = ShadowFarm(split(replace(knowledge, mechanism=blind))[0], _generator(settings, 3)).stored(few)
    play("weights, unknown initialisation", blind, unknown)
    return Outcome(
        data.name,
        rows,
        [_error_panel(rows, oracle), _gallery(shown)],
        {
            "known records": len(data.known),
            "targets": len(data.targets),
            "network": "-".join(map(str, sizes)) + " ELU",
            "epochs": 100,
            "learning rate": 0.2,
            "momentum": 0.9,
            "seconds for all shadows": round(seconds, 1),
        },
        [
            "*mean error*: mean squared error with pixels in [0, 1]. *oracle*: the mean error of the closest picture "
            f"that the adversary holds; its first percentile is {float(torch.quantile(oracle, 0.01)):.4f}.",
            f"The paper: below the oracle from {PAPER_CROSSING:,} shadows, {PAPER_BLACK_BOX} from logits, and failure "
            "without the initialisation.",
            "*control*: the same reconstructions held against other targets.",
        ],
    )


def _split(settings: Settings) -> Split:
    """All of MNIST in a shuffled order: 10,000 known, 59,000 for shadows, 1,000 targets; or the digits."""
    if settings.small:
        from remanence.targets import digits_split

        return Split(*digits_split(), DIGITS)
    arrays = load_arrays(settings, "mnist.npz", "xtr", "ytr", "xte", "yte")
    images = np.concatenate([arrays["xtr"], arrays["xte"]])
    labels = np.concatenate([arrays["ytr"], arrays["yte"]]).astype(np.int64)
    order = np.random.default_rng(settings.seed).permutation(len(images))
    pictures = torch.from_numpy(images[order]).to(settings.device).float() / 255
    data = Records(pictures, torch.from_numpy(labels[order]).to(settings.device))
    return Split(data[:10_000], data[10_000:69_000], data[69_000:], MNIST)


def _asked(mechanism: Queried, shadows: Shadows) -> Shadows:
    """The same shadows seen through their answers."""
    tensors = []
    for start in range(0, len(shadows), 4096):
        part = {name: tensor[start : start + 4096] for name, tensor in shadows.tensors.items()}
        tensors.append(mechanism.ask(mechanism.mechanism.releases(part))["answers"])
    return Shadows({"answers": torch.cat(tensors)}, shadows.targets)


def _generator(settings: Settings, purpose: int) -> torch.Generator:
    return torch.Generator(settings.device).manual_seed(1000 * settings.seed + purpose)


def _error_panel(rows: list[dict[str, Cell]], oracle: Tensor) -> Panel:
    own = [row for row in rows if row["adversary"] == "weights"]
    across = [float(row["shadows"]) for row in own]  # type: ignore[arg-type]
    curves = [
        Curve("weights", across, [float(row["mean error"]) for row in own]),  # type: ignore[arg-type]
        Curve("nearest neighbour", [across[0], across[-1]], [float(oracle.mean())] * 2),
    ]
    return Panel("Error over the number of shadows", "shadows", "mean squared error", curves, log_up=True)


def _gallery(shown: dict[str, Tensor]) -> Panel:
    rows = [
        [[[round(pixel, 2) for pixel in line] for line in picture] for picture in values.clamp(0, 1).tolist()]
        for values in shown.values()
    ]
    return Panel("Reconstructions", pictures=rows, picture_rows=list(shown))
