"""Networks for DP-SGD: clipped gradients of many models and many records at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import elu, gelu, pad, relu

from remanence.core.exceptions import InputError
from remanence.core.records import Records

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu,
    "relu": relu,
    "gelu": gelu,
    "tanh": torch.tanh,
}
# Each takes the derivative with respect to the output, and the input; all are differentiable themselves.
_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elu": lambda delta, before: torch.ops.aten.elu_backward(delta, 1.0, 1.0, 1.0, False, before),
    "relu": lambda delta, before: torch.ops.aten.threshold_backward(delta, before, 0.0),
    "gelu": lambda delta, before: torch.ops.aten.gelu_backward(delta, before),
    "tanh": lambda delta, before: torch.ops.aten.tanh_backward(delta, before.tanh()),
}
_ALIGNED = 8  # numbers: tensor cores need rows of a multiple of this length

INITIALISATIONS = "lecun", "he", "glorot", "pytorch"


class Network(ABC):
    """A classifier whose parameters are one vector per trial, `(trials, numbers)`.

    Records have batch `(1, records)` if all trials share them, else `(trials, records)`. A gradient
    is clipped by scaling it down to a euclidean norm of at most `max_norm`; None leaves it as it is.
    Results are differentiable with respect to the records' features, if these require a gradient.
    """

    @property
    def own_start(self) -> bool:
        """Whether every model starts from the network's own weights."""
        return False

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many parameters there are."""

    @abstractmethod
    def numbers_per_record(self, records: Records) -> int:
        """About how many numbers per record and trial computing a summed gradient keeps in memory."""

    @abstractmethod
    def classify(self, parameters: Tensor, records: Records) -> Tensor:
        """The logits of records shared by all trials, `(trials, records, classes)`."""

    def mixes(self, known_data: Records | None, targets: Records, size: int) -> bool:
        """Whether the gradient of a batch of this size differs from the sum of its records' own gradients."""
        return False

    def check(self, records: Records) -> None:
        """Refuse records that the network cannot take as input, or labels outside its classes."""
        one = Records(records.features.flatten(0, 1)[:1], records.labels.flatten()[:1])
        parameters = self.initial(1, torch.Generator()).to(records.features.device)
        try:
            classes = max(2, self.classify(parameters, one[None]).shape[-1])
        except (RuntimeError, ValueError) as error:
            raise self.unreadable(records, error) from None
        low, high = int(records.labels.min()), int(records.labels.max())
        if low < 0 or high >= classes:
            raise InputError(
                "A label has no class in the network.",
                needs=f"labels from 0 to {classes - 1}",
                got=f"labels from {low} to {high}",
                hint="encode the classes as 0, 1, ...",
            )

    def unreadable(self, records: Records, error: Exception) -> InputError:
        """The error that explains why the network gives no output."""
        return InputError(
            "The network cannot read the records.",
            needs="records of the shape that its first layer takes",
            got=f"shape {records.example_shape}: {str(error).splitlines()[0]}",
            hint="the first size of a Perceptron is the number of features",
        )

    @abstractmethod
    def initial(self, trials: int, generator: torch.Generator) -> Tensor:
        """Freshly drawn parameters, on the generator's device."""

    @abstractmethod
    def clipped_sum(
        self, parameters: Tensor, records: Records, *, max_norm: float | None, mask: Tensor | None = None
    ) -> Tensor:
        """The sum of the records' clipped gradients, `(trials, numbers)`, weighted by the mask."""

    def shared_sum(self, parameters: Tensor, records: Records, *, mask: Tensor | None = None) -> Tensor:
        """The sum of unclipped gradients of records `(1, records)`, if all trials are close to the first one."""
        return self.clipped_sum(parameters, records, max_norm=None, mask=mask)

    @abstractmethod
    def projections(
        self, parameters: Tensor, vectors: Tensor, records: Records, *, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        """Each clipped gradient's inner product with its trial's vector, and its norm, `(trials, records)` each."""


@final
@dataclass(frozen=True)
class Perceptron(Network):
    """A multilayer perceptron with cross-entropy loss; biases start at 0, except with PyTorch's defaults.

    The gradient of a record in a layer is the outer product δ ⊗ (a, 1), so norms (Σ ‖δ‖²(‖a‖² + 1)),
    clipped sums and inner products never materialise the gradient of a single record. Tensors have
    the records last, because a softmax over a short last dimension is several times slower.
    """

    sizes: tuple[int, ...]  # inputs, hidden layers, classes; a last size of 1 is a logistic unit
    activation: str = "elu"
    initialisation: str | float = "lecun"  # one of INITIALISATIONS, or the weights' standard deviation

    def __post_init__(self) -> None:
        named = self.initialisation in INITIALISATIONS or isinstance(self.initialisation, int | float)
        if self.activation not in ACTIVATIONS or len(self.sizes) < 2 or not named:
            raise InputError(
                "The perceptron's settings cannot be used.",
                needs=f"at least two sizes, an activation among {', '.join(ACTIVATIONS)}, "
                f"and an initialisation among {', '.join(INITIALISATIONS)} or a number",
                got=f"sizes {self.sizes}, activation {self.activation!r}, initialisation {self.initialisation!r}",
                hint="Perceptron((784, 10, 10), 'elu')",
            )

    @property
    def numbers(self) -> int:
        """Weights and biases of all layers."""
        return sum((rows + 1) * columns for rows, columns in zip(self.sizes, self.sizes[1:], strict=False))

    def numbers_per_record(self, records: Records) -> int:
        """The outputs of all layers."""
        return sum(self.sizes[1:])

    def initial(self, trials: int, generator: torch.Generator) -> Tensor:
        """Layer by layer."""
        parts = []
        for rows, columns in zip(self.sizes, self.sizes[1:], strict=False):
            parts += initial_layer(self.initialisation, trials, rows, columns, generator)
        return torch.cat([part.flatten(1) for part in parts], 1)

    def clipped_sum(
        self, parameters: Tensor, records: Records, *, max_norm: float | None, mask: Tensor | None = None
    ) -> Tensor:
        """One matrix product per layer."""
        inputs, deltas = self._backpropagate(parameters, records)[1:]
        factors = None if max_norm is None else _clipping(inputs, deltas, max_norm)[0]
        if mask is not None:
            factors = mask if factors is None else factors * mask
        parts = []
        for values, delta in zip(inputs, deltas, strict=True):
            scaled = delta if factors is None else delta * factors.unsqueeze(1)  # (trials, outputs, records)
            parts += [_product(scaled, values.mT).flatten(1), scaled.sum(2)]
        return torch.cat(parts, 1)

    def projections(
        self, parameters: Tensor, vectors: Tensor, records: Records, *, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        """⟨δ ⊗ (a, 1), V⟩ = δ · V(a, 1), summed over the layers."""
        inputs, deltas = self._backpropagate(parameters, records)[1:]
        factors, norms = _clipping(inputs, deltas, max_norm)
        inner = torch.zeros_like(norms)
        for values, delta, (weight, bias) in zip(inputs, deltas, self.layers(vectors), strict=True):
            inner += (delta * (_product(weight, values) + bias.unsqueeze(2))).sum(1)
        return factors * inner, factors * norms

    def classify(self, parameters: Tensor, records: Records) -> Tensor:
        """Layer by layer."""
        values = records.flat.to(parameters.dtype).mT
        for index, (weight, bias) in enumerate(self.layers(parameters)):
            values = ACTIVATIONS[self.activation](values) if index else values
            values = _product(weight, values) + bias.unsqueeze(2)
        return values.mT

    def layers(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weight `(trials, outputs, inputs)` and bias `(trials, outputs)` of each layer."""
        layers, start = [], 0
        for rows, columns in zip(self.sizes, self.sizes[1:], strict=False):
            weight = parameters[:, start : start + rows * columns].unflatten(1, (columns, rows))
            start += rows * columns
            layers.append((weight, parameters[:, start : start + columns]))
            start += columns
        return layers

    def shared_sum(self, parameters: Tensor, records: Records, *, mask: Tensor | None = None) -> Tensor:
        """The two large products, over the inputs, in terms of differences from the first trial.

        X W = X W₀ + X (W − W₀), and Σ δ ⊗ x = Σ δ₀ ⊗ x + Σ (δ − δ₀) ⊗ x. One record changes a model so little that
        rounding the second terms, as tensor cores do, costs less than rounding the sums to single precision would.
        """
        trials, width = len(parameters), self.sizes[0]
        values = records.flat[0].to(parameters.dtype)
        padded = pad(torch.cat([values, torch.ones_like(values[:, :1])], 1), (0, -(width + 1) % _ALIGNED))
        befores, _, references = self._backpropagate(parameters[:1], records)
        weight, bias = self.layers(parameters)[0]
        change = parameters.new_empty(trials, self.sizes[1], padded.shape[1])
        change[:, :, width + 1 :] = 0
        torch.sub(weight, weight[:1], out=change[:, :, :width])
        torch.sub(bias, bias[:1], out=change[:, :, width])
        with _rounded_products():
            before = (change.flatten(0, 1) @ padded.mT).unflatten(0, change.shape[:2])
        _, inputs, deltas = self._backpropagate(parameters, records, before.add_(befores[0]))
        if mask is not None:
            deltas, references = (
                [delta * mask.unsqueeze(1) for delta in each] for each in (deltas, references)
            )
        with _rounded_products():
            moved = (deltas[0].sub_(references[0]).flatten(0, 1) @ padded).unflatten(0, change.shape[:2])
        known = references[0] @ padded
        gradient = torch.empty_like(parameters)
        (first, first_bias), *others = self.layers(gradient)
        torch.add(moved[:, :, :width], known[:, :, :width], out=first)
        torch.add(moved[:, :, width], known[:, :, width], out=first_bias)
        for (own, own_bias), entering, delta in zip(others, inputs[1:], deltas[1:], strict=True):
            own.copy_(delta @ entering.mT)
            torch.sum(delta, 2, out=own_bias)
        return gradient

    def _backpropagate(
        self, parameters: Tensor, records: Records, before: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Each layer's pre-activations, its inputs, and the loss's derivative with respect to the pre-activations.

        `before` are the first layer's pre-activations, if already known.
        """
        layers = self.layers(parameters.detach())
        befores, inputs = [], [records.flat.to(parameters.dtype).mT]  # (1 or trials, inputs, records)
        for weight, bias in layers:
            if befores:
                inputs.append(ACTIVATIONS[self.activation](befores[-1]))
            known = before if not befores else None
            befores.append(_product(weight, inputs[-1]).add_(bias.unsqueeze(2)) if known is None else known)
        deltas = [_loss_derivative(befores[-1], records.labels.long())]
        for (weight, _), outcome in zip(layers[:0:-1], befores[-2::-1], strict=True):
            deltas.append(_DERIVATIVES[self.activation](weight.mT @ deltas[-1], outcome))
        return befores, inputs, deltas[::-1]


def _loss_derivative(logits: Tensor, labels: Tensor) -> Tensor:
    """The derivative of the summed cross-entropy in logits `(trials, classes, records)`: probabilities − labels."""
    if logits.shape[1] == 1:
        return logits.sigmoid() - labels.unsqueeze(1)
    # Searches amplify rounding, so a record's must not depend on its position in the batch there; this is slower.
    shares = logits.mT.softmax(2).mT.clone() if logits.requires_grad else logits.softmax(1)
    place = labels.expand(len(logits), -1).unsqueeze(1)
    return shares.scatter_add_(1, place, shares.new_full((1, 1, 1), -1.0).expand(place.shape))


@contextmanager
def _rounded_products() -> Iterator[None]:
    """Let a GPU round the inputs of matrix products to ten bits (TF32), which is several times faster."""
    settings = torch.backends.cuda.matmul
    modern = hasattr(settings, "fp32_precision")  # from PyTorch 2.9 on
    name, rounded = ("fp32_precision", "tf32") if modern else ("allow_tf32", True)
    before = getattr(settings, name)
    setattr(settings, name, rounded)
    try:
        yield
    finally:
        setattr(settings, name, before)


def initial_layer(
    initialisation: str | float, trials: int, inputs: int, outputs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Freshly drawn weights `(trials, outputs, inputs)` and biases `(trials, outputs)` of one layer."""
    shape, device = (trials, outputs, inputs), generator.device
    if initialisation == "pytorch":
        limit = inputs**-0.5
        draws = torch.rand(trials, outputs, inputs + 1, generator=generator, device=device)
        both = (2 * draws - 1) * limit
        return both[..., :-1], both[..., -1]
    deviation = {"lecun": inputs**-0.5, "he": (2 / inputs) ** 0.5, "glorot": (2 / (inputs + outputs)) ** 0.5}
    scale = deviation[initialisation] if isinstance(initialisation, str) else initialisation
    weight = torch.empty(shape, device=device).normal_(0, scale, generator=generator)
    return weight, torch.zeros(shape[:2], device=device)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left · right for every trial; one large product if all trials share the right side."""
    if len(right) == 1 and len(left) > 1:
        return (left.flatten(0, 1) @ right[0]).unflatten(0, left.shape[:2])
    return left @ right


def _clipping(inputs: list[Tensor], deltas: list[Tensor], max_norm: float) -> tuple[Tensor, Tensor]:
    """The factor that clips each record's gradient, and the unclipped gradient's norm, `(trials, records)`."""
    square = torch.zeros_like(deltas[0][:, 0])
    for values, delta in zip(inputs, deltas, strict=True):
        square = square + delta.square().sum(1) * (values.square().sum(1) + 1)
    norms = square.sqrt()
    return max_norm / norms.clamp(min=max_norm), norms
