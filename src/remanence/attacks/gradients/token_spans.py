"""Texts from the gradient of a transformer: tokens from the span of its first layer, sequences from its second.

The gradient of a linear layer is Σ_t δ_t x_tᵀ over all tokens t of the batch: its rows lie in the span of what
entered the layer. What enters the first attention layer at a place depends on the token there (and its position)
alone, so every token of the vocabulary can be tested. What enters the second depends on the tokens before it, so
that a causal sequence can be grown token by token, keeping those that stay in the span (Petrov et al. 2024, DAGER).
Queries alone miss the first token of every sequence, which attends to nothing but itself; keys and values do not.
The last token gets no gradient in the attention: it is a label only, and `games.gradients.texts` solves for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.attacks.gradients.text_models import TextModel, text_model
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import InputError
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.references import PETROV_2024

_GAP = 30.0  # by how much the distances of tokens inside and outside of the span must differ at least
_AT_ONCE = 2**16  # tokens of one chunk


@final
@dataclass(frozen=True)
class TokenSpans(Attack[Gradient]):
    """Test every token of the vocabulary against the span of the first attention layer, and grow sequences in the
    second.

    At most `slots` sequences of at most `longest` tokens are returned, as ids; −1 fills the rest. The last token of a
    language model's texts is missing: it has no gradient there.
    """

    slots: int = 64
    longest: int = 64
    info: ClassVar[AttackInfo] = AttackInfo(
        "token-spans",
        "Tests every token against the span of the first attention layer's gradient, and grows texts in the second's.",
        "the gradient of one step on a transformer that reads token ids, with fewer tokens than dimensions",
        "one gradient",
        PETROV_2024,
    )

    def check(self, knowledge: Knowledge) -> None:
        """A transformer that reads token ids, and the gradient of one step."""
        mechanism = knowledge.mechanism
        reason = f"{mechanism.name} releasing {mechanism.releases.sees}"
        if isinstance(mechanism, SharedGradient):
            try:
                text_model(mechanism.module)
            except InputError as error:
                reason = error.got
            else:
                if mechanism.local_steps == 1:
                    return
                reason = "several local steps"
        raise self.refusal(
            got=reason,
            hint="exclusive-neurons or inverting-gradients, for networks that read numbers",
        )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """The model's first layers are looked for once."""
        self.check(knowledge)
        mechanism = knowledge.mechanism
        assert isinstance(mechanism, SharedGradient)
        text, precision = text_model(mechanism.module), mechanism.precision

        def attack(release: Gradient) -> Reconstruction:
            ids = torch.full((len(release), self.slots, self.longest), -1)
            tokens = torch.zeros(len(release), dtype=torch.int64)
            for trial in range(len(release)):
                gradient = {name: values[trial] for name, values in release.tensors.items()}
                found, tokens[trial] = name_sequences(
                    text, gradient, precision=precision, longest=self.longest
                )
                for slot, sequence in enumerate(found[: self.slots]):
                    ids[trial, slot, : len(sequence)] = sequence
            unnamed = torch.full(ids.shape[:2], torch.nan, dtype=torch.float64)
            return Reconstruction(Records(ids, unnamed), diagnostics={"tokens_in_batch": tokens})

        return attack


def name_sequences(
    text: TextModel, gradient: Mapping[str, Tensor], *, precision: float, longest: int
) -> tuple[list[Tensor], int]:
    """Sequences that stay within both spans, and how many distinct tokens are in the first."""
    candidates = tokens_in_batch(text, gradient, precision=precision, length=longest)
    find = grow_sequences if text.is_causal else settle_sequences
    return find(text, gradient, candidates, precision=precision), len(torch.cat(candidates).unique())


def tokens_in_batch(
    text: TextModel, gradient: Mapping[str, Tensor], *, precision: float, length: int
) -> list[Tensor]:
    """The tokens that are in the span at each position; the same for all where positions do not matter there."""
    span = text.span(text.first, gradient, precision)
    if not span.has_room:
        return [torch.zeros(0, dtype=torch.int64, device=text.device)] * length
    places = range(length) if text.has_positions else range(1)
    found = []
    for place in places:
        apart = torch.cat([span.distances(x) for x in _vocabulary(text, place)])
        found.append((apart < _threshold(apart, precision)).nonzero().squeeze(1))
    return found if text.has_positions else found * length


