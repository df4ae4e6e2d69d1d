"""A recorded training run: what is kept of it step by step, and its folder, which appears when the run ends."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.private.canaries import Canaries
from remanence.private.reading import CanaryReader
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
_OPTIONAL = ("seed", "rate", "divisor", "batches")
_SCHEMA["required"] = [name for name in _SCHEMA["properties"] if name not in _OPTIONAL]

Json = dict[str, Any]
Claim = tuple[float, float, int]  # noise multiplier, sampling rate, steps

_FINGERPRINTED = 12  # numbers in a fingerprint; at a sixteenth of a standard deviation they hold 60 bits


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
@dataclass
class Observed:
    """Something that was seen to be wrong: how often, first when, how badly, and where."""

    count: int
    first_step: int
    worst: float
    where: str


@final
@dataclass
class Replayed:
    """How many steps a part was replayed in; how many it was not, and why."""

    steps: int = 0
    failed: int = 0
    why: str = ""


@final
class RunRecorder:
    """Takes a run in step by step, and keeps of it what an audit needs. Memory does not grow with the model's size.

    `history` asks the accountant what it has been told. `canaries.inserted` must be the last records of the data.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        records: int,
        canaries: Canaries,
        framework: str,
        history: Callable[[], Sequence[Claim]],
    ) -> None:
        self._history = history
        self.expected: Claim = (0.0, 1.0, 0)  # until the accountant has been told of a step
        self.steps = 0
        self.observed: dict[str, Observed] = {}
        self.parts = {part: Replayed() for part in PARTS}
        self.rounding = 0.0  # clipping norms by which a sum differed from the recorder's own
        self.names: list[str] = []
        self.writer = RecordingWriter(Path(folder))
        self.first_canary = records - len(canaries.inserted)
        self._records, self._canaries, self._framework = records, canaries, framework
        self._sizes: list[int] = []  # of the tensors
        self._noise: list[Tensor] = []  # per step: its squares by tensor, in clipping norms
        self._fingerprints: list[np.ndarray] = []  # of noise that was not replayed
        self._members: list[Tensor] = []
        self._settings: list[list[float]] = []  # clipping norm, multiplier told, its share that was there
        self._reader = CanaryReader(len(canaries), canaries.candidates)
        self.manifest: dict[str, Any] = {}

    def add(
        self,
        members: Sequence[int],
        summed: Sequence[Tensor],
        noised: Sequence[Tensor],
        *,
        norm: float,
        told: float,
        compare: bool,
    ) -> None:
        """Take in one step: its records, and its sums before and after the noise, one flat tensor after the other.

        `norm` is that of clipping, `told` the noise multiplier. Noise that was replayed need not be compared.
        """
        self._sizes = [len(tensor) for tensor in noised]
        noise = [(a - b).float() / norm for a, b in zip(noised, summed, strict=True)]
        self._noise.append(torch.stack([z.square().sum() for z in noise]).double().cpu())
        if compare:
            self._fingerprints.append(_fingerprints([z / (told or 1.0) for z in noise]))
        self._members.append(torch.tensor(members, dtype=torch.int32))
        self._settings.append([norm, told, 1.0])
        self.steps += 1

    def pause(self) -> int:
        """How many steps pass between two looks at all candidates: so many that looking costs a quarter of training."""
        candidates = self._canaries.shortlists.labels.numel()
        return max(1, math.ceil(4 * candidates / max(1.0, self.claim()[1] * self._records)))

    def read(self, gradients: Iterable[Tensor], released: Tensor) -> None:
        """Look for the canaries in the last step: all candidates' clipped gradients, the release less the known."""
        noise, rate, _ = self.claim()
        norm = self._settings[-1][0]
        self._reader.step(gradients, released, noise=noise * norm, norm=norm, sample_rate=min(rate, 1.0))

    def claim(self) -> Claim:
        """What the accountant has been told of this step, or of the last one that it knows of."""
        wanted, last = self.steps, self.expected
        for last in self._history():
            if wanted < last[2]:
                return last
            wanted -= last[2]
        return last

    def replayed(self, part: str, why: str = "", *, steps: int = 1) -> None:
        """Note that a part of a step was replayed, or why it was not."""
        seen = self.parts[part]
        if not why:
            seen.steps += steps
            return
        seen.why = seen.why or why
        seen.failed += steps

    def lessened(self, share: float, where: str) -> None:
        """In the last step, the noise on a tensor was this multiple of the declared noise."""
        self.observe("noise-scaled", worst=1 - share, where=where)
        self._settings[-1][2] = min(self._settings[-1][2], share)

    def observe(self, what: str, *, worst: float = 0.0, where: str = "", count: int = 1) -> None:
        """Note something that is wrong; the first place and the worst number are kept."""
        if what not in self.observed:
            self.observed[what] = Observed(0, max(0, self.steps - 1), worst, where)
        seen = self.observed[what]
        seen.count += count
        if worst > seen.worst:
            seen.worst, seen.where = worst, where or seen.where

    def finish(self) -> None:
        """Write what was recorded; a run without a step leaves nothing."""
        claimed = [(float(noise), float(rate), int(count)) for noise, rate, count in self._history()]
        if not self._noise or not claimed:
            self.writer.abandon()
            raise InputError(
                "No training step was recorded.",
                needs="at least one step that the accountant counted",
                got=f"{self.steps} steps, {len(claimed)} entries in the accountant's history",
                hint="put the whole training loop inside `with record(...)`",
            )
        starts = torch.tensor([0, *(len(members) for members in self._members)]).cumsum(0)
        settings = torch.tensor(self._settings, dtype=torch.float64)
        self.writer.add(
            "batches", {"indices": torch.cat(self._members), "starts": starts, "settings": settings}
        )
        marks = np.concatenate([np.zeros(0, np.uint64), *self._fingerprints])
        marks = marks[marks > 0]
        noise = {
            "sizes": torch.tensor(self._sizes),
            "sums": torch.stack(self._noise),  # (steps, tensors)
            "repeats": torch.tensor(len(marks) - len(np.unique(marks))),
        }
        self.writer.add("noise", noise)
        self.manifest["canaries"] = {
            "count": len(self._canaries),
            "candidates": self._canaries.candidates,
            "design": str(self._canaries.design),
            "sha256": self._canaries.shortlists.sha256(),
        }
        self.writer.add("canaries", {"scores": self._reader.scores(), "chosen": self._canaries.chosen})
        self.writer.finish(
            {
                "framework": self._framework,
                "claimed": claimed,
                "records": self._records,
                "steps": self.steps,
                "tensors": self.names,
                "observed": {name: _finite(vars(seen)) for name, seen in self.observed.items()},
                "replay": {part: vars(seen) for part, seen in self.parts.items()},
                "rounding": self.rounding,
                **self.manifest,
            }
        )


def _finite(seen: dict[str, Any]) -> dict[str, Any]:
    return {**seen, "worst": seen["worst"] if math.isfinite(seen["worst"]) else 1e300}


def _fingerprints(noise: Sequence[Tensor]) -> np.ndarray:
    """A number for each tensor's noise in standard deviations, the same for the same noise but for rounding and signs.

    0 where a tensor has too few numbers to be distinguished, or no noise at all, which is another finding.
    """
    mixers = np.random.default_rng(0).integers(1, 2**63, size=_FINGERPRINTED, dtype=np.uint64) | np.uint64(1)
    found = np.zeros(len(noise), np.uint64)
    for place, z in enumerate(noise):
        cells = (z[:_FINGERPRINTED].abs().double().cpu().numpy() * 16).round().clip(0, 2**30)
        if len(cells) == _FINGERPRINTED and cells.max() > 0:
            found[place] = (cells.astype(np.uint64) * mixers).sum(dtype=np.uint64) | np.uint64(1)
    return found


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
