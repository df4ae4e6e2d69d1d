"""Canaries in text: records put into a fine-tuning by a coin that only the auditor sees, and what they prove about it.

Two attacks guess. One decides from the losses which canaries are in. The other guesses that the model's continuation of
a prefix is the canary's secret. All canaries share one fine-tuning, so no binomial interval holds. The theorem of
`remanence.bounds.one_run` says what the number of right guesses proves, for any way of training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from remanence import bounds
from remanence.bounds import Segment
from remanence.bounds.one_run import GuessCount, LinesCurve, TradeOff, dpsgd_curve
from remanence.core.checks import exactly_one, number, refusing, whole
from remanence.core.exceptions import InputError
from remanence.core.rates import CONFIDENCE
from remanence.core.records import Records
from remanence.results.claims import PrivacyTest
from remanence.scale.files import write_files
from remanence.scale.reading import UnusableFileError, parse_json, read_bytes
from remanence.scale.seeds import stream
from remanence.texts.mechanism import LanguageModel
from remanence.texts.probabilities import agree
from remanence.texts.reading import read_texts
from remanence.texts.tiny import SYLLABLES


@final
@dataclass(frozen=True)
class TextCanaries:
    """Records with a prefix and a secret, each in the training texts or out of them by a coin.

    `chosen` is the auditor's secret. `candidates` is the number of equally likely secrets, if they were drawn.
    """

    records: tuple[dict[str, str], ...]
    chosen: Tensor  # (canaries,), whether it is in
    candidates: float | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def inserted(self) -> list[dict[str, str]]:
        """The records to train on, among the others."""
        return [record for record, own in zip(self.records, self.chosen.tolist(), strict=True) if own]

    @property
    def left_out(self) -> list[dict[str, str]]:
        """The others: texts of the same kind that were not trained on."""
        return [record for record, own in zip(self.records, self.chosen.tolist(), strict=True) if not own]

    def cuts(self, model: LanguageModel) -> int:
        """In how many ways the tokens of a prefix depend on the secret after it; an adversary must try each.

        A token may span the beginning of a secret, so the tokens before it can depend on the secret.
        """
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for record, secret in zip(self.records, read_texts(self.records, model), strict=True):
            alone = model.tokens(record["prefix"])
            same = agree(alone, secret.prompt)
            seen.add((len(alone) - same, secret.prompt[same:]))
        return len(seen)

    def as_tokens(
        self, encode: Callable[[str], Sequence[int]], *, length: int, padding: int
    ) -> tuple[Records, Tensor]:
        """Rows of `length` tokens, and the same coins: the first two fields of `Canaries`, for a recorded run."""
        rows = [list(encode(record["prefix"] + record["secret"])) for record in self.records]
        longest = max(map(len, rows))
        if longest > length:
            raise InputError(
                "A canary does not fit into a row.",
                needs=f"length={longest} or more",
                got=f"length={length}",
                hint="the length that the training texts are padded to",
            )
        tokens = torch.tensor([row + [padding] * (length - len(row)) for row in rows])
        records = Records(tokens[:, None], torch.zeros(len(rows), 1, dtype=torch.long))
        return records, self.chosen.long() - 1  # 0 is in, −1 is out

    def save(self, path: str | Path) -> None:
        """Save them for the audit. Anyone who sees the file knows the coins."""
        path = Path(path)
        write_files(path.parent, {path.name: self.written()})

    def written(self) -> bytes:
        """What `save` writes."""
        document = {
            "records": list(self.records),
            "chosen": [bool(own) for own in self.chosen.tolist()],
            "candidates": self.candidates,
        }
        return json.dumps(document, ensure_ascii=False).encode()

    @classmethod
    def load(cls, path: str | Path) -> TextCanaries:
        """Read them back."""
        wrong, hint = "The canaries cannot be read.", "canaries.save('canaries.json') when they are made"
        needs = "the key that `remanence canaries` or TextCanaries.save wrote"
        kinds = UnusableFileError, ValueError, KeyError, TypeError
        with refusing(kinds, wrong, needs=needs, got=path, hint=hint):
            document = parse_json(read_bytes(Path(path)))
            chosen = torch.tensor(document["chosen"], dtype=torch.bool)
            records = tuple(
                {"prefix": str(r["prefix"]), "secret": str(r["secret"])} for r in document["records"]
            )
            if len(records) != len(chosen) or chosen.ndim != 1 or len(records) < 2:
                raise ValueError(f"{len(records)} records and {tuple(chosen.shape)} coins")
            return cls(records, chosen, document["candidates"])


def codes(
    count: int, *, template: str = "The code of {name} is ", digits: int = 6, seed: int
) -> TextCanaries:
    """Made-up names, each with a random code: a guess is right once in 10^digits.

    >>> codes(2, seed=0).records[0]
    {'prefix': 'The code of Huraba Huhuhu is ', 'secret': '057091'}
    """
    whole("count", count, least=2, most=10**6, hint="500")  # of eleven million names
    if "{name}" not in template:
        raise InputError(
            "All canaries would have the same prefix.",
            needs="a template with {name} in it",
            got=repr(template),
            hint="'The code of {name} is '",
        )
    generator = stream(seed, "codes", "cpu")
    drawn = torch.randint(10, (count, whole("digits", digits)), generator=generator).tolist()
    secrets = ["".join(map(str, row)) for row in drawn]
    names: dict[str, None] = {}
    while len(names) < count:
        picks = [SYLLABLES[i] for i in torch.randint(len(SYLLABLES), (6,), generator=generator).tolist()]
        names["".join(picks[:3]).capitalize() + " " + "".join(picks[3:]).capitalize()] = None
    prefixes = [template.replace("{name}", name) for name in names]
    return _canaries(prefixes, secrets, seed, 10.0**digits)


def natural(records: Sequence[dict[str, str]], *, seed: int) -> TextCanaries:
    """Your own held-out records, verbatim: they show what an ordinary text gives away."""
    wrong, needs = "These records cannot be canaries.", "records with a prefix and a secret"
    hint = '{"prefix": "The code of Ada is ", "secret": "482913"}'
    with refusing((KeyError, TypeError), wrong, needs=needs, got="other records", hint=hint):
        prefixes, secrets = ([str(record[name]) for record in records] for name in ("prefix", "secret"))
    repeated = len(prefixes) - len(set(zip(prefixes, secrets, strict=True)))
    if repeated or len(prefixes) < 2:
        raise InputError(
            wrong,
            needs="at least two different records: one that is both in and out reveals nothing",
            got=f"{len(prefixes)} records, {repeated} of them repeated",
            hint="records that are not among the training texts either",
        )
    return _canaries(prefixes, secrets, seed, None)


def _canaries(
    prefixes: Sequence[str], secrets: Sequence[str], seed: int, candidates: float | None
) -> TextCanaries:
    records = tuple({"prefix": p, "secret": s} for p, s in zip(prefixes, secrets, strict=True))
    coins = torch.randint(2, (len(records),), generator=stream(seed, "canaries", "cpu"))
    return TextCanaries(records, coins.bool(), candidates)


# A claim is refuted if the result has at most this probability under it. Recorded runs are accused at a thousandth,
# which coins alone seldom reach: half the noise of one Gaussian step showed p-values near 0.003 with 1,200 canaries.
_LEVEL = 0.05
_DELTA = 1e-5


@final
@dataclass(frozen=True)
class Claim:
    """The claim of a private fine-tuning: (ε, δ), or its DP-SGD settings, which say more."""

    epsilon: float | None = None
    delta: float = _DELTA
    dpsgd: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        hint = "Claim(epsilon=8, delta=1e-5), or Claim(dpsgd=(Segment(1.0, 0.01, 1000),))"
        exactly_one({"epsilon": self.epsilon, "dpsgd": self.dpsgd or None}, hint)
        if self.epsilon is not None:
            number("epsilon", self.epsilon, least=0)
        number("delta", self.delta, above=0, below=1)

    @property
    def curve(self) -> TradeOff:
        """The claim as a trade-off function."""
        if self.epsilon is None:
            return dpsgd_curve(list(self.dpsgd))
        return LinesCurve(((self.epsilon, self.delta),))

    @property
    def claimed_epsilon(self) -> float:
        """ε at the claim's δ."""
        return bounds.epsilon_upper(list(self.dpsgd), self.delta) if self.epsilon is None else self.epsilon


