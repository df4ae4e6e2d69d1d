"""The command for owners of fine-tuned language models: which of my training texts come back out?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.output import (
    AcceptUnproven,
    Device,
    Json,
    MaxSuccess,
    Out,
    compute_device,
    console,
    default_folder,
    finish,
)
from remanence.cli.output import policy as limit
from remanence.exceptions import InputError

if TYPE_CHECKING:
    from remanence.attacks.attack import Attack
    from remanence.games.texts.game import Texts
    from remanence.games.texts.secrets import Finder


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(text)


def text(
    model: Annotated[
        Path, typer.Argument(help="The model: a folder with safetensors and its tokenizer, or a .gguf file.")
    ],
    texts: Annotated[
        Path,
        typer.Option(
            help="The training texts, one JSON record per line: prefix and secret, or a text with --numbers, --names "
            "or --windows."
        ),
    ],
    adapter: Annotated[
        Path | None, typer.Option(help="A PEFT adapter; the model without it is then the base.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="The model that a full fine-tuning began with: folder or .gguf file.")
    ] = None,
    unseen: Annotated[
        Path | None, typer.Option(help="Texts of the same kind that were not trained on: the control.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer's folder.", show_default="the model's")
    ] = None,
    numbers: Annotated[
        int | None, typer.Option(help="Secrets are the numbers of at least so many digits.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="Secrets are these names: a file with one per line.")
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(help="Every window of a text: so many tokens are known, and as many must come out."),
    ] = None,
    prefix_tokens: Annotated[
        int | None, typer.Option(help="The adversary knows only the last so many tokens before a secret.")
    ] = None,
    tries: Annotated[int, typer.Option(help="A secret counts if it comes out within so many tries.")] = 100,
    chance: Annotated[float, typer.Option(help="... with at least this chance.")] = 0.5,
    temperature: Annotated[
        float | None, typer.Option(help="Audit the decoding that you offer: its temperature.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Its top-k.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Its top-p.")] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="sampling, greedy-decoding, top-k-sampling, near-verbatim, template-search; repeatable."
        ),
    ] = None,
    max_success: MaxSuccess = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    show_secrets: Annotated[
        bool,
        typer.Option("--show-secrets", help="Print the riskiest secrets themselves. They are never stored."),
    ] = False,
    accept_unproven: AcceptUnproven = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Tell which training texts a fine-tuned language model or an adapter gives away.

    The probability that a secret comes out is computed exactly, not sampled. What the base model says already does not
    count. Everything is read from local files, and audit.json and report.html hold places in your file, never text.
    Needs `pip install 'remanence[text]'`. Exit codes are those of `audit`.
    """
    from remanence.attacks.catalogue import load_attack
    from remanence.attacks.texts.attacks import Sampling
    from remanence.attacks.texts.decoding import Decoding
    from remanence.auditing import audit
    from remanence.games.texts.audit_text import text_game
    from remanence.integrations.transformers import load_language_model
    from remanence.report.texts import curve_table, risk_table, sentence
    from remanence.scale.files import check_writable

    if adapter is not None and base is not None:
        raise InputError(
            "An adapter and a base model were given.",
            needs="one of them: without its adapter, the model is the base",
            got="--adapter and --base",
            hint="leave --base out",
        )
    policy, find = limit(max_success), _rule(numbers, names, windows)
    own = any(setting is not None for setting in (temperature, top_k, top_p))
    decoding = Decoding(1.0 if temperature is None else temperature, top_k, 1.0 if top_p is None else top_p)
    sampling = Sampling(decoding, chance)
    chosen: list[Attack] | None = [load_attack(name) for name in attack] if attack else None
    if chosen is None:
        chosen = [load_attack("greedy-decoding"), sampling]
        chosen += [] if own else [load_attack("top-k-sampling")]
    chosen = [sampling if each.info is sampling.info else each for each in chosen]
    folder = out or default_folder(str(model.name if adapter is None else adapter.name))
    check_writable(folder)
    place = compute_device(device)
    tuned, plain = load_language_model(model, adapter, tokenizer=tokenizer, device=place)
    if base is not None:
        plain = load_language_model(base, tokenizer=tokenizer, device=place)[0]
    game = text_game(
        tuned, texts, base=plain, unseen=unseen, find=find, prefix_tokens=prefix_tokens, tries=tries
    )
    result = audit(game, chosen, policy=policy, seed=seed, device=place, target=str(adapter or model))
    if not as_json:
        terminal = console()
        terminal.print(curve_table(result))
        terminal.print(risk_table(result, _spelled(game) if show_secrets else None))
        terminal.print(sentence(result), highlight=False)
    finish(result, folder, as_json=as_json, accept_unproven=accept_unproven)


def _rule(numbers: int | None, names: Path | None, windows: int | None) -> Finder | None:
    """The one rule that was asked for."""
    from remanence.games.texts.secrets import Names, Numbers, Windows

    rules: list[Finder] = []
    if numbers is not None:
        rules.append(Numbers(numbers))
    if names is not None:
        try:
            lines = names.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
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
