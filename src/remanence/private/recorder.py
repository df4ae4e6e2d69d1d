"""Recording a DP training run of any framework: one call per step, and a folder that an audit reads.

    with RunRecorder("run", claimed=[(1.1, 0.004, 1000)], records=60_000, max_grad_norm=1.0) as recording:
        for step in range(1000):
            ...
            recording.append(step, summed, noised, batch)

`summed` is the sum of the clipped gradients, `noised` what the update used, `batch` who was in the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.private.canaries import Canaries
from remanence.private.reading import CanaryReader
from remanence.private.recording import PARTS, RecordingWriter

Claim = tuple[float, float, int]  # noise multiplier, sampling rate, steps
Arrays = Mapping[str, Any] | Any  # by name, or one array

_FINGERPRINTED = 12  # numbers in a fingerprint; at a sixteenth of a standard deviation they hold 60 bits
_INSIDE = 2**17  # numbers of a step that are compared with each other
_SAME = 1e-5  # standard deviations by which two of them may differ through rounding, and be the same


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
    """How many steps a part was replayed in; how many it was not, where first, and why."""

    steps: int = 0
    failed: int = 0
    first_step: int = 0
    why: str = ""


@final
@dataclass(frozen=True)
class NoisedStep:
    """One step as it ran: flat tensors one after the other, in the order of the recorder's names."""

    members: Sequence[int]
    summed: Sequence[Tensor]
    noised: Sequence[Tensor]
    norms: tuple[float, float]  # to which gradients were clipped; for which noise was made
    told: float  # noise multiplier
    precision: float = 1e-7  # of the numbers


@final
class NoiseLog:
    """What has to be known about every step's noise, without keeping it: may it be what was claimed?

    A step's noise is given in units of the standard deviation that the optimizer was told, so that schedules do not
    matter. Signs do not matter where noise comes again.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self._sums: list[Tensor] = []  # per step: Σ z² by tensor
        self._fingerprints: list[np.ndarray] = []  # per compared step, (tensors,)
        self._squares: Tensor | None = None  # of every number over the compared steps
        self._compared = 0
        # Pairs of equal numbers inside steps; as many as chance makes, and their variance.
        self._pairs = np.zeros(3)
        self._multipliers = np.random.default_rng(0).integers(
            1, 2**63, size=_FINGERPRINTED, dtype=np.uint64
        ) | np.uint64(1)

    @torch.no_grad()
    def add(self, noise: Sequence[Tensor], *, compare: bool = True, precision: float = 1e-7) -> None:
        """Take in one step's noise, one flat tensor after the other."""
        squares = [z.square() for z in noise]
        self._sums.append(torch.stack([part.sum() for part in squares]).double().cpu())
        if not compare:
            return
        every = torch.cat(squares)
        self._squares = every if self._squares is None else self._squares + every
        self._compared += 1
        heads = torch.zeros(len(noise), _FINGERPRINTED)
        for row, z in zip(heads, noise, strict=True):
            row[: min(len(z), _FINGERPRINTED)] = z[:_FINGERPRINTED].abs()
        self._fingerprints.append(self._fingerprint(heads))
        if precision < _SAME / 10:  # half precision has few numbers, and many are the same
            self._count_pairs(every[:_INSIDE].sqrt())

    def _count_pairs(self, sizes: Tensor) -> None:
        ordered, count = sizes[sizes > 100 * _SAME].sort().values, len(sizes)
        near = torch.searchsorted(ordered, ordered + _SAME, right=True)
        pairs = int((near - torch.arange(1, len(ordered) + 1, device=near.device)).sum())
        chance = _SAME * count**2 / math.sqrt(math.pi)
        self._pairs += pairs, chance, chance * (1 + count * _SAME)

    def _fingerprint(self, heads: Tensor) -> np.ndarray:
        """Equal for equal noise, up to rounding; 0 where a tensor has too few numbers to be distinguished."""
        cells = (heads.double().numpy() * 16).round().clip(0, 2**30)
        mixed = (cells.astype(np.uint64) * self._multipliers).sum(1, dtype=np.uint64)
        enough = np.array(self.sizes) >= _FINGERPRINTED
        moving = cells.max(1) > 0  # no noise at all is another finding
        return np.where(enough & moving, mixed | np.uint64(1), np.uint64(0))

    def tensors(self) -> dict[str, Tensor]:
        """What an audit reads: sums by step and tensor, and of compared steps how noise came again."""
        marks = np.concatenate([np.zeros(0, np.uint64), *self._fingerprints])
        marks = marks[marks > 0]
        found = {
            "sizes": torch.tensor(self.sizes),
            "sums": torch.stack(self._sums),  # (steps, tensors)
            "compared": torch.tensor(self._compared),
            "repeats": torch.tensor(len(marks) - len(np.unique(marks))),
            "pairs": torch.from_numpy(self._pairs),
        }
        if self._squares is not None:
            parts = self._squares.split(self.sizes)
            found["least"] = torch.stack([part.min() for part in parts]).double().cpu()
        return found


