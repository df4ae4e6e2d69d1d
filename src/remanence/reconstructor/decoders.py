"""Networks that generate a record from a vector: perceptrons for small ones, residual convolutions for pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv_transpose2d

from remanence.core.records import Records

_FAR = 50.0  # the logarithm of an impossibly large error
_STEEPEST = 20.0  # targets per stranger: more means a batch with almost no close strangers


class Decoder(nn.Module):
    """A trunk and the scale of the records: pictures stay within the range of their pixels.

    The papers' networks use a tanh; `clamped` ones may leave the range during training, which is faster.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, trunk: nn.Module, pool: Records, *, clamped: bool) -> None:
        super().__init__()
        self.trunk, self.shape, self.clamped = trunk, pool.example_shape, clamped
        features = pool.features.float()
        self.bounded = len(self.shape) > 1
        if self.bounded:
            low, high = features.min(), features.max()
            self.register_buffer("offset", (low + high) / 2)
            self.register_buffer("scale", (high - low) / 2)
        else:
            self.register_buffer("offset", features.mean(0))
            self.register_buffer("scale", features.std(0).clamp(min=1e-8))

    @property
    def unit(self) -> float:
        """The scale of the output: half the range of pixels, or the spread of other features."""
        return max(float(self.scale.square().mean().sqrt()), 1e-12)

    def forward(self, values: Tensor, start: Tensor | None = None) -> Tensor:
        """Records `(trials, *example)`; with a `start`, the output is added to it."""
        drawn = self.trunk(values).float().reshape(len(values), *self.shape)
        if start is not None:
            drawn = drawn + (start - self.offset) / self.scale
        if self.bounded and not self.clamped:
            drawn = drawn.tanh()
        elif self.bounded and not self.training:
            drawn = drawn.clamp(-1, 1)
        return self.offset + self.scale * drawn

    def silence(self) -> Decoder:
        """Initialise the output to zero, so that a `start` is returned unchanged before training."""
        last = [part for part in self.trunk.modules() if isinstance(part, nn.Linear | nn.Conv2d)][-1]
        nn.init.zeros_(last.weight)
        if last.bias is not None:
            nn.init.zeros_(last.bias)
        return self


def perceptron(size: int, hidden: Sequence[int], pool: Records, *, strong: bool) -> Decoder:
    """Balle et al. 2022's reconstructor for MNIST, fully connected layers with ReLU; normalised if strong."""
    sizes = [size, *hidden]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), *([nn.LayerNorm(outputs)] if strong else []), nn.ReLU()]
    last = nn.Linear(sizes[-1], math.prod(pool.example_shape))
    return Decoder(nn.Sequential(*layers, last), pool, clamped=strong)


def convolutional(size: int, width: int, pool: Records, *, trunk: int = 0) -> Decoder:
    """Maciazek and Allison 2025, Table 2: 4 × 4 × 4S, then residual blocks that double the side.

    Their first layer reads the vector directly. With a `trunk`, fully connected residual layers of that
    width come before it, which costs less than 64 S times the vector's length.
    """
    channels, side = _layout(pool.example_shape)
    layers: list[nn.Module] = []
    if trunk:
        layers += [nn.Linear(size, trunk), _Dense(trunk), _Dense(trunk)]
        size = trunk
    layers.append(_First(size, 4 * width))
    widths = [4 * width, 2 * width, width]
    now, current = 4, 4 * width
    while now < side:
        following = widths[min(len(widths) - 1, int(math.log2(now)) - 1)]
        layers.append(Residual(current, following))
        now, current = 2 * now, following
    last = nn.Conv2d(current, channels, 3, padding=1)
    nn.init.xavier_uniform_(last.weight, nn.init.calculate_gain("tanh"))
    layers += [nn.BatchNorm2d(current), nn.ReLU(), last, _Crop(pool.example_shape[-2:])]
    return Decoder(nn.Sequential(*layers), pool, clamped=trunk > 0)


