"""A recorded training run: what its accountant claims, what was measured, and where the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy.stats import chi2
from torch import Tensor

from remanence.bounds import Segment
from remanence.private import caveats
from remanence.private.recording import Json, read_recording
from remanence.results.caveats import Caveat

_SURE = 6.0  # standard deviations that chance does not explain
_CHANCE = 1e-9  # how often chance may explain a finding, over all that a run is looked at for
_ROUNDING = 1e-4  # of the noise, that single precision loses

# What a recorder notes. A part that was not replayed has the name of the part.
_NOTED = {
    "clipping-wrong": caveats.CLIPPING_NOT_PER_RECORD,
    "records-duplicated": caveats.RECORDS_DUPLICATED,
    "recording-stopped": caveats.RECORDING_STOPPED,
    "post-processed": caveats.POST_PROCESSED,
    "sampling": caveats.SAMPLING_NOT_REPLAYED,
    "clipping": caveats.CLIPPING_NOT_REPLAYED,
    "norm": caveats.NORM_FROM_DATA,
    "noise": caveats.NOISE_NOT_REPLAYED,
    "seed": caveats.SEED_UNKNOWN,
    "update": caveats.UPDATE_NOT_REPLAYED,
}
_ONCE = {
    "records-duplicated": "{count} of them are equal to an earlier one.",
    "recording-stopped": "After {steps} steps: {why}.",
}  # what is not noted step by step


@final
@dataclass(frozen=True)
class RecordedRun:
    """What the accountant claims about a run, and what was measured while it ran."""

    manifest: Json
    tensors: dict[str, Tensor]
    claimed: tuple[Segment, ...]

    @property
    def steps(self) -> int:
        """How many noisy gradients were released."""
        return self.manifest["steps"]

    def measured(self) -> dict[str, float]:
        """The claimed noise and rate next to those that ran; the noise with an interval at 95 %."""
        squares = float(self.tensors["noise"].sum())
        numbers = self.steps * int(self.tensors["sizes"].sum())
        low, high = chi2.ppf([0.975, 0.025], numbers)
        noise, least, most = (math.sqrt(squares / n) for n in (numbers, low, high))
        claim, drawn = self.claimed[0], len(self.tensors["indices"])
        return {
            "claimed_noise_multiplier": claim.noise_multiplier,
            "measured_noise_multiplier": noise,
            "measured_noise_multiplier_from": least,
            "measured_noise_multiplier_to": most,
            "claimed_sample_rate": claim.sample_rate,
            "measured_sample_rate": min(1.0, drawn / self.steps / self.manifest["records"]),
            "steps": self.steps,
        }

    def deviations(self) -> tuple[Caveat, ...]:
        """Where the run differs from the claim, or was not replayed; contradictions of the claim come first."""
        found = [*self._of_noise(), *self._of_sampling(), *self._of_counting(), *self._noted()]
        if self.manifest["seed"] == "secret":
            found.append(replace(caveats.SEED_ASSERTED, seen="Asserted when the run was recorded."))
        return tuple(sorted(found, key=lambda caveat: (not caveat.contradicts, not caveat.voids)))

    def _per_step(self) -> list[tuple[float, float]]:
        """Noise and rate that are claimed for the recorded steps; the last claim goes on if there are more."""
        every = [(s.noise_multiplier, s.sample_rate) for s in self.claimed for _ in range(s.steps)]
        return every[: self.steps] + [every[-1]] * (self.steps - len(every))

    def _noted(self) -> Iterator[Caveat]:
        """What the recorder saw while the run ran, and the parts that it did not replay in every step."""
        noted: dict[str, dict[str, Any]] = dict(self.manifest["noted"])
        for part, replayed in self.manifest["replayed"].items():
            seen = noted.get(part, {"count": 0, "why": "The recorder did not see what it is made from"})
            if count := min(self.steps, max(seen["count"], self.steps - replayed)):
                noted[part] = {**seen, "count": count}
        for name, caveat in _NOTED.items():
            if name in noted:
                words = _ONCE.get(name, "{why}, in {count} of {steps} steps.")
                said = words.format(**noted[name], steps=self.steps)
                yield replace(caveat, seen=f"{said[0].upper()}{said[1:]}")

    def _of_counting(self) -> Iterator[Caveat]:
        """In or out: what one record less or more changes besides the sum, where the divisor was counted."""
        manifest = self.manifest
        if "divisor" not in manifest or manifest["canaries"]["candidates"] > 1:
            return
        records, batches, divisor = manifest["records"], manifest["batches"], manifest["divisor"]
        size = (records - 1) / (batches - 1) if batches > 1 else 0.0
        fewer = batches - 1 if size == int(size) and size > 0 else batches
        for other, count in ((records - 1, fewer), (records + 1, batches)):
            if other and int(other / count) != divisor:
                epochs = f" and {count} batches an epoch, not {batches}" if count != batches else ""
                by = f"{other} records: by {int(other / count)}{epochs}."
                seen = f"{records} records: divided by {divisor}. {by}"
                yield replace(caveats.COUNTED_FROM_RECORDS, seen=seen)
                return

    def _of_noise(self) -> Iterator[Caveat]:
        """The multipliers that were told, and the size of all noise, of every tensor's and of every step's."""
        claimed = np.array([noise for noise, _ in self._per_step()])
        told = self.tensors["settings"][:, 1].numpy()
        if (low := told < claimed * (1 - 1e-6)).any():
            step = int(low.argmax())
            seen = (
                f"Its multiplier was {told[step]:.4g} in step {step + 1}, {claimed[step]:.4g} accounted for."
            )
            yield replace(caveats.NOISE_BELOW_CLAIM, seen=seen)
            return
        ratios = self.tensors["noise"].numpy() / np.maximum(claimed, 1e-12)[:, None] ** 2
        sizes, names = self.tensors["sizes"].numpy(), self.manifest["tensors"]
        places = ["", *(f" on `{name}`" for name in names), *(f" in step {n + 1}" for n in range(self.steps))]
        squares = np.concatenate([[ratios.sum()], ratios.sum(0), ratios.sum(1)])
        every = int(sizes.sum())
        numbers = np.concatenate([[self.steps * every], self.steps * sizes, [every] * self.steps])
        chances = chi2.logcdf(squares / (1 - _ROUNDING), numbers) + math.log(len(numbers))
        worst = int(chances.argmin())
        if chances[worst] < math.log(_CHANCE):
            share = math.sqrt(squares[worst] / numbers[worst])
            lacking = "is missing" if share < 0.01 else f"is {share:.2f} of what was claimed"
            yield replace(caveats.NOISE_BELOW_CLAIM, seen=f"The noise{places[worst]} {lacking}.")

    def _of_sampling(self) -> Iterator[Caveat]:
        records, rates = self.manifest["records"], [rate for _, rate in self._per_step()]
        sizes, rate = self.tensors["starts"].diff().double(), sum(rates) / len(rates)
        mean, drawn = float(sizes.mean()), self.manifest["rate"]
        spread = math.sqrt(records * rate * (1 - rate) / self.steps)
        if mean > records * rate + _SURE * spread + 1e-9 * records:
            seen = f"Batches of {mean:.1f} records on average, {records * rate:.1f} accounted for."
            yield replace(caveats.SAMPLING_ABOVE_CLAIM, seen=seen)
        if min(rates) < drawn * (1 - 1e-9):
            seen = f"Drawn at a rate of {drawn:.4g}, {min(rates):.4g} accounted for."
            yield replace(caveats.SAMPLING_ABOVE_CLAIM, seen=seen)
        counts = self.tensors["indices"].unique(return_counts=True)[1].double()
        if len(set(rates)) == 1 and rate < 1 and counts.any() and not _is_poisson(sizes, counts, records):
            seen = f"Batch sizes vary by {float(sizes.std(correction=0)):.1f} around {mean:.1f}."
            yield replace(caveats.SAMPLING_NOT_POISSON, seen=seen)
        counted = sum(segment.steps for segment in self.claimed)
        if self.steps > counted:
            seen = f"{self.steps} steps were taken, {counted} were counted."
            yield replace(caveats.STEPS_UNACCOUNTED, seen=seen)
        if counted > self.steps and "recording-stopped" not in self.manifest["noted"]:
            seen = f"The accountant counted {counted} steps, {self.steps} were seen."
            yield replace(caveats.RECORDING_STOPPED, seen=seen)


def _is_poisson(sizes: Tensor, counts: Tensor, records: int) -> bool:
    """Whether batch sizes, and batches per record that was in one, vary as independent draws would."""
    steps = len(sizes)
    rate = min(max(float(sizes.mean()) / records, 1e-9), 1 - 1e-9)
    coin = rate * (1 - rate)
    if steps >= 10:
        spread = steps * float(sizes.var(correction=0)) / (records * coin)
        if min(chi2.cdf(spread, steps - 1), chi2.sf(spread, steps - 1)) < _CHANCE:
            return False
    # Σ (count − mean)² / variance over the records, whose variance follows from a binomial's fourth moment.
    spread = float(counts.square().sum() - counts.sum() ** 2 / records) / (steps * coin)
    deviation = math.sqrt(records * (2 + (1 - 6 * coin) / (steps * coin)))
    return abs(spread - records) <= _SURE * deviation


def read_run(folder: str | Path) -> RecordedRun:
    """Read a recorded run; refuse, with the reason, what is not one."""
    manifest, tensors = read_recording(Path(folder))
    claimed = tuple(Segment(noise, min(rate, 1.0), steps) for noise, rate, steps in manifest["claimed"])
    return RecordedRun(manifest, tensors, claimed)
