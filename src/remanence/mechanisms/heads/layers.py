"""The layers of a head by their names: one linear layer, or two or three with a ReLU between."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor

_FIRST, _MIDDLE, _LAST = ("weight", "bias"), ("middle_weight", "middle_bias"), ("out_weight", "out_bias")

Hidden = int | tuple[int, ...] | None


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


def answers(tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """What heads answer to inputs `(records, numbers)`, `(trials, records, outputs)`."""
    values = inputs @ tensors["weight"].mT + tensors["bias"].unsqueeze(1)
    for weight, bias in (_MIDDLE, _LAST):
        if weight in tensors:
            values = values.relu() @ tensors[weight].mT + tensors[bias].unsqueeze(1)
    return values
