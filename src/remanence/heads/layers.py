"""The layers of a head by their names: one linear layer, or two or three with a ReLU between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

_FIRST, _MIDDLE, _LAST = ("weight", "bias"), ("middle_weight", "middle_bias"), ("out_weight", "out_bias")

Hidden = int | tuple[int, ...] | None
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": Tensor.relu,
    "gelu": gelu,
    "silu": silu,
    "tanh": Tensor.tanh,
}


def hidden_sizes(hidden: Hidden) -> tuple[int, ...]:
    """The numbers of hidden units, layer by layer.

    >>> hidden_sizes(None), hidden_sizes(8), hidden_sizes((8, 4))
    ((), (8,), (8, 4))
    """
    return () if hidden is None else (hidden,) if isinstance(hidden, int) else hidden


def layer_names(hidden: Hidden) -> tuple[str, ...]:
    """What the tensors of such a head are called, in order.

    >>> layer_names((8, 4))
    ('weight', 'bias', 'middle_weight', 'middle_bias', 'out_weight', 'out_bias')
    """
    rest = len(hidden_sizes(hidden))
    return (*_FIRST, *(_MIDDLE if rest == 2 else ()), *(_LAST if rest else ()))


def layer_shapes(numbers: int, hidden: Hidden, outputs: int) -> list[tuple[int, ...]]:
    """The shapes of these tensors.

    >>> layer_shapes(9, 4, 2)
    [(4, 9), (4,), (2, 4), (2,)]
    """
    sizes = numbers, *hidden_sizes(hidden), outputs
    return [shape for inputs, rows in pairwise(sizes) for shape in ((rows, inputs), (rows,))]


def outgoing(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """What the first layer's units say at the end if every unit between is on, `(trials, outputs, units)`.

    None for one linear layer, whose units are the outputs.
    """
    if "out_weight" not in tensors:
        return None
    last = tensors["out_weight"]
    return last @ tensors["middle_weight"].to(last) if "middle_weight" in tensors else last


def answers(tensors: Sequence[Tensor], values: Tensor, activation: str = "relu") -> Tensor:
    """What heads answer to inputs `(records, numbers)` or `(trials, records, numbers)`, `(trials, records, outputs)`.

    `tensors` are weights and biases in turn.
    """
    for layer in range(0, len(tensors), 2):
        weight, bias = tensors[layer], tensors[layer + 1].unsqueeze(1)
        values = ACTIVATIONS[activation](values) if layer else values
        values = values.expand(len(weight), -1, -1)
        values = torch.baddbmm(bias, values, weight.mT)
    return values
