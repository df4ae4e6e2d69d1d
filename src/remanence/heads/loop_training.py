"""Heads trained as people train them: an elementwise optimizer of PyTorch, schedules, dropout, averaging; many at once.

Every head of a batch has its own loss, and their sum has every head's own gradient. Optimizers that treat each number
by itself, as all of `OPTIMIZERS` do, therefore train thousands of heads as if each were trained alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from remanence.core.exceptions import InputError
from remanence.core.releases import Weights
from remanence.heads.layers import answers, hidden_sizes, layer_names
from remanence.heads.loop import OPTIMIZERS, PRECISIONS, Loop
from remanence.training.perceptron import initial_layer

if TYPE_CHECKING:
    from remanence.heads.transfer_head import TransferHead


@dataclass(frozen=True)
class Batch:
    """What one step sees of every head's pictures: their places, what dropout keeps, and whom each is mixed with."""

    places: Tensor  # (trials, size)
    kept: Tensor | None = None  # (trials, size, numbers)
    share: Tensor | None = None  # of the picture itself in a mixture, (trials, 1)
    partner: Tensor | None = None  # places of the batch that the rest comes from, (trials, size)


def train_loop(head: TransferHead, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Weights:
    """Train heads on features `(trials, records, numbers)`, each from its own start and in its own order.

    With several views of each picture, features are `(trials, records, views, numbers)`.
    """
    loop, layers = head.loop or Loop(), starts(head, len(inputs), inputs.shape[-1], generator)
    names = layer_names(head.hidden)
    tensors = [layer.to(inputs.device).requires_grad_() for layer in layers]
    trained = [each for name, each in zip(names, tensors, strict=True) if loop.bias or "bias" not in name]
    averages = [each.detach().clone() for each in tensors]
    optimizer = _optimizer(head, loop, trained)
    watch = None
    if loop.early_stopping is not None:
        ours, theirs = split(loop.early_stopping.count(labels.shape[1]), labels, generator)
        watch = _Watch(head, (first_view(loop, _at(inputs, theirs)), _at(labels, theirs)), averages)
        inputs, labels = _at(inputs, ours), _at(labels, ours)
    step = 0
    for epoch in range(head.epochs):
        seen = viewed(loop, inputs, generator)
        batches = list(orders(head, labels, generator))
        for places in batches:
            for group in optimizer.param_groups:
                group["lr"] = head.learning_rate * _factor(loop, head.epochs, len(batches), epoch, step)
            batch = drawn(loop, places, inputs.shape[-1], generator)
            loss = losses(head, tensors, seen, labels, batch).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if loop.max_norm is not None:
                _clip(trained, loop.max_norm)
            optimizer.step()
            step += 1
            with torch.no_grad():  # the first average is the first weights
                keep = 0.0 if step == 1 or loop.averaging is None else loop.averaging
                for average, each in zip(averages, tensors, strict=True):
                    average.lerp_(each, 1 - keep)
        if watch is not None and not watch.look(averages):
            break
    precision = PRECISIONS[loop.precision]
    final = averages if watch is None else watch.best
    return Weights({name: each.to(precision).float() for name, each in zip(names, final, strict=True)})


def _clip(tensors: list[Tensor], most: float) -> None:
    """Every head's own gradient, as `clip_grad_norm_` clips it."""
    gradients = [each.grad for each in tensors if each.grad is not None]
    lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (most / (lengths + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.ndim - 1))


class _Watch:
    """The best state of every head by the loss on its validation pictures, as long as it has patience."""

    def __init__(self, head: TransferHead, validation: tuple[Tensor, Tensor], start: list[Tensor]) -> None:
        loop = head.loop
        assert loop is not None
        assert loop.early_stopping is not None
        self.head, self.validation, self.patience = head, validation, loop.early_stopping.patience
        self.best = [each.clone() for each in start]
        trials = len(start[0])
        self.lowest = torch.full((trials,), torch.inf, device=start[0].device)
        self.since = torch.zeros_like(self.lowest)

    @torch.no_grad()
    def look(self, state: list[Tensor]) -> bool:
        """Keep what is better; whether any head goes on."""
        inputs, labels = self.validation
        everything = torch.arange(labels.shape[1], device=labels.device).expand(len(labels), -1)
        found = losses(self.head, state, inputs, labels, Batch(everything))
        better = (found < self.lowest) & (self.since < self.patience)
        self.lowest = found.where(better, self.lowest)
        self.since = torch.where(better, 0.0, self.since + 1)
        for kept, each in zip(self.best, state, strict=True):
            kept[better] = each[better]
        return bool((self.since < self.patience).any())


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Every head's own records at these places `(trials, some)`."""
    places = places.to(values.device)
    return values[torch.arange(len(values), device=values.device)[:, None], places]


def starts(head: TransferHead, trials: int, numbers: int, generator: torch.Generator) -> list[Tensor]:
    """Initial weights and biases, layer by layer; biases of 0 where there are none."""
    sizes = (numbers, *hidden_sizes(head.hidden), head.outputs)
    found: list[Tensor] = []
    for rows, columns in pairwise(sizes):
        weight, bias = initial_layer(head.initialisation, trials, rows, columns, generator)
        found += [weight.contiguous(), bias.contiguous() if head.loop is None or head.loop.bias else bias * 0]
    return found


def split(count: int, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places of the pictures that are trained on, and of so many that validate, `(trials, ...)` each."""
    order = torch.rand(labels.shape, generator=generator, device=generator.device).argsort(1)
    return order[:, count:], order[:, :count]


def first_view(loop: Loop, inputs: Tensor) -> Tensor:
    """The pictures as they are."""
    return inputs[:, :, 0] if loop.views > 1 else inputs


def viewed(loop: Loop, inputs: Tensor, generator: torch.Generator) -> Tensor:
    """What this epoch sees of each picture, `(trials, records, numbers)`."""
    if loop.views == 1:
        return inputs
    chosen = torch.randint(loop.views, inputs.shape[:2], generator=generator, device=generator.device)
    index = chosen.to(inputs.device)[:, :, None, None].expand(-1, -1, 1, inputs.shape[3])
    return inputs.gather(2, index).squeeze(2)


def orders(head: TransferHead, labels: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Which records each step of an epoch sees, `(trials, size)`."""
    trials, records = labels.shape
    size = records if head.batch_size is None else min(head.batch_size, records)
    if head.loop is not None and head.loop.balanced:
        alike = (labels.unsqueeze(1) == labels.unsqueeze(2)).sum(2)  # of the same class, (trials, records)
        chances = (1 / alike.double()).to(generator.device)
        order = torch.multinomial(chances, records, replacement=True, generator=generator)
    elif size == records:
        yield torch.arange(records).expand(trials, -1)
        return
    else:
        order = torch.rand(trials, records, generator=generator, device=generator.device).argsort(1)
    last = records - records % size if head.drop_last else records
    yield from order[:, :last].split(size, 1)


def drawn(loop: Loop, places: Tensor, numbers: int, generator: torch.Generator) -> Batch:
    """A step's random choices: what dropout keeps, and mixtures."""
    kept = share = partner = None
    if loop.dropout:
        shape, device = (*places.shape, numbers), generator.device
        kept = torch.rand(shape, generator=generator, device=device) >= loop.dropout
        kept = kept.float() / (1 - loop.dropout)
    if loop.mixup:
        alpha = torch.full((len(places), 2), loop.mixup, device=generator.device)
        gammas = torch._standard_gamma(alpha, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        share = gammas[:, :1] / gammas.sum(1, keepdim=True).clamp(min=1e-30)
        partner = torch.rand(places.shape, generator=generator, device=generator.device).argsort(1)
    return Batch(places, kept, share, partner)


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


def losses(head: TransferHead, tensors: list[Tensor], inputs: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """The mean loss of each head on its batch, `(trials,)`."""
    loop = head.loop or Loop()
    values, wanted = _at(inputs, batch.places), _at(labels, batch.places)
    share = None if batch.share is None else batch.share.to(values)
    others = None if batch.partner is None else _at(wanted, batch.partner)
    if share is not None and batch.partner is not None:
        values = values.lerp(_at(values, batch.partner), (1 - share).unsqueeze(2))
    values = values if batch.kept is None else values * batch.kept.to(values)
    lower = loop.autocast != "float32"
    with torch.autocast(values.device.type, PRECISIONS[loop.autocast], enabled=lower):
        values = answers(tensors, values, loop.activation, loop.cosine)
    found = _mean_loss(head, loop, values.float(), wanted)
    if share is None or others is None:
        return found
    return share[:, 0] * found + (1 - share[:, 0]) * _mean_loss(head, loop, values.float(), others)


def _mean_loss(head: TransferHead, loop: Loop, logits: Tensor, wanted: Tensor) -> Tensor:
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