class _Dense(nn.Module):
    """A residual fully connected layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, values: Tensor) -> Tensor:
        return values + self.body(values)


class _First(nn.Module):
    """A picture of 4 × 4: a transposed convolution of a vector, which is one product."""

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.product = nn.Linear(size, 16 * channels, bias=False)
        nn.init.uniform_(self.product.weight, *(side / (4 * channels**0.5) for side in (-1, 1)))

    def forward(self, values: Tensor) -> Tensor:
        return self.product(values).unflatten(1, (4, 4, -1)).permute(0, 3, 1, 2)


class Residual(nn.Module):
    """Figure 10 of the paper: normalise, double the side, two convolutions, and a skip connection.

    A step on a GPU waits for memory, so nothing is stored at the doubled side that need not be. Doubling and the
    first convolution are one transposed convolution. The skip connection's convolution reads single pixels, so it
    runs before doubling, and the addition doubles its output. Every path ends in a normalisation, which removes
    constants, so no convolution here has a bias.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.widen = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.body = nn.Sequential(
            nn.BatchNorm2d(outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        )
        self.bypass = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else nn.Identity()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")

    def forward(self, values: Tensor) -> Tensor:
        """The picture of twice the side."""
        # Each weight of the transposed convolution sums those of the 3 × 3 that fall on copies of one pixel.
        weight = self.widen.weight.flip(2, 3).transpose(0, 1)
        weight = 4 * avg_pool2d(weight, 2, stride=1, padding=1)
        body = self.body(conv_transpose2d(self.enter(values), weight, stride=2, padding=1))
        return _AddDoubled.apply(body, self.bypass(values))


class _AddDoubled(torch.autograd.Function):
    """A picture, and another of half its side, each of whose pixels is added four times.

    The gradient of the other is a pooling, which is several times as fast on a GPU as the sum that PyTorch would take.
    """

    @staticmethod
    def forward(ctx: Any, picture: Tensor, half: Tensor) -> Tensor:  # noqa: ARG004
        height, width = half.shape[2:]
        pixels = picture.unflatten(3, (width, 2)).unflatten(2, (height, 2))
        return (pixels + half[:, :, :, None, :, None]).flatten(4, 5).flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        (gradient,) = grad_outputs
        return gradient, 4 * avg_pool2d(gradient, 2)


class _Crop(nn.Module):
    """Crop the centre of a slightly larger output."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, values: Tensor) -> Tensor:
        height, width = self.shape
        top, left = (values.shape[2] - height) // 2, (values.shape[3] - width) // 2
        return values[:, :, top : top + height, left : left + width]


def _layout(shape: Sequence[int]) -> tuple[int, int]:
    """Channels, and the side that the blocks grow to: a power of 2 that holds the picture."""
    channels = shape[0] if len(shape) == 3 else 1
    return channels, 2 ** max(2, math.ceil(math.log2(max(shape[-2:]))))


def draws_pictures(shape: Sequence[int]) -> bool:
    """Whether convolutions suit records of this shape: two-dimensional, and not tiny."""
    return len(shape) in (2, 3) and min(shape[-2:]) > 8


def softmin_loss(drawn: Tensor, candidates: Tensor, sharpness: float = 100.0) -> Tensor:
    """Equation 3: (MSE + MAE) / 2 to each candidate `(trials, candidates, *example)`, weighted to the closest.

    >>> candidates = torch.tensor([[[0.0], [1.0]]])
    >>> round(float(softmin_loss(torch.tensor([[1.0]]), candidates)), 6)
    0.0
    """
    difference = (drawn.unsqueeze(1) - candidates).flatten(2)
    losses = (difference.square().mean(2) + difference.abs().mean(2)) / 2
    return (torch.softmax(-sharpness * losses, 1) * losses).sum(1).mean()


def separation_loss(
    drawn: Tensor, own: Tensor, strangers: Tensor, *, fpr: float = 0.01, softness: float = 0.2
) -> Tensor:
    """A loss whose gradient is minus that of the smoothed true positive rate at a smoothed false positive rate.

    `own` are the candidate records `(trials, candidates, *example)`, `strangers` those of other sets,
    `(others, trials, candidates, *example)`. The threshold is where strangers pass at the rate `fpr`. It moves as
    errors move: the strangers' weight is the number of targets that then pass per stranger. Sets that share a
    record are not strangers.
    """
    inner = 1 - drawn.ndim  # the first dimension of an example, from the end

    def logs(candidates: Tensor) -> Tensor:
        return (
            (drawn.unsqueeze(1) - candidates).flatten(inner).square().mean(-1).amin(-1).clamp(min=1e-8).log()
        )

    ours, theirs = own.flatten(inner), strangers.flatten(inner)
    # Equal records have the same product with a random vector, up to rounding.
    vector = torch.arange(1, ours.shape[-1] + 1, device=own.device, dtype=own.dtype).square().cos()
    marks, other_marks = ((records * vector).sum(-1) for records in (ours, theirs))
    apart = marks.unsqueeze(-1) - other_marks.unsqueeze(-2)
    shared = (apart.abs() <= 1e-6 * ours.abs().sum(-1, keepdim=True)).flatten(-2).any(-1)
    targets, others = logs(own), logs(strangers).masked_fill(shared, _FAR).flatten()
    count = (~shared).sum().clamp(min=1)  # stays on its device: a CUDA graph cannot synchronise
    threshold = others.detach().sort().values.gather(0, (fpr * count).long().unsqueeze(0))
    passed, wrongly = (((threshold - each) / softness).sigmoid() for each in (targets, others))
    density = (passed * (1 - passed)).mean().detach()
    other_density = ((wrongly * (1 - wrongly)).sum() / count).detach()
    weight = (density / other_density.clamp(min=1e-8)).clamp(max=_STEEPEST)
    return weight * wrongly.sum() / count - passed.mean()
