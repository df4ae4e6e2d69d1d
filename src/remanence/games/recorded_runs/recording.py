"""A recorded training run on disk: safetensors shards and a manifest, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from remanence.exceptions import InputError
from remanence.scale.folders import MOST
from remanence.scale.progress import track
from remanence.scale.reading import UnusableFileError, parse_json, parse_tensors, read_bytes

MANIFEST = "manifest.json"
STEP = ("parameters", "gradients", "known")  # the tensors of one step
FORMAT = 1
_SHARD_BYTES = 2**26

_COUNT, _NUMBER = {"type": "integer", "minimum": 0}, {"type": "number", "minimum": 0}
_MOMENTS = {
    "type": "object",
    "properties": {"mean": _NUMBER, "variance": _NUMBER},
    "required": ["mean", "variance"],
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "claimed": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "prefixItems": [_NUMBER, _NUMBER, _COUNT]},
        },
        "records": {"type": "integer", "minimum": 1},
        "steps": {"type": "integer", "minimum": 1},
        "parameters": {"type": "integer", "minimum": 1},
        "max_grad_norm": _NUMBER,
        "batch_sizes": _MOMENTS,
        "batches_per_record": _MOMENTS,
        "repeated_in_a_step": _COUNT,
        "clipping_error": _NUMBER,
        "noise_correlation": _NUMBER,
        "noise_numbers": _COUNT,
        "files": {"type": "object", "additionalProperties": {"type": "string"}},
        "canaries": {
            "type": "object",
            "properties": {"count": _COUNT, "candidates": _COUNT, "design": {"type": "string"}},
            "required": ["count", "candidates", "design", "sha256"],
        },
    },
}
_SCHEMA["required"] = [name for name in _SCHEMA["properties"] if name != "canaries"]

Json = dict[str, Any]


@final
class RecordingWriter:
    """Collects the steps of a run in a hidden folder beside the wanted one, which it becomes at the end."""

    def __init__(self, folder: Path, *, precision: Literal["float32", "float16"]) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                "The recording would overwrite something.",
                needs="a folder that does not exist yet, or an empty one",
                got=str(folder),
                hint="another out=..., or remove the old recording first",
            )
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        except OSError as error:
            raise InputError(
                "The recording cannot be written.",
                needs="a folder that can be created and written to",
                got=f"{folder}: {error.strerror}",
                hint="another out=...",
            ) from None
        self._folder, self._precision = folder, getattr(torch, precision)
        self._steps: list[dict[str, Tensor]] = []
        self._bytes, self._shards, self._count = 0, 0, 0

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep one step."""
        kept = {
            name: tensor.detach().to("cpu", self._precision, copy=True) for name, tensor in tensors.items()
        }
        self._steps.append(kept)
        self._count += 1
        self._bytes += sum(tensor.nbytes for tensor in kept.values())
        if self._bytes >= _SHARD_BYTES:
            self._flush()

    def add_once(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep what belongs to the run as a whole."""
        own = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(own, self._partial / f"{name}.safetensors")

    def replay(self, what: str) -> Iterator[tuple[Tensor, ...]]:
        """The tensors of each step again, in order and in float32."""
        self._flush()
        return track(self._replayed(), total=self._count, what=what)

    def _replayed(self) -> Iterator[tuple[Tensor, ...]]:
        for index in range(self._shards):
            shard = load_file(self._partial / _shard(index))
            for step in range(len(shard["parameters"])):
                yield tuple(shard[name][step].float() for name in STEP)

    def _flush(self) -> None:
        if self._steps:
            stacked = {name: torch.stack([step[name] for step in self._steps]) for name in self._steps[0]}
            save_file(stacked, self._partial / _shard(self._shards))
            self._steps, self._bytes, self._shards = [], 0, self._shards + 1

    def finish(self, manifest: Json) -> None:
        """Write the manifest with the hash of every file, and put the folder in its place."""
        self._flush()
        files = {path.name: _sha256(path) for path in sorted(self._partial.iterdir())}
        document = {"format": FORMAT, "remanence": version("remanence"), **manifest, "files": files}
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        (self._partial / MANIFEST).write_text(text, encoding="utf-8")
        try:
            if self._folder.exists():
                self._folder.rmdir()
            self._partial.rename(self._folder)
        except OSError as error:
            kept, self._partial = self._partial, self._folder / "nothing"  # so that it is not abandoned
            raise InputError(
                "The recording could not be put in its place.",
                needs=f"{self._folder} empty or absent when training ends",
                got=str(error.strerror),
                hint=f"the recording is complete: move {kept} to where you want it",
            ) from None

    def abandon(self) -> None:
        """Remove what was not finished; after `finish` there is nothing."""
        shutil.rmtree(self._partial, ignore_errors=True)


@final
@dataclass(frozen=True)
class Recording:
    """A recorded run: its manifest, and its tensors when asked for."""

    folder: Path
    manifest: Json

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One file of the recording, checked against its hash."""
        path = self.folder / f"{name}.safetensors"
        try:
            content = read_bytes(path, MOST)
            if hashlib.sha256(content).hexdigest() != self.manifest["files"].get(path.name):
                raise unreadable(self.folder, f"{path.name} is not the file that was recorded")
            return parse_tensors(content)
        except UnusableFileError as error:
            raise unreadable(self.folder, f"{path.name}: {error}") from None


def read_recording(folder: Path) -> Recording:
    """Read the manifest of a recording; refuse, with the reason, what is not one."""
    try:
        manifest = parse_json(read_bytes(folder / MANIFEST), _SCHEMA)
    except UnusableFileError as error:
        raise unreadable(folder, f"{MANIFEST}: {error}") from None
    return Recording(folder, manifest)


def unreadable(folder: Path, reason: str) -> InputError:
    """The error for a folder that is no recording, or not the one that was written."""
    return InputError(
        "The recording cannot be read.",
        needs=f"a folder written by remanence.integrations.opacus.record, with its {MANIFEST}",
        got=f"{folder}: {reason}",
        hint="record the training again",
    )


def _shard(index: int) -> str:
    return f"steps-{index:05d}.safetensors"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
