"""A run folder: each finished unit in a file of its own, written once and checked when read.

run.json     what the run is: its settings, and the works that it consists of
units/       KEY.safetensors, named by the hash of everything that the unit depends on
learning/    states of what is being learnt, for a resumed run
run.lock     held by the one process that may write

A run owns a folder that it made, or one that begins with the mark of a run. Nothing in the folder names a place, so
that it can be moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.scale.files import drop, remove, sweep, write_files
from remanence.scale.reading import (
    MOST_TENSORS,
    UnusableFileError,
    conform,
    parse_json,
    parse_tensors,
    read_bytes,
    tensor_notes,
)

MANIFEST, LOCK, UNITS, LEARNING = "run.json", "run.lock", "units", "learning"
RESULT = "audit.json"  # a folder with one is ours too
VERSION = 1
_MARK = b'{\n  "remanence_run": '  # how every run.json begins, so that one that was cut off is known
_MOST_UNITS = 10**6
_KEY = re.compile(r"[0-9a-f]{64}")

Json = dict[str, Any]
Tensors = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Plan:
    """A piece of work as units: `total` trials (or models), `at_once` of them in each unit.

    `inputs` is the fingerprint of all that the outcome depends on.
    """

    name: str
    inputs: str
    total: int
    at_once: int

    def __len__(self) -> int:
        return -(-self.total // self.at_once)

    def size(self, number: int) -> int:
        """How many trials a unit has; the last one has what is left.

        >>> plan = Plan("playing", "", total=10, at_once=4)
        >>> [plan.size(number) for number in range(len(plan))]
        [4, 4, 2]
        """
        return min(self.at_once, self.total - number * self.at_once)

    def key(self, number: int) -> str:
        """The name of a unit's file."""
        return hashlib.sha256(f"{self.inputs} {number} {self.size(number)}".encode()).hexdigest()


