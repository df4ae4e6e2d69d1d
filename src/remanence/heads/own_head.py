"""A head that the user's own training loop makes: the loop is the recipe, so that nothing of it can be misread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.checks import one_of, whole
from remanence.core.exceptions import InputError
from remanence.core.mechanism import Setting
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.heads.head import Head
from remanence.heads.layers import ACTIVATIONS, Hidden
from remanence.training.own import name_of, train_each


@final
@dataclass(frozen=True)
class OwnHead(Head):
    """Calls `train(features, labels, seed)` once for every head, in so many `processes`.

    It gets copies of the features `(pictures, numbers)` and the labels, and returns the state dict of one linear layer,
    or of two or three with `hidden` units and an `activation` between. Whatever it does in between is its own affair:
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
    hidden: Hidden = None
    two_outputs: bool = False
    bias: bool = True
    activation: str = "relu"
    processes: int = 1
    name: ClassVar[str] = "head of your own training function"

    def __post_init__(self) -> None:
        whole("classes", self.classes, least=2)
        whole("processes", self.processes)
        one_of("activation", self.activation, ACTIVATIONS)
        if not callable(self.train):
            raise InputError(
                "This is no training function.",
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
        return shown if self.hidden is None else {**shown, "hidden": str(self.hidden)}

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train one head per trial; each trial's seed is drawn from the generator beforehand."""
        from remanence.heads.reading import read_head

        self.refuse_known(known_data)
        inputs, labels = self.inputs_of(targets), self.classes_of(targets)
        seeds = torch.randint(2**62, (len(inputs),), generator=generator, device=generator.device).tolist()
        given = zip(inputs, labels, seeds, strict=True)
        states = train_each(self.train, given, count=len(inputs), processes=self.processes)
        heads = [read_head(state, self, inputs.shape[-1]) for state in states]
        found = Weights.concatenate(heads)
        return Weights({name: tensor.float().to(inputs.device) for name, tensor in found.tensors.items()})
