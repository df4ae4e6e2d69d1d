"""Transformers that read token ids, found by structure: where their first two attention layers are.

Layers are found by watching the model at work: the linear layers that read the same tensor first are the first
attention layer's projections, and those whose names differ from theirs in numbers alone come next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from remanence.exceptions import InputError


@final
@dataclass(frozen=True)
class Projections:
    """The linear layers that read one attention layer's input."""

    names: tuple[str, ...]
    transposed: bool  # weights are (inputs, outputs), as transformers' Conv1D has them

    def span(self, gradient: Mapping[str, Tensor], precision: float) -> Tensor:
        """An orthonormal basis of all that entered, `(dimensions, rank)`, from the gradients of all projections."""
        parts = []
        for name in self.names:
            values = gradient[f"{name}.weight"].double()
            rows = values.mT if self.transposed else values
            parts.append(rows / rows.norm().clamp(min=1e-300))
        stacked = torch.cat(parts)
        # The right singular vectors, from the smaller square: precise enough for a span, and quick for wide layers.
        _, sizes, right = torch.linalg.svd(stacked, full_matrices=False)
        return right[: int((sizes > 16 * precision * sizes[0]).sum())].mT


@final
@dataclass(frozen=True)
class TextModel:
    """A transformer that reads token ids, and where its first two attention layers are."""

    model: nn.Module
    vocabulary: int
    first: Projections
    second: Projections
    is_causal: bool
    has_positions: bool  # what enters the first layer depends on the position too

    def logits(self, ids: Tensor) -> Tensor:
        """What the model answers, whatever it wraps that in."""
        answer = self.model(ids)
        answer = getattr(answer, "logits", answer)
        return answer[0] if isinstance(answer, tuple) else answer

    def entering(self, which: Projections, ids: Tensor) -> Tensor:
        """What enters a layer for sequences of ids `(sequences, length)`; later layers are not computed."""
        layer = self.model.get_submodule(which.names[0])
        seen: list[Tensor] = []

        def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            seen.append(arguments[0].detach())
            raise _Enough

        handle = layer.register_forward_pre_hook(note)
        try:
            with torch.no_grad():
                self.model(ids)
        except _Enough:
            pass
        finally:
            handle.remove()
        return seen[0].double()


class _Enough(Exception):
    """The layer in question has been reached: no error, but the end of what is to be computed."""


def text_model(model: nn.Module) -> TextModel:
    """Find the embedding and the first two attention layers by watching the model read a few ids."""
    embeddings = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    if not embeddings:
        raise _no_text_model("a model without an nn.Embedding")
    vocabulary = max(layer.num_embeddings for layer in embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(vocabulary, 1000), (2, 6), generator=generator)
    seen: list[tuple[str, nn.Module, Tensor]] = []
    with _watching(model, seen), torch.no_grad():
        try:
            model(ids)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise _no_text_model(
                f"a model that cannot read ids alone: {str(error).splitlines()[0]}"
            ) from None
    groups = _groups(seen)
    layers = [group for group in groups if group[0][2].ndim == 3 and group[0][2].shape[:2] == ids.shape]
    if not layers:
        raise _no_text_model("no linear layer that reads one vector per token")
    first = layers[0]
    pattern = [_pattern(name) for name, _, _ in first]
    others = [group for group in layers[1:] if [_pattern(name) for name, _, _ in group] == pattern]
    if not others:
        raise _no_text_model("no second layer like the first")
    transposed = not isinstance(first[0][1], nn.Linear)
    one, two = (Projections(tuple(name for name, _, _ in group), transposed) for group in (first, others[0]))
    found = TextModel(model, vocabulary, one, two, is_causal=True, has_positions=True)
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % vocabulary
    is_causal = torch.equal(found.entering(two, ids)[:, 0], found.entering(two, changed)[:, 0])
    same = torch.full((1, 2), int(ids[0, 0]))
    entered = found.entering(one, same)[0]
    has_positions = not torch.allclose(entered[0], entered[1], rtol=1e-6, atol=1e-9)
    return TextModel(model, vocabulary, one, two, is_causal, has_positions)


def _no_text_model(got: str) -> InputError:
    return InputError(
        "The model cannot be read as a transformer of texts.",
        needs="model(ids) with an nn.Embedding and at least two attention layers of the same make",
        got=got,
        hint="factory() must return the whole model, in evaluation mode, that takes a tensor of token ids",
    )


@contextmanager
def _watching(model: nn.Module, seen: list[tuple[str, nn.Module, Tensor]]) -> Iterator[None]:
    """Note what enters every layer that has a weight matrix and multiplies by it, in order."""

    def note(name: str):
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if arguments and isinstance(arguments[0], Tensor) and arguments[0].is_floating_point():
                seen.append((name, layer, arguments[0].detach()))

        return hook

    handles = [
        layer.register_forward_pre_hook(note(name))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _groups(seen: Sequence[tuple[str, nn.Module, Tensor]]) -> list[list[tuple[str, nn.Module, Tensor]]]:
    """Layers that read the same tensor one after the other."""
    groups: list[list[tuple[str, nn.Module, Tensor]]] = []
    for entry in seen:
        last = groups[-1][-1][2] if groups else None
        if last is not None and last.shape == entry[2].shape and torch.equal(last, entry[2]):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)
