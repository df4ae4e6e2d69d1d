"""A folder that outlives its writers: on this machine, or behind a URL such as s3://bucket/run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.scale.files import drop, remove, rename, sweep, write_files
from remanence.scale.reading import GIB, UnusableFileError, read_bytes

LOCK = "run.lock"
MOST = 4 * GIB  # of one unit


@final
@dataclass(frozen=True)
class LocalFolder:
    """On a file system, NFS included: written beside its place, flushed, renamed; no link inside is followed."""

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

    def __str__(self) -> str:
        return str(self.path)


@final
@dataclass(frozen=True)
class RemoteFolder:
    """Object storage through fsspec, where a put is whole or not at all."""

    url: str

    def read(self, name: str) -> bytes | None:
        """The contents, or None where there is no such object."""
        with contextlib.suppress(FileNotFoundError), self._storage() as files:
            return files.cat_file(f"{self.url}/{name}")
        return None

    def write(self, name: str, content: bytes) -> None:
        """Replace the object."""
        with self._storage() as files:
            files.pipe_file(f"{self.url}/{name}", content)

    def names(self, inside: str = "") -> set[str]:
        """The objects of a folder within, as they are now."""
        with contextlib.suppress(FileNotFoundError), self._storage() as files:
            files.invalidate_cache()
            place = f"{self.url}/{inside}".rstrip("/")
            return {found.rstrip("/").rsplit("/", 1)[-1] for found in files.ls(place, detail=False)}
        return set()

    def rename(self, name: str, to: str) -> None:
        """Give an object another name."""
        with self._storage() as files:
            files.mv(f"{self.url}/{name}", f"{self.url}/{to}")

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone already are ignored."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._storage() as files:
                files.rm_file(f"{self.url}/{name}")

    def prune(self, *inside: str) -> None:
        """Nothing to do: object storage has no folders."""

    def lock(self) -> bool:
        """Object storage has no locks that end with a process: one run at a time is up to you there."""
        return True

    def unlock(self) -> None:
        """Nothing to do."""

    def locked(self) -> None:
        """Not known."""

    def __str__(self) -> str:
        return self.url

    @contextlib.contextmanager
    def _storage(self) -> Iterator[Any]:
        """What reaches it; an object that is not there is told as such, and everything else in a sentence."""
        needs = "a folder, or a URL that fsspec knows and its package"
        hint, kinds = "pip install '.[s3]' in a clone of the repository, for s3://", (ImportError, ValueError)
        with refusing(kinds, "This kind of storage cannot be reached.", needs=needs, got=self.url, hint=hint):
            files = import_module("fsspec.core").url_to_fs(self.url)[0]
        try:
            yield files
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001, whatever the storage's own library raises
            raise InputError(
                "The storage of the run failed.",
                needs="a place that can be read and written, and room in it",
                got=f"{self.url}: {type(error).__name__}: {str(error)[:200]}",
                hint=_AFTERWARDS.format(self.url),
            ) from None


Folder = LocalFolder | RemoteFolder  # whole files by their names; a name may have a folder in front
_AFTERWARDS = "mend that; what is finished is kept, and --resume {} continues"


def open_folder(place: str | Path) -> Folder:
    """A folder by its path or its URL.

    >>> str(open_folder("s3://bucket/run/")), str(open_folder("runs/mine"))
    ('s3://bucket/run', 'runs/mine')
    """
    text = str(place)
    return RemoteFolder(text.rstrip("/")) if "://" in text else LocalFolder(Path(place))
