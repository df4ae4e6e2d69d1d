"""`remanence audit`: attack a model, and hold the result against a limit."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.grouped import options, stored
from remanence.cli.interruption import told
from remanence.cli.output import (
    AcceptUnproven,
    Json,
    as_called,
    compute_device,
    default_folder,
    exit_code,
    show_report,
    show_result,
)
from remanence.cli.output import policy as limit
from remanence.cli.run_folder import Play, Scale, interrupted, named_target, tell_reuse
from remanence.core.exceptions import InputError
from remanence.heads.command import HeadOptions, load_head_game, show_pictures
from remanence.tables.command import TableOptions, load_table_game
from remanence.tables.findings import show_table
from remanence.texts.command import TextOptions, load_text_game, refuse_model, show_texts

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.results.verdict import Policy


def _from_settings(context: typer.Context, target: str | None) -> str | None:
    """The target, or the one that an audit.toml names; its other settings become the defaults."""
    if target is None or not target.endswith(".toml"):
        return target
    from remanence.cli.settings_file import read_settings

    settings = read_settings(Path(target))
    context.default_map = {**settings, **(context.default_map or {})}
    return settings.get("target")


@options()
class Telling:
    """What is kept and printed, when a claim counts as refuted, and how the command ends."""

    show_reconstructions: Annotated[
        bool, "Keep some targets and reconstructions, in a file for your eyes only. They are training data."
    ] = False
    accuse_at: Annotated[
        float | None,
        "The p-value at which the claim of a training counts as refuted.",
        "0.001 for a recorded run, 0.05 by canaries alone",
    ] = None
    accept_unproven: AcceptUnproven = False
    as_json: Json = False


def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A built-in name (see `remanence targets`), path/to/file.py:factory, a fitted model's .skops file "
            "with --data and --label, published sums in a .csv file with the same, a recorded run's folder, or an "
            "audit.toml with a target and options.",
            callback=_from_settings,
            is_eager=True,
        ),
    ] = None,
    *,
    play: Play,
    scale: Scale,
    table: TableOptions,
    texts: TextOptions,
    pictures: HeadOptions,
    telling: Telling,
) -> None:
    """Attack a model and compare the result with your limit.

    A fine-tuned language model is audited with `--model FOLDER --texts train.jsonl`, and needs
    `pip install 'remanence[text]'`: the probability that a secret comes out is computed exactly. A head on a frozen
    backbone is audited with `--backbone file.py:make --head head.safetensors --images mine/ --public others/` and how
    it was trained: heads are made anew in that way, and yours is refused if it is not like them. Writes audit.json for
    machines and report.html for people. Finished work is kept: an audit that was killed goes on with
    `remanence audit TARGET --resume FOLDER`.
    """
    from remanence.auditing import audit as run_audit
    from remanence.cli.loading import load_game
    from remanence.heads.head_game import HeadGame
    from remanence.report.writing import write_report
    from remanence.scale.files import check_writable
    from remanence.targets import TARGETS
    from remanence.texts.game import Texts

    target = pictures.target(texts.files.target(target)) or named_target(target, scale.resume, "audit")
    spoken, drawn = texts.files.model is not None, pictures.files.head is not None
    if not (spoken or drawn):
        refuse_model(target)
    policy, folder = (
        limit(play.max_success),
        play.out or default_folder(Path(target).name if spoken or drawn else target),
    )
    attacks, trials = play.attacks(), play.trials
    if spoken:
        attacks = texts.asking.attacks(play.attack)
    elif drawn:
        attacks = attacks or pictures.attacks(compute_device(play.device))
    check_writable(folder)
    keep = telling.show_reconstructions or target in TARGETS
    game = None
    if (
        Path(target).is_dir() and target not in TARGETS and not (spoken or drawn)
    ):  # a built-in name means the same everywhere
        played_already = play.attack or play.trials or telling.show_reconstructions
        result = as_called(
            _audit_recorded(Path(target), policy, play.seed, telling.accuse_at, options=played_already)
        )
        path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
    else:
        # A factory may print; our own output stays clean.
        with contextlib.redirect_stdout(sys.stderr):
            place = compute_device(play.device)
            if spoken:
                game = load_text_game(texts, telling.accuse_at, place)
            elif drawn:
                game = load_head_game(pictures, place)
            else:
                game = load_table_game(target, table) if table.data else load_game(target)
                place = "cpu" if table.data else place
            options = {
                "command": "audit",
                "target": target,
                **play.stored(),
                "device": place,
                "show_reconstructions": telling.show_reconstructions,
                "accept_unproven": telling.accept_unproven,
                **(stored(table) if table.data else {}),
                **(texts.stored(telling.accuse_at) if spoken else {}),
                **(pictures.stored() if drawn else {}),
            }
            run = scale.begin(game, options, folder, galleries=keep)
            again = "" if spoken else pictures.again() if drawn else None
            with told(lambda: interrupted("audit", target, scale.place(folder), again)), run:
                result = run_audit(
                    game,
                    attacks,
                    policy=policy,
                    trials=trials,
                    seed=play.seed,
                    device=place,
                    target=Path(target).name if drawn else target,
                    run=run,
                )
                result = as_called(result)
                path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
            tell_reuse(run)
    if telling.as_json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        show_result(result, path)
        if isinstance(game, Texts):
            show_texts(result, game, secrets=texts.files.show_secrets)
        if isinstance(game, HeadGame) and pictures.files.images is not None:
            show_pictures(result, pictures.files.images)
        if table.data and game is not None:
            show_table(result, game, folder, table, rows=telling.show_reconstructions)
        show_report(report)
    raise typer.Exit(exit_code(result, telling.accept_unproven))


def _audit_recorded(
    folder: Path, policy: Policy | None, seed: int, level: float | None, *, options: object
) -> AuditResult:
    from remanence.private.audit_run import audit_run
    from remanence.private.claim_test import LEVEL

    if options:
        raise InputError(
            "A recorded run has been played already.",
            needs="a folder, a limit and a seed",
            got="--attack, --trials or --show-reconstructions",
            hint="leave them out; the canaries were chosen when the run was recorded",
        )
    return audit_run(folder, policy=policy, seed=seed, level=LEVEL if level is None else level)
