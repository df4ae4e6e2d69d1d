"""What stands between dense layers: the functions that people use there, recognised by what they do to numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        """The same with its kink bent over a range; what has none stays as it is."""
        return self if self.function is not None else replace(self, softness=softness)

    def module(self) -> nn.Module:
        """As a layer."""
        return _Layer(self)


def _derivatives(function: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(at).sum(), at, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), at)
    return slope.detach(), curvature


class _Layer(nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, z: Tensor) -> Tensor:
        return self.activation(z)

    def extra_repr(self) -> str:
        return self.activation.name


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
    """The function that made one tensor of the other, number by number; None where none of ours did."""
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
