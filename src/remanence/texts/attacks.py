"""The attacks on a language model: how many tries each needs until a secret comes out."""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.checks import whole
from remanence.core.knowledge import Knowledge
from remanence.core.references import CARLINI_2021, HAYES_2025, REMANENCE
from remanence.scale.progress import track
from remanence.texts.mechanism import Completions, FineTuning, LanguageModel, Secret
from remanence.texts.probabilities import GREEDY, Decoding, log_probabilities, queries_for

_STANDARD = (Decoding(), GREEDY, Decoding(top_k=40))
_TOGETHER = 32  # branches that are read in one pass
_CHILDREN = 256  # of one branch that are followed; the others stay unsearched
_NARROW = 1e-3  # relative width at which the search ends early


@final
@dataclass(frozen=True)
class Prompting(Knowledge):
    """The text before each secret is known; the secret is not."""

    drawn: bool = False  # from equally likely secrets: the value of a guess is known exactly

    def describe(self) -> list[str]:
        """What is known, a line each."""
        return ["the text before each secret", "how the model turns text into tokens"]


@final
@dataclass(frozen=True)
class Asked:
    """Secrets to prompt a model for. One reading serves all the usual decodings, so it is kept."""

    model: LanguageModel
    secrets: Sequence[Secret]
    _logs: dict[Decoding, Tensor] = field(default_factory=dict, repr=False)

    def logs(self, decoding: Decoding) -> Tensor:
        """The log-probability of each secret, `(secrets,)`."""
        if decoding not in self._logs:
            wanted = [decoding, *(each for each in _STANDARD if each != decoding and not self._logs)]
            self._logs.update(zip(wanted, log_probabilities(self.model, self.secrets, wanted), strict=True))
        return self._logs[decoding]


class TextAttack(Attack[Completions]):
    """An attack that prompts a model. The number of tries until a secret comes out is computed, not simulated."""

    def check(self, knowledge: Knowledge) -> None:
        """Only a language model can be prompted."""
        if not isinstance(knowledge.mechanism, FineTuning):
            raise self.refusal(got=knowledge, hint="audit_text, or `remanence text`")

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Completions], Reconstruction]:
        """Not supported: the game calls `tries` instead."""
        raise NotImplementedError("a language model is prompted, and nothing is prepared")

    @abstractmethod
    def tries(self, asked: Asked) -> tuple[Tensor, Tensor]:
        """How many tries each secret takes, and the log-probability of one try, `(secrets,)` each."""


@final
@dataclass(frozen=True)
class GreedyDecoding(TextAttack):
    """Continue with the likeliest tokens, once."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "greedy-decoding",
        "Prompts the model once with the text before a secret and continues with its likeliest tokens.",
        "a language model; the text before each secret",
        "continuations",
        CARLINI_2021,
    )

    def tries(self, asked: Asked) -> tuple[Tensor, Tensor]:
        """One try if greedy decoding emits the secret, infinitely many otherwise."""
        logs = asked.logs(GREEDY)
        return torch.ones_like(logs).where(logs == 0, torch.inf), logs


@final
@dataclass(frozen=True)
class Sampling(TextAttack):
    """Sample continuations until the secret has come out with a chance of one half."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "sampling",
        "Prompts the model and samples repeatedly; the number of samples needed is computed exactly.",
        "a language model; the text before each secret",
        "continuations",
        HAYES_2025.at("(n, p)-discoverable extraction"),
    )
    decoding: Decoding = Decoding()  # noqa: RUF009

    def tries(self, asked: Asked) -> tuple[Tensor, Tensor]:
        """(n, p)-discoverable extraction: the smallest n at which 1 − (1 − p)ⁿ reaches one half."""
        return _queries(asked.logs(self.decoding))


