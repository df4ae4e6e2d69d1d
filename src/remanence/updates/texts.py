"""Texts behind an update of a transformer: what the attack names, and what recomputing the update makes of it.

The attack grows sequences within the spans of the first two layers. Here the last token of each, which is a label
only, is solved for; the share of every sequence is fitted, so that phantoms get none; and the whole update is
computed anew from what remains. Texts are proven if nothing but rounding is left of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.updates.local_training import LocalTraining
from remanence.updates.recomputed_texts import lengthened, recompute
from remanence.updates.rounding import Rounding
from remanence.updates.text_models import TextModel
from remanence.updates.text_shares import (
    OPEN,
    Counted,
    Named,
    alike,
    count_once,
    fit_begun,
    fit_shares,
    losses_of,
)
from remanence.updates.token_spans import name_sequences

_LONGER = 16  # tokens that are added to texts at most
_NEAR = 0.1  # what may be left of an update for that to be tried
_LARGE = 1e-3  # of the largest row of the output layer's gradient
_COUNTS = 0.3  # of the largest share: places with less do not count, where shares are off by what steps moved
_LABELS = 4  # last tokens that are tried for each sequence
_STEP = 1e-3  # of the weights' size, by which they are moved to see what moves with them


@final
@dataclass(frozen=True)
class Texts:
    """What was found in one update."""

    sequences: tuple[tuple[int, ...], ...]  # of token ids; proven only if `explains_all`
    labels: tuple[int, ...]  # of a classifier; empty for a language model
    tokens: int  # distinct tokens that fit the first layer's span, or whose embedding moved
    unexplained: float  # the share of the update that the sequences leave, by norm, in the worst tensor
    explains_all: bool
    is_complete: bool = True  # none was left out because it hardly counts
    similarity: float = 0.0  # the cosine between the update and what the sequences make
    sign: int = 1  # −1 where the update goes against the gradient

    @property
    def proven(self) -> int:
        """How many texts are proven."""
        return len(self.sequences) if self.explains_all else 0

    @property
    def count(self) -> int:
        """How many are proven."""
        return self.proven

    @property
    def batch_size(self) -> int | None:
        """How many there were, where it is proven."""
        return self.number or None

    def numbers(self) -> dict[str, float]:
        """What is stored about one update."""
        return {
            "unexplained": self.unexplained,
            "named": float(self.named),
            "similarity": self.similarity,
            "is_ordered": float(self.is_ordered),
            "sign": float(self.sign),
        }

    @property
    def named(self) -> int:
        """How many texts are named, proven or not."""
        return len(self.sequences)

    @property
    def is_ordered(self) -> bool:
        """Tokens are named in their order."""
        return True

    @property
    def number(self) -> int:
        """How many there were, where it is proven."""
        return self.proven if self.is_complete else 0


def read_texts(
    text: TextModel, gradient: Mapping[str, Tensor], *, precision: float, longest: int = 64
) -> Texts:
    """Everything that one update gives away about its texts."""
    found, tokens = name_sequences(text, gradient, precision=precision, longest=longest)
    return verify_texts(text, gradient, found, rounding=Rounding(precision), tokens=tokens)


def verify_texts(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    found: Sequence[Tensor],
    *,
    rounding: Rounding,
    tokens: int = 0,
    training: LocalTraining | None = None,
) -> Texts:
    """Recompute an update from proposed sequences: last tokens, labels and shares are solved for."""
    training = training or LocalTraining()
    best = Texts((), (), tokens, 1.0, False)
    proposals = _proposals if training.is_plain else _proposals_of_steps
    for named, counted, is_certain in proposals(text, gradient, found):
        tried = _explaining(text, gradient, named, counted, rounding, training=training)
        if tried.unexplained < best.unexplained:
            best = replace(tried, tokens=tokens, is_complete=tried.is_complete and is_certain)
        if best.explains_all:
            break
    return best


def _proposals(
    text: TextModel, gradient: Mapping[str, Tensor], found: Sequence[Tensor]
) -> Iterator[tuple[list[Named], Counted, bool]]:
    """Whole texts, how much each place counts, and whether their number would be certain: all alike, then fitted."""
    if not found:
        return
    with torch.no_grad():
        answer = text.logits(found[0][None])
    if answer.ndim == 2:
        labelled = [(sequence, label) for sequence in found for label in range(answer.shape[-1])]
        yield count_once(labelled, *fit_shares(text, gradient, labelled))
        return
    begun: list[Named] = [(torch.cat([one, one.new_tensor([OPEN])]), None) for one in found]
    named = _with_last_tokens(text, gradient, begun, Counted.alike(begun), 1)
    yield named, Counted.alike(named), True
    named = _with_last_tokens(text, gradient, begun, fit_begun(text, gradient, begun), _LABELS)
    yield count_once(named, *fit_shares(text, gradient, named))


def _proposals_of_steps(
    text: TextModel, gradient: Mapping[str, Tensor], found: Sequence[Tensor]
) -> Iterator[tuple[list[Named], Counted, bool]]:
    """The same for several steps, which depend on how much each place counts: the means that people take.

    What the first step would need decides which places count, and which label a text has.
    """
    fitted = list(_proposals(text, gradient, found))
    for named, counted, _ in [fitted[0], fitted[-1]] if fitted else []:
        largest = max((float(shares.max()) for shares in counted.shares), default=0.0)
        marks = [(shares > _COUNTS * largest).double() for shares in counted.shares]
        kept = [index for index, mark in enumerate(marks) if mark.any()]
        if kept:
            texts, counting = [named[index] for index in kept], [marks[index] for index in kept]
            total = sum(float(mark.sum()) for mark in counting)
            yield texts, Counted(tuple(mark / total for mark in counting)), True
            if len({float(mark.sum()) for mark in counting}) > 1:
                yield texts, Counted(tuple(mark / mark.sum() / len(kept) for mark in counting)), True


def _explaining(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    counted: Counted,
    rounding: Rounding,
    *,
    training: LocalTraining,
) -> Texts:
    """What texts that count so much explain, each with the tokens after it that the model was sure of."""
    if not named:
        return Texts((), (), 0, 1.0, False)
    found = recompute(text, gradient, named, counted, rounding, training=training)
    for _ in range(_LONGER if found.held.left < _NEAR and training.is_plain else 0):
        longer, more = lengthened(text, gradient, named, counted, found)
        if all(len(new[0]) == len(old[0]) for new, old in zip(longer, named, strict=True)):
            break
        named, counted = longer, more
        found = recompute(text, gradient, longer, more, rounding, training=training, moves=found.moves)
    counting = sorted(zip(found.counts, named, strict=True), key=lambda one: one[0])
    sure = {  # a text counts once, with the label that counts most
        tuple(sequence.tolist()): label for count, (sequence, label) in counting if count > found.faint
    }
    labels = tuple(label for label in sure.values() if label is not None)
    complete, held = len(sure) == len(named), found.held
    return Texts(tuple(sure), labels, 0, held.left, held.is_all, complete, held.similarity)


def _with_last_tokens(
    text: TextModel, gradient: Mapping[str, Tensor], begun: Sequence[Named], counted: Counted, most: int
) -> list[Named]:
    """Texts with their last token, read off the rows of the output layer that the rest does not explain."""
    parameters = {name: p for name, p in text.model.named_parameters() if name in gradient}
    head = _output_weight(text, parameters)
    loss = torch.zeros((), device=text.device)
    for some in alike(begun):
        losses = losses_of(text, torch.stack([begun[index][0] for index in some]), [None])
        loss = loss + (torch.stack([counted.shares[index] for index in some]).to(losses) * losses).sum()
    used = {head: parameters[head]} if head is not None else parameters
    made = torch.autograd.grad(loss, list(used.values()), allow_unused=True)
    explained = {
        name: torch.zeros_like(value, dtype=torch.float64) if part is None else part.double()
        for (name, value), part in zip(used.items(), made, strict=True)
    }
    sent = {name: gradient[name].double() for name in used}
    prefixes = [sequence[:-1] for sequence, _ in begun]
    if head is None:
        share = _inner(sent, explained) / max(_inner(explained, explained), 1e-300)
        plain = 1 / sum(len(prefix) for prefix in prefixes)  # in a mean over all places of the batch
        share = plain if 0.5 < share / plain < 2 else share
        rest = {name: sent[name] / share - explained[name] for name in used}
        pulls = [_pull(text, rest, prefix) for prefix in prefixes]
    else:
        # Most tokens are nobody's last: their rows are explained but for the share of a token, whatever the scale.
        rows, own = sent[head], explained[head]
        sizes = own.norm(dim=1)
        large = sizes > _LARGE * sizes.max()  # rows that are nearly zero say little about the scale
        share = ((rows * own).sum(1) / sizes.square())[large].median()
        # What is left is −Σ over texts of (row of the last token) × (what the output layer reads there): solve for all.
        hidden = torch.stack(_last_hidden(text, head, prefixes), 1)
        pulls = ((own - rows / share) @ torch.linalg.pinv(hidden, rtol=1e-5).mT).unbind(1)
    return [
        (torch.cat([prefix, token[None].to(prefix)]), None)
        for prefix, pull in zip(prefixes, pulls, strict=True)
        for token in pull.topk(min(most, len(pull))).indices
    ]


def _inner(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return sum(float((first[name] * second[name]).sum()) for name in first)


def _pull(text: TextModel, rest: Mapping[str, Tensor], prefix: Tensor) -> Tensor:
    """How much each token's logit at the last place moves with what is left of the update: most for the label.

    Adapters have no row for each token. What is left is minus the derivative of the labels' logits, so a small step
    against it lifts those most.
    """
    parameters = dict(text.model.named_parameters())
    size = max(_inner(rest, rest) ** 0.5, 1e-300)
    reach = (
        _STEP * max(1.0, sum(float(parameters[name].detach().square().sum()) for name in rest) ** 0.5) / size
    )
    lifted = []
    for side in (1, -1):
        moved = {
            name: parameters[name].detach() - (side * reach * value).to(parameters[name])
            for name, value in rest.items()
        }
        with torch.no_grad():
            lifted.append(text.logits(prefix[None], moved)[0, -1].double())
    return lifted[0] - lifted[1]


def _output_weight(text: TextModel, parameters: Mapping[str, Tensor]) -> str | None:
    """The matrix that makes logits: one row per token, its own or the embedding's."""
    rows = [name for name, value in parameters.items() if value.ndim == 2 and len(value) == text.vocabulary]
    return rows[-1] if rows else None


def _last_hidden(text: TextModel, head: str, prefixes: Sequence[Tensor]) -> list[Tensor]:
    """What is multiplied by the output matrix at the last place of each, by least squares from the logits.

    Where a bias or a cap on the logits is in the way, the derivative of a logit tells.
    """
    weight = text.model.get_parameter(head)
    matrix = weight.detach().double()
    square = torch.linalg.cholesky_ex(matrix.mT @ matrix).L
    found = []
    for prefix in prefixes:
        with torch.no_grad():
            logits = text.logits(prefix[None])[0, -1].double()
        hidden = torch.cholesky_solve((matrix.mT @ logits)[:, None], square).squeeze(1)
        if (matrix @ hidden - logits).norm() > 1e-3 * logits.norm():
            absent = int(torch.ones(len(logits), device=text.device).index_fill(0, prefix, 0).argmax())
            answer = text.logits(prefix[None])[0, -1, absent]  # of a row that no input embedding touches
            hidden = torch.autograd.grad(answer, weight)[0][absent].double()
        found.append(hidden)
    return found
