"""Networks with one output, read as two classes.

A sigmoid on z is a softmax on (0, z), and the loss's derivative in these two logits is (−g, g). So a row of zeros
stands before the last layer's own, and before its gradient the same with the other sign: one row, seen twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from remanence.updates.dense_layers import DenseHead


def doubled(last: Tensor) -> Tensor:
    """The last layer's weight or bias with the row of the logit that is always 0."""
    return torch.cat([torch.zeros_like(last), last])


def mirrored(gradient: Tensor, dim: int) -> Tensor:
    """The gradient of the last layer's weight or bias with that row's."""
    return torch.cat([-gradient, gradient], dim)


def has_one_logit(head: DenseHead) -> bool:
    """Whether the two logits of a head are made from one; where all weights are zero, nobody can tell."""
    weight, bias = head.weights[-1], head.biases[-1]
    zero = not weight[0].any() and (bias is None or not bias[0].any())
    return len(weight) == 2 and zero and bool(weight[1].any())


def decays(head: DenseHead) -> list[tuple[Tensor, Tensor | None]]:
    """What a unit of weight decay adds to the gradient of each layer."""
    parts = list(zip(head.weights, head.biases, strict=True))
    if has_one_logit(head):
        weight, bias = parts[-1]
        parts[-1] = mirrored(weight[1:], 0), None if bias is None else mirrored(bias[1:], 0)
    return parts
