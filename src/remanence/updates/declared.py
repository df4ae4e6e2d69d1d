"""The owner's declarations about an update: how the client trained, and other known settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from remanence.core.checks import number, one_of, whole
from remanence.core.exceptions import InputError

Parameters = dict[str, Tensor]


def gradient_at(weights: Mapping[str, Tensor], loss: Callable[[Parameters], Tensor]) -> Parameters:
    """The gradient of a loss at weights; zeros for those that it does not depend on."""
    own = {name: value.detach().requires_grad_() for name, value in weights.items()}
    parts = torch.autograd.grad(loss(own), list(own.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(own, parts, strict=True))


@final
@dataclass(frozen=True)
class LocalTraining:
    """A client's training between two rounds. Without a learning rate the update's scale is unknown."""

    steps: int = 1
    learning_rate: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"

    def __post_init__(self) -> None:
        whole("local_steps", self.steps, hint="--local-steps 5")
        number("momentum", self.momentum, least=0, below=1, hint="--momentum 0.9")
        number("weight_decay", self.weight_decay, least=0, hint="--weight-decay 1e-4")
        one_of("optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        if self.learning_rate is not None:
            number("learning_rate", self.learning_rate, above=0, hint="the client's")

    @property
    def is_plain(self) -> bool:
        """Whether the update is a multiple of one gradient (and of the weights)."""
        return self.steps == 1 and self.optimizer == "sgd"

    def along(self, start: Mapping[str, Tensor], slopes: Callable[[Parameters], Parameters]) -> Parameters:
        """Old weights minus new ones over the learning rate, after all steps; `slopes` is the gradient at weights."""
        if self.is_plain:
            return slopes(dict(start))
        assert self.learning_rate is not None
        now = {name: value.detach().clone() for name, value in start.items()}
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "sgd":
            optimiser = torch.optim.SGD(now.values(), rate, self.momentum, weight_decay=decay)
        else:
            kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
            optimiser = kind(now.values(), rate, weight_decay=decay)
        for _ in range(self.steps):
            for name, slope in slopes(now).items():
                now[name].grad = slope
            optimiser.step()
        return {name: (value.detach() - now[name]) / rate for name, value in start.items()}


@final
@dataclass(frozen=True)
class Noise:
    """Gaussian noise that the client declares to have added to a sum of clipped gradients."""

    multiplier: float
    max_grad_norm: float

    def __post_init__(self) -> None:
        number("noise_multiplier", self.multiplier, above=0, hint="--noise-multiplier 1")
        number("max_grad_norm", self.max_grad_norm, above=0, hint="--max-grad-norm 1")


@final
@dataclass(frozen=True)
class Declared:
    """The owner's declarations about the updates; omitted ones are inferred, or unknown."""

    training: LocalTraining = field(default_factory=LocalTraining)
    batch_size: int | None = None
    weights: Path | None = None
    input_shape: tuple[int, ...] | None = None
    noise: Noise | None = None
    candidates: int = 10  # for ceilings: the length of the shortlist

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, hint="--batch-size 8")
        whole("candidates", self.candidates, least=2, hint="--candidates 10")
        if self.noise is not None and self.batch_size is None:
            raise InputError(
                "The noise in each number is unknown.",
                needs="the batch size that the noised sum was divided by",
                got="--noise-multiplier without --batch-size",
                hint="--batch-size 256",
            )
