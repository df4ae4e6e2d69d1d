"""The dense layers in which a network ends: found in any module by watching it, and computed in batches.

*One output is read as two classes.* A sigmoid on z is a softmax on (0, z), and the loss's derivative in these two
logits is (−g, g). So a row of zeros stands before the last layer's own, and before its gradient the same with the other
sign: one row, seen twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot

from remanence.core.exceptions import InputError
from remanence.updates.watching import Seen, logits_of, watching

_LEAKS = (1e-4, 0.5)  # slopes of a leaky ReLU that are believed


@final
@dataclass(frozen=True)
class Activation:
    """A function of one number, and its slope. A kinked one has the slope `leak` below zero: ReLU's is 0."""

    name: str
    function: Callable[[Tensor], Tensor] | None = None  # None for a kinked one
    leak: float = 0.0
    softness: float = 0.0  # over how wide a range a softened kink bends

    @property
    def is_relu(self) -> bool:
        """Whether it is zero for one half of the numbers: what exclusive neurons and sparse directions need."""
        return self.function is None and self.leak == 0

    @property
    def is_kinked(self) -> bool:
        """Whether rounding near zero decides about the slope. Such functions are homogeneous too."""
        return self.function is None and self.softness == 0

    def __call__(self, z: Tensor) -> Tensor:
        """Its value."""
        if self.function is not None:
            return self.function(z)
        if self.softness:
            return self.leak * z + (1 - self.leak) * self.softness * functional.softplus(z / self.softness)
        return z.clamp(min=0) if not self.leak else z.where(z > 0, self.leak * z)

    def slope(self, z: Tensor) -> Tensor:
        """Its derivative."""
        if self.function is not None:
            return _derivatives(self.function, z)[0]
        if self.softness:
            return self.leak + (1 - self.leak) * torch.sigmoid(z / self.softness)
        return (z > 0).to(z) * (1 - self.leak) + self.leak

    def curvature(self, z: Tensor) -> Tensor:
        """Its second derivative; 0 at a kink."""
        if self.function is not None:
            return _derivatives(self.function, z)[1]
        if self.softness:
            bend = torch.sigmoid(z / self.softness)
            return (1 - self.leak) * bend * (1 - bend) / self.softness
        return torch.zeros_like(z)

    def softened(self, softness: float) -> Activation:
        """The same with its kink smoothed over a range; smooth functions are unchanged."""
        return self if self.function is not None else replace(self, softness=softness)


def _derivatives(function: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(at).sum(), at, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), at)
    return slope.detach(), curvature


RELU = Activation("ReLU")
ALONE = Activation("a single layer", lambda z: z)  # between layers where there is only one
SMOOTH = (
    Activation("GELU", functional.gelu),
    Activation("GELU, by tanh", partial(functional.gelu, approximate="tanh")),
    Activation("SiLU", functional.silu),
    Activation("tanh", torch.tanh),
    Activation("sigmoid", torch.sigmoid),
    Activation("ELU", functional.elu),
    Activation("softplus", functional.softplus),
    Activation("quick GELU", lambda z: z * torch.sigmoid(1.702 * z)),
)


def recognised(before: Tensor, after: Tensor) -> Activation | None:
    """The elementwise function from one tensor to the other; None if it is not a known one."""
    if before.shape != after.shape:
        return None
    if torch.equal(before.clamp(min=0), after):
        return RELU
    for activation in SMOOTH:
        if torch.equal(activation(before), after):
            return activation
    below = before < 0
    if below.any():
        leak = round(float((after[below].double() / before[below].double()).median()), 6)
        found = Activation(f"leaky ReLU, {leak:g}", leak=leak)
        if _LEAKS[0] <= leak <= _LEAKS[1] and torch.allclose(found(before), after, rtol=1e-5, atol=0):
            return found
    return None


