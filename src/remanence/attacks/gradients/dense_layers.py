"""The fully connected ReLU part in which a network ends, found in any module and computed in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from remanence.exceptions import InputError

_BEYOND = (
    "no exact attack reads this network; in Python, InvertingGradients searches pictures by optimisation"
)
_TEXTS = "texts are read from transformers with two attention layers; recurrent networks are beyond the exact attacks"


@final
@dataclass(frozen=True)
class DenseHead:
    """f(x) = W_H σ(… σ(W_0 x + b_0) …) + b_H with σ = ReLU, in double precision.

    `x` is what enters the first of these layers: the flattened input of a fully connected network, or the
    features that convolutions made of it. Any number of leading dimensions is a batch.
    """

    names: tuple[str, ...]  # of the layers, as the module calls them
    weights: tuple[Tensor, ...]  # (outputs, inputs) each
    biases: tuple[Tensor | None, ...]  # (outputs,) each
    is_whole_network: bool  # nothing but flattening comes before

    @property
    def classes(self) -> int:
        """How many logits there are."""
        return self.weights[-1].shape[0]

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons of each ReLU layer."""
        return tuple(weight.shape[0] for weight in self.weights[:-1])

    def require_readable(self) -> None:
        """Refuse heads whose inputs a gradient gives up to an unknown scale only."""
        if self.biases[0] is None and (any(b is not None for b in self.biases[1:-1]) or self.classes < 3):
            raise InputError(
                f"The scale of the inputs of layer {self.names[0]!r} cannot be read off its gradient.",
                needs="a bias in that layer; or no bias in any hidden layer, and at least 3 classes",
                got=f"no bias there, {sum(b is not None for b in self.biases[1:-1])} hidden layers with one, "
                f"{self.classes} classes",
                hint=_BEYOND,
            )

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What enters each layer, and the logits."""
        inputs = [x]
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            before = inputs[-1] @ weight.mT
            before = before if bias is None else before + bias
            if index == len(self.weights) - 1:
                return inputs, before
            inputs.append(before.clamp(min=0))
        raise AssertionError("a head has at least one layer")

    def backward(self, inputs: Sequence[Tensor], loss_vectors: Tensor, down_to: int = 0) -> list[Tensor]:
        """The loss's derivative in what each layer puts out, from the last layer back to layer `down_to`."""
        deltas = [loss_vectors]
        for weight, values in zip(self.weights[:down_to:-1], inputs[:down_to:-1], strict=True):
            deltas.append((deltas[-1] @ weight) * (values > 0))
        return deltas[::-1]

    def gradients(
        self, x: Tensor, labels: Tensor, present: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias gradients of each layer, summed over the last batch dimension of `x`.

        `present` weights the samples; 0 leaves one out.
        """
        inputs, logits = self.forward(x)
        deltas = self.backward(inputs, self.loss_vectors(logits, labels))
        if present is not None:
            deltas = [delta * present.unsqueeze(-1) for delta in deltas]
        return [(delta.mT @ values, delta.sum(-2)) for values, delta in zip(inputs, deltas, strict=True)]

    def loss_vectors(self, logits: Tensor, labels: Tensor) -> Tensor:
        """g = softmax(f) − e_y, the derivative of cross-entropy in the logits."""
        return logits.softmax(-1) - one_hot(labels, self.classes).to(logits)

    def layers_of(self, gradient: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias gradients of each layer out of a named gradient, in double precision."""
        found = []
        for name, bias in zip(self.names, self.biases, strict=True):
            prefix = f"{name}." if name else ""
            own = None if bias is None else gradient[f"{prefix}bias"].to(bias)
            found.append((gradient[f"{prefix}weight"].to(self.weights[0]), own))
        return found

    def to(self, device: torch.device | str) -> DenseHead:
        """The same head on another device."""
        return DenseHead(
            self.names,
            tuple(weight.to(device) for weight in self.weights),
            tuple(None if bias is None else bias.to(device) for bias in self.biases),
            self.is_whole_network,
        )


def dense_head(model: nn.Module, example: Tensor | None = None) -> DenseHead:
    """Find the fully connected ReLU part of a module by watching its linear layers at work.

    Two linear layers belong together if what enters the second is ReLU of what left the first, and the last
    one's output must be the module's. So ReLU may be a layer or a function, and the module may be of any class.
    `example` is one batch of inputs; without it, inputs of the first linear layer's size are tried.
    """
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    if not linear:
        raise InputError(
            "The network has no fully connected layer.",
            needs="a network that ends in fully connected layers with ReLU between them",
            got=f"{type(model).__name__} without nn.Linear",
            hint=_BEYOND,
        )
    if example is None:
        parameter = next(model.parameters())
        size = next(iter(linear.values())).in_features
        generator = torch.Generator(device=parameter.device).manual_seed(0)
        shape = (4, size)
        example = torch.randn(shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
    seen: list[tuple[str, Tensor, Tensor]] = []
    with _watching(linear, seen), torch.no_grad():
        try:
            output = model(example)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            reads_ids = any(isinstance(layer, nn.Embedding) for layer in model.modules())
            raise InputError(
                "The network cannot read the inputs.",
                needs="a network that reads numbers, and inputs of the shape that it takes",
                got=f"shape {tuple(example.shape)}: {(str(error).splitlines() or [''])[0]}",
                hint=_TEXTS
                if reads_ids
                else "give the shape of one input, for example --input-shape 3,32,32",
            ) from None
    chain = _chain(seen, output)
    if len(chain) < 2:
        raise InputError(
            "The network does not end in fully connected layers with ReLU between them.",
            needs="linear, ReLU, ..., linear as the last layers (dropout switched off by model.eval())",
            got=f"{len(chain)} such layer(s) out of {len(linear)} linear ones"
            + (f": {', '.join(name for name, _, _ in seen)}" if seen else ""),
            hint=_BEYOND,
        )
    layers = [linear[name] for name, _, _ in chain]
    first = chain[0][1]
    return DenseHead(
        tuple(name for name, _, _ in chain),
        tuple(layer.weight.detach().double() for layer in layers),
        tuple(None if layer.bias is None else layer.bias.detach().double() for layer in layers),
        prod(example.shape[1:]) == first.shape[-1] and torch.equal(first, example.flatten(1).to(first)),
    )


def head_inputs(model: nn.Module, head: DenseHead, inputs: Tensor) -> Tensor:
    """What enters the head's first layer for these inputs, in double precision."""
    layer = model.get_submodule(head.names[0])
    seen: list[tuple[str, Tensor, Tensor]] = []
    with _watching({head.names[0]: layer}, seen), torch.no_grad():
        model(inputs)
    return seen[0][1].double()


@contextmanager
def _watching(layers: Mapping[str, nn.Module], seen: list[tuple[str, Tensor, Tensor]]) -> Iterator[None]:
    """Note what enters and leaves the layers, in the order in which they run."""

    def note(name: str):
        return lambda _, arguments, output: seen.append((name, arguments[0].detach(), output.detach()))

    handles = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _chain(seen: Sequence[tuple[str, Tensor, Tensor]], output: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """The longest run of linear layers, ending in the output, that are joined by nothing but ReLU."""
    output = getattr(output, "logits", output)  # as transformers wraps them
    if not isinstance(output, Tensor) or not seen:
        return []
    if seen[-1][2].shape != output.shape or not torch.equal(seen[-1][2], output):
        return []
    chain = [seen[-1]]
    for layer in reversed(seen[:-1]):
        after = layer[2].clamp(min=0)
        if after.shape != chain[0][1].shape or not torch.equal(after, chain[0][1]):
            break
        chain.insert(0, layer)
    return chain
