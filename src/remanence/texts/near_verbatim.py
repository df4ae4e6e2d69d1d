"""How likely a model is to emit a secret up to a few token edits: a proven bracket.

A continuation counts if, at some point, what was emitted is within `edits` insertions, deletions and substitutions of
the secret's tokens. There are too many such continuations to add up, and each has its own history. So the decoding
tree is searched, likeliest branch first. A row of Levenshtein's table goes along with every branch: the distance to
each beginning of the secret. A branch whose row shows success is counted with its whole mass, one that can no longer
succeed is dropped. Branches never overlap, so that

    mass counted ≤ P(near-verbatim) ≤ mass counted + mass not yet searched,

and both ends are proven at whatever point the search stops.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import final

import torch

from remanence.core.checks import whole
from remanence.core.exceptions import InputError
from remanence.texts.branches import Branches
from remanence.texts.decoding import Decoding
from remanence.texts.language_model import LanguageModel, Secret

_TOGETHER = 32  # branches that are read in one pass
_CHILDREN = 256  # of one branch that are followed; the others stay unsearched
_NARROW = 1e-3  # relative width at which the search ends early


@final
@dataclass(frozen=True)
class Bracket:
    """A probability between two proven ends."""

    lower: float
    upper: float


@torch.no_grad()
def near_verbatim(
    model: LanguageModel,
    secret: Secret,
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    edits: int = 1,
    branches: int = 2000,
) -> Bracket:
    """The probability to emit the secret up to so many token edits, after reading at most so many branches."""
    whole("branches", branches)
    if not whole("edits", edits, least=0) < len(secret.tokens):
        raise InputError(
            "Everything would be near this secret.",
            needs=f"fewer edits than the secret has tokens ({len(secret.tokens)})",
            got=str(edits),
            hint="edits=1",
        )
    read = Branches(model, secret.prompt, decoding)
    counted, dropped = 0.0, 0.0
    waiting: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = [
        (-1.0, (), tuple(range(len(secret.tokens) + 1)))  # minus its mass, what was emitted, the row
    ]
    while waiting and branches > 0:
        unsearched = dropped + math.fsum(-branch[0] for branch in waiting)
        if unsearched <= _NARROW * counted:
            break
        taken = [heapq.heappop(waiting) for _ in range(min(_TOGETHER, len(waiting), branches))]
        branches -= len(taken)
        laws = read.log_laws([emitted for _, emitted, _ in taken]).exp()
        for (mass, emitted, row), law in zip(taken, laws, strict=True):
            special = sorted({t for t, best in zip(secret.tokens, row, strict=False) if best <= edits})
            groups: list[tuple[tuple[int, ...], list[int] | None]] = [
                (_advance(row, secret.tokens, token), [token]) for token in special
            ]
            rest = law.clone()
            rest[special] = 0.0
            groups.append((_advance(row, secret.tokens, -1), None))
            for after, tokens in groups:
                masses = rest if tokens is None else law[tokens]
                total = -mass * float(masses.sum())
                if after[-1] <= edits:
                    counted += total
                elif min(after) > edits:
                    continue
                elif len(emitted) + 1 >= read.room:
                    dropped += total
                else:
                    best = masses.topk(min(_CHILDREN, len(masses)))
                    followed = 0.0
                    for share, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                        if share > 0:
                            token = place if tokens is None else tokens[place]
                            heapq.heappush(waiting, (mass * share, (*emitted, token), after))
                            followed -= mass * share
                    dropped += max(0.0, total - followed)
    unsearched = dropped + math.fsum(-branch[0] for branch in waiting)
    return Bracket(min(counted, 1.0), min(counted + unsearched, 1.0))


def _advance(row: tuple[int, ...], secret: tuple[int, ...], token: int) -> tuple[int, ...]:
    """The row after one more token was emitted.

    >>> _advance((0, 1, 2), (7, 8), 7), _advance((1, 0, 1), (7, 8), 8)
    ((1, 0, 1), (2, 1, 0))
    """
    after = [row[0] + 1]
    for place, own in enumerate(secret):
        after.append(min(row[place + 1] + 1, after[place] + 1, row[place] + (own != token)))
    return tuple(after)
