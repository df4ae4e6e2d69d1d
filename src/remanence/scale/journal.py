"""A run folder: each finished unit in a file of its own, written once and checked when read.

run.json     what the run is: its settings, and the works that it consists of
units/       KEY.safetensors, named by the hash of everything that the unit depends on
beat.json    who runs it, and how fast
log.txt      what was lost, damaged or run again
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from remanence.exceptions import InputError
from remanence.scale.folders import Folder, LocalFolder, open_folder

MANIFEST, BEAT, LOG, UNITS, LEARNING = "run.json", "beat.json", "log.txt", "units", "learning"

Json = dict[str, Any]
Tensors = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Plan:
    """A piece of work as units: so many trials (or models), so many of them in each unit.

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


class DamagedUnitError(Exception):
    """A unit's file is not what was written."""


@final
@dataclass(frozen=True)
class Journal:
    """The run folder, on this machine or at a URL that fsspec knows. Every process may write its own units."""

    place: str | Path

    def __post_init__(self) -> None:
        if "://" not in str(self.place):  # workers may stand in another folder
            object.__setattr__(self, "place", Path(self.place).absolute())

    @cached_property
    def folder(self) -> Folder:
        """Where it lies."""
        return open_folder(self.place)

    def write(self, key: str, tensors: Tensors) -> None:
        """Record a finished unit."""
        packed = save(tensors, {"key": key, "sha256": hashlib.sha256(save(tensors)).hexdigest()})
        self.folder.write(_file(key), packed)

    def read(self, key: str) -> Tensors | None:
        """What a unit found, or None where it is not finished; `DamagedUnitError` where the file was changed."""
        packed = self.folder.read(_file(key))
        if packed is None:
            return None
        try:
            tensors, about = load(packed), _metadata(packed)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DamagedUnitError(f"{_file(key)}: {error}") from None
        if about != {"key": key, "sha256": hashlib.sha256(save(tensors)).hexdigest()}:
            raise DamagedUnitError(f"{_file(key)}: the contents do not match their checksum")
        return tensors

    def finished(self) -> set[str]:
        """The keys of all units that are there."""
        names = self.folder.names(UNITS)
        return {name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)}

    def set_aside(self, key: str) -> None:
        """Keep a damaged file for whoever wants to look at it, under another name."""
        self.folder.rename(_file(key), f"{_file(key)}.damaged")

    def begin(self, settings: Json, *, resume: bool = False) -> None:
        """Open the run. Units of an unfinished one are used again; those of a finished one only on request."""
        before = self.manifest()
        if before is not None and before["finished"] and not resume:
            self.folder.remove(map(_file, self.finished()))
        same = before is not None and before["settings"] == settings
        now = datetime.now(UTC).isoformat(timespec="seconds")
        works = before["works"] if before is not None and same else []
        self._put(
            MANIFEST, {"version": 1, "started": now, "finished": None, "settings": settings, "works": works}
        )

    def announce(self, plans: list[Plan]) -> None:
        """Add works to the manifest, so that `remanence status` knows what is left."""
        manifest = self._manifest()
        known = {work["inputs"] for work in manifest["works"]}
        new = [asdict(plan) for plan in plans if plan.inputs not in known]
        if new:
            self._put(MANIFEST, {**manifest, "works": [*manifest["works"], *new]})

    def finish(self) -> None:
        """Close the run: units of other settings, which no work asked for, are of no more use."""
        manifest = self._manifest()
        wanted = {plan.key(number) for plan in plans(manifest) for number in range(len(plan))}
        self.folder.remove(map(_file, self.finished() - wanted))
        self.folder.remove([BEAT, *(f"{LEARNING}/{name}" for name in self.folder.names(LEARNING))])
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._put(MANIFEST, {**manifest, "finished": now})

    def forget_if_empty(self) -> None:
        """Leave no trace of a run that has nothing to be continued."""
        if not self.finished() and not self.folder.names(LEARNING):
            self.folder.remove([MANIFEST, BEAT])
            self.folder.prune()

    def manifest(self) -> Json | None:
        """What the run is; None where there is none yet."""
        return self._read(MANIFEST)

    def beat(self, workers: int, played: int, seconds: float) -> None:
        """Say that somebody is at work, and how fast."""
        who = {"host": platform.node(), "process": os.getpid(), "workers": workers}
        self._put(BEAT, {**who, "played": played, "seconds": seconds, "time": time.time()})

    def last_beat(self) -> Json | None:
        """The latest of them."""
        return self._read(BEAT)

    def log(self, line: str) -> None:
        """Keep a line about something that went wrong and was mended."""
        before = self.folder.read(LOG) or b""
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        self.folder.write(LOG, before + f"{stamp} {line}\n".encode())

    def checkpoint(self, name: str) -> Path | None:
        """Where learning may keep its state between kills; None where the journal is not on this machine."""
        if not isinstance(self.folder, LocalFolder):
            return None
        folder = self.folder.path / LEARNING
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _manifest(self) -> Json:
        found = self.manifest()
        if found is None:
            raise _no_run(self.place, "nothing")
        return found

    def _put(self, name: str, document: Json) -> None:
        self.folder.write(name, json.dumps(document, indent=2, ensure_ascii=False).encode())

    def _read(self, name: str) -> Json | None:
        content = self.folder.read(name)
        try:
            return None if content is None else json.loads(content)
        except ValueError as error:
            raise _no_run(self.place, f"{name}: {error}") from None

    def __str__(self) -> str:
        return str(self.place)


_ENDING = ".safetensors"


def plans(manifest: Json) -> list[Plan]:
    """The works of a manifest."""
    return [Plan(**work) for work in manifest["works"]]


def existing(place: str | Path) -> tuple[Journal, Json]:
    """A run that somebody has begun, and its manifest."""
    journal = Journal(place)
    manifest = journal.manifest()
    if manifest is None:
        raise _no_run(place, f"no {MANIFEST}")
    return journal, manifest


def _file(key: str) -> str:
    return f"{UNITS}/{key}{_ENDING}"


def _metadata(packed: bytes) -> dict[str, str]:
    """The header of a safetensors file holds what was said about it."""
    length = int.from_bytes(packed[:8], "little")
    return json.loads(packed[8 : 8 + length])["__metadata__"]


def _no_run(place: str | Path, got: str) -> InputError:
    return InputError(
        "There is no run to look at.",
        needs=f"a folder or URL with a {MANIFEST}, as `remanence audit --out` makes it",
        got=f"{place}: {got}",
        hint="the folder that --out named, or remanence-runs/<target>",
    )
