"""What every head on a frozen backbone is: layers that read embeddings, and classes that they answer with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.releases import Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.embedding import embedding_of
from remanence.heads.layers import Hidden, answers, layer_names
from remanence.reconstructor.readers import Reader, Tensors

if TYPE_CHECKING:
    from remanence.reconstructor.shadows import Shadows


class Head(Mechanism[Weights]):
    """A head whose weights are released, however it is trained; a reconstructor asks it how it is read."""

    classes: int
    hidden: Hidden
    two_outputs: bool
    task: tuple[int, ...] | None = None  # maps the records' labels to the head's classes
    noise_multiplier: float | None = None

    @property
    def releases(self) -> type[Weights]:
        """The head's weights and biases."""
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
                "The head cannot read the probes.",
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

    def refuse_known(self, known_data: Records | None) -> None:
        """A head is trained on its targets alone."""
        if known_data is not None:
            raise InputError(
                "A head is trained on its targets alone.",
                needs="known_data=None: the weak adversary knows no record",
                got=f"{len(known_data)} known records",
                hint="SGD on the embeddings plays the informed adversary's game",
            )
