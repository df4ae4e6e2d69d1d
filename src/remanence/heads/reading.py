"""What an audit of a head starts from: the head, its backbone and folders of pictures; nothing is unpickled."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from remanence.core.checks import instance, number, refusing, whole
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.heads.head import Head, layer_names, layer_sizes
from remanence.scale.progress import track
from remanence.scale.reading import MOST_TENSORS, UnusableFileError, parse_state, parse_tensors, read_bytes
from remanence.scale.user_code import call_factory

_COMPUTED = "_g", "_v", "_orig"  # what weight_norm, spectral_norm and pruning call them

HeadWeights = Mapping[str, Tensor] | nn.Module | Path | str


def read_head(weights: HeadWeights, recipe: Head, numbers: int) -> Weights:
    """The head's layers, in their own precision, out of a module, a state dict (the last layers of it) or a file."""
    tensors = _tensors(weights)
    if not isinstance(tensors, Mapping) or not all(_is_tensor(each) for each in tensors.values()):
        raise InputError(
            "These are not the weights of a head.",
            needs="a state dict: names and dense tensors",
            got=f"{type(tensors).__name__} of other types",
            hint="head.state_dict(), not a checkpoint around it; tensor.to_dense() for sparse ones",
        )
    if computed := [name for name in tensors if name.endswith(_COMPUTED) or "parametrizations." in name]:
        raise InputError(
            "The head computes its weights from other numbers.",
            needs="its effective weights",
            got=f"{', '.join(computed[:3])}, as weight_norm and other parametrizations have them",
            hint='torch.nn.utils.parametrize.remove_parametrizations(head, "weight"), or remove_weight_norm(head); no '
            "recipe trains like that, so the head may be refused as one of another recipe",
        )
    sizes = pairwise(layer_sizes(numbers, recipe.hidden, recipe.outputs))
    rows = [shape for inputs, outputs in sizes for shape in ((outputs, inputs), (outputs,))]
    left = list(tensors.values())
    if not recipe.has_bias:  # as good as biases of 0
        kind = next((each for each in left if _is_tensor(each)), torch.zeros(0)).dtype
        left += [torch.zeros(shape, dtype=kind) for shape in rows if len(shape) == 1]
    found: list[Tensor] = []
    for shape in reversed(rows):  # from the end, by shape: files may have put the names into another order
        places = [
            i
            for i, tensor in enumerate(left)
            if tuple(tensor.shape) == shape and tensor.is_floating_point() and tensor.float().isfinite().all()
        ]
        if not places:
            last = list(tensors.items())[-6:]
            raise InputError(
                "The weights do not fit the declared head.",
                needs=f"finite floating-point numbers in layers of the shapes {', '.join(map(str, rows))}",
                got=", ".join(f"{name} {tuple(each.shape)} ({each.dtype})" for name, each in last)
                or "no layers",
                hint="the head's own state_dict(), the backbone that it was trained on, and as many classes as it has "
                "rows; hidden=, loop=Loop(bias=False) or two_outputs=True in the recipe where they apply; quantised "
                "weights as (weight.float() - zero_point) * scale",
            )
        found.insert(0, left.pop(places[-1]).detach())
    return Weights(
        {name: tensor.unsqueeze(0) for name, tensor in zip(layer_names(recipe.hidden), found, strict=True)}
    )


def _is_tensor(value: object) -> bool:
    """Whether it has all of its numbers: lazy layers and meta tensors have none, and sparse ones a few."""
    if not isinstance(value, Tensor) or is_lazy(value):
        return False
    return value.layout == torch.strided and not value.is_meta


def _tensors(weights: HeadWeights) -> Mapping[str, Tensor]:
    if isinstance(weights, nn.Module):
        return weights.state_dict()
    if isinstance(weights, Mapping):
        return weights
    needs, hint = "a module, a state dict, or the path of a file", "released=head.state_dict()"
    return read_state(Path(instance("released", weights, (str, PathLike), needs, hint)), "head")


def read_state(path: Path, what: str) -> Mapping[str, Tensor]:
    """Names and tensors out of a file; `what` is what it should hold."""
    needs = "a .safetensors file, or a state dict that torch.save wrote"
    hint = f"torch.save({what}.state_dict(), path)"
    with refusing(UnusableFileError, f"The {what} cannot be read.", needs=needs, got=path, hint=hint):
        content = read_bytes(path, MOST_TENSORS)
        return parse_tensors(content) if path.suffix == ".safetensors" else parse_state(content)


def load_backbone(name: str, weights: Path | None = None, device: str | torch.device = "cpu") -> nn.Module:
    """The module of `path/to/file.py:factory`, with the weights of a .safetensors file or a state dict.

    The file is your code and is executed. The weights are tensors, and nothing is unpickled.
    """
    path, colon, factory = name.rpartition(":")
    found = call_factory(Path(path), factory, "a module") if colon else None
    if not isinstance(found, nn.Module):
        raise InputError(
            "The backbone is not a function that returns a network.",
            needs="path/to/file.py:factory, where factory() returns a torch.nn.Module; its weights go to --weights",
            got=f"{name}, which returns a {type(found).__name__}" if colon else name,
            hint="--backbone backbone.py:make --weights backbone.safetensors",
        )
    try:
        if weights is not None:
            found.load_state_dict(read_state(weights, "backbone"))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(
            "The weights do not fit the backbone.",
            needs=f"the tensors of {type(found).__name__}",
            got=f"{weights}: {' '.join(str(error).split())[:300]}",
            hint="torch.save(backbone.state_dict(), path)",
        ) from None
    return found.to(device)


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
                hint="--normalise 0.485,0.456,0.406/0.229,0.224,0.225",
            )

    def __call__(self, path: Path) -> Tensor:
        """One file as a tensor `(channels, size, size)`."""
        import numpy as np
        from PIL import Image

        kinds = OSError, ValueError, SyntaxError, Image.DecompressionBombWarning, Image.DecompressionBombError
        summary, needs = "A picture cannot be read.", "a picture file of reasonable size"
        with (
            refusing(kinds, summary, needs=needs, got=path, hint="take it out of the folder"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                if picture.mode in ("I", "F"):
                    raise ValueError(f"numbers of 32 bits (mode {picture.mode}), whose white is unknown")
                whole_range = picture
                if picture.mode.startswith("I;16"):  # Pillow would cut them off at 255
                    whole_range = Image.fromarray(np.round(np.array(picture) / 257).astype(np.uint8))
                kind = "L" if len(self.mean) == 1 else "RGB"
                small = whole_range.convert(kind).resize((self.size, self.size), Image.Resampling.BILINEAR)
                pixels = torch.from_numpy(np.array(small, dtype=np.float32))
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
