"""A recorded training run on disk: safetensors files and a manifest, which appear together when the run ends."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from safetensors.torch import save_file
from torch import Tensor

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.scale.reading import MOST_TENSORS, UnusableFileError, parse_json, parse_tensors, read_bytes

MANIFEST = "manifest.json"
FORMAT = 6
PARTS = ("sampling", "clipping", "norm", "noise", "seed", "update")  # of a step, each to be replayed

_COUNT, _NUMBER = {"type": "integer", "minimum": 0}, {"type": "number", "minimum": 0}
_TEXT = {"type": "string"}
_OBSERVED = {
    "type": "object",
    "properties": {"count": _COUNT, "first_step": _COUNT, "worst": {"type": "number"}, "where": _TEXT},
    "required": ["count", "first_step", "worst", "where"],
}
_REPLAYED = {
    "type": "object",
    "properties": {"steps": _COUNT, "failed": _COUNT, "why": _TEXT},
    "required": ["steps", "failed", "why"],
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "framework": _TEXT,
        "claimed": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "prefixItems": [_NUMBER, _NUMBER, _COUNT], "minItems": 3},
        },
        "records": {"type": "integer", "minimum": 1},
        "steps": {"type": "integer", "minimum": 1},
        "tensors": {"type": "array", "minItems": 1, "items": _TEXT},
        "observed": {"type": "object", "additionalProperties": _OBSERVED},
        "replay": {"type": "object", "properties": dict.fromkeys(PARTS, _REPLAYED), "required": list(PARTS)},
        "rounding": _NUMBER,
        "seed": _TEXT,
        "rate": _NUMBER,
        "divisor": _COUNT,
        "batches": {"type": "integer", "minimum": 1},
        "files": {"type": "object", "additionalProperties": _TEXT},
        "canaries": {
            "type": "object",
            "properties": {"count": _COUNT, "candidates": _COUNT, "design": _TEXT},
            "required": ["count", "candidates", "design", "sha256"],
        },
    },
}
_OPTIONAL = ("canaries", "seed", "rate", "divisor", "batches")
_SCHEMA["required"] = [name for name in _SCHEMA["properties"] if name not in _OPTIONAL]

Json = dict[str, Any]


@final
class RecordingWriter:
    """Collects the files of a run in a hidden folder, which is renamed to the requested one at the end."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                "The recording would overwrite something.",
                needs="a folder that does not exist yet, or an empty one",
                got=str(folder),
                hint="another out=..., or remove the old recording first",
            )
        needs, hint = "a folder that can be created and written to", "another out=..."
        with refusing(OSError, "The recording cannot be written.", needs=needs, got=folder, hint=hint):
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        self._folder = folder

    def add(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep some tensors of the run."""
        own = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(own, self._partial / f"{name}.safetensors")

    def finish(self, manifest: Json) -> None:
        """Write the manifest with the hash of every file, and put the folder in its place."""
        files = {path.name: _sha256(path) for path in sorted(self._partial.iterdir())}
        document = {"format": FORMAT, "remanence": version("remanence"), **manifest, "files": files}
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        (self._partial / MANIFEST).write_text(text, encoding="utf-8")
        needs = f"{self._folder} empty or absent when training ends"
        hint = f"the recording is complete: move {self._partial} to where you want it"
        summary = "The recording could not be moved to its folder."
        with refusing(OSError, summary, needs=needs, got=self._folder, hint=hint):
            if self._folder.exists():
                self._folder.rmdir()
            self._partial.rename(self._folder)

    def abandon(self) -> None:
        """Remove a recording in which nothing happened."""
        shutil.rmtree(self._partial, ignore_errors=True)


@final
@dataclass(frozen=True)
class Recording:
    """A recorded run: its manifest, and its tensors when asked for."""

    folder: Path
    manifest: Json

    def check(self) -> None:
        """Every file is there, and is the one that was recorded."""
        for name in self.manifest["files"]:
            self.tensors(Path(name).stem)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One file of the recording, checked against its hash."""
        path = self.folder / f"{name}.safetensors"
        try:
            content = read_bytes(path, MOST_TENSORS)
            if hashlib.sha256(content).hexdigest() != self.manifest["files"].get(path.name):
                raise unreadable(self.folder, f"{path.name} is not the file that was recorded")
            return parse_tensors(content)
        except UnusableFileError as error:
            raise unreadable(self.folder, f"{path.name}: {error}") from None


def read_recording(folder: Path) -> Recording:
    """Read the manifest of a recording; refuse, with the reason, what is not one."""
    try:
        content = read_bytes(folder / MANIFEST)
        told = parse_json(content, {"type": "object"}).get("format")
        if told != FORMAT:
            raise unreadable(folder, f"it has format {told!r}, and this version reads format {FORMAT}")
        manifest = parse_json(content, _SCHEMA)
    except UnusableFileError as error:
        raise unreadable(folder, f"{MANIFEST}: {error}") from None
    return Recording(folder, manifest)


def unreadable(folder: Path, reason: str) -> InputError:
    """The error for a folder that is not a recording, or was changed."""
    return InputError(
        "The recording cannot be read.",
        needs=f"a folder written by record(...), with its {MANIFEST}",
        got=f"{folder}: {reason}",
        hint="record the training again",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
