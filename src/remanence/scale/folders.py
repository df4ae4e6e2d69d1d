"""A folder that outlives its writers: on this machine, or behind a URL such as s3://bucket/run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, final

from remanence.exceptions import InputError
from remanence.scale.files import write_files


class Folder(Protocol):
    """Whole files by their names; a name may have a folder in front."""

    def read(self, name: str) -> bytes | None:
        """The contents, or None where there is no such file."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace the file, whole or not at all."""
        ...

    def names(self, inside: str) -> set[str]:
        """The files of a folder within."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; one that is gone already is no error."""
        ...

    def prune(self) -> None:
        """Drop the folder itself where nothing is in it."""
        ...


@final
@dataclass(frozen=True)
class LocalFolder:
    """On a file system, NFS included: written beside its place, flushed to disk, renamed."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """The contents, or None where there is no such file."""
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(
                "The run folder cannot be read.",
                needs="a folder that can be read",
                got=f"{self.path / name}: {error.strerror}",
                hint="check its permissions and its disk",
            ) from None

    def write(self, name: str, content: bytes) -> None:
        """Replace the file, whole or not at all."""
        place = self.path / name
        write_files(place.parent, {place.name: content}, hint=_AFTERWARDS.format(self.path))

    def names(self, inside: str) -> set[str]:
        """The files of a folder within; temporary ones start with a dot and do not count."""
        found = (self.path / inside).glob("*")
        return {path.name for path in found if not path.name.startswith(".")}

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        (self.path / name).replace(self.path / to)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; one that is gone already is no error."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def prune(self) -> None:
        """Drop the folder itself, and those above it that it was the only one in."""
        with contextlib.suppress(OSError):
            self.path.rmdir()
            self.path.parent.rmdir()

    def __str__(self) -> str:
        return str(self.path)


@final
@dataclass(frozen=True)
class RemoteFolder:
    """Object storage through fsspec, where a put is whole or not at all."""

    url: str

    def read(self, name: str) -> bytes | None:
        """The contents, or None where there is no such object."""
        files = self._files()
        try:
            return files.cat_file(f"{self.url}/{name}")
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001, whatever the storage's own library raises
            raise self._failed(error) from None

    def write(self, name: str, content: bytes) -> None:
        """Replace the object."""
        files = self._files()
        try:
            files.pipe_file(f"{self.url}/{name}", content)
        except Exception as error:  # noqa: BLE001
            raise self._failed(error) from None

    def names(self, inside: str) -> set[str]:
        """The objects of a folder within, as they are now."""
        files = self._files()
        try:
            files.invalidate_cache()
            return {found.rsplit("/", 1)[-1] for found in files.ls(f"{self.url}/{inside}", detail=False)}
        except FileNotFoundError:
            return set()
        except Exception as error:  # noqa: BLE001
            raise self._failed(error) from None

    def rename(self, name: str, to: str) -> None:
        """Give an object another name."""
        self._files().mv(f"{self.url}/{name}", f"{self.url}/{to}")

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        files = self._files()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files.rm_file(f"{self.url}/{name}")

    def prune(self) -> None:
        """Nothing to do: object storage has no folders."""

    def __str__(self) -> str:
        return self.url

    def _files(self):
        try:
            return import_module("fsspec.core").url_to_fs(self.url)[0]
        except (ImportError, ValueError) as error:
            raise InputError(
                "This kind of storage cannot be reached.",
                needs="a folder, or a URL that fsspec knows and its package",
                got=f"{self.url}: {error}",
                hint="pip install 'remanence[s3]' for s3://",
            ) from None

    def _failed(self, error: Exception) -> InputError:
        return InputError(
            "The storage of the run failed.",
            needs="a place that can be read and written, and room in it",
            got=f"{self.url}: {type(error).__name__}: {str(error)[:200]}",
            hint=_AFTERWARDS.format(self.url),
        )


_AFTERWARDS = "mend that; what is finished is kept, and --resume {} continues"


def open_folder(place: str | Path) -> Folder:
    """A folder by its path or its URL.

    >>> str(open_folder("s3://bucket/run/")), str(open_folder("runs/mine"))
    ('s3://bucket/run', 'runs/mine')
    """
    text = str(place)
    return RemoteFolder(text.rstrip("/")) if "://" in text else LocalFolder(Path(place))
