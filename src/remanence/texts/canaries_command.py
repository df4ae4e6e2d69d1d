"""`remanence canaries`: made-up secrets to train on, so that the finished language model can be held to its word."""

from __future__ import annotations

import json
import secrets
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    from remanence.texts.canaries import TextCanaries


class Kind(StrEnum):
    """What the canaries are made of."""

    CODES = "codes"
    STRANGE = "strange"
    NATURAL = "natural"


def canaries(
    out: Annotated[Path, typer.Argument(help="A new folder, for train.jsonl and key.json.")],
    *,
    kind: Annotated[
        Kind, "Random digits, letters that no text has, or held-out records of your own (--texts)."
    ] = Kind.CODES,
    count: Annotated[int | None, "How many; a coin puts about half of them in.", "500"] = None,
    template: Annotated[
        str | None, "What stands before a secret, with {name} in it.", "The code of {name} is "
    ] = None,
    length: Annotated[int | None, "Digits or letters of a secret.", "6 digits, 12 letters"] = None,
    texts: Annotated[
        Path | None, "For --kind natural: records with a prefix and a secret, not trained on."
    ] = None,
    seed: Annotated[
        int | None, "Makes the same canaries again. Whoever knows it knows the coins.", "drawn"
    ] = None,
) -> None:
    """Make canaries for the fine-tuning of a language model: each is in or out by a coin.

    Add train.jsonl to your training texts. Keep key.json to yourself: it knows which were left out. After training,
    `remanence text FOLDER --canaries key.json` tells which come back out and how large ε is at least;
    `--claimed-epsilon 8` holds that against a claim.
    """
    from remanence.scale.files import write_files

    drawn = secrets.randbelow(2**31) if seed is None else seed
    if kind is Kind.NATURAL or texts is not None:
        made = _natural(kind, texts, (count, template, length), drawn)
    else:
        made = _drawn(kind, count, template, length, drawn)
    key = out / "key.json"
    if key.exists():
        raise InputError(
            "There are canaries already.",
            needs="a new folder: without its key, what was trained on cannot be audited",
            got=str(key),
            hint="another folder",
        )
    lines = [json.dumps({**r, "text": r["prefix"] + r["secret"]}, ensure_ascii=False) for r in made.inserted]
    write_files(out, {"train.jsonl": "".join(f"{line}\n" for line in lines).encode()}, hint="another folder")
    made.save(key)
    typer.echo(f"Train on:  {out / 'train.jsonl'} ({len(lines)} of {len(made)} canaries)")
    typer.echo(f"Keep:      {key} (the coins; for you alone)")
    typer.echo(f"Afterwards: remanence text FOLDER --canaries {key}")


def _drawn(
    kind: Kind, count: int | None, template: str | None, length: int | None, seed: int
) -> TextCanaries:
    from remanence.texts.canaries import codes, strange

    many = 500 if count is None else count
    if kind is Kind.CODES:
        before = "The code of {name} is " if template is None else template
        return codes(many, template=before, digits=6 if length is None else length, seed=seed)
    before = "The word of {name} is " if template is None else template
    return strange(many, template=before, letters=12 if length is None else length, seed=seed)


def _natural(kind: Kind, texts: Path | None, drawn: tuple[object, ...], seed: int) -> TextCanaries:
    from remanence.texts.canaries import natural
    from remanence.texts.reading import records_of

    if texts is None or kind is not Kind.NATURAL or any(given is not None for given in drawn):
        raise InputError(
            "These canaries are records of your own.",
            needs="--kind natural with --texts, and no --count, --template or --length",
            got="no --texts" if texts is None else "options for canaries that are drawn",
            hint="remanence canaries FOLDER --kind natural --texts held-out.jsonl",
        )
    return natural(records_of(texts), seed=seed)
