"""A model that a server sends, looked at before the first gradient is computed: is it made to read clients?

A malicious server plants layers that isolate records. In Robbing the Fed (Fowl et al. 2022) all neurons of a layer
measure the same thing, with biases in steps: each record falls into a bin of its own. Other traps make neurons fire for
few inputs, or switch gates off, so that every neuron is active for every input and layers become linear. These are
signs, not proofs, of malice; a quiet check is no protection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

_PARALLEL = 0.999  # the cosine above which two neurons measure the same thing
_MANY = 0.5  # of a layer's neurons
_SMALLEST = 8  # neurons that a layer must have for its rows to be compared
_ROWS = 512  # that are compared at most


@final
@dataclass(frozen=True)
class Trap:
    """A layer that looks as if it were made to read records."""

    layer: str
    kind: str  # bins, linear gates, rare gates
    share: float  # of its neurons

    def __str__(self) -> str:
        return f"{self.layer}: {_MEANINGS[self.kind]} ({self.share:.0%} of the neurons)"


_MEANINGS = {
    "bins": "neurons that measure the same thing with biases in steps: each record falls into a bin of its own",
    "linear gates": "biases so large that every neuron is active for every input: gradients are sums of plain inputs",
    "rare gates": "biases so low that next to no input activates a neuron: those that do are read off one by one",
}


def traps(model: nn.Module) -> list[Trap]:
    """What a received model's linear and convolutional layers look like, before it sees any data.

    >>> traps(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)))
    []
    """
    found: list[Trap] = []
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if (
            isinstance(layer, nn.Linear | nn.Conv2d)
            and isinstance(weight, Tensor)
            and len(weight) >= _SMALLEST
        ):
            rows = weight.detach().flatten(1)
            bias = None if layer.bias is None else layer.bias.detach().double()
            found += [Trap(name, kind, share) for kind, share in _signs(rows, bias) if share > _MANY]
    return found


def _signs(rows: Tensor, bias: Tensor | None) -> Iterator[tuple[str, float]]:
    """Kinds of traps, and the share of a layer's neurons that look like each."""
    sizes = rows.norm(dim=1).double()
    unit = rows[(sizes > 0).nonzero().squeeze(1)[:_ROWS]].float()
    unit /= sizes[sizes > 0][:_ROWS, None].float()
    alike = ((unit @ unit.mT) > _PARALLEL).sum(1) - 1 >= len(unit) * _MANY
    yield "bins", float(alike.double().mean()) if len(unit) >= _SMALLEST else 0.0
    if bias is not None:
        # Inputs of unit variance move a neuron by the norm of its weights: six times that is out of their reach.
        yield "linear gates", float((bias > 6 * sizes).double().mean())
        yield "rare gates", float((bias < -6 * sizes).double().mean())
