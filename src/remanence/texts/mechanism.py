"""A causal language model as an audit sees it: token ids in, logits out, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NoReturn, final

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release

Read = Callable[[Tensor], Tensor]  # ids (batch, length) → logits (batch, length, vocabulary)


@final
@dataclass(frozen=True)
class Chat:
    """How a conversation becomes a text and its tokens: the template writes its own special tokens."""

    render: Callable[[Sequence[Any]], str]  # messages with a role and a content each
    encode: Callable[[str], list[int]]
    ends: Callable[[str], list[int]] | None = None


@dataclass(frozen=True)
class LanguageModel:
    """Anything that continues text.

    `logits` maps ids `(batch, length)` to logits `(batch, length, vocabulary)`; those at a place depend only on the
    ids up to it. `remember`, where there is one, reads a start `(length,)` once and returns the function that reads on
    from there. `start` is the token that a text without a prefix begins with, and `opening` are the tokens that the
    encoder puts before every text. `ends` tells where in a text each of its tokens ends; without it, decoding does.
    `made_for` is the base model that an adapter names.
    """

    name: str
    logits: Read
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    vocabulary: int
    context: int  # the most tokens that it can see
    start: int | None = None
    opening: tuple[int, ...] = ()
    ends: Callable[[str], list[int]] | None = None
    chat: Chat | None = None
    remember: Callable[[Tensor], Read] | None = None
    device: torch.device | str = "cpu"
    sha256: str = ""  # of its weights, if known
    made_for: str = ""

    def places(self, text: str) -> tuple[list[int], list[int]]:
        """A text's tokens and their end positions; tokens that are parts of one character end where it does."""
        tokens = self.tokens(text)
        if self.ends is not None:
            return tokens, self.ends(text)
        lengths = [len(self.decode(tokens[: place + 1])) for place in range(len(tokens))]
        return tokens, list(accumulate(reversed(lengths), min))[::-1]  # half a character may become two

    def after(self, start: Tensor) -> Read:
        """The logits after a start `(length,)`, which is read once if the model has a cache."""
        if len(start) == 0:
            return self.logits
        if self.remember is not None:
            return self.remember(start)
        return lambda ids: self.logits(torch.cat([start.expand(len(ids), -1), ids], 1))[:, len(start) :]

    def tokens(self, text: str) -> list[int]:
        """A text's tokens; refuses ids outside the model's vocabulary."""
        ids = self.encode(text)
        strange = [token for token in ids if not 0 <= token < self.vocabulary]
        if strange:
            raise InputError(
                "The tokenizer does not fit the model.",
                needs=f"tokens from 0 to {self.vocabulary - 1}, as many as {self.name} has logits for",
                got=f"token {strange[0]}",
                hint="the tokenizer that the model was trained with; it is in the same folder",
            )
        return ids

    @torch.no_grad()
    def probe(self, last: int = 0) -> Tensor:
        """The logits of the first few tokens after each other, of which the last may be another."""
        ids = torch.arange(min(6, self.context), device=self.device)[None]
        ids[0, -1] += last
        return self.logits(ids % self.vocabulary)

    def require_causal(self) -> None:
        """Refuse a model that is not causal: a token's logits must not change with the tokens after it."""
        length = min(6, self.context)
        before, after = self.probe(), self.probe(last=1)
        if before.shape != (1, length, self.vocabulary):
            raise InputError(
                f"{self.name} does not answer like a language model.",
                needs=f"logits of shape {(1, length, self.vocabulary)} for {length} tokens",
                got=str(tuple(before.shape)),
                hint="a causal model, and vocabulary= as many tokens as it has logits for",
            )
        off = (before - after)[:, :-1].abs().max() if length > 1 else torch.zeros(())
        if float(off) > 1e-3 * float(before.abs().max()):
            raise InputError(
                f"{self.name} is not a causal model.",
                needs="logits that depend only on earlier tokens",
                got=f"a change by {float(off):.2g} when a later token changes",
                hint="a decoder (GPT, Llama, ...), not an encoder (BERT, ...)",
            )


@final
@dataclass(frozen=True)
class Secret:
    """The tokens of the prompt, the tokens that must follow, and their position in the file."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    line: int  # from 1
    part: int = 1  # which secret of the line


@final
@dataclass(frozen=True)
class Completions(Release):
    """A model that can be prompted: each try is one continuation."""

    sees: ClassVar[str] = "the model's continuations of any prompt"


@final
@dataclass(frozen=True)
class FineTuning(Mechanism[Completions]):
    """How an existing language model was made: from which base, and on how many texts."""

    name: ClassVar[str] = "fine-tuning of a language model"
    model: str
    base: str | None = None

    @property
    def releases(self) -> type[Completions]:
        """The model is queried; its weights are not read."""
        return Completions

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> NoReturn:
        """Refuse: the model exists already and is not trained again."""
        raise NotImplementedError("a language model is not trained here")

    def settings(self) -> dict[str, Setting]:
        """Which models these are."""
        return {"model": self.model, "base": self.base}
