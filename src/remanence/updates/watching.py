"""Watch a network run: the inputs and outputs of its layers, and its logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

Seen = tuple[str, Tensor, Tensor]  # a layer, what entered it and what left


@contextmanager
def watching(layers: Mapping[str, nn.Module], seen: list[Seen]) -> Iterator[None]:
    """Record the layers' inputs and outputs, in the order in which they run."""

    def note(name: str):
        return lambda _, arguments, output: seen.append((name, arguments[0].detach(), output.detach()))

    handles = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def logits_of(output: object) -> object:
    """A network's logits, unwrapped from its output."""
    if isinstance(output, Mapping):
        return output.get("logits")
    if isinstance(output, tuple | list) and output:
        return output[0]
    return getattr(output, "logits", output)


def loss_of(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy; of one logit, that of a sigmoid."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits.flatten(), labels.to(logits), reduction=reduction)
    return cross_entropy(logits, labels, reduction=reduction)
