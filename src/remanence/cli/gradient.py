"""The command for owners of federated or collaborative training: what does one shared gradient give away?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.output import (
    AcceptUnproven,
    Device,
    Json,
    Out,
    compute_device,
    console,
    default_folder,
    exit_code,
    show_result,
)
from remanence.exceptions import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from remanence.attacks.gradients.leak_map import LayerLeak


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(gradient)


def gradient(
    model: Annotated[
        str,
        typer.Argument(
            help="path/to/file.py:factory, where factory() returns the network (a torch.nn.Module)."
        ),
    ],
    gradients: Annotated[
        list[Path] | None,
        typer.Option("--gradient", help="A captured gradient, .safetensors or a state dict; repeatable."),
    ] = None,
    batch: Annotated[
        Path | None, typer.Option(help="Your own batch instead: an .npz file with inputs and labels.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="The weights at which the gradient was taken.", show_default="as the factory makes them"
        ),
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option(help="Shape of one input, as in 3,32,32.", show_default="the batch's, or a vector"),
    ] = None,
    update_of: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            help="The file holds new weights minus old ones after one step at this learning rate.",
        ),
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="An attack by name; repeatable. Default: all exact ones.")
    ] = None,
    max_success: Annotated[
        float, typer.Option(help="Your limit: the largest acceptable share of samples recovered.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    accept_unproven: AcceptUnproven = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Tell what one shared gradient gives away: which samples, and through which layer.

    With `--gradient` the attack knows what a server knows: the network and the gradient. What it recovers, it
    proves without the data. With `--batch` you look at your own batch before its gradient leaves. Exit codes are
    those of `audit`; audit.json and report.html are written too, and hold no sample.
    """
    from remanence.games.gradients.inspection import audit_gradients, open_subject
    from remanence.report.writing import write_report
    from remanence.results.verdict import Policy
    from remanence.scale.files import check_writable

    if bool(gradients) == (batch is not None):
        raise InputError(
            "There is nothing to look at." if batch is None else "A gradient and a batch were given.",
            needs="either --gradient or --batch",
            got="neither" if batch is None else "both",
            hint="--gradient for what was captured, --batch for what is about to be sent",
        )
    policy = Policy(max_success)
    folder = out or default_folder(model)
    check_writable(folder)
    with contextlib.redirect_stdout(sys.stderr):  # a factory may print; our own output stays clean
        subject = open_subject(
            model,
            gradients or [],
            batch,
            weights=weights,
            input_shape=_shape(input_shape),
            learning_rate=update_of,
        )
        result, leaks = audit_gradients(
            subject, attack, policy=policy, seed=seed, device=compute_device(device), target=model
        )
    path = result.save(folder)
    report = write_report(result, folder)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        terminal = console()
        terminal.print(_leak_table(leaks))
        terminal.print(subject.scope, highlight=False)
        if subject.exposure is not None:
            terminal.print(str(subject.exposure), highlight=False)
        show_result(result, path)
        typer.echo(f"Report: {report}")
    raise typer.Exit(exit_code(result, accept_unproven))


def _shape(text: str | None) -> tuple[int, ...] | None:
    try:
        shape = None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if shape is not None and not (shape and all(size > 0 for size in shape)):
        raise InputError(
            "The shape of an input cannot be read.",
            needs="whole numbers with commas between them",
            got=str(text),
            hint="--input-shape 3,32,32",
        )
    return shape


def _leak_table(leaks: Sequence[LayerLeak]) -> Table:
    """One line per layer: how much gradient there is, and how much of it was traced to samples."""
    from rich.table import Table

    table = Table("layer", title="Leak map", title_justify="left")
    for heading in ("shape", "not zero", "rank", "samples exposed", "explained"):
        table.add_column(heading, justify="right")
    for leak in leaks:
        table.add_row(
            leak.name,
            " × ".join(map(str, leak.shape)),
            f"{leak.nonzero:.1%}",
            "" if leak.rank is None else str(leak.rank),
            "" if leak.exclusive is None else str(leak.exclusive),
            "" if leak.unexplained is None else f"{max(0.0, 1 - leak.unexplained):.1%}",
        )
    return table
