"""Continuations of several lengths after one prompt, read together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from remanence.texts.decoding import Decoding
from remanence.texts.language_model import LanguageModel


@final
class Branches:
    """A prompt that is read once, and what the model would say next after any of its continuations."""

    def __init__(self, model: LanguageModel, prompt: Sequence[int], decoding: Decoding) -> None:
        start = torch.tensor(prompt, dtype=torch.long, device=model.device)
        self._read, self._last = model.after(start[:-1]), int(start[-1])
        self._device, self._decoding = model.device, decoding
        self.room = model.context - len(prompt)  # how many tokens may follow

    def log_laws(self, emitted: Sequence[tuple[int, ...]]) -> Tensor:
        """The log-probabilities of the next token after each continuation, `(continuations, vocabulary)`."""
        longest = max(map(len, emitted)) + 1
        rows = [(self._last, *tokens) + (0,) * (longest - 1 - len(tokens)) for tokens in emitted]
        logits = self._read(torch.tensor(rows, device=self._device))
        ends = torch.tensor([len(tokens) for tokens in emitted], device=logits.device)
        return self._decoding.log_law(logits[torch.arange(len(rows), device=logits.device), ends]).cpu()
