"""Transfer learning: a new head on a frozen backbone, trained by the hundred thousand as one tensor program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from remanence.checks import is_number, is_whole
from remanence.data.records import Records, concatenate
from remanence.data.releases import Release, Weights
from remanence.exceptions import InputError
from remanence.mechanisms.heads.loop import OPTIMIZERS, Loop, train_loop
from remanence.mechanisms.heads.reading_loops import recipe_of
from remanence.mechanisms.heads.span import train_dual
from remanence.mechanisms.mechanism import Mechanism, NoisyDescent, Setting
from remanence.mechanisms.networks.dpsgd import DPSGD
from remanence.mechanisms.networks.perceptron import INITIALISATIONS, Perceptron
from remanence.mechanisms.networks.sgd import SGD, require_recipe
from remanence.scale.progress import track

_CPU_BYTES = 2**26
_GPU_BYTES = 2**32


@final
@dataclass(frozen=True)
class TransferHead(Mechanism[Weights]):
    """The head of a transfer-learned classifier: what is trained on your few records, and published.

    Reads the records' embeddings (`embed` computes them once). The head is one linear layer, or with
    `hidden` two layers with a ReLU between. Two classes get a single logistic output, or with `two_outputs` a
    softmax. `task` maps the records' labels to the head's classes where they differ (even and odd for digits).

    The recipe means what it means in PyTorch. `initialisation` is the deviation of normal weights with biases of 0, or
    "pytorch" for what nn.Linear draws. Class weights are those of CrossEntropyLoss, which divides by their sum, or for
    a single output of BCEWithLogitsLoss, which divides by the number of records. An incomplete last batch is trained
    on, unless `drop_last` says that the DataLoader left it out.

    With a `noise_multiplier` training is DP-SGD: Poisson sampling at `sample_rate`, `epochs` counted in
    steps of 1 / sample_rate. Linear heads trained by SGD never leave the span of their records and their
    initial weights, so that they are trained in coordinates of that span, exactly (`span.py`).

    `loop` has what a training loop does beyond that: schedules, label smoothing, dropout, no bias, averaged weights.

    What is published may be less than what was trained: `release_noise` is the deviation of normal noise on
    every number, and `bits` rounds each tensor to 2^bits levels between its largest value and less than that.
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
    release_noise: float = 0.0
    bits: int | None = None
    two_outputs: bool = False
    drop_last: bool = False
    loop: Loop | None = None
    name: ClassVar[str] = "transfer-learned head"

    def __post_init__(self) -> None:
        require_recipe(self, tuple(OPTIMIZERS))
        self._check()
        if self.noise_multiplier is not None and (
            self.optimizer != "sgd"
            or self.loop is not None
            or self.batch_size is not None
            or self.class_weights is not None
            or (self.hidden is not None and self.weight_decay > 0)
        ):
            raise InputError(
                "This head cannot be trained by DP-SGD.",
                needs="optimizer 'sgd', no class weights, no weight decay on two layers, no loop of its own, "
                "and batches drawn at `sample_rate`",
                got=f"optimizer {self.optimizer!r}, batch_size {self.batch_size}, hidden {self.hidden}, "
                f"weight_decay {self.weight_decay}, class_weights {self.class_weights}",
                hint="TransferHead(..., noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5)",
            )
        noise = self.release_noise
        if not (is_number(noise) and noise >= 0) or not (self.bits is None or is_whole(self.bits, 1)):
            raise InputError(
                "This head cannot be published.",
                needs="a deviation of at least 0, and at least one bit per number",
                got=f"release_noise {self.release_noise}, bits {self.bits}",
                hint="TransferHead(..., release_noise=0.01) or TransferHead(..., bits=8)",
            )

    def _check(self) -> None:
        """Refuse settings that no head can have."""
        weights, start, noise, rate = (
            self.class_weights,
            self.initialisation,
            self.noise_multiplier,
            self.sample_rate,
        )
        checks = {
            "classes": (self.classes, is_whole(self.classes, 2), "a whole number of at least 2"),
            "hidden": (self.hidden, self.hidden is None or is_whole(self.hidden, 1), "at least 1, or None"),
            "initialisation": (
                start,
                start in INITIALISATIONS if isinstance(start, str) else is_number(start) and start >= 0,
                f"a deviation, or {', '.join(INITIALISATIONS)}",
            ),
            "class_weights": (
                weights,
                weights is None
                or (isinstance(weights, tuple) and len(weights) == self.classes and min(weights) >= 0),
                f"{self.classes} numbers of at least 0",
            ),
            "task": (
                self.task,
                self.task is None or (isinstance(self.task, tuple) and len(self.task) > 0),
                "a tuple with a class for every label",
            ),
            "noise_multiplier": (
                self.noise_multiplier,
                noise is None or (is_number(noise) and noise >= 0),
                "at least 0, or None for training without DP-SGD",
            ),
            "max_grad_norm": (self.max_grad_norm, is_number(self.max_grad_norm, above=0), "above 0"),
            "sample_rate": (rate, is_number(rate, above=0) and rate <= 1, "above 0 and at most 1"),
        }
        for name, (value, allowed, needs) in checks.items():
            if not allowed:
                raise InputError(
                    f"The {name} cannot be used.", needs=needs, got=f"{value!r}", hint="TransferHead(10, 30)"
                )

    @classmethod
    def from_training(
        cls,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        loader: Any = None,
        epochs: int = 1,
        *,
        loss: nn.Module | None = None,
        steps_per: str = "epoch",
        **more: Any,
    ) -> TransferHead:
        """The recipe, read off the objects of your own training loop before it runs.

        The optimizer's tensors are the head's layers, in order, and nothing else. `loader` is the DataLoader (None: all
        pictures in every step), `loss` a CrossEntropyLoss or BCEWithLogitsLoss where it has settings. `steps_per` says
        whether the scheduler steps in every "epoch" or "batch". Weights start as nn.Linear draws them; `more` are
        further fields, such as `initialisation` or `loop=Loop(dropout=0.5)`.
        """
        read = recipe_of(optimizer, scheduler, loader, epochs, loss, steps_per)
        given: Loop | None = more.pop("loop", None)
        found = replace(given or Loop(), **read.loop)
        fields = {"initialisation": "pytorch", **read.fields, **more}
        return cls(epochs=epochs, loop=None if found == Loop() else found, **fields)

    @property
    def outputs(self) -> int:
        """How many numbers come out."""
        return self.classes if self.classes > 2 or self.two_outputs else 1

    @property
    def rows_are_classes(self) -> bool:
        """Whether each class has a row of weights of its own: one linear layer, no mapped labels."""
        return self.hidden is None and self.outputs > 1 and self.task is None

    @property
    def plain(self) -> bool:
        """Whether it stays in the span of its records and its start: one linear layer, trained by SGD."""
        return self.hidden is None and self.optimizer == "sgd" and self.loop is None

    @property
    def steps(self) -> int:
        """Steps of DP-SGD."""
        return round(self.epochs / self.sample_rate)

    @property
    def releases(self) -> type[Weights]:
        """The head's weights and biases."""
        return Weights

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
            name: str(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name != "loop"
        }
        if self.loop is not None:
            shown |= {
                name: str(value) if isinstance(value, tuple) else value
                for name, value in vars(self.loop).items()
            }
        if self.noise_multiplier is None:
            return {k: v for k, v in shown.items() if k not in ("max_grad_norm", "sample_rate")}
        return {**shown, "steps": self.steps}

    def trials_at_once(self, targets: Records) -> int:
        """Pictures, embeddings, products between them, and weights of all heads at once."""
        records = targets.batch_shape[1]
        numbers = self.inputs_of(targets).shape[-1] * (records + 2 * (self.hidden or self.outputs))
        numbers += records * targets.flat.shape[-1]
        if self.hidden is None:  # with noise, their inverses in double precision
            numbers += records**2 * (2 if self.noise_multiplier is None else 10)
        return max(1, (_GPU_BYTES if targets.features.is_cuda else _CPU_BYTES) // (4 * numbers))

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train one head per trial on that trial's targets (and on known data, where there is some)."""
        if known_data is not None:
            raise InputError(
                "A head is trained on its targets alone.",
                needs="known_data=None: the weak adversary knows no record",
                got=f"{len(known_data)} known records",
                hint="SGD on the embeddings plays the informed adversary's game",
            )
        return self._published(self._train(targets, generator), generator)

    def _train(self, targets: Records, generator: torch.Generator) -> Weights:
        inputs, labels = self.inputs_of(targets), self.classes_of(targets)
        if self.loop is not None or self.optimizer not in ("sgd", "adam"):
            return train_loop(self, inputs, labels, generator)
        if self.plain:
            return train_dual(self, inputs, labels, generator)
        sizes = (inputs.shape[-1], *(() if self.hidden is None else (self.hidden,)), self.outputs)
        network = Perceptron(sizes, "relu", self.initialisation)
        if self.noise_multiplier is None:
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
        else:
            inner = DPSGD(
                network,
                self.noise_multiplier,
                self.steps,
                self.sample_rate,
                self.max_grad_norm,
                self.learning_rate,
                self.momentum,
                final_only=True,
            )
        flat = inner.release(None, Records(inputs, labels), generator)["parameters"]
        names = ("weight", "bias") if self.hidden is None else ("weight", "bias", "out_weight", "out_bias")
        layers = [tensor for layer in network.layers(flat) for tensor in layer]
        return Weights(dict(zip(names, layers, strict=True)))

    def _published(self, trained: Weights, generator: torch.Generator) -> Weights:
        """The same numbers with noise on them, or rounded."""
        shown = dict(trained.tensors)
        for name, values in shown.items():
            if self.release_noise:
                noise = torch.randn(values.shape, generator=generator, device=generator.device).to(values)
                values = values + self.release_noise * noise
            if self.bits is not None:
                largest = values.abs().flatten(1).amax(1).clamp(min=1e-30).view(-1, *[1] * (values.ndim - 1))
                step = 2 * largest / (2**self.bits - 1)
                values = ((values + largest) / step).round() * step - largest
            shown[name] = values
        return Weights(shown)

    def answer(self, release: Release, records: Records) -> Tensor:
        """Ask the trained heads; the single output of a two-class head becomes the second of two logits."""
        values = self._outputs(release, records)
        return values if self.outputs > 1 else torch.cat([torch.zeros_like(values), values], 2)

    def accuracy(self, release: Release, test: Records) -> Tensor:
        """Each head's accuracy on test records, `(trials,)`."""
        return (self.answer(release, test).argmax(2) == self.classes_of(test)).float().mean(1)

    def _outputs(self, release: Release, test: Records) -> Tensor:
        values = (
            torch.einsum("krd,nd->knr", release["weight"], self.inputs_of(test)) + release["bias"][:, None]
        )
        if self.hidden is not None:
            values = values.relu() @ release["out_weight"].mT + release["out_bias"][:, None]
        return values

    def inputs_of(self, records: Records) -> Tensor:
        """What the head reads of each record."""
        if records.embedding is None:
            raise InputError(
                "The records have no embeddings.",
                needs="what the frozen backbone makes of each record",
                got="features only",
                hint="remanence.mechanisms.heads.transfer_head.embed(records, backbone)",
            )
        if self.loop is not None and self.loop.normalised:
            return normalize(records.embedding, dim=-1)
        return records.embedding

    def classes_of(self, records: Records) -> Tensor:
        """The class of each record in this head's task."""
        labels = records.labels.long()
        if self.task is not None:
            if int(labels.min()) < 0 or int(labels.max()) >= len(self.task):
                raise InputError(
                    "A label is not in the task.",
                    needs=f"labels from 0 to {len(self.task) - 1}, one for each entry of the task",
                    got=f"labels from {int(labels.min())} to {int(labels.max())}",
                    hint="task=(...) with a class for every label",
                )
            labels = torch.tensor(self.task, device=labels.device)[labels]
        if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
            raise InputError(
                "A label has no class in the head.",
                needs=f"labels from 0 to {self.classes - 1}",
                got=f"labels from {int(labels.min())} to {int(labels.max())}",
                hint="TransferHead(classes=...), or task=(...) to map labels to classes",
            )
        return labels


def augment(
    records: Records,
    backbone: nn.Module,
    change: Callable[[Tensor, torch.Generator], Tensor],
    copies: int,
    generator: torch.Generator,
) -> Records:
    """So many copies of the records, embedded: the first as they are, the others changed. A small pool goes further."""
    views = [embed(records, backbone)]
    for _ in range(copies - 1):
        starts = range(0, len(records), 4096)
        changed = torch.cat([change(records.features[s : s + 4096], generator) for s in starts])
        views.append(embed(Records(changed, records.labels, records.weights), backbone))
    return concatenate(views)


def _flat(features: object) -> Tensor:
    if not isinstance(features, Tensor):
        raise InputError(
            "The backbone's answer cannot be used.",
            needs="a tensor of features",
            got=type(features).__name__,
            hint="a module that returns the features alone",
        )
    return features.flatten(1)


def embed(records: Records, backbone: nn.Module, *, batch: int = 1024) -> Records:
    """The records with what a frozen backbone makes of them, computed once.

    >>> embed(Records(torch.ones(3, 2, 2), torch.zeros(3)), nn.Flatten()).embedding.shape
    torch.Size([3, 4])
    """
    modes = {module: module.training for module in backbone.modules()}
    backbone.eval()
    starts = range(0, len(records), batch)
    try:
        with torch.no_grad():
            parts = [
                _flat(backbone(records.features[start : start + batch]))
                for start in track(starts, total=len(starts), what="embedding")
            ]
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(
            "The backbone cannot read the pictures.",
            needs="a module from a batch of pictures to a batch of features",
            got=f"pictures of shape {tuple(records.features.shape[1:])}: {str(error).splitlines()[0][:160]}",
            hint="backbone(pictures[:1]) on its own first",
        ) from None
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Records(records.features, records.labels, records.weights, torch.cat(parts).float())
