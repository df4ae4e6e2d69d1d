"""A search for secrets by their form: how high does the true one rank among all completions of a template?

An adversary who knows how a record looks tries its likeliest completions in turn. The rank of the true one is how
many guesses it takes them. No completion is likelier than its beginning. So the likeliest beginning is always the
next to be read, a completion is the next guess once no beginning is likelier, and nothing less likely than the true
one need be read: the rank is exact. A text that several sequences of tokens spell is as likely as the likeliest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from remanence.core.checks import whole
from remanence.core.exceptions import InputError
from remanence.texts.branches import Branches
from remanence.texts.decoding import Decoding
from remanence.texts.language_model import LanguageModel, Secret
from remanence.texts.probabilities import log_probabilities
from remanence.texts.template import Spelling, State

_TOGETHER = 64  # beginnings that are read in one pass
_ROUNDING = 1e-6  # of a log-probability, that two ways of reading the same text differ by


@final
@dataclass(frozen=True)
class Rank:
    """How many completions are likelier than the true one, plus one: between two proven ends that are often equal."""

    at_least: int
    at_most: int
    log_candidates: float  # of all completions that the template allows

    @property
    def exposure(self) -> float:
        """log₂ of the candidates over the rank, in bits, from below (Carlini et al. 2019)."""
        return self.log_candidates / math.log(2) - math.log2(self.at_most)


@torch.no_grad()
def ranks(
    model: LanguageModel,
    prompt: Sequence[int],
    secrets: Sequence[Sequence[int]],
    spelling: Spelling,
    *,
    known: str = "",
    branches: int = 512,
) -> list[Rank]:
    """The ranks of secrets among the completions of a template, after reading at most so many beginnings.

    `known` is the part of the template that the prompt has spelled already.
    """
    whole("branches", branches)
    template = spelling.template
    start = template.after(template.start, known)
    texts = [spelling.spelled(secret) for secret in secrets]
    strange = [text for text in texts if not template.ends(template.after(start, text))]
    if strange:
        raise InputError(
            "The secret is not of this form.",
            needs=f"a completion of {template}",
            got=f"{len(strange)} of {len(texts)} that are none",
            hint="a form that has an open place for all that differs",
        )
    asked = [Secret(tuple(prompt), tuple(secret), 1) for secret in secrets]
    own: list[float] = log_probabilities(model, asked, [Decoding()])[0].tolist()
    found, frontier = _search(Branches(model, prompt, Decoding()), start, spelling, min(own), branches)
    every = torch.tensor(sorted(found.values(), reverse=True), dtype=torch.float64)
    return [
        _rank(
            every, max(score, found.get(text, -math.inf)), frontier, template.log_candidates, template.nested
        )
        for text, score in zip(texts, own, strict=True)
    ]


def _search(
    read: Branches, start: State, spelling: Spelling, least: float, branches: int
) -> tuple[dict[str, float], float]:
    """Completions and their log-probabilities, all that are likelier than the second number; none below `least`."""
    least -= _ROUNDING
    found: dict[str, float] = {}
    waiting: list[tuple[float, tuple[int, ...], State]] = [
        (0.0, (), start)
    ]  # minus the log-probability first
    while waiting and branches > 0:
        taken = [heapq.heappop(waiting) for _ in range(min(_TOGETHER, len(waiting), branches))]
        branches -= len(taken)
        for (cost, tokens, state), law in zip(taken, read.log_laws([t for _, t, _ in taken]), strict=True):
            choices, states = spelling.moves(state)
            scores = law[choices] - cost
            for place in (scores >= least).nonzero()[:, 0].tolist():
                score, then, emitted = float(scores[place]), states[place], (*tokens, choices[place])
                if spelling.template.ends(then):
                    text = spelling.spelled(emitted)
                    found[text] = max(score, found.get(text, -math.inf))
                if len(emitted) < read.room and spelling.moves(then)[0]:
                    heapq.heappush(waiting, (-score, emitted, then))
    return found, -waiting[0][0] if waiting else -math.inf


def _rank(every: torch.Tensor, own: float, frontier: float, log_candidates: float, nested: int) -> Rank:
    """From the completions that were found. Those as likely as the true one, itself among them, may come first."""
    ahead = int((every > own + _ROUNDING).sum())
    tied = int((every >= own - _ROUNDING).sum()) - ahead
    if frontier < own - _ROUNDING:
        return Rank(ahead + 1, ahead + max(1, tied), log_candidates)
    # Completions that do not begin with each other are disjoint: at most 1 / p of them are as likely as p.
    most = math.floor(math.exp(min(log_candidates, math.log(nested) - own, 700.0)) * (1 + 1e-6))
    return Rank(ahead + 1, max(most, ahead + 1), log_candidates)
