"""What a training loop does beyond plain steps, in PyTorch's own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch

from remanence.core.checks import is_number, number, one_of, whole
from remanence.core.exceptions import InputError
from remanence.heads.layers import ACTIVATIONS

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "adamax": torch.optim.Adamax,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@final
@dataclass(frozen=True)
class EarlyStopping:
    """A share of the pictures, drawn at random, is for validation; the state with the smallest loss there is kept.

    Training stops after `patience` epochs without a smaller one.
    """

    share: float = 0.2
    patience: int = 5

    def __post_init__(self) -> None:
        number("share", self.share, above=0, below=1)
        whole("patience", self.patience)

    def count(self, records: int) -> int:
        """How many pictures validate; at least one does, and one is left."""
        return min(max(1, round(self.share * records)), records - 1)


@final
@dataclass(frozen=True)
class Loop:
    """What a training loop does beyond plain steps; every word means what it means in PyTorch.

    `options` are further arguments of the optimizer, such as `(("betas", (0.9, 0.99)),)`. `schedule` is what the
    learning rate is multiplied with in each epoch or, if it has one entry for each, in each step. `averaging` publishes
    the exponential moving average of the weights instead of the last ones (the decay of `get_ema_avg_fn`). `dropout`
    is applied to the features before the head, which are divided by their norm if `normalised`.

    `balanced` draws as many pictures as there are, with replacement, each class alike often (a WeightedRandomSampler).
    `mixup` is α of Zhang et al. 2018: one λ for every batch. With several `views`, every epoch sees one of so many
    changed copies of each picture (`embed_views` makes them). `autocast` computes the layers in a lower precision, as
    `torch.autocast` does. The head is published in `precision`. `activation` lies between layers. `cosine` makes a
    cosine head: this scale times the cosines between features and rows, without biases. `max_norm` is what
    `clip_grad_norm_` clips the gradient of the whole head to.
    """

    options: tuple[tuple[str, Any], ...] = ()
    schedule: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    bias: bool = True
    dropout: float = 0.0
    normalised: bool = False
    averaging: float | None = None
    balanced: bool = False
    mixup: float = 0.0
    views: int = 1
    early_stopping: EarlyStopping | None = None
    autocast: str = "float32"
    precision: str = "float32"
    activation: str = "relu"
    cosine: float | None = None
    max_norm: float | None = None

    def __post_init__(self) -> None:
        number("label_smoothing", self.label_smoothing, least=0, most=1)
        number("dropout", self.dropout, least=0, below=1)
        number("mixup", self.mixup, least=0)
        whole("views", self.views)
        one_of("precision", self.precision, PRECISIONS)
        one_of("autocast", self.autocast, PRECISIONS)
        one_of("activation", self.activation, ACTIVATIONS)
        for name, value in {"cosine": self.cosine, "max_norm": self.max_norm}.items():
            if value is not None:
                number(name, value, above=0)
        if self.cosine is not None and self.bias:
            raise InputError(
                "A cosine head has no bias.",
                needs="bias=False",
                got="bias=True",
                hint=f"Loop(cosine={self.cosine}, bias=False)",
            )
        if self.averaging is not None:
            number("averaging", self.averaging, least=0, below=1)
        if not all(is_number(factor) and factor >= 0 for factor in self.schedule):
            raise InputError(
                "The schedule cannot be used.",
                needs="what the learning rate is multiplied with, at least 0, once for each epoch or step",
                got=repr(self.schedule)[:200],
                hint="(1.0, 0.5, 0.25)",
            )
