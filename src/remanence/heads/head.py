"""What every head on a frozen backbone is: its layers, how it is asked, and heads that your own loop trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from remanence.core.checks import one_of, whole
from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.releases import Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.pictures import embedding_of
from remanence.reconstructor.readers import Reader, Tensors
from remanence.training.own import name_of, train_each

if TYPE_CHECKING:
    from remanence.reconstructor.shadows import Shadows


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": Tensor.relu,
    "gelu": gelu,
    "silu": silu,
    "tanh": Tensor.tanh,
}


def layer_sizes(numbers: int, hidden: int | None, outputs: int) -> tuple[int, ...]:
    """How many numbers go into the head, through it and out of it.

    >>> layer_sizes(9, None, 2), layer_sizes(9, 4, 2)
    ((9, 2), (9, 4, 2))
    """
    return (numbers, outputs) if hidden is None else (numbers, hidden, outputs)


def layer_names(hidden: int | None) -> tuple[str, ...]:
    """What the tensors of such a head are called, in order."""
    return ("weight", "bias") if hidden is None else ("weight", "bias", "out_weight", "out_bias")


def answers(tensors: Sequence[Tensor], values: Tensor, activation: str = "relu") -> Tensor:
    """What heads answer to inputs `(records, numbers)` or `(trials, records, numbers)`, `(trials, records, outputs)`.

    `tensors` are weights and biases in turn.
    """
    for layer in range(0, len(tensors), 2):
        weight, bias = tensors[layer], tensors[layer + 1].unsqueeze(1)
        values = ACTIVATIONS[activation](values) if layer else values
        values = values.expand(len(weight), -1, -1)
        values = torch.baddbmm(bias, values, weight.mT)
    return values


def _require_labels(labels: Tensor, count: int, hint: str) -> None:
    low, high = torch.stack(torch.aminmax(labels)).tolist()  # one wait for the device
    if low < 0 or high >= count:
        raise InputError(
            "A label has no class in the head.",
            needs=f"labels from 0 to {count - 1}",
            got=f"labels from {low} to {high}",
            hint=hint,
        )


class Head(Mechanism[Weights]):
    """A head whose weights are released, however it is trained; a reconstructor asks it how it is read."""

    classes: int
    hidden: int | None
    two_outputs: bool
    task: tuple[int, ...] | None = None  # maps the records' labels to the head's classes
    noise_multiplier: float | None = None

    @property
    def releases(self) -> type[Weights]:
        """Weights and biases."""
        return Weights

    @property
    def outputs(self) -> int:
        """How many numbers come out."""
        return self.classes if self.classes > 2 or self.two_outputs else 1

    @property
    def has_bias(self) -> bool:
        """Whether its layers have biases."""
        return True

    @property
    def between(self) -> str:
        """The activation between layers."""
        return "relu"

    @property
    def rows_are_classes(self) -> bool:
        """Whether each class has a row of weights of its own: one linear layer, no mapped labels."""
        return self.hidden is None and self.outputs > 1 and self.task is None

    @property
    def streams(self) -> bool:
        """Whether heads train faster than a network learns from them."""
        return False

    def reader(
        self, shadows: Tensors, prior: EmpiricalPrior | StratifiedPrior, *, classes: int, strong: bool
    ) -> Reader | None:
        """Hidden units are read in an order that does not depend on how they were numbered."""
        from remanence.heads.readers import HiddenReader

        return HiddenReader(shadows, classes) if strong and self.hidden is not None else None

    def first_drawing(
        self, prior: StratifiedPrior, shadows: Iterable[Shadows], held_out: Shadows
    ) -> Callable[[Tensors], Tensor]:
        """What the linear reader draws."""
        from remanence.heads.linear_reader import learn_reading

        return learn_reading((self, prior), shadows, held_out).draw

    def check_probes(self, probes: Records, targets: Records | None = None) -> None:
        """Refuse probes without the embeddings that the head is trained on."""
        asked, trained = probes.embedding, None if targets is None else targets.embedding
        if trained is not None and (asked is None or asked.shape[-1] != trained.shape[-1]):
            raise InputError(
                "The probes do not fit the head.",
                needs=f"embeddings of {trained.shape[-1]} numbers, as it is trained on",
                got="none" if asked is None else f"embeddings of {asked.shape[-1]} numbers",
                hint="remanence.embed(probes, backbone), with the same backbone",
            )

    def answer(self, release: Release, records: Records) -> Tensor:
        """Ask the trained heads; the single output of a two-class head becomes the second of two logits."""
        tensors = [release.tensors[name] for name in layer_names(self.hidden)]
        values = answers(tensors, self.inputs_of(records), self.between)
        return values if self.outputs > 1 else torch.cat([torch.zeros_like(values), values], 2)

    def accuracy(self, release: Release, test: Records) -> Tensor:
        """Each head's accuracy on test records, `(trials,)`."""
        return (self.answer(release, test).argmax(2) == self.classes_of(test)).float().mean(1)

    def inputs_of(self, records: Records) -> Tensor:
        """What the head reads of each record."""
        return embedding_of(records)

    def classes_of(self, records: Records) -> Tensor:
        """The class of each record in this head's task."""
        labels = records.labels.long()
        if self.task is not None:
            _require_labels(labels, len(self.task), "task=(...) with a class for every label")
            labels = torch.tensor(self.task, device=labels.device)[labels]
        hint = "TransferHead(classes=...), or task=(...) to map labels to classes"
        _require_labels(labels, self.classes, hint)
        return labels

    def refuse_known(self, known_data: Records | None) -> None:
        """A head is trained on its targets alone."""
        if known_data is not None:
            raise InputError(
                "A head is trained on its targets alone.",
                needs="known_data=None: the weak adversary knows no record",
                got=f"{len(known_data)} known records",
                hint="SGD on the embeddings plays the informed adversary's game",
            )


