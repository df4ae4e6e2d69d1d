"""`remanence text`: which secrets of my training texts come out of this language model? And canaries to train on."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.grouped import options, stored
from remanence.cli.playing import Shared, console, play
from remanence.core.checks import exactly_one
from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    from remanence.core.attack import Attack
    from remanence.texts.canaries import TextCanaries
    from remanence.texts.game import Texts
    from remanence.texts.reading import Finder


@options("A language model and its texts")
class ModelAndTexts:
    """A language model, its training texts, and unseen texts."""

    adapter: Annotated[Path | None, "A PEFT adapter; the model without it is then the base."] = None
    base: Annotated[Path | None, "The model that a full fine-tuning started from."] = None
    texts: Annotated[
        Path | None,
        "The training texts, one JSON record per line: prefix and secret; messages; or a text with --numbers or "
        "--windows.",
    ] = None
    numbers: Annotated[
        int | None, typer.Option(help="Secrets are numbers of at least this many digits.", min=1)
    ] = None
    windows: Annotated[
        int | None,
        typer.Option(
            help="Secrets are windows of a text: this many tokens are known, and as many must come out.",
            min=1,
        ),
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

    def source(self) -> Path | TextCanaries:
        """The training texts: a file, or canaries."""
        from remanence.texts.canaries import TextCanaries

        if self.adapter is not None and self.base is not None:
            hint = "leave --base out: without its adapter, the model is the base"
            exactly_one({"--adapter": self.adapter, "--base": self.base}, hint)
        exactly_one({"--texts": self.texts, "--canaries": self.canaries}, "--texts train.jsonl")
        return self.texts if self.texts is not None else TextCanaries.load(self.canaries or "")

    def finder(self) -> Finder | None:
        """The rule that was asked for."""
        from remanence.texts.reading import Numbers, Windows

        if self.numbers is not None and self.windows is not None:
            exactly_one({"--numbers": self.numbers, "--windows": self.windows}, "one audit for each")
        if self.numbers is not None:
            return Numbers(self.numbers)
        return None if self.windows is None else Windows(self.windows)


@options("How the adversary asks a language model")
class Asking:
    """How the adversary asks."""

    attack: Annotated[list[str] | None, "An attack by name; repeatable.", "the usual ones"] = None
    tries: Annotated[int, "A secret counts if it comes out within this many tries."] = 100
    temperature: Annotated[float, "The temperature of the decoding that you offer."] = 1.0
    top_p: Annotated[float, "Its top-p."] = 1.0

    def attacks(self) -> list[Attack]:
        """The attacks of these names, or the usual ones, with the given decoding."""
        from remanence.core.catalogue import load_attack
        from remanence.texts.probabilities import Decoding

        offered = Decoding(self.temperature, top_p=self.top_p)
        usual = ["greedy-decoding", "sampling", *(["top-k-sampling"] if offered == Decoding() else [])]
        found = [load_attack(name) for name in self.attack or usual]
        return [replace(each, decoding=offered) if hasattr(each, "decoding") else each for each in found]  # pyright: ignore[reportArgumentType, reportCallIssue]


def text(
    model: Annotated[
        Path,
        typer.Argument(help="A folder with safetensors and a tokenizer."),
    ],
    *,
    files: ModelAndTexts,
    asking: Asking,
    shared: Shared,
) -> None:
    """Tell which secrets of the training texts come out of a fine-tuned language model or adapter.

    The probability that a secret comes out is computed exactly, not sampled. Needs `pip install '.[text]'`.
    """
    from remanence.texts.canaries import Claim
    from remanence.texts.game import text_game
    from remanence.texts.reading import load_language_model
    from remanence.texts.words import risk_table, sentence

    def game(device: str) -> Texts:
        source, find, claimed = files.source(), files.finder(), files.claimed_epsilon
        claim = None if claimed is None else Claim(claimed, files.claimed_delta)
        tuned, plain = load_language_model(model, files.adapter, device=device)
        if files.base is not None:
            plain = load_language_model(files.base, device=device)[0]
        return text_game(
            tuned, source, base=plain, unseen=files.unseen, find=find, tries=asking.tries, claim=claim
        )

    play(
        game,
        shared,
        command="text",
        target=str(files.adapter or model),
        name=(files.adapter or model).name,
        stored={**stored(files, asking), "model": str(model)},
        attacks=asking.attacks(),
        show=lambda result, *_: console().print(
            risk_table(result), sentence(result), sep="\n", highlight=False
        ),
    )


def canaries(
    out: Annotated[Path, typer.Argument(help="A new folder, for train.jsonl and key.json.")],
    *,
    count: Annotated[int | None, "How many; a coin puts about half of them in.", "500"] = None,
    template: Annotated[
        str | None, "The text before a code, with {name} in it.", "The code of {name} is "
    ] = None,
    digits: Annotated[int | None, "Digits of a code.", "6"] = None,
    texts: Annotated[
        Path | None, "Your own records instead of codes: prefix and secret, not among the training texts."
    ] = None,
    seed: Annotated[
        int | None, "Reproduces the same canaries. Anyone who knows it knows the coins.", "drawn"
    ] = None,
) -> None:
    """Make canaries for the fine-tuning of a language model: random codes, each in or out by a coin.

    Add train.jsonl to your training texts. Keep key.json private: it records which were left out. After training,
    `remanence text FOLDER --canaries key.json` tells which come back out and gives a lower bound on ε;
    `--claimed-epsilon 8` compares that with a claim.
    """
    from remanence.scale.files import write_files
    from remanence.texts.canaries import codes, natural
    from remanence.texts.reading import records_of

    seed = secrets.randbelow(2**31) if seed is None else seed
    given = {"count": count, "template": template, "digits": digits}
    given = {name: value for name, value in given.items() if value is not None}
    if texts is None:
        made = codes(**{"count": 500, "seed": seed, **given})  # pyright: ignore[reportArgumentType]
    else:
        for name, value in given.items():
            hint = "remanence canaries FOLDER --texts held-out.jsonl"
            exactly_one({"--texts": texts, f"--{name}": value}, hint)
        made = natural(records_of(texts), seed=seed)
    key = out / "key.json"
    if key.exists():
        raise InputError(
            "There are canaries already.",
            needs="a new folder: overwriting a key makes its canaries useless",
            got=str(key),
            hint="another folder",
        )
    lines = [json.dumps({**r, "text": r["prefix"] + r["secret"]}, ensure_ascii=False) for r in made.inserted]
    train = "".join(f"{line}\n" for line in lines).encode()
    write_files(out, {"train.jsonl": train, key.name: made.written()}, hint="another folder")
    typer.echo(f"Train on:  {out / 'train.jsonl'} ({len(lines)} of {len(made)} canaries)")
    typer.echo(f"Keep:      {key} (the coins; for you alone)")
    typer.echo(f"Afterwards: remanence text FOLDER --canaries {key}")
