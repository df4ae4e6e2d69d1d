"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from remanence.exceptions import InputError


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before any time is spent; leave nothing there."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass  # permissions alone do not tell: root ignores them, and some file systems ignore root
    except OSError:
        raise InputError(
            "The results cannot be written.",
            needs="a folder that can be created and written to",
            got=f"{folder} ({nearest} is not a writable folder)",
            hint="--out with another folder",
        ) from None


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, hint: str = "--out with another folder"
) -> None:
    """Write files into a folder: all are complete on disk before the first replaces an older one, in this order."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace({folder / name: content for name, content in contents.items()})
    except OSError as error:
        raise InputError(
            "The results could not be written.",
            needs="a folder that can be created and written to, and room in it",
            got=f"{folder}: {error.strerror}",
            hint=hint,
        ) from None


def _replace(contents: Mapping[Path, bytes]) -> None:
    """Write all beside their targets, flush to disk, then rename: nothing is replaced unless all is written."""
    written: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            handle, written[path] = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in written.items():
            Path(temporary).replace(path)
        for folder in {path.parent for path in contents}:
            _flush(folder)
    finally:
        for temporary in written.values():
            Path(temporary).unlink(missing_ok=True)


def _flush(folder: Path) -> None:
    """Make renames outlast a power cut, where the system lets folders be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
