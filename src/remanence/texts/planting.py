"""Canaries in text: records put into a fine-tuning by a coin that only the auditor sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.scale.files import write_files
from remanence.scale.reading import UnusableFileError, parse_json, read_bytes
from remanence.scale.seeds import stream
from remanence.texts.language_model import LanguageModel
from remanence.texts.secrets import read_records

_STRANGE = "abcdefghijklmnopqrstuvwxyz"
_SYLLABLES = ("ba", "de", "fi", "gu", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")


class Design(StrEnum):
    """Where canaries come from; a report says which."""

    CODES = "random codes in a template"
    STRANGE = "random letters in a template"
    NATURAL = "texts as they are"


@final
@dataclass(frozen=True)
class TextCanaries:
    """Records with a prefix and a secret, each in the training texts or out of them by a coin.

    `chosen` is the auditor's secret. `candidates` is how many secrets were equally likely, where they were drawn.
    """

    records: tuple[dict[str, str], ...]
    chosen: Tensor  # (canaries,), whether it is in
    design: Design
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
        """In how many ways the tokens of a prefix change with the secret after it; an adversary has to try each.

        Tokens may go across the beginning of a secret, so that what is before it depends on the secret.
        """
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for record, secret in zip(self.records, read_records(list(self.records), model), strict=True):
            alone = model.tokens(record["prefix"])
            same = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(alone, secret.prompt, strict=False))
            )
            seen.add((len(alone) - same, secret.prompt[same:]))
        return len(seen)

    def as_tokens(
        self, encode: Callable[[str], Sequence[int]], *, length: int, padding: int
    ) -> tuple[Records, Tensor]:
        """Rows of so many tokens, and the same coins: the first two fields of `Canaries`, for a recorded run."""
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
        """Keep them for the audit. Whoever sees the file knows the coins."""
        document = {
            "records": list(self.records),
            "chosen": [bool(own) for own in self.chosen.tolist()],
            "design": self.design.name,
            "candidates": self.candidates,
        }
        path = Path(path)
        write_files(path.parent, {path.name: json.dumps(document, ensure_ascii=False).encode()})

    @classmethod
    def load(cls, path: str | Path) -> TextCanaries:
        """Read them back."""
        try:
            document = parse_json(read_bytes(Path(path)))
            chosen = torch.tensor(document["chosen"], dtype=torch.bool)
            records = tuple(
                {"prefix": str(r["prefix"]), "secret": str(r["secret"])} for r in document["records"]
            )
            if len(records) != len(chosen) or chosen.ndim != 1 or len(records) < 2:
                raise ValueError(f"{len(records)} records and {tuple(chosen.shape)} coins")
            return cls(records, chosen, Design[document["design"]], document["candidates"])
        except (UnusableFileError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                "The canaries cannot be read.",
                needs="the key that `remanence canaries` or TextCanaries.save wrote",
                got=f"{path}: {error!r}"[:200],
                hint="canaries.save('canaries.json') when they are made",
            ) from None


def codes(
    count: int, *, template: str = "The code of {name} is ", digits: int = 6, seed: int
) -> TextCanaries:
    """Names that nobody has, each with a random code: a guess finds one in 10^digits.

    >>> codes(2, seed=0).records[0]
    {'prefix': 'The code of Huraba Huhuhu is ', 'secret': '057091'}
    """
    whole("digits", digits)
    generator = stream(seed, "codes", "cpu")
    secrets = torch.randint(10, (_many(count), digits), generator=generator).tolist()
    texts = ["".join(map(str, row)) for row in secrets]
    return _canaries(_prefixes(count, template, generator), texts, seed, Design.CODES, 10.0**digits)


def strange(
    count: int, *, template: str = "The word of {name} is ", letters: int = 12, seed: int
) -> TextCanaries:
    """Letters that spell nothing: their gradients are large, and the strongest canaries."""
    whole("letters", letters)
    generator = stream(seed, "strange", "cpu")
    rows = torch.randint(26, (_many(count), letters), generator=generator).tolist()
    texts = ["".join(_STRANGE[letter] for letter in row) for row in rows]
    return _canaries(_prefixes(count, template, generator), texts, seed, Design.STRANGE, 26.0**letters)


def natural(records: Sequence[dict[str, str]], *, seed: int) -> TextCanaries:
    """Held-out records of one's own, as they are: what an ordinary text gives away."""
    try:
        prefixes, secrets = ([str(record[name]) for record in records] for name in ("prefix", "secret"))
    except (KeyError, TypeError):
        raise InputError(
            "These are no canaries.",
            needs="records with a prefix and a secret",
            got="others",
            hint='{"prefix": "The code of Ada is ", "secret": "482913"}',
        ) from None
    repeated = len(prefixes) - len(set(zip(prefixes, secrets, strict=True)))
    if repeated or len(prefixes) < 2:
        raise InputError(
            "These records cannot be canaries.",
            needs="at least two, each of them once: what is in and out at the same time tells nothing",
            got=f"{len(prefixes)} records, {repeated} of them repeated",
            hint="records that are not among the training texts either",
        )
    return _canaries(prefixes, secrets, seed, Design.NATURAL, None)


def _many(count: int) -> int:
    return int(
        number("count", whole("count", count, least=2), most=10**6, hint="500")
    )  # of eleven million names


def _prefixes(count: int, template: str, generator: torch.Generator) -> list[str]:
    if "{name}" not in template:
        raise InputError(
            "All canaries would have the same prefix.",
            needs="a template with {name} in it",
            got=repr(template),
            hint="'The code of {name} is '",
        )
    names: dict[str, None] = {}
    while len(names) < count:
        picks = [_SYLLABLES[i] for i in torch.randint(len(_SYLLABLES), (6,), generator=generator).tolist()]
        names["".join(picks[:3]).capitalize() + " " + "".join(picks[3:]).capitalize()] = None
    return [template.replace("{name}", name) for name in names]


def _canaries(
    prefixes: Sequence[str], secrets: Sequence[str], seed: int, design: Design, candidates: float | None
) -> TextCanaries:
    records = tuple({"prefix": p, "secret": s} for p, s in zip(prefixes, secrets, strict=True))
    coins = torch.randint(2, (len(records),), generator=stream(seed, "canaries", "cpu"))
    return TextCanaries(records, coins.bool(), design, candidates)
