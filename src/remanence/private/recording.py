"""A recorded training run: what is kept of it step by step, and its folder, which appears when the run ends."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.private.canaries import Canaries
from remanence.private.reading import CanaryReader
from remanence.scale.files import check_writable, write_files
from remanence.scale.reading import MOST_TENSORS, UnusableFileError, parse_json, parse_tensors, read_bytes

MANIFEST, TENSORS = "manifest.json", "run.safetensors"
FORMAT = 7
PARTS = ("sampling", "clipping", "norm", "noise", "seed", "update")  # of a step, each to be replayed

_COUNT, _NUMBER = {"type": "integer", "minimum": 0}, {"type": "number", "minimum": 0}
_SEVERAL = {"type": "integer", "minimum": 1}
_TEXT = {"type": "string"}
_CLAIM = {"type": "array", "prefixItems": [_NUMBER, _NUMBER, _COUNT], "minItems": 3, "maxItems": 3}
_NOTED = {"type": "object", "properties": {"count": _COUNT, "why": _TEXT}, "required": ["count", "why"]}
_SCHEMA = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "framework": _TEXT,
        "claimed": {"type": "array", "minItems": 1, "items": _CLAIM},
        "records": _SEVERAL,
        "steps": _SEVERAL,
        "tensors": {"type": "array", "minItems": 1, "items": _TEXT},
        "replayed": {"type": "object", "properties": dict.fromkeys(PARTS, _COUNT), "required": list(PARTS)},
        "noted": {"type": "object", "additionalProperties": _NOTED},
        "rounding": _NUMBER,
        "seed": _TEXT,
        "rate": _NUMBER,
        "divisor": _COUNT,
        "batches": _SEVERAL,
        "canaries": {
            "type": "object",
            "properties": {"count": _SEVERAL, "candidates": _SEVERAL, "design": _TEXT, "sha256": _TEXT},
            "required": ["count", "candidates", "design", "sha256"],
        },
        "sha256": _TEXT,
    },
}
_SCHEMA["dependentRequired"] = {"divisor": ["batches"], "batches": ["divisor"]}
_SCHEMA["required"] = [name for name in _SCHEMA["properties"] if name not in ("divisor", "batches")]

Json = dict[str, Any]
Claim = tuple[float, float, int]  # noise multiplier, sampling rate, steps


@final
class RunRecorder:
    """Takes a run in step by step, and keeps of it what an audit needs. Memory does not grow with the model's size.

    `history` asks the accountant what it has been told, and `expected` is the claim before it has been told anything.
    `canaries.inserted` must be the last records of the data. `about` goes into the manifest.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        records: int,
        canaries: Canaries,
        history: Callable[[], Sequence[Claim]],
        expected: Claim,
        about: Json,
    ) -> None:
        self._folder = Path(folder)
        if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise InputError(
                "The recording would overwrite something.",
                needs="a folder that does not exist yet, or an empty one",
                got=str(folder),
                hint="another out=..., or remove the old recording first",
            )
        check_writable(self._folder, hint="another out=...")
        self._history, self._expected, self._about = history, expected, about
        self.steps = 0
        self.noted: dict[str, dict[str, Any]] = {}  # how often something was wrong, and what it was at first
        self.rounding = 0.0  # clipping norms by which a sum differed from the recorder's own
        self.first_canary = records - len(canaries.inserted)
        self._replayed: dict[str, int] = dict.fromkeys(PARTS, 0)
        self._records, self._canaries = records, canaries
        self._sizes: list[int] = []  # of the tensors
        self._noise: list[Tensor] = []  # per step: its squares by tensor, in clipping norms
        self._members: list[Tensor] = []
        self._settings: list[list[float]] = []  # clipping norm, multiplier told
        self._reader = CanaryReader(len(canaries), canaries.candidates)

    def add(
        self,
        members: Sequence[int],
        summed: Sequence[Tensor],
        noised: Sequence[Tensor],
        *,
        norm: float,
        told: float,
    ) -> None:
        """Take in one step: its records, and its sums before and after the noise, one flat tensor after the other.

        `norm` is that of clipping, `told` the noise multiplier.
        """
        self._sizes = [len(tensor) for tensor in noised]
        noise = [(a - b).float() / norm for a, b in zip(noised, summed, strict=True)]
        self._noise.append(torch.stack([z.square().sum() for z in noise]).double().cpu())
        self._members.append(torch.tensor(members, dtype=torch.int32))
        self._settings.append([norm, told])
        self.steps += 1

    def unnoised(self, place: int) -> None:
        """The noise on a tensor did not reach the last update."""
        self._noise[-1][place] = 0.0

    def looks(self) -> bool:
        """Whether the attack looks for all candidates in the next step; looking costs a quarter of training."""
        candidates = self._canaries.shortlists.labels.numel()
        pause = math.ceil(4 * candidates / max(1.0, self.claim()[1] * self._records))
        return self.steps % max(1, pause) == 0

    def read(self, gradients: Iterable[Tensor], released: Tensor) -> None:
        """Look for the canaries in the last step: all candidates' clipped gradients, the release less the known."""
        noise, rate, _ = self.claim()
        norm = self._settings[-1][0]
        self._reader.step(gradients, released, noise=noise * norm, norm=norm, sample_rate=min(rate, 1.0))

    def claim(self) -> Claim:
        """What the accountant has been told of the last step that it knows of."""
        return (self._expected, *self._history())[-1]

    def replayed(self, part: str, why: str = "", *, steps: int = 1) -> None:
        """Note that a part of a step was replayed, or why it was not."""
        if why:
            self.note(part, why, count=steps)
        else:
            self._replayed[part] += steps

    def note(self, what: str, why: str, *, count: int = 1) -> None:
        """Note something that is wrong; the first reason is kept."""
        self.noted.setdefault(what, {"count": 0, "why": why})["count"] += count

    def finish(self) -> None:
        """Write what was recorded; a run without a step leaves nothing."""
        claimed = [(float(noise), float(rate), int(count)) for noise, rate, count in self._history()]
        if not self._noise or not claimed:
            raise InputError(
                "No training step was recorded.",
                needs="at least one step that the accountant counted",
                got=f"{self.steps} steps, {len(claimed)} entries in the accountant's history",
                hint="put the whole training loop inside `with record(...)`",
            )
        tensors = {
            "indices": torch.cat(self._members),
            "starts": torch.tensor([0, *(len(members) for members in self._members)]).cumsum(0),
            "settings": torch.tensor(self._settings, dtype=torch.float64),
            "sizes": torch.tensor(self._sizes),
            "noise": torch.stack(self._noise),  # (steps, tensors)
            "scores": self._reader.scores(),
            "chosen": self._canaries.chosen,
        }
        canaries = {
            "count": len(self._canaries),
            "candidates": self._canaries.candidates,
            "design": str(self._canaries.design),
            "sha256": self._canaries.shortlists.sha256(),
        }
        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        manifest = {
            "format": FORMAT,
            "remanence": version("remanence"),
            **self._about,
            "claimed": claimed,
            "records": self._records,
            "steps": self.steps,
            "replayed": self._replayed,
            "noted": self.noted,
            "rounding": self.rounding,
            "canaries": canaries,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
        write_files(self._folder, {TENSORS: content, MANIFEST: text.encode()}, hint="another out=...")


def read_recording(folder: Path) -> tuple[Json, dict[str, Tensor]]:
    """The manifest of a recording and its tensors; refuse, with the reason, what is not one."""
    name = MANIFEST
    try:
        content = read_bytes(folder / MANIFEST)
        written = parse_json(content, {"type": "object"}).get("format")
        if written != FORMAT:
            raise UnusableFileError(f"it has format {written!r}, and this version reads format {FORMAT}")
        manifest, name = parse_json(content, _SCHEMA), TENSORS
        content = read_bytes(folder / TENSORS, MOST_TENSORS)
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            raise UnusableFileError("not the file that was recorded")
        tensors = parse_tensors(content)
        _check_tensors(manifest, tensors)
    except UnusableFileError as error:
        raise InputError(
            "The recording cannot be read.",
            needs=f"a folder written by record(...), with its {MANIFEST}",
            got=f"{folder}: {name}: {error}",
            hint="record the training again",
        ) from None
    return manifest, tensors


def _check_tensors(manifest: Json, tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that no recorder writes, or not next to this manifest."""
    lists = manifest["canaries"]["count"], manifest["canaries"]["candidates"]
    steps, layers = manifest["steps"], len(manifest["tensors"])
    drawn = tensors["indices"].numel() if "indices" in tensors else 0
    # Each with its type, its shape, and the least and the most that a number in it may be.
    expected = {
        "indices": (torch.int32, (drawn,), 0, manifest["records"] - 1),
        "starts": (torch.int64, (steps + 1,), 0, drawn),
        "settings": (torch.float64, (steps, 2), 0, math.inf),
        "sizes": (torch.int64, (layers,), 1, math.inf),
        "noise": (torch.float64, (steps, layers), 0, math.inf),
        "scores": (torch.float64, lists, -math.inf, math.inf),
        "chosen": (torch.int64, lists[:1], -1 if lists[1] == 1 else 0, lists[1] - 1),
    }
    for name, (kind, shape, least, most) in expected.items():
        if name not in tensors:
            raise UnusableFileError(f"it has no {name}")
        found = tensors[name]
        if found.dtype != kind or found.shape != shape or not found.isfinite().all():
            raise UnusableFileError(f"its {name} are not those of the {steps} steps in the manifest")
        if found.numel() and not least <= found.min() <= found.max() <= most:
            raise UnusableFileError(f"a number of its {name} is impossible")
    if (tensors["starts"].diff() < 0).any() or int(tensors["starts"][-1]) != drawn:
        raise UnusableFileError("a number of its starts is impossible")
