"""A folder that outlives its writers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from filelock import FileLock, Timeout

from remanence.core.exceptions import InputError
from remanence.scale.files import drop, remove, rename, sweep, write_files
from remanence.scale.reading import GIB, UnusableFileError, read_bytes

LOCK = "run.lock"
MOST = 4 * GIB  # of one unit
_AFTERWARDS = "fix that; finished units are kept, and --resume {} continues"


@final
@dataclass(frozen=True)
class Folder:
    """Whole files by their names, on a file system, NFS included: written under temporary names, flushed, renamed.

    A name may have a folder in front. No link inside is followed.
    """

    path: Path

    def read(self, name: str) -> bytes | None:
        """The contents, or None where there is no such file."""
        try:
            return read_bytes(self._place(name), MOST, follow=False)
        except UnusableFileError as error:
            if error.missing:
                return None
            raise self._refused(f"{self.path / name}: {error}") from None

    def write(self, name: str, content: bytes) -> None:
        """Replace the file, whole or not at all."""
        place = self._place(name)
        write_files(place.parent, {place.name: content}, hint=_AFTERWARDS.format(self.path))

    def names(self, inside: str = "") -> set[str]:
        """The regular files of a folder within; hidden ones do not count."""
        try:
            with os.scandir(self._place(f"{inside}/x" if inside else "x").parent) as found:
                return {
                    entry.name
                    for entry in found
                    if not entry.name.startswith(".") and (not inside or entry.is_file(follow_symlinks=False))
                }
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            raise self._refused(f"{self.path / inside}: {error.strerror}") from None

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        rename(self._place(name), self._place(to))

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; files that are gone already, or cannot be deleted, are ignored."""
        for name in names:
            remove(self._place(name))

    def prune(self, *inside: str) -> None:
        """Drop the folder itself, and the one above where it was the only one in it."""
        for folder in (*map(self._place, inside), self.path, self.path.parent):
            drop(folder)

    def lock(self) -> bool:
        """By a lock of the operating system, which ends with its process; what a killed one left is swept up."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            raise self._refused(f"{self.path / LOCK}: {error.strerror}") from None
        for inside in (self.path, *self.path.iterdir()):
            if inside.is_dir() and (inside == self.path or not inside.is_symlink()):
                sweep(inside)
        return True

    def unlock(self) -> None:
        """Let others in."""
        self._lock.release()
        self.remove([LOCK])

    def locked(self) -> bool | None:
        """Whether a process holds the lock; one left behind by a killed process does not count."""
        if not (self.path / LOCK).exists():
            return False
        try:
            with FileLock(self.path / LOCK, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            return None

    @cached_property
    def _lock(self) -> FileLock:
        return FileLock(self.path / LOCK, thread_local=False)

    def _place(self, name: str) -> Path:
        place = self.path / name
        if place.parent != self.path and place.parent.is_symlink():
            raise self._refused(f"{place.parent} is a link to another place")
        return place

    def _refused(self, got: str) -> InputError:
        return InputError(
            "The run folder cannot be used.",
            needs="a folder of regular files that can be read and written, with no links inside",
            got=got,
            hint="check its permissions and its disk, or take another folder",
        )
