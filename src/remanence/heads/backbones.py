"""A frozen backbone from the command line: a factory in the user's own file, or what torch.export wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remanence.core.exceptions import InputError
from remanence.scale.reading import UnusableFileError

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_backbone(name: str, device: str | torch.device = "cpu") -> nn.Module:
    """The module of `path/to/file.py:factory`, or of a .pt2 file of torch.export.

    The file is your code and is executed. The archive is not: it is a list of operations that can only compute.
    """
    from torch import nn

    from remanence.scale.user_code import call_factory

    if name.endswith(".pt2"):
        return _exported(Path(name), device)
    path, colon, factory = name.rpartition(":")
    found = call_factory(Path(path), factory, "a module") if colon else None
    if not isinstance(found, nn.Module):
        raise InputError(
            "There is no such backbone.",
            needs="path/to/file.py:factory, where factory() returns a torch.nn.Module, or a .pt2 file",
            got=name if found is None else type(found).__name__,
            hint="--backbone backbone.py:load, or --backbone backbone.pt2",
        )
    return found.to(device)


def _exported(path: Path, device: str | torch.device) -> nn.Module:
    from remanence.heads.exported import ExportedBackbone

    try:
        return ExportedBackbone(path, device)
    except UnusableFileError as error:
        raise InputError(
            "The backbone cannot be read.",
            needs="a .pt2 file that torch.export.save wrote: plain tensors, and operations that only compute",
            got=f"{path}: {error}",
            hint="torch.export.save(torch.export.export(backbone.eval(), (pictures,), dynamic_shapes=...), path)",
        ) from None