@final
@dataclass(frozen=True)
class Planted:
    """What an auditor knows about planted secrets.

    `candidates` is the number of equally likely secrets, if they were drawn. `by_coin`: a fair coin put each in or
    left it out, and the unseen texts are those that were left out.
    """

    candidates: float | None = None
    by_coin: bool = False
    claim: Claim | None = None

    def __post_init__(self) -> None:
        if self.candidates is not None:
            number("candidates", self.candidates, least=2, hint="10**6 for six random digits")
        if self.claim is not None and not self.by_coin:
            raise InputError(
                "There is nothing to test the claim with.",
                needs="canaries, each in or out by a coin",
                got="other texts",
                hint="make canaries with `remanence canaries`, and train on those that are in",
            )

    def said(self, scores: Tensor, chosen: Tensor, spoken: Tensor) -> tuple[PrivacyTest, dict[str, float]]:
        """What scores prove, larger if likelier in, and whole secrets that the model emitted, `(inserted,)`."""
        counts = [told_by_losses(scores, chosen)]
        numbers: dict[str, float] = {}
        if self.candidates is not None and len(spoken):
            drawn = int(min(self.candidates, 1e15))
            counts.append(GuessCount(int(spoken.sum()), len(spoken), len(spoken), drawn))
            numbers = {"whole_secrets": counts[1].guesses, "whole_secrets_guessed": counts[1].correct}
        claim, p_value = self.claim, None
        if claim is not None:
            p_value = min(1.0, len(counts) * min(count.p_value(claim.curve) for count in counts))
        delta, share = _DELTA if claim is None else claim.delta, (1 - CONFIDENCE) / len(counts)
        test = PrivacyTest(
            surest_guesses=counts[0].guesses,
            surest_guesses_correct=counts[0].correct,
            epsilon_at_least=max(count.epsilon_lower(delta, share) for count in counts),
            delta=delta,
            claimed_epsilon=None if claim is None else claim.claimed_epsilon,
            p_value_of_the_claim=p_value,
            accused_at=None if claim is None else _LEVEL,
        )
        return test, numbers


def told_by_losses(scores: Tensor, chosen: Tensor) -> GuessCount:
    """How many of the surest guesses are right; the guess is "in" for a score above the median."""
    centred = scores.double().nan_to_num(nan=0.0) - scores.double().nanmedian()
    return GuessCount.of_surest((centred > 0) == chosen, centred.abs())
