"""Transformers that read token ids, found by structure: where their first two attention layers are.

Layers are found by watching the model at work: the linear layers that read the same tensor first are the first
attention layer's projections, and those whose names differ from theirs in numbers alone come next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.core.checks import brief
from remanence.core.exceptions import InputError
from remanence.updates.span import RECOMPUTED, Decomposed, Span
from remanence.updates.watching import Seen, watching

_MOST_TOKENS = 4096
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
    between: Projections | None = None  # what reads the first attention's output, before the second
    classes: int | None = None  # that a classifier distinguishes; None for a language model
    is_tied: bool = False  # the embedding also makes the logits: rows of absent tokens have a gradient
    embedding: str = ""  # the layer that has one row for each token
    last: str = ""  # the last layer before the one that makes logits
    longest: int = 0  # the most tokens that it reads at once, as far as that was tried
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

    def span(self, which: Projections, gradient: Mapping[str, Tensor], precision: float) -> Span:
        """The span of a layer's inputs, from its gradients; each layer of an update is decomposed once."""
        read = tuple(gradient[name] for name in which.weights(gradient))
        known = self.taken_apart.setdefault((which.names, self.is_difference), [])
        found = next((parts for tensors, parts in known if _same(tensors, read)), None)
        if found is None:
            found = which.decomposed(self.model, gradient, even=self.is_difference)
            known[:] = [*known[-1:], (read, found)]  # an update and its control
        recomputed = RECOMPUTED * torch.finfo(next(self.model.parameters()).dtype).eps
        # Queries miss the first token of every text: of the adapters that are read clearly, the fullest has all.
        spans = (
            max(
                (one.at(times * precision, recomputed) for one in found),
                key=lambda span: span.clarity,
                default=Span.nothing(),
            )
            for times in (1.0, *_COARSER)
        )
        first = next(spans)
        # Sums that cancelled were rounded before: a steep drop further up tells the rank all the same. In an encoder
        # a rank that is too large lets every choice of tokens pass.
        settled = not first.outputs or (
            first.tells and (first.clarity[0] or (self.is_causal and first.drops))
        )
        steep = (span for span in spans if span.tells and span.clarity[0])
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
    tables = {
        name: layer.num_embeddings for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)
    }
    if not tables:
        raise _no_text_model("a model without an nn.Embedding")
    embedding = max(tables, key=lambda name: tables[name])
    vocabulary = tables[embedding]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(vocabulary, 1000), (2, 6), generator=generator).to(
        next(model.parameters()).device
    )
    matrices = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"
    }
    seen: list[Seen] = []
    try:
        with watching(matrices, seen), torch.no_grad():
            model(ids)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise _no_text_model(f"a model that cannot read ids alone: {brief(error)}") from None
    layers = [group for group in _groups(seen) if group[0][1].shape[:-1] == ids.shape]
    if not layers:
        raise _no_text_model("no linear layer that reads one vector per token")
    first = layers[0]
    second = next((group for group in layers[1:] if _patterns(group) == _patterns(first)), None)
    if second is None:
        raise _no_text_model("no second layer like the first")

    def projections(group: Sequence[Seen]) -> Projections:
        """The layers of a group, and those that read the output of one of them, as an adapter's second matrix does."""
        names = tuple(name for name, _, _ in group)
        behind = tuple(
            (name, other)
            for name, _, made in group
            for other, read, _ in seen
            if other != name and read.shape == made.shape and torch.equal(read, made)
        )
        return Projections(
            names, frozenset(n for n in names if not isinstance(matrices[n], nn.Linear)), behind
        )

    one, two = projections(first), projections(second)
    behind = {name for _, name in one.behind}
    between = [group for group in layers[1 : layers.index(second)] if group[0][0] not in behind]
    inner = [name for name, _, made in seen if made.shape[:-1] == ids.shape and made.shape[-1] != vocabulary]
    found = TextModel(
        model, vocabulary, one, two, is_causal=True, has_positions=True,
        between=projections(between[0]) if between else None, embedding=embedding, last=inner[-1],
    )  # fmt: skip
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % vocabulary
    is_causal = torch.equal(found.entering(two, ids)[:, 0], found.entering(two, changed)[:, 0])
    same = ids[:1, :1].repeat(1, 2)
    entered = found.entering(one, same)[0]
    has_positions = not torch.allclose(entered[0], entered[1], rtol=1e-6, atol=1e-9)
    found = replace(found, is_causal=is_causal, has_positions=has_positions)
    said = found.logits(found.ids[None, :2])
    rows = model.get_parameter(f"{embedding}.weight")
    slopes = torch.autograd.grad(said.sum(), rows)[0] if rows.requires_grad else torch.zeros(0)
    return replace(
        found,
        longest=_longest(found),
        remembers=is_causal and _remembers(found, ids),
        classes=said.shape[-1] if said.ndim == 2 else None,
        is_tied=bool(slopes[2:].any()),
    )


def _longest(text: TextModel) -> int:
    """The most tokens that a model reads, by bisection: many have a table of positions. Above 4,096 is not tried.

    On a graphics card a position that is not in the table ends the process, so the model's configuration is believed.
    """
    if text.device.type != "cpu":
        return getattr(getattr(text.model, "config", None), "max_position_embeddings", _MOST_TOKENS)
    reads, fails, tried = 6, _MOST_TOKENS + 1, _MOST_TOKENS
    while fails - reads > 1:
        try:
            text.entering(text.first, text.ids[:1].expand(1, tried))
            reads = tried
        except (AssertionError, IndexError, RuntimeError, ValueError):
            fails = tried
        tried = (reads + fails) // 2
    return reads


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


def _groups(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Layers that read the same tensor, in the order of their first ones; adapters' second matrices may lie between."""
    groups: list[list[Seen]] = []
    for entry in seen:
        for group in groups:
            if group[0][1].shape == entry[1].shape and torch.equal(group[0][1], entry[1]):
                group.append(entry)
                break
        else:
            groups.append([entry])
    return groups


def _patterns(group: Sequence[Seen]) -> list[str]:
    """The names of layers without their numbers."""
    return [re.sub(r"\d+", "#", name) for name, _, _ in group]
