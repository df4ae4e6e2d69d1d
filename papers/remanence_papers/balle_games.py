"""What the figures of Balle et al. 2022 share: a split of the data, shadows, a reconstructor and its judges."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from remanence.core.distances import nearest_neighbour_errors
from remanence.core.errors import Error, mean_squared_error
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.priors import EmpiricalPrior
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Logits, Release
from remanence.networks.mechanism import Queried
from remanence.reconstructor.attack import Reconstructor
from remanence.reconstructor.shadows import ShadowFarm, Shadows, split
from remanence.training.perceptron import Perceptron
from remanence.training.sgd import SGD
from remanence_papers.datasets import DIGITS, MNIST, load_arrays
from remanence_papers.reproduction import Cell, Curve, Panel, Settings, interval

_ASKED_AT_ONCE = 4096  # models
ORACLE = (
    "*mean error*: mean squared error with pixels in [0, 1], ± two standard errors. *oracle*: the mean error of the "
    "closest picture that the adversary holds. *below the oracle*: the share of targets whose reconstruction is "
    "closer than that; *control*: the same reconstructions compared with other targets."
)


@dataclass(frozen=True)
class Split:
    """Known records, the adversary's own, and the targets; pixels in [0, 1]."""

    known: Records
    public: Records
    targets: Records
    name: str

    def training(self, **settings) -> SGD:
        """The paper's default: one hidden layer of 10 with ELU, 100 steps on all records, known initial weights."""
        sizes = (self.known.flat.shape[1], 10, 10)
        recipe = {"epochs": 100, "learning_rate": 0.2, "momentum": 0.9, "initial_seed": 0}
        return SGD(**{"network": Perceptron(sizes), **recipe, **settings})


def handwriting_split(settings: Settings, known: int = 10_000) -> Split:
    """All of MNIST in a shuffled order: 10,000 known (or fewer), 59,000 for shadows, 1,000 targets; or the digits."""
    if settings.small:
        from remanence.networks.targets import digits_split

        ours, theirs, targets = (part.to(settings.device) for part in digits_split())
        return Split(ours, theirs, targets, DIGITS)
    arrays = load_arrays(settings, "mnist.npz", "xtr", "ytr", "xte", "yte")
    images = np.concatenate([arrays["xtr"], arrays["xte"]])
    labels = np.concatenate([arrays["ytr"], arrays["yte"]]).astype(np.int64)
    order = np.random.default_rng(settings.seed).permutation(len(images))
    pictures = torch.from_numpy(images[order]).to(settings.device).float() / 255
    data = Records(pictures, torch.from_numpy(labels[order]).to(settings.device))
    return Split(data[:known], data[10_000:69_000], data[69_000:], MNIST)


@dataclass(frozen=True)
class Found:
    """What a reconstructor made of the targets."""

    guesses: Records  # (targets, 1)
    errors: Tensor  # (targets,)
    strangers: Tensor
    seconds: float  # of learning


