"""`remanence head`: which of my training pictures come back out of this head?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.grouped import options, stored
from remanence.cli.playing import Shared, compute_device, console, play
from remanence.core.checks import instance, refusing
from remanence.core.exceptions import InputError
from remanence.scale.user_code import call_factory

if TYPE_CHECKING:
    from torch import Tensor

    from remanence.auditing import AuditResult
    from remanence.core.attack import Attack
    from remanence.heads.game import HeadGame
    from remanence.heads.head import Head

_NARROW = 16  # of the network: with 64, 600 steps on coloured pictures of 32 x 32 take a core 25 minutes


@options("The backbone and the pictures")
class Files:
    """The backbone under the head, its training pictures, and public pictures."""

    backbone: Annotated[str, "The frozen backbone: file.py:factory, which returns its module."]
    images: Annotated[Path, "The pictures that it was trained on: a folder with one folder for each class."]
    public: Annotated[Path, "Similar public pictures of the same classes, not trained on."]
    weights: Annotated[
        Path | None,
        "The backbone's weights, where the factory does not load them: .safetensors or a state dict.",
    ] = None
    size: Annotated[int, "Pictures are resized to this many pixels a side."] = 32
    normalise: Annotated[
        str, "MEAN/DEVIATION of pixels in [0, 1], as in torchvision's Normalize; one number each for grey."
    ] = "0.5,0.5,0.5/0.5,0.5,0.5"
    quick: Annotated[
        bool, "Stop after the linear reader, which takes seconds. Otherwise a network follows."
    ] = False


@options("How the head was trained")
class Trained:
    """How the head was trained."""

    epochs: Annotated[int, "Passes over the pictures."] = 30
    learning_rate: Annotated[float, "Learning rate of the optimizer."] = 0.01
    optimizer: Annotated[str, "sgd, adam, adamw, nadam, adamax, rmsprop or adagrad."] = "sgd"
    momentum: Annotated[float, "Momentum of sgd or rmsprop."] = 0.0
    weight_decay: Annotated[float, "Weight decay of the optimizer."] = 0.0
    batch_size: Annotated[int | None, "Pictures in a step.", "all of them"] = None
    recipe: Annotated[
        str | None,
        "Instead of these: file.py:factory, which returns a TransferHead or, for a training loop of your own, "
        "an OwnHead.",
        "one linear layer that starts as nn.Linear does",
    ] = None

    def head(self, classes: int) -> Head:
        """The recipe as the library takes it."""
        from remanence.heads.head import Head
        from remanence.heads.transfer_head import TransferHead

        settings = {name: value for name, value in vars(self).items() if name != "recipe"}
        if self.recipe is None:
            return TransferHead(
                classes=classes, initialisation="pytorch", two_outputs=classes == 2, **settings
            )
        if replace(self, recipe=None) != Trained():
            raise InputError(
                "The training was declared twice.",
                needs="--recipe, or options such as --epochs",
                got="both",
                hint="the options as arguments of the TransferHead that the recipe returns",
            )
        path, _, factory = self.recipe.rpartition(":")
        found = call_factory(Path(path), factory, "a recipe")
        return instance(
            "--recipe", found, Head, "a TransferHead, or an OwnHead", "TransferHead(10, epochs=30)"
        )


def head(
    released: Annotated[
        Path, typer.Argument(metavar="HEAD", help="The head to be published: .safetensors, or a state dict.")
    ],
    *,
    files: Files,
    trained: Trained,
    show_reconstructions: Annotated[
        bool,
        "Write gallery.html, your pictures next to their reconstructions. It holds training data: keep it private.",
    ] = False,
    shared: Shared,
) -> None:
    """Show which training pictures come back out of a head on a frozen backbone.

    New heads are trained on your pictures by the recipe that you declare. Yours is refused if it does not match them.
    The linear reader answers within seconds; a network follows.
    """
    chosen = {"show_reconstructions": show_reconstructions, "released": str(released)}
    play(
        lambda place: _game(released, files, trained, place),
        shared,
        command="head",
        target=str(released),
        name=released.name,
        stored={**stored(files, trained), **chosen},
        attacks=_attacks(files, compute_device(shared.device)),
        keep=show_reconstructions,
        show=lambda result, game, folder: show_pictures(result, game, files.images, folder),
    )


def _attacks(files: Files, device: str) -> list[Attack]:
    """The linear reader, and a network that starts from it: a narrower one where there is no GPU."""
    from remanence.heads.linear_reader import LinearReader
    from remanence.reconstructor.attack import Reconstructor
    from remanence.reconstructor.decoders import draws_pictures

    slow = device == "cpu" and draws_pictures((files.size, files.size))
    network = Reconstructor(steps=300 if slow else 600, width=_NARROW if slow else 0)
    return [LinearReader(), *([] if files.quick else [network])]


def _game(released: Path, files: Files, trained: Trained, device: str) -> HeadGame:
    """The game of a head and folders of pictures."""
    from remanence.heads.game import head_game
    from remanence.heads.pictures import embed, embedding_of
    from remanence.heads.reading import Preparation, classes_of, load_backbone, read_pictures

    classes = classes_of(files.images)
    recipe = trained.head(len(classes))
    prepare = Preparation(files.size, *_numbers(files.normalise))
    module = load_backbone(files.backbone, files.weights, device)
    own, public = (read_pictures(each, classes, prepare) for each in (files.images, files.public))
    own, public = (embed(each.to(device), module) for each in (own, public))
    return head_game(embedding_of(own), own.features, own.labels, recipe, prior=public, released=released)


def show_pictures(result: AuditResult, game: HeadGame, folder: Path, results: Path) -> None:
    """Print the file of every exposed picture and how much the head withholds; name the files in the gallery too."""
    from remanence.heads.game import exposed_pictures, what_the_head_withholds
    from remanence.heads.reading import classes_of, picture_files
    from remanence.report.gallery import gallery_page
    from remanence.report.writing import GALLERY
    from remanence.scale.files import write_files

    out, files = console(), picture_files(folder, classes_of(folder))
    own = game.heads.source.records.flat.cpu()

    def file_of(target: Tensor) -> str:
        place = (own - target.flatten().cpu()).abs().sum(1).argmin()
        return str(files[int(place)][0].relative_to(folder))

    if (results / GALLERY).exists() and (page := gallery_page(result, file_of)) is not None:
        write_files(results, {GALLERY: page.encode()})
    for finding in result.strongest.findings:
        out.print(finding.headline(result.words), highlight=False, soft_wrap=True)
    for picture in exposed_pictures(result):
        out.print(
            f"{files[picture.picture][0].relative_to(folder)}: {picture}", highlight=False, soft_wrap=True
        )
    out.print(what_the_head_withholds(result), highlight=False, soft_wrap=True)


def _numbers(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    needs, hint = "MEAN/DEVIATION, each one number or three with commas", "--normalise 0.5/0.5"
    with refusing(ValueError, "--normalise cannot be used.", needs=needs, got=text, hint=hint):
        mean, deviation = (tuple(map(float, part.split(","))) for part in text.split("/"))
        return mean, deviation
