"""Files that are written whole or not at all.

Whatever an audit keeps is written, renamed and deleted here, so that one place decides what a kill, a full disk or a
power cut can do to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.scale.reading import UnusableFileError, read_bytes

PART = ".remanence-part"  # the ending of what was not finished; the next run in the folder sweeps it up
_SEAL = b"remanence checked file 1\n"


def check_writable(folder: Path, hint: str = "--out with another folder") -> None:
    """Refuse a folder that cannot be written to, before any time is spent; leave nothing there."""
    nearest = folder
    try:
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        with tempfile.TemporaryFile(dir=nearest):
            pass  # permissions alone do not tell: root ignores them, and some file systems ignore root
    except (OSError, ValueError):
        raise InputError(
            "The results cannot be written.",
            needs="a folder that can be created and written to",
            got=f"{folder} ({nearest} is not a writable folder)",
            hint=hint,
        ) from None


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, hint: str = "--out with another folder"
) -> None:
    """Write files into a folder: all are complete on disk before the first replaces an older one, in this order."""
    needs = "a folder that can be created and written to, and room in it"
    summary = "The results could not be written."
    with refusing((OSError, ValueError), summary, needs=needs, got=folder, hint=hint):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        _replace({folder / name: content for name, content in contents.items()})


def write_checked(path: Path, content: bytes) -> None:
    """Write one file with a checksum in front."""
    write_files(path.parent, {path.name: _SEAL + hashlib.sha256(content).digest() + content})


def read_checked(path: Path, most: int) -> bytes:
    """What `write_checked` wrote; a single changed bit is found."""
    packed = read_bytes(path, most)
    head = len(_SEAL) + 32
    content = packed[head:]
    if not packed.startswith(_SEAL) or hashlib.sha256(content).digest() != packed[len(_SEAL) : head]:
        raise UnusableFileError("the contents do not match their checksum")
    return content


def sweep(folder: Path) -> None:
    """Remove what a killed process was writing."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f".*{PART}"):
            remove(path)


def remove(path: Path) -> None:
    """Delete a file; one that is gone already, or cannot be deleted, is ignored."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108


def drop(folder: Path) -> None:
    """Delete a folder in which nothing is left."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def _replace(contents: Mapping[Path, bytes]) -> None:
    """Write all under temporary names, flush to disk, then rename: nothing is replaced unless all is written."""
    written: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            name = f".{path.name[:100]}."
            handle, written[path] = tempfile.mkstemp(dir=path.parent, prefix=name, suffix=PART)
            try:
                _write(handle, content)
                os.fsync(handle)
            finally:
                os.close(handle)
        for path, temporary in written.items():
            os.replace(temporary, path)  # noqa: PTH105
        for folder in {path.parent for path in contents}:
            _flush(folder)
    finally:
        for temporary in written.values():
            remove(Path(temporary))


def _write(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left[: 2**30]) :]


def _flush(folder: Path) -> None:
    """Make renames outlast a power cut, where the system lets folders be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
