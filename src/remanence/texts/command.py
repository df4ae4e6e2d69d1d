"""Audits of fine-tuned language models and adapters, from files: which of my training texts come back out?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remanence.cli.grouped import options, stored
from remanence.cli.output import console
from remanence.core.checks import exactly_one, goes_with, refusing
from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.core.attack import Attack
    from remanence.texts.canaries import TextCanaries
    from remanence.texts.game import Texts
    from remanence.texts.reading import Finder


@options("A language model and its texts")
class ModelAndTexts:
    """A language model, what it was fine-tuned on, and what it was not."""

    model: Annotated[
        Path | None, "A folder with safetensors and a tokenizer, or a .gguf file, instead of a target."
    ] = None
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
    unseen: Annotated[Path | None, "Texts of the same kind that were not trained on: the control."] = None
    canaries: Annotated[
        Path | None,
        "Canaries instead: the key.json of `remanence canaries`. Those that were left out are the control.",
    ] = None
    claimed_epsilon: Annotated[
        float | None, "With --canaries: the ε that the fine-tuning claims. They may refute it."
    ] = None
    claimed_delta: Annotated[float, "The δ that goes with it."] = 1e-5
    show_secrets: Annotated[bool, "Print the riskiest secrets themselves. They are never stored."] = False

    def target(self, given: str | None) -> str | None:
        """What to audit, by name; what was given, if that is no language model."""
        if self.model is None:
            for name in ("adapter", "texts", "canaries"):
                hint = f"remanence audit --model FOLDER --{name} {getattr(self, name)}"
                goes_with(f"--{name}", getattr(self, name), "--model", None, hint)
            return given
        if given is not None:
            raise InputError(
                "A target and a language model were given.",
                needs="one of them",
                got=f"{given} and --model {self.model}",
                hint=f"remanence audit --model {self.model} --texts train.jsonl",
            )
        return str(self.adapter or self.model)

    def source(self) -> Path | TextCanaries:
        """What was trained on: a file of texts, or canaries."""
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


@options("Which parts of texts are secrets, and what is known")
class SecretParts:
    """Which parts are secrets, and what is known."""

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

    tries: Annotated[int, "A secret counts if it comes out within this many tries."] = 100
    chance: Annotated[float, "... with at least this chance."] = 0.5
    temperature: Annotated[float | None, "Audit the decoding that you offer: its temperature."] = None
    top_k: Annotated[int | None, "Its top-k."] = None
    top_p: Annotated[float | None, "Its top-p."] = None

    def attacks(self, named: list[str] | None) -> list[Attack]:
        """The attacks of these names, or the usual ones, with the settings that were given."""
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


@options()
class TextOptions:
    """A language model, which parts of its texts are secrets, and how the adversary asks."""

    files: ModelAndTexts
    secrets: SecretParts
    asking: Asking

    def stored(self, accuse_at: float | None) -> dict[str, Any]:
        """What of these options a run folder keeps, where any was given. What is shown is asked for anew."""
        given = {**stored(self.files, self.secrets, self.asking), "accuse_at": accuse_at}
        return {name: value for name, value in given.items() if name != "show_secrets" and value is not None}


def load_text_game(options: TextOptions, accuse_at: float | None, device: str) -> Texts:
    """The game of a model and its texts."""
    from remanence.texts.canaries import LEVEL, Claim, Planted
    from remanence.texts.game import Rule, text_game
    from remanence.texts.reading import load_language_model

    files, secrets, asking = options.files, options.secrets, options.asking
    assert files.model is not None
    source, claimed = files.source(), files.claimed_epsilon
    rule = Rule(secrets.finder(), secrets.prefix_tokens, asking.tries, asking.chance)
    claim = None if claimed is None else Claim(claimed, files.claimed_delta)
    planted = Planted(
        by_coin=files.canaries is not None, claim=claim, level=LEVEL if accuse_at is None else accuse_at
    )
    tuned, plain = load_language_model(files.model, files.adapter, tokenizer=files.tokenizer, device=device)
    if files.base is not None:
        plain = load_language_model(files.base, tokenizer=files.tokenizer, device=device)[0]
    return text_game(tuned, source, base=plain, unseen=files.unseen, rule=rule, planted=planted)


def show_texts(result: AuditResult, game: Texts, *, secrets: bool) -> None:
    """Print the curve over queries, the riskiest places of the file, and a sentence; and `secrets`, if asked for."""
    from remanence.texts.words import curve_table, risk_table, sentence

    spelled = {(each.line, each.part): game.model.decode(each.tokens) for each in game.secrets}
    out = console()
    for part in (curve_table(result), risk_table(result, spelled if secrets else None), sentence(result)):
        out.print(part, highlight=False)


def refuse_model(target: str) -> None:
    """Tell somebody who hands a language model to `audit` as a target which options it has."""
    path = Path(target)
    adapter = (path / "adapter_config.json").is_file()
    if adapter or path.suffix == ".gguf" or (path / "config.json").is_file():
        named = f"BASE_MODEL --adapter {target}" if adapter else target
        raise InputError(
            "A language model has options of its own.",
            needs="--model, and the texts that it was fine-tuned on",
            got=f"remanence audit {target}",
            hint=f"remanence audit --model {named} --texts train.jsonl",
        )


def _lines(path: Path) -> tuple[str, ...]:
    from remanence.scale.reading import UNREADABLE, read_bytes

    needs, hint = "a text file, one per line", "--names names.txt"
    with refusing(UNREADABLE, "The names cannot be read.", needs=needs, got=path, hint=hint):
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    return tuple(line for line in lines if line.strip())
