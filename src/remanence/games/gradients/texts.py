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

from remanence.attacks.gradients.text_models import TextModel
from remanence.attacks.gradients.token_spans import name_sequences
from remanence.games.gradients.recomputed_texts import Named, alike, lengthened, losses_of, recompute
from remanence.games.gradients.rounding import Rounding

_LONGER = 16  # tokens that are added to texts at most
_NEAR = 0.1  # what may be left of an update for that to be tried
_SHARE = 1e-3  # of the largest share: sequences with less are phantoms
_LARGE = 1e-3  # of the largest row of the output layer's gradient
_FAINT = 1e-5  # of the largest gradient: texts with less leave no trace
_LABELS = 4  # last tokens that are tried for each sequence
_LOOKED_AT = 2**18  # numbers of the update that shares are fitted to; all are recomputed afterwards
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

    @property
    def proven(self) -> int:
        """How many texts are proven."""
        return len(self.sequences) if self.explains_all else 0

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
) -> Texts:
    """Recompute an update from proposed sequences: last tokens, labels and shares are solved for."""
    if not found:
        return Texts((), (), tokens, 1.0, False)
    with torch.no_grad():
        answer = text.logits(found[0][None])
    best = Texts((), (), tokens, 1.0, False)
    for most in (1, _LABELS) if answer.ndim == 3 else (0,):
        if answer.ndim == 3:
            named: list[Named] = [(one, None) for one in _with_last_tokens(text, gradient, found, most)]
        else:
            named = [(sequence, label) for sequence in found for label in range(answer.shape[-1])]
        for shares in _ways_to_share(text, gradient, named, most):
            kept = [index for index, share in enumerate(shares.tolist()) if share > 0]
            tried = _explaining(text, gradient, [named[index] for index in kept], shares[kept], rounding)
            best = replace(tried, tokens=tokens) if tried.unexplained < best.unexplained else best
            if best.explains_all:
                return best
    return best


def _explaining(
    text: TextModel,
    gradient: Mapping[str, Tensor],
    named: Sequence[Named],
    shares: Tensor,
    rounding: Rounding,
) -> Texts:
    """What texts with these shares explain, each with the tokens after it that the model was sure of."""
    if not named:
        return Texts((), (), 0, 1.0, False)
    found = recompute(text, gradient, named, shares, rounding)
    for _ in range(_LONGER if found.held.left < _NEAR else 0):
        longer = lengthened(text, gradient, named, shares, found)
        if all(len(new[0]) == len(old[0]) for new, old in zip(longer, named, strict=True)):
            break
        named, found = longer, recompute(text, gradient, longer, shares, rounding, moves=found.moves)
    sure = [one for one, count in zip(named, found.counts, strict=True) if count > found.faint]
    sequences = tuple(tuple(sequence.tolist()) for sequence, _ in sure)
    labels = tuple(label for _, label in sure if label is not None)
    return Texts(sequences, labels, 0, found.held.left, found.held.is_all, len(sure) == len(named))


def _ways_to_share(
    text: TextModel, gradient: Mapping[str, Tensor], named: Sequence[Named], most: int
) -> Iterator[Tensor]:
    """All alike, as in a mean over tokens, where there is one proposal for each text; then as they fit best."""
    if most == 1:
        yield torch.ones(len(named), dtype=torch.float64)
    yield _shares(text, gradient, named)


def _loss_so_far(text: TextModel, ids: Tensor) -> Tensor:
    """Of texts of one length whose last labels are not known: what it would be but for those labels' logits."""
    answers = text.logits(ids)
    return answers.logsumexp(-1).sum() - answers[:, :-1].gather(2, ids[:, 1:, None]).sum()


def _with_last_tokens(
    text: TextModel, gradient: Mapping[str, Tensor], prefixes: Sequence[Tensor], most: int
) -> list[Tensor]:
    """Sequences with their last token, read off the rows of the output layer that the rest does not explain."""
    parameters = {name: p for name, p in text.model.named_parameters() if name in gradient}
    head = _output_weight(text, parameters)
    groups = alike([(prefix, None) for prefix in prefixes])
    losses = torch.stack(
        [_loss_so_far(text, torch.stack([prefixes[index] for index in some])) for some in groups]
    ).sum()
    used = {head: parameters[head]} if head is not None else parameters
    made = torch.autograd.grad(losses, list(used.values()), allow_unused=True)
    explained = {
        name: torch.zeros_like(value, dtype=torch.float64) if part is None else part.double()
        for (name, value), part in zip(used.items(), made, strict=True)
    }
    sent = {name: gradient[name].double() for name in used}
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
        torch.cat([prefix, token[None].to(prefix)])
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


def _shares(text: TextModel, gradient: Mapping[str, Tensor], named: Sequence[Named]) -> Tensor:
    """Least squares over the layers whose spans were used, one unknown for each text; none below zero."""
    names = [*text.first.weights(gradient), *text.second.weights(gradient)]
    parameters = dict(text.model.named_parameters())
    sizes = [parameters[name].numel() for name in names]
    generator = torch.Generator().manual_seed(0)
    looked = [
        torch.randperm(size, generator=generator)[: _LOOKED_AT // len(names)].to(text.device)
        for size in sizes
    ]
    rows = []
    for sequence, label in named:
        loss = losses_of(text, sequence[None], [label]).sum()
        parts = torch.autograd.grad(loss, [parameters[name] for name in names])
        rows.append(torch.cat([part.flatten()[at] for part, at in zip(parts, looked, strict=True)]).double())
    stacked = torch.stack(rows)
    wanted = torch.cat(
        [gradient[name].flatten()[at] for name, at in zip(names, looked, strict=True)]
    ).double()
    sizes = stacked.norm(dim=1)
    kept = (sizes > _FAINT * sizes.max()).nonzero().flatten().tolist()  # a column of zeros takes any share
    shares = stacked.new_zeros(len(named))
    while kept:  # those that would count less than nothing are phantoms
        own = stacked[kept]
        solved = torch.linalg.lstsq(own.mT, wanted[:, None]).solution.squeeze(1)
        largest = float(solved.max())
        worst = int(solved.argmin())
        if solved[worst] > _SHARE * largest:
            shares[kept] = solved
            break
        kept.pop(worst)
    return shares
