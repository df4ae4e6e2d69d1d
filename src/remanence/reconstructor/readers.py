"""How a reconstructor network reads a release: as one long vector, or with a reader from its mechanism."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

if TYPE_CHECKING:
    from remanence.core.priors import EmpiricalPrior
    from remanence.core.stratified import StratifiedPrior
    from remanence.reconstructor.shadows import Shadows

Tensors = Mapping[str, Tensor]
_EPSILON = 1e-8


class Reader(nn.Module):
    """Maps releases, and the requested class, to the vector that is a decoder's input."""

    size: int

    def prepare(self, tensors: Tensors) -> Tensors:
        """Tensors to precompute once for a block of releases, independent of the requested class."""
        return tensors

    @abstractmethod
    def forward(self, tensors: Tensors, asked: Tensor | None) -> Tensor:
        """One vector per release, `(trials, size)`; `asked` holds the index of a class for each."""


@runtime_checkable
class Readable(Protocol):
    """A mechanism with its own reader, because its releases have more structure than a long vector."""

    @property
    def streams(self) -> bool:
        """Whether models train faster than a network learns, so that no shadow needs to be seen twice."""
        ...

    def reader(
        self, shadows: Tensors, prior: EmpiricalPrior | StratifiedPrior, *, classes: int, strong: bool
    ) -> Reader | None:
        """The reader for a request of one of `classes` (0: unconditional); None for the flat reader.

        Unless `strong`, it reads as in the papers.
        """
        ...

    def first_drawing(
        self, prior: StratifiedPrior, shadows: Iterable[Shadows], held_out: Shadows
    ) -> Callable[[Tensors], Tensor]:
        """The records that a network starts from, one of each class, `(trials, classes, *example)`."""
        ...


class FlatReader(Reader):
    """All numbers of the release, each standardised over the shadows, and the one-hot class.

    Constant numbers are left out, since they carry no information.
    """

    kept: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, shadows: Tensors, classes: int) -> None:
        super().__init__()
        flat = _flat(shadows).double()
        deviation = flat.std(0)
        kept = (deviation > _EPSILON * flat.abs().amax(0).clamp(min=_EPSILON)).nonzero().squeeze(1)
        if not len(kept):  # all numbers are constant, but a network needs an input
            kept, deviation = kept.new_zeros(1), torch.ones_like(deviation)
        self.register_buffer("kept", kept)
        self.register_buffer("mean", flat.mean(0)[kept].float())
        self.register_buffer("deviation", deviation[kept].float())
        self.classes = classes
        self.size = len(kept) + classes

    def forward(self, tensors: Tensors, asked: Tensor | None) -> Tensor:
        """Standardise and append the class."""
        values = (_flat(tensors)[:, self.kept] - self.mean) / self.deviation
        if asked is None:
            return values
        return torch.cat([values, one_hot(asked, self.classes).to(values)], 1)


def _flat(tensors: Tensors) -> Tensor:
    # One more dimension: a scalar per release, such as a counter, has none to flatten.
    return torch.cat([tensor.unsqueeze(-1).flatten(1).float() for tensor in tensors.values()], 1)
