"""A network at work: what enters and leaves its layers, and what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from remanence.updates.activations import ALONE, Activation, recognised

Seen = tuple[str, Tensor, Tensor]  # a layer, what entered it and what left


@contextmanager
def watching(layers: Mapping[str, nn.Module], seen: list[Seen]) -> Iterator[None]:
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


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; of one logit, that of a sigmoid."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits.flatten(), labels.to(logits))
    return cross_entropy(logits, labels)


def after_norms(
    watched: Sequence[Seen], norms: Mapping[str, nn.BatchNorm1d]
) -> tuple[list[Seen], dict[str, str]]:
    """Linear layers with what leaves the normalisation after them, where there is one, and its name."""
    seen: list[Seen] = []
    normed: dict[str, str] = {}
    for name, entered, left in watched:
        if name not in norms:
            seen.append((name, entered, left))
        elif seen and seen[-1][2].shape == entered.shape and torch.equal(seen[-1][2], entered):
            normed[seen[-1][0]] = name
            seen[-1] = (seen[-1][0], seen[-1][1], left)
    return seen, normed


def chain_of(seen: Sequence[Seen], output: object) -> tuple[list[Seen], Activation]:
    """The longest run of linear layers, ending in the output, that are joined by nothing but one kind of function."""
    output = logits_of(output)
    if not isinstance(output, Tensor) or not seen:
        return [], ALONE
    output = output.unsqueeze(1) if output.ndim == 1 else output  # one logit is often squeezed
    if seen[-1][2].shape != output.shape or not torch.equal(seen[-1][2], output):
        return [], ALONE
    chain, kind = [seen[-1]], None
    for layer in reversed(seen[:-1]):
        found = recognised(layer[2], chain[0][1])
        if found is None or (kind is not None and found.name != kind.name):
            break
        kind = found
        chain.insert(0, layer)
    return chain, kind or ALONE
