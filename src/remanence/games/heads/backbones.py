"""A frozen backbone from the command line: a factory in the user's own file, or what torch.export wrote."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from remanence.exceptions import InputError
from remanence.scale.folders import MOST
from remanence.scale.reading import UnusableFileError, parse_state

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_PLAIN = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
_FOLDERS = ("models/", "data/weights/", "data/constants/", "data/sample_inputs/")


def load_backbone(name: str, device: str | torch.device = "cpu") -> nn.Module:
    """The module of `path/to/file.py:factory`, or of a .pt2 file of torch.export.

    Both are programs that run: take them from nobody whom you would not let run code. Nothing is unpickled.
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
    import torch
    from torch import nn
    from torch.export.passes import move_to_device_pass

    try:
        _refuse_pickles(path)
        program = move_to_device_pass(torch.export.load(path), device)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, RuntimeError, UnusableFileError) as error:
        raise InputError(
            "The backbone cannot be read.",
            needs="a .pt2 file that torch.export.save wrote, with plain tensors",
            got=f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)[:200]}",
            hint="torch.export.save(torch.export.export(backbone.eval(), (pictures,), dynamic_shapes=...), path)",
        ) from None
    run = program.module()

    class Exported(nn.Module):
        """It has one mode, the one that it was exported in."""

        def forward(self, pictures: Tensor) -> Tensor:
            try:
                return run(pictures)
            except AssertionError as error:
                raise RuntimeError(
                    f"{error}; a batch of any size needs dynamic_shapes=({{0: torch.export.Dim('batch')}},)"
                ) from None

    return Exported()


def _refuse_pickles(path: Path) -> None:
    """Raise where loading would unpickle more than tensors: torch.export.load does not refuse that itself."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST:
            raise ValueError("it is too large")
        for entry in archive.namelist():
            inner = entry.partition("/")[2]
            if inner not in _PLAIN and not inner.startswith(_FOLDERS):
                raise ValueError(f"{entry} is no part of an exported program")
            if inner.endswith("_config.json"):
                for each in json.loads(archive.read(entry))["config"].values():
                    if each["use_pickle"] or each["tensor_meta"] is None:
                        raise ValueError("it has values that are pickled")
            elif inner.startswith("data/sample_inputs/"):
                parse_state(archive.read(entry))
