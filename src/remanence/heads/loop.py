"""Heads trained as people train them: an elementwise optimizer of PyTorch, schedules, dropout; many at once.

Every head of a batch has its own loss, and their sum has every head's own gradient. Optimizers that treat each number
by itself, as all of `OPTIMIZERS` do, therefore train thousands of heads as if each were trained alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from remanence.core.checks import is_number, number, one_of
from remanence.core.exceptions import InputError
from remanence.core.releases import Weights
from remanence.heads.layers import ACTIVATIONS, answers, hidden_sizes, layer_names
from remanence.training.perceptron import initial_layer

if TYPE_CHECKING:
    from remanence.heads.transfer_head import TransferHead

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
class Loop:
    """What a training loop does beyond plain steps; every word means what it means in PyTorch.

    `options` are further arguments of the optimizer, such as `(("betas", (0.9, 0.99)),)`. `schedule` is what the
    learning rate is multiplied with in each epoch or, if it has one entry for each, in each step. `dropout` is applied
    to the features before the head, which are divided by their norm if `normalised`. The head is published in
    `precision`. `activation` lies between layers. `max_norm` is what `clip_grad_norm_` clips the gradient of the whole
    head to. What a loop does beyond that is said by the loop itself: `OwnHead(train, classes)`.
    """

    options: tuple[tuple[str, Any], ...] = ()
    schedule: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    bias: bool = True
    dropout: float = 0.0
    normalised: bool = False
    precision: str = "float32"
    activation: str = "relu"
    max_norm: float | None = None

    def __post_init__(self) -> None:
        number("label_smoothing", self.label_smoothing, least=0, most=1)
        number("dropout", self.dropout, least=0, below=1)
        one_of("precision", self.precision, PRECISIONS)
        one_of("activation", self.activation, ACTIVATIONS)
        if self.max_norm is not None:
            number("max_norm", self.max_norm, above=0)
        if not all(is_number(factor) and factor >= 0 for factor in self.schedule):
            raise InputError(
                "The schedule cannot be used.",
                needs="what the learning rate is multiplied with, at least 0, once for each epoch or step",
                got=repr(self.schedule)[:200],
                hint="(1.0, 0.5, 0.25)",
            )


def train_loop(head: TransferHead, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Weights:
    """Train heads on features `(trials, records, numbers)`, each from its own start and in its own order."""
    loop, layers = head.loop or Loop(), starts(head, len(inputs), inputs.shape[-1], generator)
    names = layer_names(head.hidden)
    tensors = [layer.to(inputs.device).requires_grad_() for layer in layers]
    trained = [each for name, each in zip(names, tensors, strict=True) if loop.bias or "bias" not in name]
    optimizer = _optimizer(head, loop, trained)
    step = 0
    for epoch in range(head.epochs):
        batches = list(orders(head, labels, generator))
        for places in batches:
            for group in optimizer.param_groups:
                group["lr"] = head.learning_rate * _factor(loop, head.epochs, len(batches), epoch, step)
            values = _at(inputs, places)
            if loop.dropout:
                values = values * kept_by_dropout(loop, places, inputs.shape[-1], generator).to(values)
            logits = answers(tensors, values, loop.activation)
            loss = _losses(head, loop, logits, _at(labels, places)).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if loop.max_norm is not None:
                _clip(trained, loop.max_norm)
            optimizer.step()
            step += 1
    precision = PRECISIONS[loop.precision]
    final = [each.detach().to(precision).float() for each in tensors]
    return Weights(dict(zip(names, final, strict=True)))


def starts(head: TransferHead, trials: int, numbers: int, generator: torch.Generator) -> list[Tensor]:
    """Initial weights and biases, layer by layer; biases of 0 where there are none."""
    sizes = (numbers, *hidden_sizes(head.hidden), head.outputs)
    found: list[Tensor] = []
    for rows, columns in pairwise(sizes):
        weight, bias = initial_layer(head.initialisation, trials, rows, columns, generator)
        found += [weight.contiguous(), bias.contiguous() if head.loop is None or head.loop.bias else bias * 0]
    return found


def orders(head: TransferHead, labels: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Which records each step of an epoch sees, `(trials, size)`."""
    trials, records = labels.shape
    size = records if head.batch_size is None else min(head.batch_size, records)
    if size == records:
        yield torch.arange(records).expand(trials, -1)
        return
    order = torch.rand(trials, records, generator=generator, device=generator.device).argsort(1)
    last = records - records % size if head.drop_last else records
    yield from order[:, :last].split(size, 1)


def kept_by_dropout(loop: Loop, places: Tensor, numbers: int, generator: torch.Generator) -> Tensor:
    """What dropout multiplies the features of a step with, `(trials, size, numbers)`."""
    shape, device = (*places.shape, numbers), generator.device
    kept = torch.rand(shape, generator=generator, device=device) >= loop.dropout
    return kept.float() / (1 - loop.dropout)


def _clip(tensors: list[Tensor], most: float) -> None:
    """Every head's own gradient, as `clip_grad_norm_` clips it."""
    gradients = [each.grad for each in tensors if each.grad is not None]
    lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (most / (lengths + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.ndim - 1))


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Every head's own records at these places `(trials, some)`."""
    places = places.to(values.device)
    return values[torch.arange(len(values), device=values.device)[:, None], places]


def _factor(loop: Loop, epochs: int, batches: int, epoch: int, step: int) -> float:
    if not loop.schedule:
        return 1.0
    if len(loop.schedule) not in (epochs, epochs * batches):
        raise InputError(
            "The schedule does not fit the training.",
            needs=f"{epochs} factors, one for each epoch, or {epochs * batches}, one for each step",
            got=str(len(loop.schedule)),
            hint="what your scheduler's get_last_lr() gives over the rate, written down in a run of its own",
        )
    return loop.schedule[epoch if len(loop.schedule) == epochs else step]


def _optimizer(head: TransferHead, loop: Loop, tensors: list[Tensor]) -> torch.optim.Optimizer:
    options: dict[str, Any] = dict(loop.options)
    if head.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = head.momentum
    try:
        return OPTIMIZERS[head.optimizer](
            tensors,
            lr=head.learning_rate,
            weight_decay=head.weight_decay,
            **options,
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"PyTorch's {head.optimizer} refuses these settings.",
            needs=f"arguments of torch.optim.{OPTIMIZERS[head.optimizer].__name__}",
            got=f"{options}: {error}",
            hint='Loop(options=(("betas", (0.9, 0.99)),))',
        ) from None


def _losses(head: TransferHead, loop: Loop, logits: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss of each head on its batch, `(trials,)`."""
    weights = None if head.class_weights is None else torch.tensor(head.class_weights, device=logits.device)
    if head.outputs == 1:
        counted = None if weights is None else weights[wanted]
        return binary_cross_entropy_with_logits(
            logits.squeeze(2), wanted.float(), counted, reduction="none"
        ).mean(1)
    each = cross_entropy(
        logits.flatten(0, 1),
        wanted.flatten(),
        weights,
        reduction="none",
        label_smoothing=loop.label_smoothing,
    ).view_as(wanted)
    return each.mean(1) if weights is None else each.sum(1) / weights[wanted].sum(1)
