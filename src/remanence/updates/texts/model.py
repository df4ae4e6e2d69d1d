"""Transformers that read token ids, found by structure: where their first two attention layers are.

Layers are found by watching the model at work: the linear layers that read the same tensor first are the first
attention layer's projections, and those whose names differ from theirs in numbers alone come next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.core.exceptions import InputError
from remanence.updates.span import RECOMPUTED, Decomposed, Span

_COARSER = (16.0, 256.0)  # times the precision: what is tried where a span fills everything


@final
@dataclass(frozen=True)
class Projections:
    """The linear layers that read one attention layer's input, and those that read an adapter's output for it.

    Frozen layers have no gradient and are not used. An adapter's first matrix (A of LoRA) is such a layer; before
    the first step its gradient is zero, and its second matrix, which reads A x, is used instead.
    """

    names: tuple[str, ...]
    transposed: frozenset[str]  # weights that are (inputs, outputs), as transformers' Conv1D has them
    behind: tuple[tuple[str, str], ...] = ()  # an adapter's first matrix and its second

    def decomposed(self, model: nn.Module, gradient: Mapping[str, Tensor], *, even: bool) -> list[Decomposed]:
        """The gradients of all projections together; of adapters before their first step, each by itself."""
        rows = self.rows(gradient)
        if rows is not None and rows.any():
            return [Decomposed.of(rows, even=even)]
        found = []
        for first, second in self.behind:
            read = gradient.get(f"{second}.weight")
            if read is not None and read.any():
                reader = model.get_parameter(f"{first}.weight").detach().double()
                found.append(Decomposed.of(read, reader, even=even))
        return found

    def rows(self, held: Mapping[str, Tensor]) -> Tensor | None:
        """The tensors of all projections, stacked, `(outputs, inputs)`; None if there are none."""
        named = [(name, held[f"{name}.weight"]) for name in self.names if f"{name}.weight" in held]
        parts = [value.mT if name in self.transposed else value for name, value in named]
        return torch.cat([part.double() for part in parts]) if parts else None

    def weights(self, gradient: Mapping[str, Tensor]) -> list[str]:
        """Names of the weights that have a gradient."""
        names = [*self.names, *(second for _, second in self.behind)]
        return [f"{name}.weight" for name in names if f"{name}.weight" in gradient]


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
    remembers: bool = False  # it takes transformers' cache of what came before
    between: tuple[Projections, ...] = ()  # layers after the first that come before the second
    embedding: str = ""  # the layer that has one row for each token
    last: str = ""  # the last layer before the one that makes logits
    drift: float = 0.0  # the relative change of the inputs over the steps
    is_difference: bool = False  # updates are differences of weights, and rounded on their scale
    taken_apart: dict[tuple[tuple[str, ...], bool], list[tuple[tuple[Tensor, ...], list[Decomposed]]]] = (
        field(default_factory=dict, repr=False, compare=False)
    )  # by layer: the gradients that were read last

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    @property
    def ids(self) -> Tensor:
        """The whole vocabulary."""
        return torch.arange(self.vocabulary, device=self.device)

    def logits(self, ids: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The model's logits, whatever its output type; with some weights replaced, if given."""
        answer = functional_call(self.model, dict(weights or {}), (ids,))
        answer = getattr(answer, "logits", answer)
        return answer[0] if isinstance(answer, tuple) else answer

    @cached_property
    def is_tied(self) -> bool:
        """Whether the embedding also makes the logits, so that rows of absent tokens have a gradient."""
        weight = self.model.get_parameter(f"{self.embedding}.weight")
        if not weight.requires_grad:
            return False
        slopes = torch.autograd.grad(self.logits(self.ids[None, :2]).sum(), weight)[0]
        return bool(slopes[2:].any())

    def span(self, which: Projections, gradient: Mapping[str, Tensor], precision: float) -> Span:
        """The span of a layer's inputs, from its gradients; each layer of an update is decomposed once."""
        read = tuple(gradient[name] for name in which.weights(gradient))
        known = self.taken_apart.setdefault((which.names, self.is_difference), [])
        found = next((parts for tensors, parts in known if _same(tensors, read)), None)
        if found is None:
            found = which.decomposed(self.model, gradient, even=self.is_difference)
            known[:] = [*known[-1:], (read, found)]  # an update and its control
        recomputed = max(self.drift, RECOMPUTED * torch.finfo(next(self.model.parameters()).dtype).eps)
        # Queries miss the first token of every text: of the adapters that are read clearly, the fullest has all.
        spans = (
            Span(
                max(
                    (one.at(times * precision) for one in found), key=lambda part: part.clarity, default=None
                ),
                recomputed,
            )
            for times in (1.0, *_COARSER)
        )
        first = next(spans)
        # Sums that cancelled were rounded before: a steep drop further up tells the rank all the same. In an encoder
        # a rank that is too large lets every choice of tokens pass.
        settled = first.part is None or (
            first.tells and (first.part.clarity[0] or (self.is_causal and first.part.drops))
        )
        steep = (span for span in spans if span.tells and span.part is not None and span.part.clarity[0])
        return first if settled else next(steep, first)

    def entering_last(self, which: Projections, prefixes: Tensor, tokens: Tensor) -> Tensor:
        """A layer's input at the last position of every prefix `(prefixes, length)` followed by every token."""
        count, length = prefixes.shape
        last = tokens.repeat(count)[:, None]
        if not (self.remembers and length):
            tried = torch.cat([prefixes.repeat_interleave(len(tokens), 0), last], 1)
            return self.entering(which, tried)[:, -1]
        from transformers import DynamicCache  # pyright: ignore[reportMissingImports]  # there where the model is

        cache = DynamicCache()
        self.entering(which, prefixes, cache)
        cache.batch_repeat_interleave(len(tokens))
        return self.entering(which, last, cache)[:, -1]

    def entering(self, which: Projections, ids: Tensor, cache: object = None) -> Tensor:
        """A layer's inputs for sequences of ids `(sequences, length)`; later layers are not computed."""
        layer = self.model.get_submodule(which.names[0])
        seen: list[Tensor] = []

        def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            seen.append(arguments[0].detach())
            raise _Enough

        handle = layer.register_forward_pre_hook(note)
        try:
            with torch.no_grad():
                self.model(ids) if cache is None else self.model(ids, past_key_values=cache)
        except _Enough:
            pass
        finally:
            handle.remove()
        return seen[0].double()


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(
        one.shape == other.shape and torch.equal(one, other.to(one))
        for one, other in zip(some, others, strict=True)
    )


