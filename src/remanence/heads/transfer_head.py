"""Transfer learning: a new head on a frozen backbone, trained by the hundred thousand as one tensor program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from remanence.core.checks import is_number, number, one_of, refusing, whole
from remanence.core.exceptions import InputError
from remanence.core.mechanism import NoisyDescent, Setting
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.head import ACTIVATIONS, Head, answers, layer_names, layer_sizes
from remanence.heads.span import train_dual
from remanence.reconstructor.readers import Reader, Tensors
from remanence.training.perceptron import INITIALISATIONS, Perceptron, initial_layer
from remanence.training.sgd import SGD, require_recipe

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "adamax": torch.optim.Adamax,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


@final
@dataclass(frozen=True)
class Loop:
    """What a training loop does beyond plain steps; every word means what it means in PyTorch.

    `options` are further arguments of the optimizer, such as `(("betas", (0.9, 0.99)),)`. `schedule` is what the
    learning rate is multiplied with in each epoch or, if it has one entry for each, in each step. `dropout` is applied
    to the features before the head. `activation` lies between layers. For anything else, hand in the loop itself:
    `OwnHead(train, classes)`.
    """

    options: tuple[tuple[str, Any], ...] = ()
    schedule: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    bias: bool = True
    dropout: float = 0.0
    activation: str = "relu"

    def __post_init__(self) -> None:
        number("label_smoothing", self.label_smoothing, least=0, most=1)
        number("dropout", self.dropout, least=0, below=1)
        one_of("activation", self.activation, ACTIVATIONS)
        if not all(is_number(factor) and factor >= 0 for factor in self.schedule):
            raise InputError(
                "The schedule cannot be used.",
                needs="factors of the learning rate, at least 0, one for each epoch or step",
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
            optimizer.step()
            step += 1
    return Weights(dict(zip(names, (each.detach() for each in tensors), strict=True)))


def starts(head: TransferHead, trials: int, numbers: int, generator: torch.Generator) -> list[Tensor]:
    """Initial weights and biases, layer by layer; biases of 0 where there are none."""
    sizes = layer_sizes(numbers, head.hidden, head.outputs)
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
            hint="your scheduler's get_last_lr() divided by the learning rate, logged in a separate run",
        )
    return loop.schedule[epoch if len(loop.schedule) == epochs else step]


def _optimizer(head: TransferHead, loop: Loop, tensors: list[Tensor]) -> torch.optim.Optimizer:
    options: dict[str, Any] = dict(loop.options)
    if head.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = head.momentum
    kind = OPTIMIZERS[head.optimizer]
    needs, hint = f"arguments of torch.optim.{kind.__name__}", 'Loop(options=(("betas", (0.9, 0.99)),))'
    summary = f"PyTorch's {head.optimizer} refuses these settings."
    with refusing((TypeError, ValueError), summary, needs=needs, got=options, hint=hint):
        return kind(tensors, lr=head.learning_rate, weight_decay=head.weight_decay, **options)


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


_CPU_BYTES = 2**26
_GPU_BYTES = 2**32


@dataclass(frozen=True)  # not final: what is published may be less than what was trained
class TransferHead(Head):
    """The head of a transfer-learned classifier: what is trained on your few records, and published.

    Reads the records' embeddings (`embed` computes them once). The head is one linear layer, or with `hidden` units two
    layers with a ReLU between. Two classes get a single logistic output, or
    with `two_outputs` a softmax. `task` maps the records' labels to the head's classes where they differ (even and odd
    for digits).

    The recipe means what it means in PyTorch. `initialisation` is the deviation of normal weights with biases of 0, or
    "pytorch" for what nn.Linear draws. Class weights are those of CrossEntropyLoss, which divides by their sum, or for
    a single output of BCEWithLogitsLoss, which divides by the number of records. An incomplete last batch is trained
    on, unless `drop_last` says that the DataLoader left it out.

    With a `noise_multiplier` training is DP-SGD: Poisson sampling at `sample_rate`, `epochs` counted in
    steps of 1 / sample_rate. Linear heads trained by SGD never leave the span of their records and their
    initial weights, so that they are trained in coordinates of that span, exactly (`span.py`).

    `loop` has what a training loop does beyond that: schedules, label smoothing, dropout, no bias.
    """

    classes: int
    epochs: int
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    momentum: float = 0.0
    batch_size: int | None = None
    optimizer: str = "sgd"
    hidden: int | None = None
    initialisation: str | float = 0.002
    class_weights: tuple[float, ...] | None = None
    task: tuple[int, ...] | None = None
    noise_multiplier: float | None = None
    max_grad_norm: float = 1.0
    sample_rate: float = 1.0
    two_outputs: bool = False
    drop_last: bool = False
    loop: Loop | None = None
    name: ClassVar[str] = "transfer-learned head"

    def __post_init__(self) -> None:
        check_recipe(self)

    @property
    def has_bias(self) -> bool:
        """Whether its layers have biases."""
        return self.loop is None or self.loop.bias

    @property
    def between(self) -> str:
        """The activation between layers."""
        return "relu" if self.loop is None else self.loop.activation

    @property
    def plain(self) -> bool:
        """Whether it stays in the span of its records and its start: one linear layer, trained by SGD."""
        return self.hidden is None and self.optimizer == "sgd" and self.loop is None

    @property
    def steps(self) -> int:
        """Steps of DP-SGD."""
        return round(self.epochs / self.sample_rate)

    @property
    def streams(self) -> bool:
        """Heads in the span train faster than a network learns."""
        return self.plain

    def reader(
        self, shadows: Tensors, prior: EmpiricalPrior | StratifiedPrior, *, classes: int, strong: bool
    ) -> Reader | None:
        """Rows are read as classes where they are, and training by SGD is followed backwards."""
        from remanence.heads.readers import HeadReader

        # Rows have the meaning of classes only where the head's classes are those that are asked for.
        # The reader's estimate follows the steps of SGD, and Adam's are of another kind.
        if strong and classes and self.plain and self.rows_are_classes and isinstance(prior, StratifiedPrior):
            return HeadReader(shadows, self, prior)
        return super().reader(shadows, prior, classes=classes, strong=strong)

    def gaussian_noise(self, feature_norm: float | None = None) -> tuple[float, float, int] | None:
        """As it trains, if it trains with noise."""
        return (self.noise_multiplier, self.sample_rate, self.steps) if self.noise_multiplier else None

    def noisy_descent(self, feature_norm: float) -> NoisyDescent | None:
        """Of one linear layer with one logistic output, weight decay and full batches: clipping keeps it convex.

        The loss of a record is log(1 + e^u) − y·u, whose second derivative is at most 1/4; weight decay is outside the
        clipping, and on the bias too.
        """
        forgets = self.noise_multiplier and self.weight_decay > 0 and self.momentum == 0
        if not (forgets and self.plain and self.outputs == 1 and self.sample_rate == 1):
            return None
        smoothness = self.weight_decay + (feature_norm**2 + 1) / 4
        if self.learning_rate * smoothness >= 2:
            return None
        return NoisyDescent(
            self.noise_multiplier or 0.0, self.steps, self.learning_rate, self.weight_decay, smoothness
        )

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {
            name: value if value is None or isinstance(value, str | int | float) else str(value)
            for part in (self, self.loop)
            if part is not None
            for name, value in vars(part).items()
            if name != "loop"
        }
        if self.noise_multiplier is None:
            return {k: v for k, v in shown.items() if k not in ("max_grad_norm", "sample_rate")}
        return {**shown, "steps": self.steps}

    def trials_at_once(self, targets: Records) -> int:
        """Pictures, embeddings, products between them, and weights of all heads at once."""
        records = targets.batch_shape[1]
        rows = self.hidden or self.outputs
        numbers = self.inputs_of(targets).shape[-1] * (records + 2 * rows)
        numbers += records * targets.flat.shape[-1]
        if self.hidden is None:  # with noise, their inverses in double precision
            numbers += records**2 * (2 if self.noise_multiplier is None else 10)
        return max(1, (_GPU_BYTES if targets.features.is_cuda else _CPU_BYTES) // (4 * numbers))

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train one head per trial on that trial's targets."""
        self.refuse_known(known_data)
        inputs, labels = self.inputs_of(targets), self.classes_of(targets)
        if self.loop is not None or self.optimizer not in ("sgd", "adam"):
            return train_loop(self, inputs, labels, generator)
        if self.plain:
            return train_dual(self, inputs, labels, generator)
        sizes = layer_sizes(inputs.shape[-1], self.hidden, self.outputs)
        network = Perceptron(sizes, "relu", self.initialisation)
        inner = SGD(
            network,
            self.epochs,
            self.learning_rate,
            self.momentum,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            class_weights=self.class_weights,
            drop_last=self.drop_last,
        )
        flat = inner.release(None, Records(inputs, labels), generator)["parameters"]
        names = layer_names(self.hidden)
        layers = [tensor for layer in network.layers(flat) for tensor in layer]
        return Weights(dict(zip(names, layers, strict=True)))


