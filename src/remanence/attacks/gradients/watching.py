"""A network at work: what enters and leaves its layers, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def watching(layers: Mapping[str, nn.Module], seen: list[tuple[str, Tensor, Tensor]]) -> Iterator[None]:
    """Note what enters and leaves the layers, in the order in which they run."""

    def note(name: str):
        return lambda _, arguments, output: seen.append((name, arguments[0].detach(), output.detach()))

    handles = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def logits_of(output: object) -> object:
    """What a network says, out of the ways in which it may be wrapped."""
    if isinstance(output, Mapping):
        return output.get("logits")
    if isinstance(output, tuple | list) and output:
        return output[0]
    return getattr(output, "logits", output)
