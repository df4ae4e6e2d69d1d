"""A search for secrets by their form: how high does the true one rank among all completions of a template?

An adversary who knows how a record looks tries its likeliest completions in turn. The rank of the true one is how
many guesses it takes them. No completion is likelier than its beginning, so that every branch below the secret's own
probability can be cut: what is left counts the rank exactly. At most 1 / p completions are as likely as one of
probability p, which bounds both the work and the rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from remanence.attacks.texts.decoding import Decoding
from remanence.checks import whole
from remanence.exceptions import InputError
from remanence.mechanisms.language_model import LanguageModel

_TOGETHER = 256  # branches that are read in one pass


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


Form = tuple[tuple[int, ...], ...]  # for each place of the secret, the tokens that the template allows


def same_form(
    model: LanguageModel, tokens: Sequence[int], alike: dict[str, tuple[int, ...]] | None = None
) -> Form:
    """The template of a secret: every token with digits in it may be any token with digits in the same places.

    `alike` is what `tokens_by_form` found, to be shared between secrets.
    """
    alike = tokens_by_form(model) if alike is None else alike
    texts = [model.decode([token]) for token in tokens]
    return tuple(
        alike[_form(text)] if any(c.isdecimal() for c in text) else (token,)
        for token, text in zip(tokens, texts, strict=True)
    )


def tokens_by_form(model: LanguageModel) -> dict[str, tuple[int, ...]]:
    """All tokens with digits in them, by their form: text in which every digit is a 0."""
    found: dict[str, list[int]] = {}
    for token in range(model.vocabulary):
        text = model.decode([token])
        if any(c.isdecimal() for c in text):
            found.setdefault(_form(text), []).append(token)
    return {form: tuple(tokens) for form, tokens in found.items()}


def _form(text: str) -> str:
    return "".join("0" if c.isdecimal() else c for c in text)


@torch.no_grad()
def rank(
    model: LanguageModel, prompt: Sequence[int], secret: Sequence[int], form: Form, *, width: int = 4096
) -> Rank:
    """The rank of a secret among the completions of a template, with at most `width` branches kept at each place."""
    whole("width", width)
    if len(form) != len(secret) or not all(t in allowed for t, allowed in zip(secret, form, strict=False)):
        raise InputError(
            "The secret is not of this form.",
            needs="for each of its tokens a set that it is in",
            got=f"{len(secret)} tokens, {len(form)} sets",
            hint="same_form(model, tokens)",
        )
    start = torch.tensor(prompt, dtype=torch.long, device=model.device)
    read, law = model.after(start[:-1]), Decoding()
    own = torch.tensor([[*secret]], dtype=torch.long, device=model.device)
    steps = law.log_law(read(torch.cat([start[None, -1:], own[:, :-1]], 1))).gather(-1, own[..., None])
    least = float(steps.sum()) * (1 + 1e-9) - 1e-6  # rounding must not cut a branch that is as likely
    log_candidates = sum(math.log(len(allowed)) for allowed in form)
    branches = torch.empty(1, 0, dtype=torch.long, device=model.device)
    scores = torch.zeros(1, dtype=torch.float64, device=model.device)
    cut = False
    for allowed in form:
        choices = torch.tensor(allowed, device=model.device)
        likelier, logs = [], []
        for part, so_far in zip(branches.split(_TOGETHER), scores.split(_TOGETHER), strict=True):
            ids = torch.cat([start[-1].expand(len(part), 1), part], 1)
            reached = so_far[:, None] + law.log_law(read(ids)[:, -1])[:, choices]
            row, column = (reached >= least).nonzero(as_tuple=True)
            likelier.append(torch.cat([part[row], choices[column, None]], 1))
            logs.append(reached[row, column])
        branches, scores = torch.cat(likelier), torch.cat(logs)
        if len(branches) > width:
            cut = True
            scores, best = scores.topk(width)
            branches = branches[best]
    others = (branches != own).any(1)
    ahead = int((others & (scores > float(steps.sum()) + 1e-6)).sum())
    tied = int(others.sum()) - ahead
    most = math.ceil(math.exp(min(log_candidates, -float(steps.sum()), 700.0)) * (1 + 1e-6))
    return Rank(ahead + 1, max(most, ahead + 1) if cut else ahead + tied + 1, log_candidates)
