"""How likely a model is to emit a secret: exactly, from one pass over its tokens, in the log domain.

P(secret | prompt) = Π P(token i | prompt, tokens before it), under the decoding that the adversary uses. It is the
probability of the secret's own tokens. Other tokens may spell the same characters, so it is never above the
probability of seeing the text. Within n independent queries it comes out with probability 1 − (1 − p)ⁿ
(Hayes et al. 2025, (n, p)-discoverable extraction).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.scale.progress import track
from remanence.texts.mechanism import LanguageModel, Secret


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
        """Whether decoding is greedy."""
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


Array = npt.NDArray[np.float64]

CHANCE = 0.5  # a secret takes as many queries as bring it out with this probability
_NUMBERS = 2**26  # logits held at once; on a GPU as many times more as it has memory for
_LENGTHS = 16  # texts whose lengths differ by fewer tokens are read together


@torch.no_grad()
def log_probabilities(
    model: LanguageModel, secrets: Sequence[Secret], decodings: Sequence[Decoding]
) -> Tensor:
    """The log-probability of every secret under every decoding, `(decodings, secrets)`, in one pass over each."""
    found = torch.zeros(len(decodings), len(secrets), dtype=torch.float64, device=model.device)
    for text, token, logits in read_all(model, secrets):
        for own, decoding in enumerate(decodings):
            each = decoding.log_law(logits).gather(-1, token[:, None])[:, 0]
            found[own].index_add_(0, text, each)
    return finite(found, model)


def finite(found: Tensor, model: LanguageModel) -> Tensor:
    """The numbers of texts `(…, texts)`, in memory; refuse NaN."""
    if bool(found.isnan().any()):
        raise InputError(
            f"{model.name} answers with NaN.",
            needs="finite logits for every text",
            got=f"{int(found.isnan().any(0).sum())} of {found.shape[1]} texts without a probability",
            hint="weights of a training that did not diverge, in a precision that holds them",
        )
    return found.cpu()


def read_all(model: LanguageModel, secrets: Sequence[Secret]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The logits of every place before a token of a secret, `(places, vocabulary)`; whose they are; and the token.

    Texts are sorted, so that a batch shares a common prefix, which is read once.
    """
    lengths = [len(secret.prompt) + len(secret.tokens) for secret in secrets]

    def key(place: int) -> tuple[int, tuple[int, ...]]:
        return lengths[place] // _LENGTHS, secrets[place].prompt + secrets[place].tokens

    order = sorted(range(len(secrets)), key=key)
    batches = list(_batches(order, lengths, model))
    for batch in track(batches, total=len(batches), what="reading texts"):
        places = _sent(batch, model.device)
        for row, token, logits in _read(model, [secrets[place] for place in batch]):
            yield places[row], token, logits


def _batches(order: Sequence[int], lengths: Sequence[int], model: LanguageModel):
    """Consecutive texts of similar length, as many as fit in memory."""
    room = _NUMBERS * (32 if torch.device(model.device).type == "cuda" else 1)
    batch: list[int] = []
    for place in order:
        apart = batch and lengths[place] // _LENGTHS != lengths[batch[0]] // _LENGTHS
        longest = (lengths[place] // _LENGTHS + 1) * _LENGTHS
        if batch and (apart or (len(batch) + 1) * longest * model.vocabulary > room):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _read(model: LanguageModel, secrets: Sequence[Secret]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    texts = [secret.prompt + secret.tokens for secret in secrets]
    # Sorted texts share the common prefix of the first and the last. The token before a secret is read with it.
    shared = min(agree(texts[0], texts[-1]), min(len(secret.prompt) for secret in secrets) - 1)
    tails = [text[shared:-1] for text in texts]  # nothing follows the last token
    longest = max(map(len, tails))
    ids = _sent([tail + (0,) * (longest - len(tail)) for tail in tails], model.device)
    start = _sent(texts[0][:shared], model.device)
    logits = model.after(start)(ids)  # (batch, length, vocabulary); a causal model does not see the padding
    rows, places, tokens = [], [], []
    for line, secret in enumerate(secrets):
        first = len(secret.prompt) - 1 - shared
        rows += [line] * len(secret.tokens)
        places += range(first, first + len(secret.tokens))
        tokens += secret.tokens
    row, place, token = (_sent(each, model.device) for each in (rows, places, tokens))
    step = max(1, _NUMBERS // (2 * model.vocabulary))  # double precision, and a copy to sort
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        yield row[part], token[part], logits[row[part], place[part]]


def _sent(values: Sequence[Any], device: torch.device | str) -> Tensor:
    """Integers on a device, copied without waiting for the GPU."""
    found = torch.tensor(values, dtype=torch.long)
    return found.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else found


def agree(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix of two texts, in tokens."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def within(log_probability: npt.ArrayLike, queries: npt.ArrayLike) -> Array:
    """The probability of seeing it at least once in this many queries, 1 − (1 − p)ⁿ, also where p is below 1e-300.

    >>> round(float(within(math.log(0.01), 100)), 6)
    0.633968
    >>> float(within(-800.0, 1e9))  # p = 4e-348: no realistic number of queries finds it
    0.0
    """
    log_p, n = np.asarray(log_probability, dtype=np.float64), np.asarray(queries, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(log_p < 0, -np.expm1(n * _log_of_missing(log_p)), np.where(n > 0, 1.0, 0.0))


def queries_for(log_probability: npt.ArrayLike) -> Array:
    """How many queries it takes to see it with a chance of one half: ⌈log ½ / log(1 − p)⌉; infinite if p is 0.

    >>> queries_for([math.log(0.5), math.log(0.01), -math.inf]).tolist()
    [1.0, 69.0, inf]
    """
    log_p = np.asarray(log_probability, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        # Where p is too small for a double, log(1 − p) = −p and the quotient is a power of e.
        ratio = np.where(
            log_p < -700,
            np.exp(math.log(-math.log1p(-CHANCE)) - log_p),
            math.log1p(-CHANCE) / _log_of_missing(log_p),
        )
    return np.maximum(1.0, np.ceil(ratio * (1 - 1e-12)))


def least_log_probability(queries: int) -> float:
    """The smallest log p at which this many queries emit the secret with a chance of one half: p = 1 − ½^(1/n).

    >>> round(math.exp(least_log_probability(100)), 6)
    0.006908
    """
    return math.log(-math.expm1(math.log1p(-CHANCE) / queries))


def _log_of_missing(log_probability: Array) -> Array:
    """log(1 − p) from log p, precise at both ends."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            log_probability > -math.log(2),
            np.log(-np.expm1(np.minimum(log_probability, 0.0))),
            np.log1p(-np.exp(log_probability)),
        )
