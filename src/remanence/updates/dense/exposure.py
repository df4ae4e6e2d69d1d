"""Which samples of a batch does its gradient expose? Neuron exclusivity, sample by sample and layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.updates.dense.layers import DenseHead, dense_head, head_inputs


@final
@dataclass(frozen=True)
class Exposure:
    """The exclusivity of one batch (Pan et al. 2022, §4), with a verdict per sample.

    A neuron is exclusive if exactly one sample of the batch activates it. Its row of the gradient is then that
    sample's alone, and gives what entered the layer: in the first layer of a fully connected network, the
    input itself.
    """

    names: tuple[str, ...]  # the layers whose neurons are counted
    widths: tuple[int, ...]
    exclusive: Tensor  # (layers, samples), the number of exclusive neurons that carry a signal
    reaches_inputs: bool  # the first layer reads the inputs themselves, not features of them

    @property
    def exposed(self) -> Tensor:
        """Samples whose first-layer input the gradient gives away, `(samples,)`."""
        return self.exclusive[0] >= 1

    @property
    def insecure(self) -> Tensor:
        """Samples that meet the paper's condition: two in the last ReLU layer, one in every other."""
        return (self.exclusive[-1] >= 2) & (self.exclusive >= 1).all(0)

    @property
    def is_insecure_batch(self) -> bool:
        """The paper's verdict on the whole batch: every sample is insecure."""
        return bool(self.insecure.all())

    def __str__(self) -> str:
        samples = self.exclusive.shape[1]
        what = "inputs" if self.reaches_inputs else "features"
        lines = [f"{int(self.exposed.sum())} of {samples} samples expose their {what}."]
        for name, width, counts in zip(self.names, self.widths, self.exclusive, strict=True):
            each = ", ".join(str(int(count)) for count in counts[:32]) + (", ..." if samples > 32 else "")
            lines.append(f"  {name or 'layer'} ({width} neurons): exclusive per sample: {each}")
        return "\n".join(lines)


def gradient_exposure(model: nn.Module, inputs: Tensor, labels: Tensor) -> Exposure:
    """The samples that the gradient of this batch would expose if sent; for any module with a dense ReLU head.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])), model[0].bias.zero_()
    >>> print(gradient_exposure(model, torch.eye(2), torch.tensor([0, 1])))
    2 of 2 samples expose their inputs.
      0 (3 neurons): exclusive per sample: 1, 1
    """
    if len(inputs) != len(labels) or len(inputs) == 0:
        raise InputError(
            "Inputs and labels do not belong together.",
            needs="one label per input, and at least one of them",
            got=f"{len(inputs)} inputs and {len(labels)} labels",
            hint="the batch as the loss receives it",
        )
    head = dense_head(model, inputs)
    return head_exposure(head, head_inputs(model, head, inputs), labels)


def head_exposure(head: DenseHead, x: Tensor, labels: Tensor) -> Exposure:
    """The same, from the head's inputs."""
    head.require_relu()
    values, logits = head.forward(x)
    deltas = head.backward(values, head.loss_vectors(logits, labels.to(x.device).long()))
    exclusive = []
    for after, delta in zip(values[1:], deltas[:-1], strict=True):
        active = after > 0  # (samples, neurons)
        alone = active.sum(0) == 1
        # A neuron through which no loss flows back leaves no trace, exclusive or not.
        exclusive.append((active & alone & (delta != 0)).sum(1))
    return Exposure(head.names[:-1], head.widths, torch.stack(exclusive), head.is_whole_network)