@final
class Journal:
    """The run folder, for the one process that writes it.

    Files are written whole, under temporary names, flushed and renamed, also on NFS. No link inside is followed.
    """

    def __init__(self, place: str | Path) -> None:
        if re.match(r"\w{2,}:/", str(place)):  # a path has lost the second slash
            raise InputError(
                "A run folder is not a URL.",
                needs="a folder on a file system of this machine",
                got=str(place),
                hint="mount the storage, and name the folder",
            )
        self.folder = Path(place).absolute()  # a factory may go to another one
        self._lock = FileLock(self.folder / LOCK, thread_local=False)
        self._document: Json = {"remanence_run": VERSION}  # the manifest of a run that is open

    def __str__(self) -> str:
        return str(self.folder)

    def write(self, key: str, tensors: Tensors) -> None:
        """Record a finished unit."""
        packed = save(tensors, {"key": key, "sha256": hashlib.sha256(save(tensors)).hexdigest()})
        self._write(_file(key), packed)

    def read(self, key: str) -> Tensors | None:
        """What a unit found, or None where it is not finished; `UnusableFileError` where the file was changed."""
        packed = self._read(_file(key))
        if packed is None:
            return None
        tensors, about = parse_tensors(packed), tensor_notes(packed)
        if about != {"key": key, "sha256": hashlib.sha256(save(tensors)).hexdigest()}:
            raise UnusableFileError("the contents do not match their checksum")
        return tensors

    def finished(self) -> set[str]:
        """The keys of all units that are there."""
        names = {name.removesuffix(_ENDING) for name in self._names(UNITS) if name.endswith(_ENDING)}
        return {name for name in names if _KEY.fullmatch(name)}

    def begin(self, settings: Json, *, resume: bool = False) -> None:
        """Open the run, for this process alone. Units of a finished one are used again only on request."""
        self._require_ours()
        self._take()
        try:
            before = self._manifest()
        except UnusableFileError:  # or cut off: its units say themselves what they are
            before = {"finished": None, "settings": None, "works": []}
        if before["finished"] and not resume:
            learnt = (name for name in self._names(LEARNING) if _KEY.fullmatch(name.split(".")[0]))
            self._remove([*map(_file, self.finished()), *(f"{LEARNING}/{name}" for name in learnt)])
        works = before["works"] if before["settings"] == settings else []
        self._put(started=_now(), finished=None, settings=settings, works=works)

    def announce(self, wanted: list[Plan]) -> None:
        """Add works to the manifest, so that `remanence status` can count the units left."""
        works = self._document["works"]
        known = {work["inputs"] for work in works}
        works = [*works, *(asdict(plan) for plan in wanted if plan.inputs not in known)]
        units = sum(len(Plan(**work)) for work in works)
        if units > _MOST_UNITS:
            raise InputError(
                "This run has too many units.",
                needs=f"at most {_MOST_UNITS:,} in one run folder",
                got=f"{units:,}",
                hint="fewer --trials, or larger units: a larger --unit-trials, or none",
            )
        if works != self._document["works"]:
            self._put(works=works)

    def finish(self) -> None:
        """Close the run: units of other settings, which no work asked for, are of no more use."""
        wanted = {plan.key(number) for plan in plans(self._document) for number in range(len(plan))}
        self._remove(map(_file, self.finished() - wanted))
        self._put(finished=_now())
        self.leave()

    def forget_if_empty(self) -> None:
        """Let the run go, without a trace where it has nothing to be continued."""
        empty = not self.finished() and not self._names(LEARNING)
        if empty:
            drop(self.folder / UNITS)
            drop(self.folder / LEARNING)
            if not self._names() & {UNITS, LEARNING}:  # without the mark, they would have no owner
                self._remove([MANIFEST])
        self.leave()
        if empty:
            drop(self.folder)
            drop(self.folder.parent)

    def leave(self) -> None:
        """Let others in."""
        self._lock.release()
        self._remove([LOCK])

    def manifest(self) -> Json:
        """What the run is, as its folder says."""
        try:
            return self._manifest()
        except UnusableFileError as error:
            raise _no_run(self.folder, f"{MANIFEST}: {error}") from None

    def _manifest(self) -> Json:
        content = self._read(MANIFEST)
        if content is None:
            raise UnusableFileError("not there")
        found = parse_json(content)
        version = found.get("remanence_run") if isinstance(found, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise InputError(
                "This run was begun by a later version of remanence.",
                needs=f"a run file of version {VERSION}",
                got=f"{self.folder}: version {version}",
                hint="update remanence, or --out with another folder",
            )
        conform(found, _schema())
        return found

    def at_work(self) -> bool:
        """Whether a process holds the lock; a file that a killed process left behind is no lock."""
        if not (self.folder / LOCK).exists():
            return False
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                return False
        except (Timeout, OSError):  # another owner's lock cannot be opened, and may be held
            return True

    def _take(self) -> None:
        """Lock the folder until this process ends, and sweep up what a killed one left."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                "Another run is using this folder.",
                needs="one run in a folder at a time",
                got=f"{self.folder}, held by another process",
                hint="wait for it, stop it, or use --out with another folder",
            ) from None
        except OSError as error:
            raise self._refused(f"{self.folder / LOCK}: {error.strerror}") from None
        for inside in (self.folder, *self.folder.iterdir()):
            if inside.is_dir() and (inside == self.folder or not inside.is_symlink()):
                sweep(inside)

    def _require_ours(self) -> None:
        """Refuse a folder with other files in it: a run deletes files that it no longer needs."""
        there = self._names() - {LOCK}
        content = self._read(MANIFEST) if MANIFEST in there else None
        marked = content is not None and content[: len(_MARK)] == _MARK[: len(content)]
        if there and not marked and not (RESULT in there and not there & {MANIFEST, UNITS, LEARNING}):
            raise InputError(
                "This folder does not belong to a run.",
                needs="a folder that does not exist yet, an empty one, or one that a run made",
                got=f"{self.folder} with {', '.join(sorted(there)[:3])}{' and more' if len(there) > 3 else ''}",
                hint="--out with another folder",
            )

    def _put(self, **changed: Any) -> None:
        """Change the manifest."""
        self._document |= changed
        self._write(MANIFEST, json.dumps(self._document, indent=2, ensure_ascii=False).encode())

    def _read(self, name: str) -> bytes | None:
        """The contents of a file, or None where there is none."""
        try:
            return read_bytes(self._path(name), MOST_TENSORS, follow=False)
        except UnusableFileError as error:
            if error.missing:
                return None
            raise self._refused(f"{self.folder / name}: {error}") from None

    def _write(self, name: str, content: bytes) -> None:
        """Replace a file, whole or not at all."""
        path = self._path(name)
        hint = f"fix that; finished units are kept, and --resume {self.folder} continues"
        write_files(path.parent, {path.name: content}, hint=hint)

    def _names(self, inside: str = "") -> set[str]:
        """The regular files of a folder within, or all that the folder itself holds; hidden ones do not count."""
        try:
            with os.scandir(self._path(f"{inside}/x" if inside else "x").parent) as found:
                shown = [entry for entry in found if not entry.name.startswith(".")]
                return {e.name for e in shown if not inside or e.is_file(follow_symlinks=False)}
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            raise self._refused(f"{self.folder / inside}: {error.strerror}") from None

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            remove(self._path(name))

    def _path(self, name: str) -> Path:
        path = self.folder / name
        if path.parent != self.folder and path.parent.is_symlink():
            raise self._refused(f"{path.parent} is a link to another place")
        return path

    def _refused(self, got: str) -> InputError:
        return InputError(
            "The run folder cannot be used.",
            needs="a folder of regular files that can be read and written, with no links inside",
            got=got,
            hint="check its permissions and its disk, or take another folder",
        )


_ENDING = ".safetensors"


def plans(manifest: Json) -> list[Plan]:
    """The works of a manifest."""
    found = [Plan(**work) for work in manifest["works"]]
    units = sum(map(len, found))
    if units > _MOST_UNITS:
        raise _no_run("this run", f"{units:,} units, and {_MOST_UNITS:,} are the most that a folder can have")
    return found


@dataclass(frozen=True)
class WorkStatus:
    """One work of a run."""

    name: str
    done: int
    units: int


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, read from its folder."""

    place: str
    settings: Json
    works: tuple[WorkStatus, ...]
    finished: str | None
    at_work: bool

    @property
    def done(self) -> int:
        """Units that are recorded."""
        return sum(work.done for work in self.works)

    @property
    def left(self) -> int:
        """Units that are not recorded, of the works that are known so far."""
        return sum(work.units for work in self.works) - self.done


def read_status(place: str | Path) -> RunStatus:
    """Look into a run folder, without a trace."""
    journal = Journal(place)
    manifest, there = journal.manifest(), journal.finished()
    works = tuple(
        WorkStatus(plan.name, sum(plan.key(number) in there for number in range(len(plan))), len(plan))
        for plan in plans(manifest)
    )
    at_work = not manifest["finished"] and journal.at_work()
    return RunStatus(str(place), manifest["settings"], works, manifest["finished"], at_work)


@cache
def _schema() -> Json:
    return json.loads((files("remanence.scale") / "run.schema.json").read_text(encoding="utf-8"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _file(key: str) -> str:
    return f"{UNITS}/{key}{_ENDING}"


def _no_run(place: str | Path, got: str) -> InputError:
    """The error for a folder without a run."""
    return InputError(
        "There is no run in this folder.",
        needs=f"a folder with a {MANIFEST}, as this version of `remanence audit --out` makes it",
        got=f"{place}: {got}",
        hint="the folder that --out named, or remanence-runs/<target>; or begin again, in another folder",
    )