class _Enough(Exception):
    """Stops the forward pass once the layer in question has been reached; not an error."""


def text_model(model: nn.Module) -> TextModel:
    """Find the embedding and the first two attention layers by watching the model read a few ids."""
    rows = {
        name: layer.num_embeddings for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)
    }
    if not rows:
        raise _no_text_model("a model without an nn.Embedding")
    embedding = max(rows, key=lambda name: rows[name])
    vocabulary = rows[embedding]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(vocabulary, 1000), (2, 6), generator=generator).to(
        next(model.parameters()).device
    )
    seen: list[tuple[str, nn.Module, Tensor]] = []
    with _watching(model, seen), torch.no_grad():
        try:
            model(ids)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
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
    one, two = (_projections(group, seen) for group in (first, others[0]))
    behind = {name for _, name in one.behind}
    between = tuple(
        _projections(group, seen)
        for group in layers[1 : layers.index(others[0])]
        if group[0][0] not in behind
    )
    inner = [name for group in layers for name, layer, _ in group if vocabulary not in _sizes(layer)]
    found = TextModel(
        model, vocabulary, one, two, is_causal=True, has_positions=True, between=between, embedding=embedding,
        last=max(inner, key=[name for name, _, _ in seen].index),
    )  # fmt: skip
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % vocabulary
    is_causal = torch.equal(found.entering(two, ids)[:, 0], found.entering(two, changed)[:, 0])
    same = ids[:1, :1].repeat(1, 2)
    entered = found.entering(one, same)[0]
    has_positions = not torch.allclose(entered[0], entered[1], rtol=1e-6, atol=1e-9)
    found = replace(found, is_causal=is_causal, has_positions=has_positions)
    return replace(found, remembers=is_causal and _remembers(found, ids))


def _projections(
    group: Sequence[tuple[str, nn.Module, Tensor]], seen: Sequence[tuple[str, nn.Module, Tensor]]
) -> Projections:
    """The layers of a group, and those that read the output of one of them, as an adapter's second matrix does."""
    behind = []
    for name, layer, entered in group:
        with torch.no_grad():
            made = layer(entered)
        behind += [
            (name, other)
            for other, _, read in seen
            if other != name and read.shape == made.shape and torch.equal(read, made)
        ]
    names = tuple(name for name, _, _ in group)
    transposed = frozenset(name for name, layer, _ in group if not isinstance(layer, nn.Linear))
    return Projections(names, transposed, tuple(behind))


def _remembers(text: TextModel, ids: Tensor) -> bool:
    """Whether a cache of the prefix gives the same output as the whole sequence."""
    tokens = ids[0, :3]
    plain = text.entering_last(text.second, ids[:, :4], tokens)
    try:
        quick = replace(text, remembers=True).entering_last(text.second, ids[:, :4], tokens)
    except (ImportError, TypeError, AttributeError, ValueError, RuntimeError):
        return False
    return torch.allclose(plain, quick, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def _no_text_model(got: str) -> InputError:
    return InputError(
        "The model cannot be read as a transformer of texts.",
        needs="model(ids) with an nn.Embedding and at least two attention layers of the same make",
        got=got,
        hint="factory() must return the whole model, in evaluation mode, that takes a tensor of token ids",
    )


@contextmanager
def _watching(model: nn.Module, seen: list[tuple[str, nn.Module, Tensor]]) -> Iterator[None]:
    """Record the input of every layer that multiplies by a weight matrix, in order."""

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
    """Layers that read the same tensor, in the order of their first ones; adapters' second matrices may lie between."""
    groups: list[list[tuple[str, nn.Module, Tensor]]] = []
    for entry in seen:
        for group in groups:
            if group[0][2].shape == entry[2].shape and torch.equal(group[0][2], entry[2]):
                group.append(entry)
                break
        else:
            groups.append([entry])
    return groups


def _sizes(layer: nn.Module) -> torch.Size:
    weight = layer.weight
    return weight.shape if isinstance(weight, Tensor) else torch.Size()


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)
