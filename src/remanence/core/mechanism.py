"""M, training: from data to a release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Release

ReleaseT = TypeVar("ReleaseT", bound=Release)
ReleaseT_co = TypeVar("ReleaseT_co", bound=Release, covariant=True)

Setting = str | int | float | bool | None


class NoisyDescent(NamedTuple):
    """Full-batch gradient descent on a strongly convex and smooth objective, with Gaussian noise in each step."""

    noise_multiplier: float
    steps: int
    learning_rate: float
    strong_convexity: float
    smoothness: float


class Mechanism(ABC, Generic[ReleaseT_co]):
    """A training procedure with all its settings, which bounds and attacks read."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def releases(self) -> type[Release]:
        """The type of release that the adversary sees."""

    @abstractmethod
    def release(
        self, known_data: Records | None, targets: Records, generator: torch.Generator
    ) -> ReleaseT_co:
        """Train once per trial, each time on the known data and that trial's targets.

        `targets` has batch `(trials, set)`; every tensor of the release has `trials` first.
        """

    @abstractmethod
    def settings(self) -> dict[str, Setting]:
        """The training settings that a report prints."""

    def trials_at_once(self, targets: Records) -> int:
        """How many trials fit into memory together; `targets` is a sample of the training targets."""
        return 1024

    def answer(self, release: Release, records: Records) -> Tensor:
        """The released models' logits on records shared by all trials, `(trials, records, classes)`."""
        raise InputError(
            "This mechanism's models cannot be asked questions.",
            needs="training of a classifier that this tool knows: a network by SGD or final DPSGD, or a head",
            got=self.name,
            hint="a mechanism of your own may define answer(release, records)",
        )

    def check_probes(self, probes: Records, targets: Records | None = None) -> None:
        """Refuse probes that a model cannot take as input: before training, and again once `targets` are known."""

    def gaussian_noise(self, feature_norm: float | None = None) -> tuple[float, float, int] | None:
        """Noise multiplier (noise over the sensitivity to one record), sampling rate and steps.

        None if they imply no ceiling. `feature_norm` is the largest norm of a record's features, if known.
        """
        return None

    def noisy_descent(self, feature_norm: float) -> NoisyDescent | None:
        """The training as contractive noisy gradient descent, if only its final weights are released.

        None unless clipped gradients are proven to be those of a strongly convex and smooth objective.
        """
        return None

    held_because: ClassVar[str] = "the model holds them as they are"  # said of records found verbatim

    def held_rows(self, data: Records) -> Tensor | None:
        """Which training records the release contains verbatim, `(records,)`; None if that was not checked."""
        return None

    def remaining_gradient(
        self,
        known_data: Records | None,
        targets: Records,
        release: Release,
    ) -> Tensor | None:
        """How far each release is from the optimum: the norm of the summed loss's gradient, `(trials,)`.

        Only the auditor, who holds all the data, can compute it. None where training has no
        optimum to reach.
        """
        return None
