"""Ordinary training by gradient descent, thousands of models at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from remanence.core.checks import number, one_of, whole
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release, Weights
from remanence.scale.progress import track
from remanence.training.perceptron import Network

OPTIMIZERS = "sgd", "adam"
_CPU_BYTES = 2**27
_GPU_SHARE = 0.2  # of the device's memory, for the tensors of a pass
_AT_LEAST = 100  # records in a pass, so that matrix products are efficient


@final
@dataclass(frozen=True)
class SGD(Mechanism[Weights]):
    """Trains a network on the known data and the targets, and releases the final weights.

    The adversary knows the training code; the seeds say what else is known. With an
    `initial_seed` every model starts from the same parameters; without one each draws its own, which
    are unknown. An `order_seed` does the same for the order of the mini-batches; the target comes last in
    the training set, before shuffling. The recipe follows PyTorch's conventions: weight decay is added to the
    gradient, class weights are CrossEntropyLoss's, which divides by their sum (by the number of records for a single
    output), and an incomplete last batch is used, unless `drop_last` is set.
    """

    network: Network
    epochs: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int | None = None  # None: all records in every step
    optimizer: str = "sgd"
    initial_seed: int | None = None
    order_seed: int | None = None
    class_weights: tuple[float, ...] | None = None
    drop_last: bool = False
    name: ClassVar[str] = "gradient descent"

    def __post_init__(self) -> None:
        require_recipe(self)

    @property
    def releases(self) -> type[Weights]:
        """The final weights."""
        return Weights

    def settings(self) -> dict[str, Setting]:
        """The training settings that a report prints."""
        return {
            "network": repr(self.network)[:200],
            "parameters": self.network.numbers,
            "optimizer": self.optimizer,
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "batch_size": self.batch_size,
            "initialisation": "unknown"
            if self.initial_seed is None and not self.network.own_start
            else "known",
            "batch_order": self._order(),
        }

    def _order(self) -> str:
        if self.batch_size is None:
            return "none: every step sees all records"
        return "known" if self.order_seed is not None else "unknown"

    @property
    def _alike(self) -> bool:
        """Whether models are trained as differences from a reference: they differ only in one record."""
        ordered = self.batch_size is None or self.order_seed is not None
        return ordered and self.initial_seed is not None and not self.network.own_start

    def trials_at_once(self, targets: Records) -> int:
        """Limited by the models' state and a pass over some records; a pass over the known data splits itself."""
        self.network.check(targets)
        on_gpu, budget = targets.features.is_cuda, _budget(targets)
        numbers = max(self.network.numbers, _AT_LEAST * self.network.numbers_per_record(targets))
        if self.batch_size is not None and self.order_seed is None:  # every model gathers its own batches
            numbers = max(numbers, self.batch_size * targets.flat.shape[-1])
        return max(1, min(8192 if on_gpu else 128, budget // (16 * numbers)))

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train once per trial on the known data and that trial's targets."""
        self.network.check(targets)
        if known_data is not None:
            self.network.check(known_data[None])
        trials, set_size = targets.batch_shape
        device = targets.features.device
        known_count = 0 if known_data is None else len(known_data)
        total = known_count + set_size
        size = total if self.batch_size is None else min(self.batch_size, total)
        whole = self.network.mixes(known_data, targets, size)
        if self.initial_seed is None:
            parameters = self.network.initial(trials, generator).to(device)
        else:
            one = self.network.initial(1, torch.Generator().manual_seed(self.initial_seed))
            # If all models stay close, prepend a reference model, trained on the known data alone.
            parameters = one.to(device).expand(trials + (self._alike and not whole), -1).contiguous()
        step = optimizer_step(
            self.optimizer, self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )
        orders = None if self.order_seed is None else torch.Generator().manual_seed(self.order_seed)
        counted = self._counted(known_data, targets, parameters)
        for _ in track(range(self.epochs), total=self.epochs, what="training"):
            if size == total:
                if whole:
                    everyone = torch.arange(total, device=device)[None]
                    gradient = self._whole_sum(parameters, known_data, targets, everyone)
                else:
                    gradient = self._known_sum(parameters, known_data, None)
                    gradient[-trials:] += self._sum(parameters[-trials:], targets, None)
                parameters = step(
                    parameters, gradient.div_(total if counted is None else counted.sum(1, True))
                )
                continue
            for batch in self._batches(trials, total, size, orders or generator, shared=orders is not None):
                batch = batch.to(device)
                if whole:
                    gradient = self._whole_sum(parameters, known_data, targets, batch) / batch.shape[1]
                else:
                    gradient = self._batch_gradient(parameters, known_data, targets, batch)
                if counted is not None:
                    own = counted.gather(1, batch.expand(len(counted), -1)).sum(1, True).clamp(min=1e-30)
                    gradient.mul_(batch.shape[1] / own)
                parameters = step(parameters, gradient)
        return Weights({"parameters": parameters[-trials:].clone()})

    def check_probes(self, probes: Records, targets: Records | None = None) -> None:
        """Refuse probes that the network cannot take as input."""
        if targets is None:
            self.network.check(probes[None])

    def answer(self, release: Release, records: Records) -> Tensor:
        """Query the trained networks."""
        return self.network.classify(release["parameters"], records[None])

    def _batches(self, trials: int, total: int, size: int, generator: torch.Generator, *, shared: bool):
        """The indices of each batch of one epoch, `(1 or trials, size)`."""
        rows = 1 if shared else trials
        order = torch.rand(rows, total, generator=generator, device=generator.device).argsort(1)
        return order[:, : total - total % size if self.drop_last else total].split(size, 1)

    def _counted(self, known_data: Records | None, targets: Records, parameters: Tensor) -> Tensor | None:
        """Each record's weight in the mean, `(models, known + set)`; None if all are 1."""
        if self.class_weights is None or self.network.classify(parameters[:1], targets[:1]).shape[-1] == 1:
            return None
        models = len(parameters)
        weights = torch.tensor(self.class_weights, device=targets.labels.device)
        own = weights[targets.labels.long()]
        own = torch.cat([own[:1].expand(models - len(own), -1), own])  # one model without a target of its own
        if known_data is None:
            return own
        return torch.cat([weights[known_data.labels.long()].expand(models, -1), own], 1)

    def _batch_gradient(
        self, parameters: Tensor, known_data: Records | None, targets: Records, batch: Tensor
    ) -> Tensor:
        known_count, trials = 0 if known_data is None else len(known_data), len(targets)
        own = torch.arange(known_count, known_count + targets.batch_shape[1], device=batch.device)
        present = (batch[:, :, None] == own).any(1)  # (1 or trials, set)
        gradient = torch.zeros_like(parameters)
        if known_data is not None:
            known = known_data[batch.clamp(max=known_count - 1)]  # padding has weight 0
            mask = (batch < known_count).to(parameters.dtype)
            if len(batch) == 1:
                gradient = self._known_sum(parameters, known[0], mask)
            else:
                gradient = self._sum(parameters, known, mask)
        gradient[-trials:] += self._sum(parameters[-trials:], targets, present.expand(trials, -1))
        return gradient / batch.shape[1]

    def _whole_sum(
        self, parameters: Tensor, known_data: Records | None, targets: Records, batch: Tensor
    ) -> Tensor:
        """The gradient of whole batches, one model at a time: for networks that mix the records of a batch."""
        found = []
        for trial, places in enumerate(batch.expand(len(targets), -1)):
            own = targets[trial] if known_data is None else concatenate([known_data, targets[trial]])
            found.append(self._sum(parameters[trial : trial + 1], own[places][None], None))
        return torch.cat(found)

    def _sum(self, parameters: Tensor, records: Records, mask: Tensor | None) -> Tensor:
        mask = self._weighted(records, mask)
        return self.network.clipped_sum(parameters, records, max_norm=None, mask=mask)

    def _known_sum(self, parameters: Tensor, known_data: Records | None, mask: Tensor | None) -> Tensor:
        """The sum over records shared by all trials, split so that each pass fits into memory."""
        if known_data is None:
            return torch.zeros_like(parameters)
        rows = max(
            1, _budget(known_data) // (16 * len(parameters) * self.network.numbers_per_record(known_data))
        )
        gradient = None
        for start in range(0, len(known_data), rows):
            part = known_data[start : start + rows][None]
            own = None if mask is None else mask[:, start : start + rows]
            if self._alike:
                found = self.network.shared_sum(parameters, part, mask=self._weighted(part, own))
            else:
                found = self._sum(parameters, part, own)
            gradient = found if gradient is None else gradient.add_(found)
        assert gradient is not None, "known data is never empty"
        return gradient

    def _weighted(self, records: Records, mask: Tensor | None) -> Tensor | None:
        if self.class_weights is None:
            return mask
        weights = torch.tensor(self.class_weights, device=records.labels.device)[records.labels.long()]
        return weights if mask is None else mask * weights


def _budget(records: Records) -> int:
    """Bytes that a pass may use."""
    if not records.features.is_cuda:
        return _CPU_BYTES
    return int(_GPU_SHARE * gpu_bytes(records.features.device))


def gpu_bytes(device: torch.device) -> int:
    """The memory of a GPU, divided by the number of processes that share it (REMANENCE_PROCESSES)."""
    return torch.cuda.get_device_properties(device).total_memory // int(
        os.environ.get("REMANENCE_PROCESSES", "1")
    )


def optimizer_step(name: str, learning_rate: float, *, momentum: float = 0.0, weight_decay: float = 0.0):
    """One step of PyTorch's SGD or Adam (with its default betas) on a vector of parameters per model."""
    state: dict[str, Tensor] = {}
    count = 0

    def sgd(parameters: Tensor, gradient: Tensor) -> Tensor:
        gradient = gradient + weight_decay * parameters if weight_decay else gradient
        if momentum:
            state["velocity"] = state["velocity"].mul_(momentum).add_(gradient) if state else gradient
            gradient = state["velocity"]
        return parameters.add_(gradient, alpha=-learning_rate)

    def adam(parameters: Tensor, gradient: Tensor) -> Tensor:
        nonlocal count
        count += 1
        gradient = gradient + weight_decay * parameters if weight_decay else gradient
        if not state:
            state.update(first=torch.zeros_like(gradient), second=torch.zeros_like(gradient))
        state["first"] = 0.9 * state["first"] + 0.1 * gradient
        state["second"] = 0.999 * state["second"] + 0.001 * gradient.square()
        scale = (state["second"] / (1 - 0.999**count)).sqrt() + 1e-8
        return parameters - learning_rate * (state["first"] / (1 - 0.9**count)) / scale

    return {"sgd": sgd, "adam": adam}[name]


def require_recipe(recipe: Any, optimizers: tuple[str, ...] = OPTIMIZERS) -> None:
    """Refuse invalid training settings."""
    whole("epochs", recipe.epochs, hint="30")
    number("learning_rate", recipe.learning_rate, above=0, hint="0.01")
    number("momentum", recipe.momentum, least=0, below=1, hint="0.9")
    number("weight_decay", recipe.weight_decay, least=0, hint="1e-4")
    one_of("optimizer", recipe.optimizer, optimizers)
    if recipe.batch_size is not None:
        whole("batch_size", recipe.batch_size, hint="32; left out, every step sees all records")
