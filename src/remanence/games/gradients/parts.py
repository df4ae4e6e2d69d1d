"""Products with what is made of a layer's weights, some rows at a time: a large layer is never there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_AT_ONCE = 2**19  # numbers


def row_slices(weight: Tensor) -> Iterator[slice]:
    """Rows of a layer that are looked at together."""
    at_once = max(1, _AT_ONCE // weight.shape[1])
    yield from (slice(start, start + at_once) for start in range(0, len(weight), at_once))


def forwards(values: Tensor, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`values @ change(weight).mT`."""
    own = values.to(weight.dtype)
    return torch.cat([own @ change(weight[rows]).mT for rows in row_slices(weight)], -1).to(values.dtype)


def backwards(values: Tensor, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`values @ change(weight)`."""
    own = values.to(weight.dtype)
    made = sum(own[..., rows] @ change(weight[rows]) for rows in row_slices(weight))
    assert isinstance(made, Tensor)
    return made.to(values.dtype)