@final
@dataclass(frozen=True)
class TopKSampling(TextAttack):
    """The same among the k likeliest tokens, as most public attacks do."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "top-k-sampling",
        "The same among the 40 likeliest tokens.",
        "a language model; the text before each secret",
        "continuations",
        HAYES_2025.at("(n, p)-discoverable extraction"),
    )
    top_k: int = 40

    def __post_init__(self) -> None:
        whole("top_k", self.top_k)

    def tries(self, asked: Asked) -> tuple[Tensor, Tensor]:
        """The smallest number of queries that reaches one half."""
        return _queries(asked.logs(Decoding(top_k=self.top_k)))


@final
@dataclass(frozen=True)
class Bracket:
    """A probability between two proven ends."""

    lower: float
    upper: float


@final
@dataclass(frozen=True)
class NearVerbatim(TextAttack):
    """Sampling, where a match within this many token edits counts. The proven lower limit is reported."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "near-verbatim",
        "Sampling, where a match within one token edit counts; a proven lower limit.",
        "a language model; the text before each secret",
        "continuations",
        REMANENCE,
        on_request=True,
    )
    edits: int = 1
    branches: int = 2000
    decoding: Decoding = Decoding()  # noqa: RUF009

    def __post_init__(self) -> None:
        whole("edits", self.edits, least=0)
        whole("branches", self.branches)

    def check(self, knowledge: Knowledge) -> None:
        """Not if the rate of a guess is known exactly: a guess near many secrets would succeed more often."""
        super().check(knowledge)
        if isinstance(knowledge, Prompting) and knowledge.drawn:
            raise self.refusal(
                needs="secrets without a stated number of equally likely values",
                got="canaries, which count only verbatim",
                hint="sampling; or --texts with the canaries' own file",
            )

    def tries(self, asked: Asked) -> tuple[Tensor, Tensor]:
        """An upper limit on the number of tries."""
        secrets = track(asked.secrets, total=len(asked.secrets), what="searching near-verbatim continuations")
        found = [self.bracket(asked.model, secret).lower for secret in secrets]
        return _queries(torch.tensor(found, dtype=torch.float64).log())

    @torch.no_grad()
    def bracket(self, model: LanguageModel, secret: Secret) -> Bracket:
        """The probability of emitting the secret within this many token edits; at most `branches` are read.

        A continuation counts if, at some point, the emitted tokens are within `edits` insertions, deletions and
        substitutions of the secret's tokens. There are too many such continuations to sum over. So the decoding tree is
        searched, likeliest branch first. Every branch carries a row of Levenshtein's table: the
        distance to each prefix of the secret. A branch whose row shows success is counted with its whole mass, one that
        can no longer succeed is dropped. Branches never overlap, so

            mass counted ≤ P(near-verbatim) ≤ mass counted + mass not yet searched,

        and both ends are proven at whatever point the search stops.
        """
        edits, branches = min(self.edits, len(secret.tokens) - 1), self.branches  # not all are near it
        start, room = secret.prompt, model.context - len(secret.prompt)  # how many tokens may follow
        read = model.after(torch.tensor(start[:-1], dtype=torch.long, device=model.device))

        def log_laws(emitted: Sequence[tuple[int, ...]]) -> Tensor:
            """The log-probabilities of the next token after each continuation, `(continuations, vocabulary)`."""
            longest = max(map(len, emitted))
            rows = [(start[-1], *tokens) + (0,) * (longest - len(tokens)) for tokens in emitted]
            logits = read(torch.tensor(rows, device=model.device))
            ends = torch.tensor([len(tokens) for tokens in emitted], device=logits.device)
            return self.decoding.log_law(logits[torch.arange(len(rows), device=logits.device), ends]).cpu()

        counted, dropped = 0.0, 0.0
        waiting: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = [
            (-1.0, (), tuple(range(len(secret.tokens) + 1)))  # minus its mass, the emitted tokens, the row
        ]
        while waiting and branches > 0:
            unsearched = dropped + math.fsum(-branch[0] for branch in waiting)
            if unsearched <= _NARROW * counted:
                break
            taken = [heapq.heappop(waiting) for _ in range(min(_TOGETHER, len(waiting), branches))]
            branches -= len(taken)
            laws = log_laws([emitted for _, emitted, _ in taken]).exp()
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
                    elif len(emitted) + 1 >= room:
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


def _queries(logs: Tensor) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(queries_for(logs.numpy())), logs


def _advance(row: tuple[int, ...], secret: tuple[int, ...], token: int) -> tuple[int, ...]:
    """The row after one more token was emitted.

    >>> _advance((0, 1, 2), (7, 8), 7), _advance((1, 0, 1), (7, 8), 8)
    ((1, 0, 1), (2, 1, 0))
    """
    after = [row[0] + 1]
    for place, own in enumerate(secret):
        after.append(min(row[place + 1] + 1, after[place] + 1, row[place] + (own != token)))
    return tuple(after)