@final
class RunRecorder:
    """Takes a run in step by step, and keeps of it what an audit needs. Memory does not grow with the model's size.

    `claimed` are the accountant's (noise multiplier, sampling rate, steps); a recorder that learns them as it goes
    sets `claimed` anew. `canaries.inserted` must be the last records of the training data.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        records: int,
        max_grad_norm: float,
        claimed: Sequence[Claim] = (),
        canaries: Canaries | None = None,
        framework: str = "any",
    ) -> None:
        self.claimed: list[Claim] = list(claimed)
        self.expected: Claim = (0.0, 1.0, 0)  # until the accountant has been told of a step
        self.steps, self.steps_before = 0, 0
        self.observed: dict[str, Observed] = {}
        self.parts = {part: Replayed() for part in PARTS}
        self.rounding = 0.0  # clipping norms by which a sum differed from the recorder's own
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.writer = RecordingWriter(Path(folder))
        self.first_canary = records - (0 if canaries is None else len(canaries.inserted))
        self._records, self._norm = records, max_grad_norm
        self._canaries, self._framework = canaries, framework
        self._noise: NoiseLog | None = None
        self._drift = 0.0  # the squares of all sums over those of their noise
        self._members: list[Tensor] = []
        # norm at clipping, at noising, multiplier told, its share that was there
        self._settings: list[list[float]] = []
        self._reader = None if canaries is None else CanaryReader(len(canaries), canaries.candidates)
        self.manifest: dict[str, Any] = {}

    def append(
        self, step: int, summed: Arrays, noised: Arrays, batch: Sequence[int], candidates: Any = None
    ) -> None:
        """Record one step of any framework: arrays by name or in one piece, and the indices of the records in it.

        `candidates` are the clipped gradients of all candidates of the canaries at this step's parameters,
        `(candidates, numbers)`; without them the step says nothing about canaries.
        """
        if step != self.steps + self.steps_before:
            raise InputError(
                "The steps are not recorded in order.",
                needs=f"step {self.steps + self.steps_before}: every step once, counted from 0",
                got=f"step {step}",
                hint="record every step, the first one too",
            )
        before, after = _flat(summed), _flat(noised)
        if list(before) != list(after) or any(len(before[n]) != len(after[n]) for n in before):
            raise InputError(
                "The sum and the noised sum do not fit together.",
                needs="the same names and sizes",
                got=f"{ {n: len(t) for n, t in before.items()} } and { {n: len(t) for n, t in after.items()} }",
                hint="summed: before the noise; noised: after it, before it is divided by the batch size",
            )
        self.names = self.names or list(before)
        norms = (self._norm, self._norm)
        told = self.claim()[0]
        precision = max(_precision(summed), _precision(noised))
        self.add(NoisedStep(list(batch), list(before.values()), list(after.values()), norms, told, precision))
        if candidates is not None and self._canaries is not None:
            gradients = torch.as_tensor(np.asarray(candidates), dtype=torch.float32)
            inside = self._canaries.rows[
                [index - self.first_canary for index in batch if index >= self.first_canary]
            ]
            known = torch.cat(list(before.values())) - gradients[inside].sum(0)
            self.read([gradients], torch.cat(list(after.values())) - known)

    def add(self, step: NoisedStep, *, compare: bool = True) -> None:
        """Take in one step; noise that was replayed bit for bit needs no statistics."""
        if self._noise is None:
            self.sizes = [len(tensor) for tensor in step.noised]
            self._noise = NoiseLog(self.sizes)
        unit = (step.told or 1.0) * step.norms[0]
        noise = [(a - b).float() / unit for a, b in zip(step.noised, step.summed, strict=True)]
        self._noise.add(noise, compare=compare, precision=step.precision)
        self._drift += sum(float(part.square().sum()) for part in step.summed) / unit**2
        self._members.append(torch.tensor(step.members, dtype=torch.int32))
        self._settings.append([*step.norms, step.told, 1.0])
        self.steps += 1

    def pause(self) -> int:
        """How many steps pass between two looks at all candidates: so many that looking costs a quarter of training."""
        assert self._canaries is not None
        candidates = self._canaries.shortlists.labels.numel()
        return max(1, math.ceil(4 * candidates / max(1.0, self.claim()[1] * self._records)))

    def read(self, gradients: Iterable[Tensor], released: Tensor) -> None:
        """Look for the canaries in the last step: all candidates' clipped gradients, the release less the known."""
        assert self._reader is not None
        noise, rate, _ = self.claim()
        norm = self._settings[-1][0]
        self._reader.step(gradients, released, noise=noise * norm, norm=norm, sample_rate=min(rate, 1.0))

    def claim(self, step: int | None = None) -> Claim:
        """What the accountant has been told of a step, or of the last one that it knows of."""
        if not self.claimed:
            return self.expected
        wanted = (self.steps if step is None else step) + self.steps_before
        for noise, rate, count in self.claimed:
            if wanted < count:
                return noise, rate, count
            wanted -= count
        return self.claimed[-1]

    def replayed(self, part: str, why: str = "", *, steps: int = 1) -> None:
        """Note that a part of a step was replayed, or why it was not."""
        seen = self.parts[part]
        if not why:
            seen.steps += steps
            return
        if not seen.failed:
            seen.first_step, seen.why = max(0, self.steps - steps), why
        seen.failed += steps

    def lessened(self, share: float, where: str) -> None:
        """In the last step, the noise on a tensor was this multiple of the declared noise."""
        self.observe("noise-scaled", worst=1 - share, where=where)
        self._settings[-1][3] = min(self._settings[-1][3], share)

    def observe(self, what: str, *, worst: float = 0.0, where: str = "", count: int = 1) -> None:
        """Note something that is wrong; the first place and the worst number are kept."""
        if what not in self.observed:
            self.observed[what] = Observed(0, max(0, self.steps - 1), worst, where)
        seen = self.observed[what]
        seen.count += count
        if worst > seen.worst:
            seen.worst, seen.where = worst, where or seen.where

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.observe("ended-early", where=f"{type(error).__name__}: {str(error)[:200]}")
        self.finish()

    def finish(self) -> None:
        """Write what was recorded; a run without a step leaves nothing."""
        if self._noise is None or not self.claimed:
            self.writer.abandon()
            raise InputError(
                "No training step was recorded.",
                needs="at least one step that the accountant counted",
                got=f"{self.steps} steps, {len(self.claimed)} entries in the accountant's history",
                hint="put the whole training loop inside `with record(...)`",
            )
        starts = torch.tensor([0, *(len(members) for members in self._members)]).cumsum(0)
        settings = torch.tensor(self._settings, dtype=torch.float64)
        self.writer.add(
            "batches", {"indices": torch.cat(self._members), "starts": starts, "settings": settings}
        )
        self.writer.add("noise", self._noise.tensors())
        if self._canaries is not None and self._reader is not None:
            self.manifest["canaries"] = {
                "count": len(self._canaries),
                "candidates": self._canaries.candidates,
                "design": str(self._canaries.design),
                "sha256": self._canaries.shortlists.sha256(),
            }
            found = {"scores": self._reader.scores(), "chosen": self._canaries.chosen}
            self.writer.add("canaries", found)
        self.writer.finish(
            {
                "framework": self._framework,
                "claimed": [list(claim) for claim in self.claimed],
                "records": self._records,
                "steps": self.steps,
                "steps_before": self.steps_before,
                "tensors": self.names,
                "observed": {name: _finite(vars(seen)) for name, seen in self.observed.items()},
                "replay": {part: vars(seen) for part, seen in self.parts.items()},
                "rounding": self.rounding,
                "drift": self._drift,
                **self.manifest,
            }
        )


def _finite(seen: dict[str, Any]) -> dict[str, Any]:
    return {**seen, "worst": seen["worst"] if math.isfinite(seen["worst"]) else 1e300}


def _flat(arrays: Arrays) -> dict[str, Tensor]:
    named = arrays if isinstance(arrays, Mapping) else {"parameters": arrays}
    return {
        str(name): torch.as_tensor(np.asarray(array), dtype=torch.float32).flatten()
        for name, array in named.items()
    }


def _precision(arrays: Arrays) -> float:
    kinds = [
        np.asarray(array).dtype for array in (arrays.values() if isinstance(arrays, Mapping) else [arrays])
    ]
    return max((float(np.finfo(kind).eps) for kind in kinds if kind.kind == "f"), default=1e-7)
