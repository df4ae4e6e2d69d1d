"""`remanence init`: asks what you release, and writes an audit.toml with a stub to fill in."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from click import Choice


class Kind(StrEnum):
    """What is about to be released."""

    TABLE = "table"
    HEAD = "head"
    DP = "dp"
    FUNCTION = "function"


_ASKED = {
    Kind.TABLE: "a scikit-learn model that was trained on a table",
    Kind.HEAD: "a classifier that was fine-tuned on pictures (a new head on a frozen backbone)",
    Kind.DP: "a model that Opacus trained, with a recording of the run",
    Kind.FUNCTION: "anything else: a function of yours that trains it",
}

_SETTINGS = """\
# remanence audit audit.toml
target = "{target}"
max_success = {limit:g}  # your limit: the largest share of records that you accept to come back
seed = 0
"""

_STUBS = {
    Kind.TABLE: '''"""The model that is about to be released, and the table it was trained on."""

from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from remanence.tables.sklearn import leave_one_out


def factory():
    X, y = load_diabetes(return_X_y=True)  # your table
    model = Ridge(alpha=1.0).fit(X, y)  # your fitted model
    return leave_one_out(model, X, y)
''',
    Kind.HEAD: '''"""The head that is about to be released: its backbone, its recipe, and your pictures."""

import torch
from torch import nn

from remanence import Records, TransferHead, head_game


def factory():
    generator = torch.Generator().manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())  # your frozen backbone
    images, labels = torch.rand(4, 8, 8, generator=generator), torch.arange(4)  # your training pictures
    public = Records(torch.rand(400, 8, 8, generator=generator), torch.arange(400) % 4)  # pictures like them
    recipe = TransferHead(classes=4, epochs=30)  # how the head was trained
    return head_game(backbone, images, labels, recipe, prior=public)
''',
    Kind.FUNCTION: '''"""The training that is about to be released, and a shortlist with the record in question."""

import torch

from remanence import Criterion, FinitePrior, Game, Records, looped

PEOPLE = Records(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(50))  # your records


def train(records, seed):
    noise = torch.randn(3, generator=torch.Generator().manual_seed(seed))  # your training; what it releases
    return {"mean": records.features.mean(0) + 0.01 * noise}


def factory():
    return Game(looped(train), FinitePrior(PEOPLE[:8]), known_data=PEOPLE[8:], criterion=Criterion())
''',
}


def init(
    kind: Annotated[Kind | None, typer.Argument(help="What you release. Without it, you are asked.")] = None,
    folder: Annotated[Path, "Where to write."] = Path(),
    max_success: Annotated[float, "Your limit: the largest success that you accept."] = 0.1,
) -> None:
    """Write an audit.toml, and a stub that runs as it is, for what you are about to release."""
    from remanence.core.exceptions import InputError
    from remanence.results.verdict import Policy
    from remanence.scale.files import write_files

    limit = Policy(max_success).max_success
    if kind is None:
        typer.echo("What are you about to release?")
        for number, each in enumerate(_ASKED, 1):
            typer.echo(f"  {number}. {_ASKED[each]}")
        number = typer.prompt("Number", type=Choice([str(n) for n in range(1, len(_ASKED) + 1)]))
        kind = list(_ASKED)[int(number) - 1]
    target = "run" if kind is Kind.DP else "target.py:factory"
    files = {"audit.toml": _SETTINGS.format(target=target, limit=limit).encode()}
    if kind in _STUBS:
        files["target.py"] = _STUBS[kind].encode()
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise InputError(
            "A file is already there.",
            needs=f"a folder without {' and '.join(files)}",
            got=f"{folder / there[0]}",
            hint="--folder NEW",
        )
    write_files(folder, files)
    typer.echo(f"Wrote {' and '.join(str(folder / name) for name in files)}.")
    if kind is Kind.DP:
        typer.echo("Record your loop into the folder `run` first: see docs/opacus.md.")
    else:
        typer.echo("Put your own data and model where target.py says so.")
    typer.echo(f"Then: remanence audit {folder / 'audit.toml'}")
