"""A recorded training run: what its accountant claims, what was measured, and where the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom, chi2
from torch import Tensor

from remanence.bounds import Segment
from remanence.core.exceptions import MisfitError
from remanence.private import caveats
from remanence.private.recording import PARTS, Recording, read_recording, unreadable
from remanence.results.caveats import Caveat

_SURE = 6.0  # standard deviations that chance does not explain
_CHANCE = 1e-9  # how often chance may explain a finding, over all that a run is looked at for
_ROUNDING = 1e-4  # of the noise, that single precision loses


_PARTS = {
    "sampling": caveats.SAMPLING_NOT_REPLAYED,
    "clipping": caveats.CLIPPING_NOT_REPLAYED,
    "norm": caveats.NORM_FROM_DATA,
    "noise": caveats.NOISE_NOT_REPLAYED,
    "seed": caveats.SEED_UNKNOWN,
    "update": caveats.UPDATE_NOT_REPLAYED,
}
# The caveat for each thing that a recorder notes, and how what it saw is said.
_SAID: dict[str, tuple[Caveat, str]] = {
    "clipping-wrong": (
        caveats.CLIPPING_NOT_PER_RECORD,
        "The sum is off by {worst:.2g} clipping norms per record, {times}.",
    ),
    "divided-by-the-real-batch": (caveats.DIVIDED_BY_THE_BATCH, "{times}."),
    "post-processed": (caveats.POST_PROCESSED, "{where}, {times}."),
    "records-duplicated": (caveats.RECORDS_DUPLICATED, "{count} of them are equal to an earlier one."),
    "recording-stopped": (caveats.RECORDING_STOPPED, "After {steps} steps: {where}"),
}


@final
@dataclass(frozen=True)
class MeasuredNoise:
    """The noise multiplier that ran, with an interval at 95 %."""

    value: float
    lower: float
    upper: float


@final
@dataclass(frozen=True)
class RecordedRun:
    """What the accountant claims about a run, and what was measured while it ran."""

    recording: Recording
    claimed: tuple[Segment, ...]

    def fits(self) -> None:
        """Refuse a recording whose files are missing, damaged, or about other steps and records than its manifest."""
        self.recording.check()
        manifest, starts, indices = self.recording.manifest, self._batches["starts"], self._batches["indices"]
        about = len(starts) - 1, len(self._batches["settings"]), len(self._noise["sums"])
        people = int(indices.max()) if len(indices) else 0
        if set(about) != {self.steps} or people >= manifest["records"] or int(starts[-1]) != len(indices):
            raise MisfitError(
                "The files of the recording come from different runs.",
                needs=f"{self.steps} steps on {manifest['records']} records, as the manifest says",
                got=f"{about[0]} batches, {about[2]} steps of noise, and records up to number {people + 1}",
                hint="record the training again",
            )

    @property
    def steps(self) -> int:
        """How many noisy gradients were released."""
        return self.recording.manifest["steps"]

    @cached_property
    def _batches(self) -> dict[str, Tensor]:
        return self.recording.tensors("batches")

    @cached_property
    def _noise(self) -> dict[str, Tensor]:
        return self.recording.tensors("noise")

    @cached_property
    def noise(self) -> MeasuredNoise:
        """The noise multiplier that ran."""
        squares, numbers = float(self._noise["sums"].sum()), self.steps * int(self._noise["sizes"].sum())
        low, high = chi2.ppf([0.975, 0.025], numbers)
        return MeasuredNoise(*(math.sqrt(squares / n) for n in (numbers, low, high)))

    @cached_property
    def sample_rate(self) -> float:
        """The share of the records in a batch that ran."""
        return min(1.0, len(self._batches["indices"]) / self.steps / self.recording.manifest["records"])

    @property
    def max_grad_norm(self) -> float:
        """To which norm gradients were clipped, in the first step."""
        return float(self._batches["settings"][0, 0])

    def _per_step(self) -> list[tuple[float, float]]:
        """Noise and rate that are claimed for the recorded steps; the last claim goes on if there are more."""
        every = [(s.noise_multiplier, s.sample_rate) for s in self.claimed for _ in range(s.steps)]
        return every[: self.steps] + [every[-1]] * (self.steps - len(every))

    def unreplayed(self) -> Iterator[Caveat]:
        """The parts that were not replayed in every step that the claim covers."""
        for part in PARTS:
            seen = self.recording.manifest["replay"][part]
            if seen["failed"] or seen["steps"] != self.steps:
                why = seen["why"] or "The recorder did not see what it is made from"
                count = min(self.steps, max(seen["failed"], self.steps - seen["steps"]))
                times = f"in {count} of {self.steps} steps"
                yield replace(_PARTS[part], seen=f"{why[0].upper()}{why[1:]}, {times}.")

    def deviations(self) -> tuple[Caveat, ...]:
        """Where the run differs from the claim, or was not replayed; contradictions of the claim come first."""
        found = [*self._of_noise(), *self._of_sampling(), *self._observed(), *self.unreplayed()]
        return tuple(sorted(found, key=lambda caveat: (not caveat.contradicts, not caveat.voids)))

    def _observed(self) -> Iterator[Caveat]:
        """What the recorder saw while the run ran."""
        manifest = self.recording.manifest
        for name, seen in manifest["observed"].items():
            by_chance = name == "divided-by-the-real-batch" and seen["count"] < max(2, self.steps / 2)
            if name in _SAID and not by_chance:
                many = f"in {seen['count']} of {self.steps} steps"
                times = many if seen["count"] > 1 else f"in step {seen['first_step'] + 1}"
                caveat, words = _SAID[name]
                yield replace(caveat, seen=words.format(**seen, times=times, steps=self.steps))
        if manifest.get("seed") == "secret":
            yield replace(caveats.SEED_ASSERTED, seen="Asserted when the run was recorded.")
        yield from self._of_counting()

    def _of_counting(self) -> Iterator[Caveat]:
        """In or out: what one record less or more changes besides the sum, where the divisor was counted."""
        manifest = self.recording.manifest
        if "divisor" not in manifest or manifest["canaries"]["candidates"] > 1:
            return
        records, batches, divisor = manifest["records"], manifest["batches"], manifest["divisor"]
        size = (records - 1) / (batches - 1) if batches > 1 else 0.0
        fewer = batches - 1 if size == int(size) and size > 0 else batches
        changed = [
            (n, b) for n, b in ((records - 1, fewer), (records + 1, batches)) if n and int(n / b) != divisor
        ]
        if changed:
            other, count = changed[0]
            epochs = f" and {count} batches an epoch, not {batches}" if count != batches else ""
            seen = (
                f"{records} records: divided by {divisor}. {other} records: by {int(other / count)}{epochs}."
            )
            yield replace(caveats.COUNTED_FROM_RECORDS, seen=seen)

    def _of_noise(self) -> Iterator[Caveat]:
        claimed = np.array([noise for noise, _ in self._per_step()])
        told, share = self._batches["settings"][:, 1:].numpy().T
        low = told * share < claimed * (1 - 1e-6)
        if low.any():
            least = float((told * share / np.maximum(claimed, 1e-300)).min())
            scaled = self.recording.manifest["observed"].get("noise-scaled", {"where": "", "count": 0})
            some = scaled["count"] % len(self.recording.manifest["tensors"])
            where = f"The noise on `{scaled['where']}`" if some else "The noise"
            when = "" if low.all() else f" in {int(low.sum())} of {self.steps} steps"
            yield replace(caveats.NOISE_BELOW_CLAIM, seen=f"{where} {_lacking(least)}{when}.")
        else:
            yield from self._too_small(claimed)
        if repeats := int(self._noise["repeats"]):
            seen = f"The same noise was added {repeats} times more than once."
            yield replace(caveats.NOISE_REPEATS, seen=seen)

    def _too_small(self, claimed: NDArray[np.float64]) -> Iterator[Caveat]:
        """The size of all noise, of every tensor's and of every step's."""
        ratios = self._noise["sums"].numpy() / np.maximum(claimed, 1e-12)[:, None] ** 2
        sizes, names = self._noise["sizes"].numpy(), self.recording.manifest["tensors"]
        places = ["", *(f" on `{name}`" for name in names), *(f" in step {n + 1}" for n in range(self.steps))]
        squares = np.concatenate([[ratios.sum()], ratios.sum(0), ratios.sum(1)])
        every = int(sizes.sum())
        numbers = np.concatenate([[self.steps * every], self.steps * sizes, [every] * self.steps])
        chances = chi2.logcdf(squares / (1 - _ROUNDING), numbers) + math.log(len(numbers))
        worst = int(chances.argmin())
        if chances[worst] < math.log(_CHANCE):
            share = _lacking(math.sqrt(squares[worst] / numbers[worst]))
            yield replace(caveats.NOISE_BELOW_CLAIM, seen=f"The noise{places[worst]} {share}.")

    def _of_sampling(self) -> Iterator[Caveat]:
        manifest, claims = self.recording.manifest, self._per_step()
        records = manifest["records"]
        starts, indices = self._batches["starts"], self._batches["indices"].long()
        sizes = starts.diff().double()
        rates = {rate for _, rate in claims}
        rate, mean = sum(rate for _, rate in claims) / len(claims), float(sizes.mean())
        spread = math.sqrt(records * rate * (1 - rate) / self.steps)
        if mean > records * rate + _SURE * spread + 1e-9 * records:
            seen = f"Batches of {mean:.1f} records on average, {records * rate:.1f} accounted for."
            yield replace(caveats.SAMPLING_ABOVE_CLAIM, seen=seen)
        counts = torch.bincount(indices, minlength=records).double()
        often = binom.sf(counts.numpy() - 1, self.steps, max(rates)) * records < _CHANCE
        if often.any() and max(rates) < 1:
            most = int(counts[torch.from_numpy(often)].max())
            seen = f"A record was in {most} of {self.steps} steps, at a rate of {rate:.3g}."
            yield replace(caveats.SAMPLING_ABOVE_CLAIM, seen=seen)
        if len(rates) == 1 and rate < 1 and len(indices) and not _is_poisson(sizes, counts):
            seen = f"Batch sizes vary by {float(sizes.std(correction=0)):.1f} around {mean:.1f}."
            yield replace(caveats.SAMPLING_NOT_POISSON, seen=seen)
        if "rate" in manifest and any(rate < manifest["rate"] * (1 - 1e-9) for _, rate in claims):
            seen = f"Drawn at a rate of {manifest['rate']:.4g}, {min(rates):.4g} accounted for."
            yield replace(caveats.SAMPLING_ABOVE_CLAIM, seen=seen)
        counted = sum(segment.steps for segment in self.claimed)
        if self.steps > counted:
            seen = f"{self.steps} steps were taken, {counted} were counted."
            yield replace(caveats.STEPS_UNACCOUNTED, seen=seen)
        if counted > self.steps and "recording-stopped" not in manifest["observed"]:
            seen = f"The accountant counted {counted} steps, {self.steps} were seen."
            yield replace(caveats.RECORDING_STOPPED, seen=seen)


def _lacking(share: float) -> str:
    return "is missing" if share < 0.01 else f"is {share:.2f} of what was claimed"


def _is_poisson(sizes: Tensor, counts: Tensor) -> bool:
    """Whether batch sizes, and batches per record, vary as independent draws would."""
    steps, records = len(sizes), len(counts)
    rate = min(max(float(sizes.mean()) / records, 1e-9), 1 - 1e-9)
    coin = rate * (1 - rate)
    if steps >= 10:
        spread = steps * float(sizes.var(correction=0)) / (records * coin)
        if min(chi2.cdf(spread, steps - 1), chi2.sf(spread, steps - 1)) < _CHANCE:
            return False
    # Σ (count − mean)² / variance over the records, whose variance follows from a binomial's fourth moment.
    spread = records * float(counts.var(correction=0)) / (steps * coin)
    deviation = math.sqrt(records * (2 + (1 - 6 * coin) / (steps * coin)))
    return abs(spread - records) <= _SURE * deviation


def read_run(folder: str | Path) -> RecordedRun:
    """Read a recorded run; refuse, with the reason, what is not one."""
    recording = read_recording(Path(folder))
    try:
        claimed = tuple(
            Segment(noise, min(rate, 1.0), steps) for noise, rate, steps in recording.manifest["claimed"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(Path(folder), f"the manifest does not describe a run: {error}") from None
    return RecordedRun(recording, claimed)
