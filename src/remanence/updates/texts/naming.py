"""Texts from the gradient of a transformer: tokens from the span of its first layer, sequences from its second.

The rows of a linear layer's gradient Σ_t δ_t x_tᵀ lie in the span of its inputs. The first attention layer's
input depends only on the token (and its position), so every token of the vocabulary can be tested. The second's depends
on the tokens before it too, so that causal sequences are grown token by token (Petrov et al. 2024, DAGER). Queries
alone miss the first token of every sequence, which attends to nothing but itself; keys and values do not. The last
token is a label only, and `reader.py` solves for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from remanence.updates.span import Span
from remanence.updates.texts.model import Projections, TextModel

_AT_ONCE = 2**13  # tokens that are tried at once
_IN_A_ROW = 256  # tokens that are tried as one sequence where each enters as if it were alone
_MOST = 0.5  # of an embedding's rows
_ROUNDINGS = 16  # times what rounding leaves of most rows that a decay alone has moved
_ALL = 2**14  # ways to choose a token for each place of an encoder's text: more are not tried
_CROWDED = 4  # times as many sequences as dimensions: the spans cannot distinguish them


def name_sequences(
    text: TextModel, gradient: Mapping[str, Tensor], *, precision: float, longest: int
) -> tuple[list[Tensor], int]:
    """Sequences that stay within both spans, and how many distinct tokens fit the first or have a row that moved."""
    candidates = tokens_in_batch(text, gradient, precision=precision, length=min(longest, text.longest))
    find = grow_sequences if text.is_causal else settle_sequences
    moved = rows_that_moved(text, gradient)
    tokens = torch.cat(candidates).unique() if moved is None else moved
    return find(text, gradient, candidates, precision=precision), len(tokens)


def tokens_in_batch(
    text: TextModel, gradient: Mapping[str, Tensor], *, precision: float, length: int
) -> list[Tensor]:
    """The tokens in the batch at each position; the same for all positions if these do not matter there.

    An untied embedding reveals them by its nonzero rows, at any precision and after any number of steps. Otherwise
    the span of the first layer does, with their positions.
    """
    span = text.span(text.first, gradient, precision)
    moved = rows_that_moved(text, gradient)
    if not span.tells:
        return [torch.zeros_like(text.ids[:0]) if moved is None else moved] * length
    tested = text.ids if moved is None else moved
    places = range(length) if text.has_positions else range(1)
    found = []
    for place in places:
        inside = torch.cat([span.holds(entered) for entered in _entering_first(text, tested, place)])
        found.append(tested[inside])
    if len(torch.cat(found)) > _CROWDED * span.rank:  # more than the span can distinguish
        found = [torch.zeros_like(tested[:0]) if moved is None else moved] * len(found)
    return found if text.has_positions else found * length


def rows_that_moved(text: TextModel, gradient: Mapping[str, Tensor]) -> Tensor | None:
    """Tokens whose embedding has a gradient; None if most have one, or if the matrix also makes the logits.

    Rows of other tokens move in such a tied matrix. In others they move by weight decay alone, whatever the optimiser
    and the number of steps: by a common multiple of the weights.
    """
    rows = gradient.get(f"{text.embedding}.weight")
    if rows is None or not rows.any() or text.is_tied:
        return None
    moved = rows.any(1)
    if moved.double().mean() > _MOST:
        weights, rows = text.model.get_parameter(f"{text.embedding}.weight").detach().double(), rows.double()
        decay = ((rows * weights).sum(1) / weights.square().sum(1).clamp(min=1e-300)).median()
        left = (rows - decay * weights).abs().amax(1) / weights.abs().amax(1).clamp(min=1e-300)
        moved = left > _ROUNDINGS * left.median()  # rounding left as much of all the others
    return None if moved.double().mean() > _MOST else moved.nonzero().squeeze(1).to(text.device)


def _entering_first(text: TextModel, tokens: Tensor, place: int) -> Iterator[Tensor]:
    """The first layer's inputs for tokens at a position, in chunks."""
    if not text.has_positions:  # many tokens in one sequence: each enters as if it were alone
        for chunk in tokens.split(_AT_ONCE):
            width = min(len(chunk), _IN_A_ROW)
            rows = pad(chunk, (0, -len(chunk) % width)).view(-1, width)
            yield text.entering(text.first, rows).flatten(0, 1)[: len(chunk)]
        return
    for chunk in tokens.split(max(1, _AT_ONCE // (place + 1))):
        sequence = chunk[:, None].expand(-1, place + 1)  # no padding: some models do not count its positions
        yield text.entering(text.first, sequence)[:, place]


def grow_sequences(
    text: TextModel, gradient: Mapping[str, Tensor], candidates: Sequence[Tensor], *, precision: float
) -> list[Tensor]:
    """Sequences whose positions all stay in the spans of the later layers, grown as long as possible.

    Causal models only. Sequences that cannot be grown further are returned, without their last token. If many more
    positions fit than a span has dimensions, it does not distinguish them, and none is returned.
    """
    read = [text.second] if text.between is None else [text.between, text.second]
    layers = [(which, text.span(which, gradient, precision)) for which in read]
    if not layers[-1][1].tells:
        return []
    layers = [(which, span) for which, span in layers if span.tells]
    alive = torch.zeros(1, 0, dtype=torch.int64, device=text.device)
    finished: list[Tensor] = []
    for tokens in candidates:
        grown: list[Tensor] = []
        for some in alive.split(max(1, _AT_ONCE // max(1, len(tokens)))):
            longer = _continued(text, layers, some, tokens)
            ended = ~(some[:, None] == longer[None, :, :-1]).all(-1).any(1)
            finished += [sequence for sequence in some[ended] if len(sequence)]
            grown.append(longer)
        alive = torch.cat(grown)
        if len(alive) + len(finished) > _CROWDED * layers[-1][1].rank:
            return []
        if not len(alive):
            break
    return _without_echoes(text, finished + list(alive))


def _without_echoes(text: TextModel, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Drop repetitions: without positions, a repeated token attends only to itself, and its input is unchanged.

    So every first token seems to repeat without end; only a different continuation adds information.
    """
    if text.has_positions:
        return list(sequences)
    plain = [sequence for sequence in sequences if len(sequence) == 1 or len(sequence.unique()) > 1]
    begun = {int(sequence[0]) for sequence in plain}
    echoes = {int(sequence[0]): sequence[:1] for sequence in sequences}
    return plain + [first for token, first in echoes.items() if token not in begun]


def _continued(
    text: TextModel, layers: Sequence[tuple[Projections, Span]], prefixes: Tensor, tokens: Tensor
) -> Tensor:
    """Every prefix with every token after which it stays in all spans; the first span decides about most."""
    count, length = prefixes.shape
    if not len(tokens):
        return prefixes.new_zeros(0, length + 1)
    first, span = layers[0]
    inside = span.holds(text.entering_last(first, prefixes, tokens)).view(count, len(tokens))
    which, token = inside.nonzero(as_tuple=True)
    longer = torch.cat([prefixes[which], tokens[token][:, None]], 1)
    for later, span in layers[1:]:
        if len(longer):
            kept = [
                span.holds(text.entering(later, some)[:, -1])
                for some in longer.split(max(1, _AT_ONCE // (length + 1)))
            ]
            longer = longer[torch.cat(kept)]
    return longer


def settle_sequences(
    text: TextModel, gradient: Mapping[str, Tensor], candidates: Sequence[Tensor], *, precision: float
) -> list[Tensor]:
    """Sequences of an encoder, in which every place depends on every token: all choices of a token for each place.

    Those within the span of the second layer are returned; none where the choices are too many to try.
    """
    span = text.span(text.second, gradient, precision)
    places = [tokens for tokens in candidates if len(tokens)]
    if not places or not span.tells or math.prod(len(tokens) for tokens in places) > _ALL:
        return []
    every = torch.cartesian_prod(*places).view(-1, len(places))
    inside = [
        span.holds(text.entering(text.second, some)).all(1)
        for some in every.split(max(1, _AT_ONCE // len(places)))
    ]
    return list(every[torch.cat(inside)])