def check_recipe(head: TransferHead) -> None:
    """Refuse what no head can have, and what DP-SGD cannot train."""
    require_recipe(head, tuple(OPTIMIZERS))
    weights, task = head.class_weights, head.task
    whole("classes", head.classes, least=2)
    if head.hidden is not None:
        whole("hidden", head.hidden, hint="hidden=64, or None for one linear layer")
    if isinstance(head.initialisation, str):
        one_of("initialisation", head.initialisation, INITIALISATIONS)
    else:
        number("initialisation", head.initialisation, least=0)
    if weights is not None and not (
        isinstance(weights, tuple) and len(weights) == head.classes and min(weights) >= 0
    ):
        needs = f"{head.classes} numbers of at least 0"
        raise InputError(
            "class_weights cannot be used.", needs=needs, got=repr(weights), hint="(1.0, 2.0, ...)"
        )
    if task is not None and not (isinstance(task, tuple) and task):
        needs = "a tuple with a class for every label"
        raise InputError("task cannot be used.", needs=needs, got=repr(task), hint="(0, 1) * 5")
    number("max_grad_norm", head.max_grad_norm, above=0)
    number("sample_rate", head.sample_rate, above=0, most=1)
    if head.noise_multiplier is None:
        return
    number("noise_multiplier", head.noise_multiplier, least=0)
    if not head.plain or head.batch_size is not None or weights is not None:
        raise InputError(
            "This head cannot be trained by DP-SGD.",
            needs="one linear layer, optimizer 'sgd', no class weights, no loop of its own, and batches drawn at "
            "`sample_rate`",
            got=f"hidden {head.hidden}, optimizer {head.optimizer!r}, batch_size {head.batch_size}, "
            f"class_weights {weights}",
            hint="TransferHead(..., noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5)",
        )
