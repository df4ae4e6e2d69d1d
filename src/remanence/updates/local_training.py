"""Updates of several local steps: what a client's optimiser makes of a batch, recomputed from proposed records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from remanence.core.checks import number, one_of, whole
from remanence.updates.dense_layers import DenseHead
from remanence.updates.one_logit import doubled, has_one_logit, mirrored
from remanence.updates.recomputed import Proposal
from remanence.updates.rounding import Layer, Rounding, independent_numbers

Weights = dict[str, Tensor]

_ROUNDINGS = 64  # by which the shares of an update of one step may be off; a longer one adds up more


@final
@dataclass(frozen=True)
class LocalTraining:
    """What a client does between two rounds. Without a learning rate the update's scale is not known."""

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

    def along(self, start: Mapping[str, Tensor], slopes: Callable[[Weights], Weights]) -> Weights:
        """Old weights minus new ones over the learning rate, after all steps; `slopes` is the gradient at weights."""
        if self.is_plain:
            return slopes(dict(start))
        assert self.learning_rate is not None
        now = {name: value.detach().clone() for name, value in start.items()}
        optimiser = self._optimiser(list(now.values()))
        for _ in range(self.steps):
            for name, slope in slopes(now).items():
                now[name].grad = slope
            optimiser.step()
        return {name: (value.detach() - now[name]) / self.learning_rate for name, value in start.items()}

    def update(self, head: DenseHead, records: Proposal) -> list[Layer]:
        """The same of a dense head, with all steps on the whole batch."""

        def slopes(now: Weights) -> Weights:
            pairs = _with_parts(head, now).gradients(records.inputs, records.labels, present=records.shares)
            with_bias = zip(pairs, head.biases, strict=True)
            return _parts(
                head, [(weight, bias if own is not None else None) for (weight, bias), own in with_bias]
            )

        start = _parts(head, list(zip(head.weights, head.biases, strict=True)))
        made = _pairs(head, self.along(start, slopes))
        if has_one_logit(head):
            weight, bias = made[-1]
            made[-1] = mirrored(weight, 0), None if bias is None else mirrored(bias, 0)
        return made

    def _optimiser(self, parts: list[Tensor]) -> torch.optim.Optimizer:
        assert self.learning_rate is not None
        if self.optimizer != "sgd":
            kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
            return kind(parts, self.learning_rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parts, self.learning_rate, self.momentum, weight_decay=self.weight_decay)


def _parts(head: DenseHead, layers: list[Layer]) -> Weights:
    """What is trained: of two logits that are made from one, its own row alone."""
    if has_one_logit(head):
        weight, bias = layers[-1]
        layers = [*layers[:-1], (weight[1:], None if bias is None else bias[1:])]
    return {str(i): part for i, part in enumerate(p for pair in layers for p in pair if p is not None)}


def _pairs(head: DenseHead, parts: Weights) -> list[Layer]:
    each = iter(parts.values())
    return [(next(each), None if bias is None else next(each)) for bias in head.biases]


def _with_parts(head: DenseHead, parts: Weights) -> DenseHead:
    """The same head with other weights."""
    pairs = _pairs(head, parts)
    if has_one_logit(head):
        weight, bias = pairs[-1]
        pairs[-1] = doubled(weight), None if bias is None else doubled(bias)
    return replace(head, weights=tuple(w for w, _ in pairs), biases=tuple(b for _, b in pairs))


def explains(
    head: DenseHead, layers: Sequence[Layer], records: Proposal, training: LocalTraining, rounding: Rounding
) -> tuple[bool, Tensor]:
    """Whether the records, trained on as declared, make this update; and the share of each layer that is left.

    They must be all of the batch: every step depends on every record.
    """
    unknowns = records.inputs.numel() + len(records)
    if not len(records) or unknowns > 0.8 * independent_numbers(layers):
        return False, torch.ones(len(layers), dtype=torch.float64)
    made = training.update(head, records)
    left, fine = [], True
    for (weight, _), (found, _) in zip(layers, made, strict=True):
        share = (weight - found).norm() / weight.norm().clamp(min=1e-300)
        coarse = rounding.relative + rounding.absolute * weight.numel() ** 0.5 / float(
            weight.norm().clamp(min=1e-300)
        )
        fine &= bool(share <= _ROUNDINGS * training.steps * coarse) and bool(share < 1e-2)
        left.append(share)
    return fine, torch.stack(left)