def _vocabulary(text: TextModel, place: int) -> Iterator[Tensor]:
    """What enters the first layer for every token at a place, in chunks."""
    ids = torch.arange(text.vocabulary, device=text.device)
    if not text.has_positions:  # many tokens in one sequence: each enters as if it were alone
        for chunk in ids.split(8192):
            pieces = [text.entering(text.first, piece[None])[0] for piece in chunk.split(256)]
            yield torch.cat(pieces)
        return
    for chunk in ids.split(max(1, 8192 // (place + 1))):
        sequence = torch.zeros(len(chunk), place + 1, dtype=torch.int64, device=text.device)
        sequence[:, place] = chunk
        yield text.entering(text.first, sequence)[:, place]


def _threshold(apart: Tensor, precision: float) -> float:
    """Between the distances of what is inside and what is outside: at the widest gap below a tenth, on a log scale."""
    floor = 8 * precision
    low = apart.clamp(min=floor).sort().values
    low = torch.cat([low.new_tensor([floor]), low[low < 0.3], low.new_tensor([0.3])])
    ratios = low[1:] / low[:-1]
    best = int(ratios.argmax())
    return float((low[best] * low[best + 1]).sqrt()) if ratios[best] > _GAP else floor


def grow_sequences(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    candidates: Sequence[Tensor],
    *,
    precision: float,
    most: int = 4096,
) -> list[Tensor]:
    """Sequences all of whose places stay in the span of the second layer, as long as they can be grown.

    Causal models only: what enters at a place then depends on the tokens up to it. Sequences that could be grown
    no further are returned; the last token of each, which has no gradient there, is missing.
    """
    span = text.span(text.second, gradient, precision)
    if not span.has_room:
        return []
    alive: list[Tensor] = [torch.zeros(0, dtype=torch.int64, device=text.device)]
    finished: list[Tensor] = []
    for tokens in candidates:
        grown: list[Tensor] = []
        if not len(tokens):
            break
        for start in range(0, len(alive), 64):
            some = torch.stack(alive[start : start + 64])
            at_once = max(1, _AT_ONCE // (len(tokens) * (some.shape[1] + 1)))
            apart = torch.cat(
                [
                    span.distances(text.entering_last(text.second, chunk, tokens))
                    for chunk in some.split(at_once)
                ]
            )
            inside = (apart < _threshold(apart, precision)).view(len(some), len(tokens))
            for index, prefix in enumerate(some):
                longer = tokens[inside[index]]
                if not len(longer) and len(prefix):
                    finished.append(prefix)
                grown += [torch.cat([prefix, token[None]]) for token in longer]
        alive = grown[:most]
        if not alive:
            break
    return finished + [sequence for sequence in alive if len(sequence)]


def settle_sequences(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    candidates: Sequence[Tensor],
    *,
    precision: float,
    starts: int = 32,
) -> list[Tensor]:
    """Sequences of an encoder, in which every place depends on every token: each place in turn takes the best token.

    From `starts` random choices among the candidates of each place; those that end within the span of the second
    layer are returned. With one text in the batch there is nothing to choose.
    """
    span = text.span(text.second, gradient, precision)
    places = [tokens for tokens in candidates if len(tokens)]
    if not places or not span.has_room:
        return []
    generator = torch.Generator().manual_seed(0)
    found: dict[tuple[int, ...], float] = {}
    for _ in range(1 if all(len(tokens) == 1 for tokens in places) else starts):
        now = torch.stack([tokens[torch.randint(len(tokens), (), generator=generator)] for tokens in places])
        best = torch.inf
        for _ in range(8):
            before = now.clone()
            for place, tokens in enumerate(places):
                tried = now.repeat(len(tokens), 1)
                tried[:, place] = tokens
                apart = span.distances(text.entering(text.second, tried)).amax(1)
                choice = int(apart.argmin())
                now, best = tried[choice], float(apart[choice])
            if torch.equal(before, now):
                break
        found[tuple(now.tolist())] = best
    limit = _threshold(torch.tensor(list(found.values()), dtype=torch.float64), precision)
    return [torch.tensor(sequence) for sequence, apart in found.items() if apart < limit]
