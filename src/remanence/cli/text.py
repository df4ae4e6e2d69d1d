"""The command for owners of fine-tuned language models: which of my training texts come back out?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.grouped import grouped
from remanence.cli.output import (
    Device,
    Ending,
    MaxSuccess,
    compute_device,
    default_folder,
    finish,
)
from remanence.cli.output import policy as limit
from remanence.exceptions import InputError

if TYPE_CHECKING:
    from remanence.attacks.attack import Attack
    from remanence.attacks.texts.attacks import TemplateSearch
    from remanence.attacks.texts.decoding import Decoding
    from remanence.games.texts.canaries import TextCanaries
    from remanence.games.texts.game import Texts
    from remanence.games.texts.secrets import Finder

_SECRETS, _DECODING = "Which parts are secrets, and what is known", "How the adversary asks"


def refuse_model(target: str) -> None:
    """Tell somebody who hands a language model to `audit` which command has the options for it."""
    path = Path(target)
    adapter = (path / "adapter_config.json").is_file()
    if adapter or path.suffix == ".gguf" or (path / "config.json").is_file():
        named = f"BASE_MODEL --adapter {target}" if adapter else target
        raise InputError(
            "A language model is audited by a command of its own.",
            needs="`remanence text`, with the texts that it was fine-tuned on",
            got=f"remanence audit {target}",
            hint=f"remanence text {named} --texts train.jsonl",
        )


@dataclass(frozen=True)
class LookedFor:
    """What was trained on, and what was not."""

    texts: Annotated[
        Path | None,
        typer.Option(
            help="The training texts, one JSON record per line: prefix and secret, or a text with --numbers, --names "
            "or --windows."
        ),
    ] = None
    canaries: Annotated[
        Path | None,
        typer.Option(
            help="Canaries instead, as TextCanaries.save wrote them. Those that were left out are the control."
        ),
    ] = None
    claimed_epsilon: Annotated[
        float | None,
        typer.Option(
            help="With --canaries: the ε that the fine-tuning claims. Its ceiling is held against them."
        ),
    ] = None
    claimed_delta: Annotated[float, typer.Option(help="The δ that goes with it.")] = 1e-5
    unseen: Annotated[
        Path | None, typer.Option(help="Texts of the same kind that were not trained on: the control.")
    ] = None


@dataclass(frozen=True)
class ModelFiles:
    """What belongs to the model."""

    adapter: Annotated[
        Path | None, typer.Option(help="A PEFT adapter; the model without it is then the base.")
    ] = None
    base: Annotated[
        Path | None,
        typer.Option(help="The model that a full fine-tuning started from: folder or .gguf file."),
    ] = None
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer's folder.", show_default="the model's")
    ] = None


@dataclass(frozen=True)
class SecretParts:
    """Which parts are secrets, and what is known."""

    numbers: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_SECRETS, help="Secrets are numbers of at least this many digits.", min=1
        ),
    ] = None
    names: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_SECRETS, help="Secrets are these names: a file with one per line."),
    ] = None
    windows: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_SECRETS,
            help="Every window of a text: this many tokens are known, and as many must come out.",
            min=1,
        ),
    ] = None
    prefix_tokens: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_SECRETS, help="The adversary knows only this many tokens before a secret."
        ),
    ] = None
    form: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_SECRETS,
            help="The form of a secret, for template-search: text with open places such as {digits:6}, {ACGT:8}, "
            "{Ada|Eve} or {@names.txt}.",
            show_default="every digit is open",
        ),
    ] = None
    without_prefix: Annotated[
        bool,
        typer.Option(
            "--without-prefix",
            rich_help_panel=_SECRETS,
            help="--form is that of a whole record: nothing before the secret is known.",
        ),
    ] = False


@dataclass(frozen=True)
class Asking:
    """How the adversary asks."""

    tries: Annotated[
        int,
        typer.Option(
            rich_help_panel=_DECODING, help="A secret counts if it comes out within this many tries."
        ),
    ] = 100
    chance: Annotated[
        float, typer.Option(rich_help_panel=_DECODING, help="... with at least this chance.")
    ] = 0.5
    temperature: Annotated[
        float | None,
        typer.Option(rich_help_panel=_DECODING, help="Audit the decoding that you offer: its temperature."),
    ] = None
    top_k: Annotated[int | None, typer.Option(rich_help_panel=_DECODING, help="Its top-k.")] = None
    top_p: Annotated[float | None, typer.Option(rich_help_panel=_DECODING, help="Its top-p.")] = None
    attack: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_DECODING,
            help="sampling, greedy-decoding, top-k-sampling, near-verbatim, template-search; repeatable.",
        ),
    ] = None


@dataclass(frozen=True)
class Effort:
    """What counts as too much, and how it is computed."""

    max_success: MaxSuccess = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO
    show_secrets: Annotated[
        bool,
        typer.Option("--show-secrets", help="Print the riskiest secrets themselves. They are never stored."),
    ] = False


@grouped
def text(
    model: Annotated[
        Path, typer.Argument(help="The model: a folder with safetensors and its tokenizer, or a .gguf file.")
    ],
    *,
    looked_for: LookedFor,
    files: ModelFiles,
    secrets: SecretParts,
    asking: Asking,
    effort: Effort,
    ending: Ending,
) -> None:
    """Tell which training texts a fine-tuned language model or an adapter gives away.

    The probability that a secret comes out is computed exactly, not sampled. What the base model says anyway does not
    count. Everything is read from local files. audit.json and report.html name places in your file and hold no text.
    Needs `pip install 'remanence[text]'`. Exit codes are those of `audit`.
    """
    from remanence.auditing import audit
    from remanence.games.texts.audit_canaries import Claim
    from remanence.games.texts.audit_text import text_game
    from remanence.integrations.transformers import load_language_model
    from remanence.report.texts import curve_table, risk_table, sentence
    from remanence.scale.files import check_writable

    if files.adapter is not None and files.base is not None:
        raise InputError(
            "An adapter and a base model were given.",
            needs="one of them: without its adapter, the model is the base",
            got="--adapter and --base",
            hint="leave --base out",
        )
    source = _source(looked_for.texts, looked_for.canaries, looked_for.claimed_epsilon)
    policy, find = limit(effort.max_success), _rule(secrets.numbers, secrets.names, secrets.windows)
    search = _search(secrets.form, prefix=not secrets.without_prefix)
    attacks = _attacks(
        asking.attack, search, _decoding(asking.temperature, asking.top_k, asking.top_p), asking.chance
    )
    folder = ending.out or default_folder(str(model.name if files.adapter is None else files.adapter.name))
    check_writable(folder)
    place = compute_device(effort.device)
    tuned, plain = load_language_model(model, files.adapter, tokenizer=files.tokenizer, device=place)
    if files.base is not None:
        plain = load_language_model(files.base, tokenizer=files.tokenizer, device=place)[0]
    game = text_game(
        tuned,
        source,
        base=plain,
        unseen=looked_for.unseen,
        find=find,
        prefix_tokens=secrets.prefix_tokens,
        tries=asking.tries,
    )
    if looked_for.claimed_epsilon is not None:
        ceiling = Claim(looked_for.claimed_epsilon, looked_for.claimed_delta).extraction(
            game.baseline().value
        )
        game = replace(game, bounds=(ceiling,))
    result = audit(
        game, attacks, policy=policy, seed=effort.seed, device=place, target=str(files.adapter or model)
    )
    shown = risk_table(result, _spelled(game) if effort.show_secrets else None)
    first = [curve_table(result), shown, sentence(result)]
    finish(result, folder, first=first, ending=ending)


def _source(texts: Path | None, canaries: Path | None, claimed_epsilon: float | None) -> Path | TextCanaries:
    """What was trained on: a file of texts, or canaries."""
    from remanence.games.texts.canaries import TextCanaries

    if (texts is None) == (canaries is None):
        raise InputError(
            "There is nothing to look for." if texts is None else "Texts and canaries were given.",
            needs="--texts, or --canaries",
            got="neither" if texts is None else "both",
            hint="--texts train.jsonl",
        )
    drawn = None if canaries is None else TextCanaries.load(canaries)
    if claimed_epsilon is not None and (drawn is None or drawn.candidates is None):
        raise InputError(
            "A claim has no ceiling here.",
            needs="canaries whose secrets were drawn, so that it is known how often a guess finds one",
            got="--claimed-epsilon without them",
            hint="--canaries canaries.json, made by codes(...) or strange(...)",
        )
    found = drawn or texts
    assert found is not None
    return found


def _decoding(temperature: float | None, top_k: int | None, top_p: float | None) -> Decoding | None:
    """The decoding that the owner offers, if they said any."""
    from remanence.attacks.texts.decoding import Decoding

    if temperature is top_k is top_p is None:
        return None
    return Decoding(1.0 if temperature is None else temperature, top_k, 1.0 if top_p is None else top_p)


def _search(form: str | None, *, prefix: bool) -> TemplateSearch:
    """The search by form, as it was asked for."""
    from remanence.attacks.texts.attacks import TemplateSearch
    from remanence.attacks.texts.template import Template

    return TemplateSearch(None if form is None else Template.parse(form), prefix)


def _attacks(
    named: list[str] | None, search: TemplateSearch, offered: Decoding | None, chance: float
) -> list[Attack]:
    """The attacks of these names, or the usual ones, with the settings that were given."""
    from remanence.attacks.catalogue import load_attack
    from remanence.attacks.texts.attacks import TemplateSearch

    usual = ["greedy-decoding", "sampling", *(["top-k-sampling"] if offered is None else [])]
    usual += [] if search.form is None else ["template-search"]
    given = {"chance": chance, **({} if offered is None else {"decoding": offered})}
    found: list[Attack] = []
    for each in map(load_attack, named or usual):
        own = {name: value for name, value in given.items() if hasattr(each, name)}
        each = search if isinstance(each, TemplateSearch) else each
        found.append(replace(each, **own) if own else each)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found


def _rule(numbers: int | None, names: Path | None, windows: int | None) -> Finder | None:
    """The one rule that was asked for."""
    from remanence.games.texts.secrets import Names, Numbers, Windows
    from remanence.scale.reading import UnusableFileError, read_bytes

    rules: list[Finder] = []
    if numbers is not None:
        rules.append(Numbers(numbers))
    if names is not None:
        try:
            lines = read_bytes(names).decode().splitlines()
        except (UnusableFileError, UnicodeDecodeError) as error:
            raise InputError(
                "The names cannot be read.",
                needs="a text file, one per line",
                got=str(error),
                hint="--names names.txt",
            ) from None
        rules.append(Names(tuple(line for line in lines if line.strip())))
    if windows is not None:
        rules.append(Windows(windows, windows, windows))
    if len(rules) > 1:
        raise InputError(
            "There are several rules for what a secret is.",
            needs="one of --numbers, --names and --windows",
            got=f"{len(rules)} of them",
            hint="one audit for each",
        )
    return rules[0] if rules else None


def _spelled(game: Texts) -> dict[tuple[int, int], str]:
    return {(secret.line, secret.part): game.model.decode(secret.tokens) for secret in game.secrets}
