"""The command for owners of fine-tuned classifiers: which of my training pictures come back out of this head?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.grouped import grouped
from remanence.cli.output import (
    Device,
    Ending,
    compute_device,
    default_folder,
    finish,
)
from remanence.exceptions import InputError

_RECIPE = "How the head was trained"


@dataclass(frozen=True)
class Pictures:
    """The pictures, and how the backbone is given them."""

    images: Annotated[
        Path, typer.Option(help="The pictures that it was trained on: one folder for each class.")
    ]
    public: Annotated[
        Path,
        typer.Option(help="Public pictures of the same kind and classes, not trained on."),
    ]
    size: Annotated[int, typer.Option(help="Pictures are resized to this side.")] = 32
    mean: Annotated[
        str, typer.Option(help="Subtracted from the pixels, which are in [0, 1]; one number for grey.")
    ] = "0.5,0.5,0.5"
    deviation: Annotated[str, typer.Option(help="The pixels are then divided by this.")] = "0.5,0.5,0.5"


@dataclass(frozen=True)
class Trained:
    """How the head was trained."""

    epochs: Annotated[int, typer.Option(rich_help_panel=_RECIPE)] = 30
    learning_rate: Annotated[float, typer.Option(rich_help_panel=_RECIPE)] = 0.01
    optimizer: Annotated[
        str, typer.Option(rich_help_panel=_RECIPE, help="sgd, adam, adamw, rmsprop, ...")
    ] = "sgd"
    momentum: Annotated[float, typer.Option(rich_help_panel=_RECIPE)] = 0.0
    weight_decay: Annotated[float, typer.Option(rich_help_panel=_RECIPE)] = 0.0
    batch_size: Annotated[
        int | None, typer.Option(rich_help_panel=_RECIPE, show_default="all pictures in every step")
    ] = None
    hidden: Annotated[
        int | None, typer.Option(rich_help_panel=_RECIPE, help="Hidden units.", show_default="none")
    ] = None
    initialisation: Annotated[
        str, typer.Option(rich_help_panel=_RECIPE, help="pytorch, or the deviation of normal weights.")
    ] = "pytorch"
    label_smoothing: Annotated[float, typer.Option(rich_help_panel=_RECIPE)] = 0.0
    bias: Annotated[bool, typer.Option(rich_help_panel=_RECIPE, help="Whether its layers have biases.")] = (
        True
    )


@dataclass(frozen=True)
class Effort:
    """How much is tried, and what counts as too much."""

    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Stop after the linear reader, which takes seconds. Otherwise the network follows.",
        ),
    ] = False
    steps: Annotated[int, typer.Option(help="Training steps of the network.")] = 600
    trials: Annotated[int, typer.Option(help="How many new heads to make and attack.")] = 100
    max_success: Annotated[
        float | None,
        typer.Option(help="Your limit.", show_default="what a guess achieves, plus a tenth of the rest"),
    ] = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO


@grouped
def head(
    released: Annotated[
        Path,
        typer.Argument(
            metavar="HEAD", help="The head that you are about to publish: .safetensors, or a state dict."
        ),
    ],
    *,
    backbone: Annotated[
        str,
        typer.Option(
            help="Your frozen backbone: path/to/file.py:factory, which returns the module, or a .pt2 of torch.export."
        ),
    ],
    pictures: Pictures,
    trained: Trained,
    effort: Effort,
    ending: Ending,
) -> None:
    """Tell which training pictures come back out of a head on a frozen backbone.

    The options must describe how the head was trained. The audit makes new heads in that way, and refuses yours if it
    is not like them. A linear reader answers first, within seconds. Then a network starts from it. Nothing is
    unpickled. audit.json and report.html name files in your folder and never hold a picture. Exit codes are those of
    `audit`.
    """
    from remanence.attacks.linear_reader import LinearReader
    from remanence.attacks.reconstructor.attack import Reconstructor
    from remanence.games.heads.audit_head import audit_head, exposed_pictures
    from remanence.games.heads.backbones import load_backbone
    from remanence.games.heads.given_embeddings import what_the_head_withholds
    from remanence.games.heads.head_game import HeadAudit
    from remanence.games.heads.picture_folders import Preparation, classes_of, read_pictures
    from remanence.mechanisms.heads.embedding import embed, embedding_of
    from remanence.mechanisms.heads.loop import Loop
    from remanence.mechanisms.heads.transfer_head import TransferHead
    from remanence.scale.files import check_writable

    classes = classes_of(pictures.images)
    mean, deviation = _numbers("mean", pictures.mean), _numbers("deviation", pictures.deviation)
    prepare = Preparation(pictures.size, mean, deviation)
    loop = Loop(label_smoothing=trained.label_smoothing, bias=trained.bias)
    recipe = TransferHead(
        classes=len(classes),
        epochs=trained.epochs,
        learning_rate=trained.learning_rate,
        optimizer=trained.optimizer,
        momentum=trained.momentum,
        weight_decay=trained.weight_decay,
        batch_size=trained.batch_size,
        hidden=trained.hidden,
        initialisation=_start(trained.initialisation),
        two_outputs=len(classes) == 2,
        loop=None if loop == Loop() else loop,
    )
    folder = ending.out or default_folder(released.stem)
    check_writable(folder)
    place = compute_device(effort.device)
    module = load_backbone(backbone, place)
    own, files = read_pictures(pictures.images, classes, prepare)
    prior, _ = read_pictures(pictures.public, classes, prepare)
    own, prior = (embed(each.to(place), module) for each in (own, prior))  # once, for all that follows
    features = embedding_of(own)
    first = LinearReader()
    result = None
    for attacks in ([first],) if effort.quick else ([first], [first, Reconstructor(steps=effort.steps)]):
        settings = HeadAudit(
            limit=effort.max_success,
            attacks=attacks,
            trials=effort.trials,
            seed=effort.seed,
            device=place,
            target=released.name,
        )
        result = audit_head(
            features, own.features, own.labels, recipe, prior=prior, released=released, settings=settings
        )
        if not ending.as_json and len(attacks) == 1 and not effort.quick:
            typer.echo(f"First answer, by the linear reader:\n{result}\nNow the network.", err=True)
    assert result is not None
    lines = [f"{files[p.picture].relative_to(pictures.images)}: {p}" for p in exposed_pictures(result)]
    lines.append(what_the_head_withholds(result))
    finish(result, folder, last=lines, ending=ending)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--{name} cannot be used.",
            needs="one number, or three with commas",
            got=text,
            hint=f"--{name} 0.5",
        ) from None


def _start(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