@final
@dataclass(frozen=True)
class OwnHead(Head):
    """Calls `train(features, labels, seed)` once for every head, in this many `processes`.

    It gets copies of the features `(pictures, numbers)` and the labels, and returns the state dict of one linear layer,
    or of two with `hidden` units and an `activation` between. Whatever it does in between is its own affair:
    mixtures of pictures, averages, early stopping. It must not look at anything else, and `seed` is to decide its
    random choices, the initial weights among them.

    >>> def train(features, labels, seed):
    ...     torch.manual_seed(seed)
    ...     head = torch.nn.Linear(features.shape[1], 3)
    ...     optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    ...     for _ in range(30):
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(head(features), labels).backward()
    ...         optimizer.step()
    ...     return head.state_dict()
    >>> sets = Records(torch.zeros(2, 3, 1), torch.arange(3).expand(2, 3), embedding=torch.rand(2, 3, 4))
    >>> OwnHead(train, classes=3).release(None, sets, torch.Generator())["weight"].shape
    torch.Size([2, 3, 4])
    """

    train: Callable[[Tensor, Tensor, int], Mapping[str, Tensor]]
    classes: int
    hidden: int | None = None
    two_outputs: bool = False
    bias: bool = True
    activation: str = "relu"
    processes: int = 1
    name: ClassVar[str] = "head of your own training function"

    def __post_init__(self) -> None:
        whole("classes", self.classes, least=2)
        whole("processes", self.processes)
        if self.hidden is not None:
            whole("hidden", self.hidden, hint="hidden=64, or None for one linear layer")
        one_of("activation", self.activation, ACTIVATIONS)
        if not callable(self.train):
            raise InputError(
                "This is not a training function.",
                needs="train(features, labels, seed), which returns a state dict",
                got=type(self.train).__name__,
                hint="OwnHead(train, classes=10)",
            )

    @property
    def has_bias(self) -> bool:
        """Whether its layers have biases."""
        return self.bias

    @property
    def between(self) -> str:
        """The activation between layers."""
        return self.activation

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {"train": name_of(self.train), "classes": self.classes}
        return shown if self.hidden is None else {**shown, "hidden": self.hidden}

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train one head per trial."""
        from remanence.heads.reading import read_head

        self.refuse_known(known_data)
        inputs, labels = self.inputs_of(targets), self.classes_of(targets)
        states = train_each(
            self.train, lambda trial: (inputs[trial], labels[trial]), len(inputs), generator, self.processes
        )
        heads = [read_head(state, self, inputs.shape[-1]) for state in states]
        found = Weights.concatenate(heads)
        return Weights({name: tensor.float().to(inputs.device) for name, tensor in found.tensors.items()})


@final
@dataclass(frozen=True)
class GivenEmbeddings(Mechanism[Weights]):
    """Hands over a true embedding for each class: of the picture at its `places` in a set, or the mean of several.

    No head shows more than the embeddings that it was trained on. So an attack's success over the success of the same
    attack on these says what is lost in the head; the rest is lost in the backbone.
    """

    places: tuple[tuple[int, ...], ...]
    name: ClassVar[str] = "true embeddings"

    @property
    def releases(self) -> type[Weights]:
        """Embeddings in the place of weights."""
        return Weights

    def settings(self) -> dict[str, Setting]:
        """Nothing is trained."""
        return {"classes": len(self.places), "pictures of a class": len(self.places[0])}

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """The embeddings as they are, one for each class: `(trials, classes, numbers)`."""
        seen = embedding_of(targets)
        rows = [seen[:, list(own)].mean(1) for own in self.places]
        return Weights({"embedding": torch.stack(rows, 1)})
