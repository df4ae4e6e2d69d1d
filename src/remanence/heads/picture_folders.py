"""Pictures as people have them: a folder for each class, in files that Pillow reads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.scale.progress import track

_KINDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}


@final
@dataclass(frozen=True)
class Preparation:
    """How files become what the backbone reads: the side in pixels, and what is taken off and divided by.

    Pixels are in [0, 1] first. One mean and deviation make grey pictures, three coloured ones.
    """

    size: int = 32
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        whole("size", self.size, hint="--size 32")
        for each in self.mean:
            number("mean", each)
        for each in self.deviation:
            number("deviation", each, above=0)
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.deviation):
            raise InputError(
                "The means and deviations cannot be used.",
                needs="one of each for grey pictures, or three of each for coloured ones",
                got=f"{len(self.mean)} means and {len(self.deviation)} deviations",
                hint="--mean 0.485,0.456,0.406 --deviation 0.229,0.224,0.225",
            )

    def __call__(self, path: Path) -> Tensor:
        """One file as a tensor `(channels, size, size)`."""
        import numpy as np
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(path) as picture:
                    kind = "L" if len(self.mean) == 1 else "RGB"
                    if picture.mode.startswith("I;16"):  # Pillow would cut them off at 255
                        eighth = np.round(np.array(picture) / 257).astype(np.uint8)
                        whole_range = Image.fromarray(eighth)
                    elif picture.mode in ("I", "F"):
                        raise ValueError(
                            f"numbers of 32 bits (mode {picture.mode}), whose white nobody knows"
                        )
                    else:
                        whole_range = picture
                    small = whole_range.convert(kind).resize(
                        (self.size, self.size), Image.Resampling.BILINEAR
                    )
                    pixels = torch.from_numpy(np.array(small, dtype=np.float32))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombWarning) as error:
            raise InputError(
                "A picture cannot be read.",
                needs="a picture file of reasonable size",
                got=f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)}",
                hint="take it out of the folder",
            ) from None
        channels = pixels.view(self.size, self.size, -1).permute(2, 0, 1) / 255
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (self.mean, self.deviation))
        return (channels - mean) / deviation


def classes_of(folder: Path) -> list[str]:
    """The classes of a folder of pictures: the names of the folders in it, in order."""
    exists = folder.is_dir()
    inner = [each.name for each in folder.iterdir() if each.is_dir()] if exists else []
    found = sorted(name for name in inner if not name.startswith("."))
    if len(found) < 2:
        raise InputError(
            "The folder of pictures has no classes." if exists else "There is no such folder of pictures.",
            needs="a folder with one folder for each class, of which there are two or more",
            got=f"{folder}: {', '.join(found) or 'no folders'}" if exists else str(folder),
            hint="pictures/cat/1.png, pictures/dog/1.png",
        )
    return found


def picture_files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The files of all pictures of these classes, each with the place of its class in their order."""
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in _KINDS and path.is_file()
    ]
    if not found or len({label for _, label in found}) < len(classes):
        raise InputError(
            "A class has no pictures.",
            needs=f"pictures in each of {', '.join(classes) or 'several folders'}",
            got=f"{len(found)} pictures in {folder}",
            hint=f"files of the kinds {', '.join(sorted(_KINDS))}",
        )
    return found


def read_pictures(folder: Path, classes: Sequence[str], prepare: Preparation) -> Records:
    """All pictures of these classes, labelled by their order."""
    found = picture_files(folder, classes)
    pictures = [prepare(path) for path, _ in track(found, total=len(found), what="reading pictures")]
    labels = torch.tensor([label for _, label in found])
    return Records(torch.stack(pictures), labels)