def chain_of(seen: Sequence[Seen], output: object) -> tuple[list[Seen], Activation]:
    """The longest run of linear layers, ending in the output, that are joined by nothing but one kind of function."""
    output = logits_of(output)
    if not isinstance(output, Tensor) or not seen:
        return [], ALONE
    output = output.unsqueeze(1) if output.ndim == 1 else output  # one logit is often squeezed
    if seen[-1][2].shape != output.shape or not torch.equal(seen[-1][2], output):
        return [], ALONE
    chain, kind = [seen[-1]], None
    for layer in reversed(seen[:-1]):
        found = recognised(layer[2], chain[0][1])
        if found is None or (kind is not None and found.name != kind.name):
            break
        kind = found
        chain.insert(0, layer)
    return chain, kind or ALONE


def doubled(last: Tensor) -> Tensor:
    """The last layer's weight or bias with the row of the logit that is always 0."""
    return torch.cat([torch.zeros_like(last), last])


def mirrored(gradient: Tensor, dim: int) -> Tensor:
    """The gradient of the last layer's weight or bias with that row's."""
    return torch.cat([-gradient, gradient], dim)


def has_one_logit(head: DenseHead) -> bool:
    """Whether the two logits of a head are made from one; if all weights are zero, this is undecidable."""
    weight, bias = head.weights[-1], head.biases[-1]
    zero = not weight[0].any() and (bias is None or not bias[0].any())
    return len(weight) == 2 and zero and bool(weight[1].any())


def decays(head: DenseHead) -> list[tuple[Tensor, Tensor | None]]:
    """The contribution of a unit of weight decay to the gradient of each layer."""
    parts = list(zip(head.weights, head.biases, strict=True))
    if has_one_logit(head):
        weight, bias = parts[-1]
        parts[-1] = mirrored(weight[1:], 0), None if bias is None else mirrored(bias[1:], 0)
    return parts


Layer = tuple[Tensor, Tensor | None]  # weight and bias gradient of one layer
Layers = Sequence[Layer]  # of every layer

_BEYOND = "no exact attack reads this network; InvertingGradients of remanence_papers searches pictures by optimisation"
_LOGITS = "a network that returns logits: a softmax or a sigmoid at its end belongs to the loss"
LARGE = 2**22  # numbers of a layer that is left in the precision in which it is stored
_TEXTS = "texts are read from transformers with two attention layers; recurrent networks are beyond the exact attacks"


