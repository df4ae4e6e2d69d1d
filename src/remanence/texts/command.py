"""`remanence text`: which secrets of my training texts come out of this language model? And canaries to train on."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.grouped import options, stored
from remanence.cli.playing import Shared, console, play
from remanence.core.checks import exactly_one, refusing
from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.core.attack import Attack
    from remanence.texts.canaries import TextCanaries
    from remanence.texts.game import Texts
    from remanence.texts.reading import Finder


@options("A language model and its texts")
class ModelAndTexts:
    """A language model, its training texts, and unseen texts."""

    adapter: Annotated[Path | None, "A PEFT adapter; the model without it is then the base."] = None
    base: Annotated[Path | None, "The model that a full fine-tuning started from: folder or .gguf file."] = (
        None
    )
    tokenizer: Annotated[Path | None, "The tokenizer's folder.", "the model's"] = None
    texts: Annotated[
        Path | None,
        "The training texts, one JSON record per line: prefix and secret; messages; or a text with --numbers, "
        "--names or --windows.",
    ] = None
    unseen: Annotated[Path | None, "Similar texts that were not trained on: the control."] = None
    canaries: Annotated[
        Path | None,
        "Canaries instead: the key.json of `remanence canaries`. Those that were left out are the control.",
    ] = None
    claimed_epsilon: Annotated[
        float | None, "With --canaries: the ε that the fine-tuning claims. They may refute it."
    ] = None
    claimed_delta: Annotated[float, "The δ that goes with it."] = 1e-5
    show_secrets: Annotated[bool, "Print the riskiest secrets themselves. They are never stored."] = False

    def source(self) -> Path | TextCanaries:
        """The training texts: a file, or canaries."""
        from remanence.texts.canaries import TextCanaries, no_canaries

        if self.adapter is not None and self.base is not None:
            raise InputError(
                "An adapter and a base model were given.",
                needs="one of them: without its adapter, the model is the base",
                got="--adapter and --base",
                hint="leave --base out",
            )
        exactly_one({"--texts": self.texts, "--canaries": self.canaries}, "--texts train.jsonl")
        if self.claimed_epsilon is not None and self.canaries is None:
            raise no_canaries("--claimed-epsilon without --canaries")
        return self.texts if self.texts is not None else TextCanaries.load(self.canaries or "")


@options("Which parts of texts are secrets, and what the adversary knows")
class SecretParts:
    """Which parts are secrets, and what the adversary knows."""

    numbers: Annotated[
        int | None, typer.Option(help="Secrets are numbers of at least this many digits.", min=1)
    ] = None
    names: Annotated[Path | None, "Secrets are these names: a file with one per line."] = None
    windows: Annotated[
        int | None,
        typer.Option(
            help="Every window of a text: this many tokens are known, and as many must come out.", min=1
        ),
    ] = None
    prefix_tokens: Annotated[int | None, "The adversary knows only this many tokens before a secret."] = None

    def finder(self) -> Finder | None:
        """The one rule that was asked for."""
        from remanence.texts.reading import Names, Numbers, Windows

        rules: list[Finder] = []
        rules += [] if self.numbers is None else [Numbers(self.numbers)]
        rules += [] if self.names is None else [Names(_lines(self.names))]
        rules += [] if self.windows is None else [Windows(self.windows, self.windows, self.windows)]
        if rules:
            exactly_one(
                {f"--{name}": value for name, value in list(vars(self).items())[:3]}, "one audit for each"
            )
        return rules[0] if rules else None


@options("How the adversary asks a language model")
class Asking:
    """How the adversary asks."""

    attack: Annotated[list[str] | None, "An attack by name; repeatable.", "the usual ones"] = None
    tries: Annotated[int, "A secret counts if it comes out within this many tries."] = 100
    chance: Annotated[float, "... with at least this probability."] = 0.5
    temperature: Annotated[float | None, "Audit the decoding that you offer: its temperature."] = None
    top_k: Annotated[int | None, "Its top-k."] = None
    top_p: Annotated[float | None, "Its top-p."] = None

    def attacks(self, named: list[str] | None) -> list[Attack]:
        """The attacks of these names, or the usual ones, with the given settings."""
        from remanence.core.catalogue import load_attack
        from remanence.texts.probabilities import Decoding

        offered = (self.temperature, self.top_k, self.top_p) != (None, None, None)
        usual = ["greedy-decoding", "sampling", *([] if offered else ["top-k-sampling"])]
        temperature, top_p = (1.0 if each is None else each for each in (self.temperature, self.top_p))
        found: list[Attack] = []
        for each in map(load_attack, named or usual):
            if offered and hasattr(each, "decoding"):
                each = replace(each, decoding=Decoding(temperature, self.top_k, top_p))  # pyright: ignore[reportArgumentType, reportCallIssue]
            found.append(each)
        return found


def text(
    model: Annotated[
        Path,
        typer.Argument(help="A folder with safetensors and a tokenizer, or a .gguf file."),
    ],
    *,
    files: ModelAndTexts,
    secrets: SecretParts,
    asking: Asking,
    accuse_at: Annotated[
        float | None, "The p-value at which the claim of a training counts as refuted.", "0.05"
    ] = None,
    shared: Shared,
) -> None:
    """Tell which secrets of the training texts come out of a fine-tuned language model or adapter.

    The probability that a secret comes out is computed exactly, not sampled. Needs `pip install '.[text]'`.
    """
    kept = {**stored(files, secrets, asking), "model": str(model), "accuse_at": accuse_at}
    play(
        lambda place: _game(model, files, secrets, asking, accuse_at, place),
        shared,
        command="text",
        target=str(files.adapter or model),
        name=(files.adapter or model).name,
        stored={name: value for name, value in kept.items() if name != "show_secrets" and value is not None},
        again="",
        attacks=asking.attacks(asking.attack),
        show=lambda result, game, _: show_texts(result, game, secrets=files.show_secrets),
    )


def _game(
    model: Path,
    files: ModelAndTexts,
    secrets: SecretParts,
    asking: Asking,
    accuse_at: float | None,
    device: str,
) -> Texts:
    """The game of a model and its texts."""
    from remanence.texts.canaries import LEVEL, Claim, Planted
    from remanence.texts.game import Rule, text_game
    from remanence.texts.reading import load_language_model

    source, claimed = files.source(), files.claimed_epsilon
    rule = Rule(secrets.finder(), secrets.prefix_tokens, asking.tries, asking.chance)
    claim = None if claimed is None else Claim(claimed, files.claimed_delta)
    planted = Planted(
        by_coin=files.canaries is not None, claim=claim, level=LEVEL if accuse_at is None else accuse_at
    )
    tuned, plain = load_language_model(model, files.adapter, tokenizer=files.tokenizer, device=device)
    if files.base is not None:
        plain = load_language_model(files.base, tokenizer=files.tokenizer, device=device)[0]
    return text_game(tuned, source, base=plain, unseen=files.unseen, rule=rule, planted=planted)


def show_texts(result: AuditResult, game: Texts, *, secrets: bool) -> None:
    """Print the curve over queries, the riskiest places of the file and a summary; `secrets` on request."""
    from remanence.texts.words import curve_table, risk_table, sentence

    spelled = {(each.line, each.part): game.model.decode(each.tokens) for each in game.secrets}
    out = console()
    for part in (curve_table(result), risk_table(result, spelled if secrets else None), sentence(result)):
        out.print(part, highlight=False)


def _lines(path: Path) -> tuple[str, ...]:
    from remanence.scale.reading import UNREADABLE, read_bytes

    needs, hint = "a text file, one per line", "--names names.txt"
    with refusing(UNREADABLE, "The names cannot be read.", needs=needs, got=path, hint=hint):
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    return tuple(line for line in lines if line.strip())


class Kind(StrEnum):
    """The kind of canary."""

    CODES = "codes"
    STRANGE = "strange"
    NATURAL = "natural"


def canaries(
    out: Annotated[Path, typer.Argument(help="A new folder, for train.jsonl and key.json.")],
    *,
    kind: Annotated[
        Kind, "Random digits, random letters, or held-out records of your own (--texts)."
    ] = Kind.CODES,
    count: Annotated[int | None, "How many; a coin puts about half of them in.", "500"] = None,
    template: Annotated[
        str | None, "The text before a secret, with {name} in it.", "The code of {name} is "
    ] = None,
    length: Annotated[int | None, "Digits or letters of a secret.", "6 digits, 12 letters"] = None,
    texts: Annotated[
        Path | None, "For --kind natural: records with a prefix and a secret, not trained on."
    ] = None,
    seed: Annotated[
        int | None, "Reproduces the same canaries. Anyone who knows it knows the coins.", "drawn"
    ] = None,
) -> None:
    """Make canaries for the fine-tuning of a language model: each is in or out by a coin.

    Add train.jsonl to your training texts. Keep key.json private: it records which were left out. After training,
    `remanence text FOLDER --canaries key.json` tells which come back out and gives a lower bound on ε;
    `--claimed-epsilon 8` compares that with a claim.
    """
    from remanence.scale.files import write_files
    from remanence.texts.canaries import codes, natural, strange
    from remanence.texts.reading import records_of

    own, drawn = texts is not None, (count, template, length) != (None, None, None)
    if own != (kind is Kind.NATURAL) or (own and drawn):
        raise InputError(
            "These canaries are records of your own.",
            needs="--kind natural with --texts, and no --count, --template or --length",
            got="options for canaries that are drawn" if own else "no --texts",
            hint="remanence canaries FOLDER --kind natural --texts held-out.jsonl",
        )
    seed = secrets.randbelow(2**31) if seed is None else seed
    if texts is not None:
        made = natural(records_of(texts), seed=seed)
    else:
        make, size = (codes, "digits") if kind is Kind.CODES else (strange, "letters")
        given = {name: value for name, value in (("template", template), (size, length)) if value is not None}
        made = make(500 if count is None else count, seed=seed, **given)  # pyright: ignore[reportArgumentType]
    key = out / "key.json"
    if key.exists():
        raise InputError(
            "There are canaries already.",
            needs="a new folder: overwriting a key makes its canaries useless",
            got=str(key),
            hint="another folder",
        )
    lines = [json.dumps({**r, "text": r["prefix"] + r["secret"]}, ensure_ascii=False) for r in made.inserted]
    write_files(out, {"train.jsonl": "".join(f"{line}\n" for line in lines).encode()}, hint="another folder")
    made.save(key)
    typer.echo(f"Train on:  {out / 'train.jsonl'} ({len(lines)} of {len(made)} canaries)")
    typer.echo(f"Keep:      {key} (the coins; for you alone)")
    typer.echo(f"Afterwards: remanence text FOLDER --canaries {key}")
