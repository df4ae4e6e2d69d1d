"""A layer some rows at a time: a large one is never copied, whatever precision it was sent in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_AT_ONCE = 2**17  # numbers


def working(weight: Tensor) -> torch.dtype:
    """The precision to compute in: half precision is only for sending."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def row_slices(weight: Tensor) -> Iterator[slice]:
    """Blocks of rows of a layer."""
    at_once = max(1, _AT_ONCE // max(1, weight.shape[1]))
    yield from (slice(start, start + at_once) for start in range(0, len(weight), at_once))


def largest(values: Tensor) -> float:
    """The largest size of a number."""
    return max(map(abs, map(float, values.aminmax())))


def norm(weight: Tensor) -> Tensor:
    """The norm of all numbers, in double precision."""
    # Numbers, not tensors: small tensors kept between large freed ones would fragment memory.
    squares = sum(float(weight[rows].to(working(weight)).norm()) ** 2 for rows in row_slices(weight))
    return torch.tensor(squares, dtype=torch.float64, device=weight.device).sqrt()


def rows_times(weight: Tensor, values: Tensor) -> Tensor:
    """`weight @ values`, in the precision of the values."""
    made = values.new_empty(len(weight), values.shape[1])  # one tensor: parts would fragment memory
    for rows in row_slices(weight):
        made[rows] = weight[rows].to(values) @ values
    return made


def forwards(values: Tensor, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`values @ change(weight).mT`."""
    own = values.to(working(weight))
    made = own.new_empty(*values.shape[:-1], len(weight))
    for rows in row_slices(weight):
        made[..., rows] = own @ change(weight[rows].to(own)).mT
    return made.to(values.dtype)


def backwards(values: Tensor, weight: Tensor, change: Callable[[Tensor], Tensor] = Tensor.detach) -> Tensor:
    """`values @ change(weight)`."""
    own = values.to(working(weight))
    made = own.new_zeros(*values.shape[:-1], weight.shape[1])
    for rows in row_slices(weight):
        made += own[..., rows] @ change(weight[rows].to(own))
    return made.to(values.dtype)