@final
@dataclass(frozen=True)
class DenseHead:
    """f(x) = W_H σ(… σ(W_0 x + b_0) …) + b_H; σ is ReLU unless `activation` is another.

    All is in double precision, except layers of more than four million weights, which keep their stored precision.

    `x` is what enters the first of these layers: the flattened input of a fully connected network, or the
    features that convolutions made of it. Any number of leading dimensions is a batch. A single layer
    is a head too; one logit is read as two classes.
    """

    names: tuple[str, ...]  # of the layers, as the module calls them
    weights: tuple[Tensor, ...]  # (outputs, inputs) each
    biases: tuple[Tensor | None, ...]  # (outputs,) each
    is_whole_network: bool  # nothing but flattening comes before
    activation: Activation = RELU
    numbers: int | None = None  # of an input, where `weights[0]` reads coordinates of it (see `coordinates`)
    sign: int = 1  # −1 where updates go against the gradient: derivatives of the loss then do too

    @property
    def classes(self) -> int:
        """How many logits there are."""
        return self.weights[-1].shape[0]

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons of each ReLU layer."""
        return tuple(weight.shape[0] for weight in self.weights[:-1])

    def require_relu(self) -> None:
        """Refuse heads in which no neuron can be exclusive to one sample."""
        if not self.activation.is_relu:
            raise InputError(
                f"No neuron belongs to one sample alone behind {self.activation.name}.",
                needs="ReLU between the layers, which switches neurons off",
                got=self.activation.name,
                hint="GradientGuard or remanence update, which take any of the usual functions",
            )

    def require_readable(self) -> None:
        """Refuse heads whose inputs a gradient gives up to an unknown scale only, or mixed in every neuron."""
        self.require_relu()
        if self.biases[0] is None and (any(b is not None for b in self.biases[1:-1]) or self.classes < 3):
            raise InputError(
                f"The scale of the inputs of layer {self.names[0]!r} cannot be read off its gradient.",
                needs="a bias in that layer; or no bias in any hidden layer, and at least 3 classes",
                got=f"no bias there, {sum(b is not None for b in self.biases[1:-1])} hidden layers with one, "
                f"{self.classes} classes",
                hint=_BEYOND,
            )

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Each layer's input, and the logits."""
        inputs = [x]
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            before = product(inputs[-1], weight.mT)
            before = before if bias is None else before + bias
            if index == len(self.weights) - 1:
                return inputs, before
            inputs.append(self.activation(before))
        raise AssertionError("a head has at least one layer")

    def backward(self, inputs: Sequence[Tensor], loss_vectors: Tensor, down_to: int = 0) -> list[Tensor]:
        """The loss's derivative in each layer's output, from the last layer back to layer `down_to`."""
        deltas = [loss_vectors]
        for index in range(len(self.weights) - 1, down_to, -1):
            deltas.append(product(deltas[-1], self.weights[index]) * self.slopes(inputs, index))
        return deltas[::-1]

    def slopes(self, inputs: Sequence[Tensor], index: int) -> Tensor:
        """The slope of the activation that produced the input of layer `index`."""
        if self.activation.is_relu and self.activation.is_kinked:
            return (inputs[index] > 0).to(inputs[index])
        return self.activation.slope(self.before(inputs, index - 1))

    def before(self, inputs: Sequence[Tensor], index: int) -> Tensor:
        """The output of layer `index`, before the activation."""
        made, bias = product(inputs[index], self.weights[index].mT), self.biases[index]
        return made if bias is None else made + bias

    def gradients(
        self, x: Tensor, labels: Tensor, present: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias gradients of each layer, summed over the last batch dimension of `x`.

        `present` weights the samples; 0 leaves one out.
        """
        return [(delta.mT @ values, delta.sum(-2)) for values, delta in self.parts(x, labels, present)]

    def parts(self, x: Tensor, labels: Tensor, present: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Each layer's input, and the loss's derivative in its output times `present`."""
        inputs, logits = self.forward(x)
        deltas = self.backward(inputs, self.loss_vectors(logits, labels))
        if present is not None:
            deltas = [delta * present.unsqueeze(-1) for delta in deltas]
        return list(zip(inputs, deltas, strict=True))

    def loss_vectors(self, logits: Tensor, labels: Tensor) -> Tensor:
        """g = softmax(f) − e_y, the derivative of cross-entropy in the logits, by the sign of the updates."""
        return self.sign * (logits.softmax(-1) - one_hot(labels, self.classes).to(logits))

    def by_label(self, x: Tensor, down_to: int = 0) -> tuple[Tensor, Tensor]:
        """The loss vector of each input for every label, and the derivative of layer `down_to` that it gives."""
        values, logits = self.forward(x)
        losses = logits.softmax(-1).unsqueeze(-2) - torch.eye(self.classes).to(logits)
        return losses, self.backward([value.unsqueeze(-2) for value in values], losses, down_to)[0]

    def layers_of(self, gradient: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias gradients of each layer out of a named gradient, in the precision of its weights.

        Those of large layers that are not in double precision stay as they were sent.
        """
        found = []
        for name, own_weight, bias in zip(self.names, self.weights, self.biases, strict=True):
            prefix = f"{name}." if name else ""
            if f"{prefix}weight" not in gradient:
                raise InputError(
                    f"The gradient of layer {name!r} is not in the update.",
                    needs="a weight of its own for every dense layer, with its gradient",
                    got="a weight that is frozen, shared with another layer, or made of other parameters (weight norm)",
                    hint="the same network without that: this one gives away at least as much",
                )
            weight = gradient[f"{prefix}weight"].to(own_weight.device)
            if own_weight.numel() <= LARGE or own_weight.dtype == torch.float64:
                weight = weight.to(own_weight)
            own = None if bias is None else gradient[f"{prefix}bias"].to(bias)
            if weight.shape[-2] < len(own_weight):
                weight, own = mirrored(weight, -2), None if own is None else mirrored(own, -1)
            found.append((weight, own))
        return found

    def double(self, *, only_first: bool = False) -> DenseHead:
        """The same with every layer, or the one that inputs are read off, in double precision."""
        others = self.weights[1:] if only_first else (weight.double() for weight in self.weights[1:])
        return replace(self, weights=(self.weights[0].double(), *others))

    def to(self, device: torch.device | str) -> DenseHead:
        """The same head on another device."""
        return replace(
            self,
            weights=tuple(weight.to(device) for weight in self.weights),
            biases=tuple(None if bias is None else bias.to(device) for bias in self.biases),
        )


def product(values: Tensor, weight: Tensor) -> Tensor:
    """A product with a layer's weights, in their precision: a large layer is never copied."""
    return (values.to(weight.dtype) @ weight).to(values.dtype)


def dense_head(model: nn.Module, example: Tensor | None = None) -> DenseHead:
    """Find the fully connected part of a module by watching its linear layers at work.

    Two linear layers belong together if what enters the second is ReLU (or another of the usual functions, the same
    throughout) of what left the first, and the last one's output must be the module's. So the function may be a layer
    or a call, and the module may be of any class.
    `example` is one batch of inputs; without it, inputs of the first linear layer's size are tried.
    """
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    if not linear:
        raise InputError(
            "The network has no fully connected layer.",
            needs="a network that ends in fully connected layers",
            got=f"{type(model).__name__} without nn.Linear",
            hint=_BEYOND,
        )
    if example is None:
        parameter = next(model.parameters())
        size = next(iter(linear.values())).in_features
        generator = torch.Generator(device=parameter.device).manual_seed(0)
        shape = (4, size)
        example = torch.randn(shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
    watched: list[Seen] = []
    with watching(linear, watched), torch.no_grad():
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
    chain, activation = chain_of([entry for entry in watched if entry[1].ndim == 2], output)
    tied = _tied(model, linear, [name for name, _, _ in watched])
    shared = max((place for place, (name, _, _) in enumerate(chain) if name in tied), default=-1)
    if chain and shared == len(chain) - 1:
        raise InputError(
            "The last layer's weight is another layer's too.",
            needs="a last layer whose gradient is its own",
            got=f"{chain[-1][0]}, which the network uses twice or shares",
            hint="the same network without that: this one gives away at least as much",
        )
    # Gradients of a weight that is used twice are a sum; what enters behind it can be read.
    chain = chain[shared + 1 :]
    activation = activation if len(chain) > 1 else ALONE
    if not chain:
        raise InputError(
            "The network does not end in a fully connected layer.",
            needs="a linear layer as the last one, or several with ReLU, GELU, SiLU, tanh or leaky ReLU between them, "
            "each applied to one vector of each sample",
            got=f"an output that none of the {len(linear)} linear layers puts out",
            hint=_LOGITS,
        )
    parts = [_affine(linear[name]) for name, _, _ in chain]
    first, (last, shift) = chain[0][1], parts[-1]
    if len(last) == 1:
        parts[-1] = doubled(last), None if shift is None else doubled(shift)
    return DenseHead(
        tuple(name for name, _, _ in chain),
        tuple(weight for weight, _ in parts),
        tuple(bias for _, bias in parts),
        prod(example.shape[1:]) == first.shape[-1] and torch.equal(first, example.flatten(1).to(first)),
        activation,
    )


def _tied(model: nn.Module, linear: Mapping[str, nn.Linear], used: Sequence[str]) -> set[str]:
    """Layers that run twice, or whose weight belongs to another module too."""
    owners: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return {
        name
        for name, layer in linear.items()
        if used.count(name) > 1 or owners.get(id(layer.weight), 1) > 1 or owners.get(id(layer.bias), 1) > 1
    }


def _affine(layer: nn.Linear) -> Layer:
    """Weight and bias of a layer in double precision, but for a large weight."""
    weight = layer.weight.detach()
    if weight.numel() <= LARGE:
        weight = weight.double()
    elif weight.dtype not in (torch.float32, torch.float64):
        weight = weight.float()
    return weight, None if layer.bias is None else layer.bias.detach().double()


def head_inputs(model: nn.Module, head: DenseHead, inputs: Tensor) -> Tensor:
    """The inputs of the head's first layer, in double precision."""
    layer = model.get_submodule(head.names[0])
    seen: list[Seen] = []
    with watching({head.names[0]: layer}, seen), torch.no_grad():
        model(inputs)
    return seen[0][1].double()
