"""How the next token is drawn: greedy, temperature, top-k, top-p; the probability of a token follows exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.core.checks import number, whole


@final
@dataclass(frozen=True)
class Decoding:
    """The law of the next token, in the order of `transformers`: temperature, then the k likeliest, then a share p.

    A temperature of 0 is greedy: the likeliest token, the first of equals. `top_k` keeps the k likeliest (all that tie
    with the last of them). `top_p` keeps a token if those that are likelier have a share below p together, of what
    top-k left.

    >>> law = Decoding(top_k=2).log_law(torch.tensor([2.0, 1.0, 0.0])).exp()
    >>> [round(p, 3) for p in law.tolist()]
    [0.731, 0.269, 0.0]
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        number("temperature", self.temperature, least=0, hint="1.0, or 0 for greedy decoding")
        number("top_p", self.top_p, above=0, most=1, hint="0.9, or 1 for all tokens")
        if self.top_k is not None:
            whole("top_k", self.top_k, hint="40, or None for all tokens")

    @property
    def greedy(self) -> bool:
        """Whether there is nothing to draw."""
        return self.temperature == 0

    def log_law(self, logits: Tensor) -> Tensor:
        """Log-probabilities of every next token, of the logits' shape, in double precision."""
        logits = logits.double()
        if self.greedy:
            law = torch.full_like(logits, -torch.inf)
            return law.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, -1).values[..., -1:]
            logits = logits.where(logits >= least, -torch.inf)
        if self.top_p < 1:
            ranked, order = logits.sort(dim=-1, descending=True, stable=True)
            shares = ranked.softmax(-1)
            dropped = shares.cumsum(-1) - shares >= self.top_p
            logits = logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)
        return logits.log_softmax(-1)

    def __str__(self) -> str:
        if self.greedy:
            return "greedy"
        parts = [f"temperature {self.temperature:g}"]
        parts += [] if self.top_k is None else [f"top-k {self.top_k}"]
        parts += [] if self.top_p == 1 else [f"top-p {self.top_p:g}"]
        return ", ".join(parts)


GREEDY = Decoding(temperature=0.0)