@dataclass(frozen=True)
class Study:
    """An adversary who meets the same targets again and again, with other trainings or other shadows."""

    settings: Settings
    data: Split
    steps: int
    batch: int = 256
    width: int = 0  # of the reconstructor; 0 is its own choice

    @cached_property
    def oracle(self) -> Tensor:
        """How close the closest of the adversary's own pictures comes to each target."""
        return nearest_neighbour_errors(self.data.targets, self.data.public).cpu()

    @cached_property
    def first_percentile(self) -> float:
        """The mean error of the picture that is closer than all but one in a hundred of the adversary's own."""
        rank = max(1, len(self.data.public) // 100)
        return float(nearest_neighbour_errors(self.data.targets, self.data.public, rank=rank).mean())

    @cached_property
    def divergence(self) -> Error:
        """KL between the answers of a classifier, trained on the known records, to target and reconstruction."""
        judge = SGD(
            Perceptron((self.data.known.flat.shape[1], 100, 10)),
            20,
            1e-3,
            batch_size=100,
            optimizer="adam",
            drop_last=True,
        )
        trained = judge.release(None, self.data.known[None], self.generator(9))
        flat = lambda x: Records(x, torch.zeros(len(x), device=x.device))  # noqa: E731
        return classifier_divergence(lambda x: judge.answer(trained, flat(x))[0])

    def generator(self, purpose: int) -> torch.Generator:
        """A stream of its own."""
        return torch.Generator(self.settings.device).manual_seed(1000 * self.settings.seed + purpose)

    def knowledge(self, mechanism: Mechanism[Release]) -> Knowledge:
        """What the adversary has before the release."""
        return Knowledge(mechanism, EmpiricalPrior(self.data.public), self.data.known)

    def shadows(self, mechanism: Mechanism[Release], count: int) -> Shadows:
        """So many models, on the records that no network is checked with."""
        farm = ShadowFarm(split(self.knowledge(mechanism))[0], self.generator(0))
        return farm.stored(count)

    def release(self, mechanism: Mechanism[Release]) -> Release:
        """A model for each target."""
        targets, generator = self.data.targets[:, None], self.generator(2)
        chunk = mechanism.trials_at_once(targets)
        parts = [
            mechanism.release(self.data.known, targets[start : start + chunk], generator)
            for start in range(0, len(targets), chunk)
        ]
        return type(parts[0]).concatenate(parts)

    def attack(
        self, mechanism: Mechanism[Release], shadows: Shadows, release: Release | None = None
    ) -> Found:
        """Learn from the shadows, train on the targets unless a release is given, and compare."""
        before = time.perf_counter()
        attack = Reconstructor(steps=self.steps, batch=self.batch, width=self.width)
        reconstruct = attack.learn(self.knowledge(mechanism), self.generator(1), shadows)
        seconds = time.perf_counter() - before
        guesses = reconstruct(self.release(mechanism) if release is None else release).records
        targets = self.data.targets[:, None]
        others = targets[torch.arange(len(targets), device=guesses.labels.device).roll(1)]
        own, strangers = (mean_squared_error(each, guesses).flatten().cpu() for each in (targets, others))
        return Found(guesses, own, strangers, seconds)

    def cells(self, found: Found) -> dict[str, Cell]:
        """What every table says about a reconstructor."""
        threshold = float(self.oracle.mean())
        below, control = (
            interval(SuccessRate(int((errors <= threshold).sum()), len(errors)))
            for errors in (found.errors, found.strangers)
        )
        return {
            "mean error": float(found.errors.mean()),
            "± (two errors)": spread(found.errors),
            "oracle": threshold,
            "below the oracle": below,
            "control": control,
        }

    def described(self, **others: Cell) -> dict[str, Cell]:
        """What every page says about the setting."""
        return {
            "known records": len(self.data.known),
            "targets": len(self.data.targets),
            "steps of learning": self.steps,
            "batch": self.batch,
            **others,
        }


def spread(values: Tensor) -> float:
    """Two standard errors of their mean."""
    return 2 * float(values.std()) / len(values) ** 0.5


def recipe(training: SGD) -> dict[str, Cell]:
    """The released model's training, for a page."""
    assert isinstance(training.network, Perceptron)
    network = "-".join(map(str, training.network.sizes)) + f" {training.network.activation}"
    return {
        "network": network,
        "epochs": training.epochs,
        "learning rate": training.learning_rate,
        "momentum": training.momentum,
    }


def first(shadows: Shadows, count: int) -> Shadows:
    """Some of them."""
    return shadows.take(torch.arange(count, device=shadows.targets.labels.device))


def asked(mechanism: Queried, shadows: Shadows) -> Shadows:
    """The same shadows seen through their answers."""
    trained = mechanism.mechanism.releases(shadows.tensors)
    starts = range(0, len(shadows), _ASKED_AT_ONCE)
    parts = [mechanism.ask(trained.take(slice(start, start + _ASKED_AT_ONCE))) for start in starts]
    return Shadows(Logits.concatenate(parts).tensors, shadows.targets)


def means(label: str, rows: Sequence[dict[str, Cell]], across: str, up: str, error: str) -> Curve:
    """A mean with two standard errors over another column."""
    x, y, e = ([float(row[key]) for row in rows] for key in (across, up, error))  # type: ignore[arg-type]
    return Curve(
        label, x, y, [a - b for a, b in zip(y, e, strict=True)], [a + b for a, b in zip(y, e, strict=True)]
    )


def level(label: str, value: float, across: Sequence[float]) -> Curve:
    """A line at one height."""
    return Curve(label, [min(across), max(across)], [value] * 2)


def gallery(title: str, shown: dict[str, Tensor]) -> Panel:
    """Rows of pictures `(pictures, *example)` with pixels in [0, 1]."""
    rows = [values.clamp(0, 1).double().cpu().numpy().round(2).tolist() for values in shown.values()]
    return Panel(title, pictures=rows, picture_rows=list(shown))


def classifier_divergence(classify: Callable[[Tensor], Tensor]) -> Error:
    """KL(p(z) ‖ p(ẑ)) between a classifier's predictions on target and guess (Balle et al. 2022, §V-A).

    `classify` maps a batch of features to logits.
    """

    def measure(targets: Records, guesses: Records) -> Tensor:
        logs = []
        for records in (targets, guesses):
            batch = records.features.flatten(0, records.labels.ndim - 1)
            logs.append(classify(batch).double().log_softmax(-1).unflatten(0, records.batch_shape))
        return (logs[0].exp() * (logs[0] - logs[1])).sum(-1)

    return Error("classifier's KL divergence", measure)
