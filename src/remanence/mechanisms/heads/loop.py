"""Heads trained as people train them: an elementwise optimizer of PyTorch, schedules, dropout, averaging; many at once.

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

from remanence.checks import is_number, number, one_of
from remanence.data.releases import Weights
from remanence.exceptions import InputError
from remanence.mechanisms.networks.perceptron import initial_layer

if TYPE_CHECKING:
    from remanence.mechanisms.heads.transfer_head import TransferHead

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
    learning rate is multiplied with in each epoch or, if it has one entry for each, in each step. `averaging` publishes
    the exponential moving average of the weights instead of the last ones (the decay of `get_ema_avg_fn`). `dropout`
    is applied to the features before the head, which are divided by their norm if `normalised`. The head is published
    in `precision`.
    """

    options: tuple[tuple[str, Any], ...] = ()
    schedule: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    bias: bool = True
    dropout: float = 0.0
    normalised: bool = False
    averaging: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        number("label_smoothing", self.label_smoothing, least=0, most=1)
        number("dropout", self.dropout, least=0, below=1)
        one_of("precision", self.precision, PRECISIONS)
        if self.averaging is not None:
            number("averaging", self.averaging, least=0, below=1)
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
    names = ("weight", "bias", "out_weight", "out_bias")[: len(layers)]
    tensors = [layer.to(inputs.device).requires_grad_() for layer in layers]
    trained = [each for name, each in zip(names, tensors, strict=True) if loop.bias or "bias" not in name]
    averages = [each.detach().clone() for each in tensors]
    optimizer = _optimizer(head, loop, trained)
    step = 0
    for epoch in range(head.epochs):
        batches = list(orders(head, len(labels), labels.shape[1], generator))
        for batch in batches:
            for group in optimizer.param_groups:
                group["lr"] = head.learning_rate * _factor(loop, head.epochs, len(batches), epoch, step)
            mask = kept(loop, (len(inputs), batch.shape[1], inputs.shape[2]), generator)
            loss = _losses(head, loop, tensors, inputs, labels, batch.to(inputs.device), mask).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            with torch.no_grad():  # the first average is the first weights
                keep = 0.0 if step == 1 or loop.averaging is None else loop.averaging
                for average, each in zip(averages, tensors, strict=True):
                    average.lerp_(each, 1 - keep)
    precision = PRECISIONS[loop.precision]
    return Weights({name: each.to(precision).float() for name, each in zip(names, averages, strict=True)})


def starts(head: TransferHead, trials: int, numbers: int, generator: torch.Generator) -> list[Tensor]:
    """Initial weights and biases, layer by layer; biases of 0 where there are none."""
    sizes = (numbers, *(() if head.hidden is None else (head.hidden,)), head.outputs)
    found: list[Tensor] = []
    for rows, columns in pairwise(sizes):
        weight, bias = initial_layer(head.initialisation, trials, rows, columns, generator)
        found += [weight.contiguous(), bias.contiguous() if head.loop is None or head.loop.bias else bias * 0]
    return found


def orders(head: TransferHead, trials: int, records: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Which records each step of an epoch sees, `(trials, size)`."""
    size = records if head.batch_size is None else min(head.batch_size, records)
    if size == records:
        yield torch.arange(records).expand(trials, -1)
        return
    order = torch.rand(trials, records, generator=generator, device=generator.device).argsort(1)
    last = records - records % size if head.drop_last else records
    yield from order[:, :last].split(size, 1)


def kept(loop: Loop, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
    """What dropout multiplies the features with."""
    if not loop.dropout:
        return None
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return (drawn >= loop.dropout).float() / (1 - loop.dropout)


def _factor(loop: Loop, epochs: int, batches: int, epoch: int, step: int) -> float:
    if not loop.schedule:
        return 1.0
    if len(loop.schedule) not in (epochs, epochs * batches):
        raise InputError(
            "The schedule does not fit the training.",
            needs=f"{epochs} factors, one for each epoch, or {epochs * batches}, one for each step",
            got=str(len(loop.schedule)),
            hint="TransferHead.from_training(...) reads it off your scheduler",
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


def _losses(
    head: TransferHead,
    loop: Loop,
    tensors: list[Tensor],
    inputs: Tensor,
    labels: Tensor,
    batch: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """The mean loss of each head on its batch, `(trials,)`."""
    rows = torch.arange(len(inputs), device=inputs.device)[:, None]
    values, answers = inputs[rows, batch], labels[rows, batch]
    values = values if mask is None else values * mask.to(values)
    for layer in range(0, len(tensors), 2):
        values = values.relu() if layer else values
        values = torch.baddbmm(tensors[layer + 1].unsqueeze(1), values, tensors[layer].mT)
    weights = None if head.class_weights is None else torch.tensor(head.class_weights, device=values.device)
    if head.outputs == 1:
        counted = None if weights is None else weights[answers]
        return binary_cross_entropy_with_logits(
            values.squeeze(2), answers.float(), counted, reduction="none"
        ).mean(1)
    each = cross_entropy(
        values.flatten(0, 1),
        answers.flatten(),
        weights,
        reduction="none",
        label_smoothing=loop.label_smoothing,
    ).view_as(answers)
    return each.mean(1) if weights is None else each.sum(1) / weights[answers].sum(1)
