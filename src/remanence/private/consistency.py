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
from scipy.special import stdtrit
from scipy.stats import chi2
from torch import Tensor

from remanence.bounds import Segment
from remanence.private import caveats
from remanence.private.noise import compared_numbers, compared_steps
from remanence.private.observations import observations
from remanence.private.recording import Recording, read_recording, unreadable
from remanence.results.caveats import Caveat

_SURE = 6.0  # standard deviations that chance does not explain
_CHANCE = 1e-9  # how often chance may explain a finding, over all that a run is looked at for
_ROUNDING = 1e-4  # of the noise, that single precision loses


@final
@dataclass(frozen=True)
class MeasuredNoise:
    """The noise multiplier that ran, with an interval at 95 %, and the smallest share of the claim in any tensor."""

    value: float
    lower: float
    upper: float


@final
@dataclass(frozen=True)
class RecordedRun:
    """What the accountant claims about a run, and what was measured while it ran."""

    recording: Recording
    claimed: tuple[Segment, ...]

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
    def noise_ratios(self) -> Tensor:
        """The squares of all noise over what the claim expects of one number, `(steps, tensors)`."""
        told = self._batches["settings"][:, 2]
        unit = told.where(told > 0, torch.ones_like(told))
        wanted = torch.tensor([noise for noise, _ in self._per_step()], dtype=torch.float64)
        return self._noise["sums"][:, 1] * (unit / wanted.clamp(min=1e-12)).square()[:, None]

    @cached_property
    def noise(self) -> MeasuredNoise:
        """The noise multiplier that ran."""
        told = self._batches["settings"][:, 2]
        unit = told.where(told > 0, torch.ones_like(told))
        squares = float((self._noise["sums"][:, 1].sum(1) * unit.square()).sum())
        numbers = self.steps * int(self._noise["sizes"].sum())
        low, high = chi2.ppf([0.975, 0.025], numbers)
        return MeasuredNoise(*(math.sqrt(squares / n) for n in (numbers, low, high)))

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier that ran."""
        return self.noise.value

    @cached_property
    def sample_rate(self) -> float:
        """The share of the records in a batch that ran."""
        return min(1.0, len(self._batches["indices"]) / self.steps / self.recording.manifest["records"])

    @property
    def most_frequent(self) -> int:
        """In how many batches the most frequent record was."""
        return max(1, int(torch.bincount(self._batches["indices"].long()).max()))

    @property
    def duplicates(self) -> int:
        """How many records are equal to an earlier one in what the model is given."""
        return self.recording.manifest["observed"].get("records-duplicated", {}).get("count", 0)

    @property
    def max_grad_norm(self) -> float:
        """To which norm gradients were clipped, in the first step."""
        return float(self._batches["settings"][0, 0])

    @property
    def realised(self) -> tuple[Segment, ...]:
        """The settings that ran, on the safe side: the least noise of any step and the largest rate."""
        told = self._batches["settings"][:, 2]
        unit = told.where(told > 0, torch.ones_like(told))
        squares = self._noise["sums"][:, 1].sum(1) * unit.square() / float(self._noise["sizes"].sum())
        rate = max(self.sample_rate, *(segment.sample_rate for segment in self.claimed))
        return (Segment(math.sqrt(float(squares.min())), rate, self.steps),)

    def _per_step(self) -> list[tuple[float, float]]:
        """Noise and rate that are claimed for the recorded steps; the last claim goes on if there are more."""
        every = [(s.noise_multiplier, s.sample_rate) for s in self.claimed for _ in range(s.steps)]
        before = self.recording.manifest["steps_before"]
        own = every[before : before + self.steps]
        return own + [every[-1]] * (self.steps - len(own))

    @property
    def tests_canaries(self) -> bool:
        """Whether the exact test of the canaries means what it says."""
        return (
            "slots" in self.recording and "canary-gradients-differ" not in self.recording.manifest["observed"]
        )

    def deviations(self) -> tuple[Caveat, ...]:
        """Where what ran differs from the claim, or was not looked at; what contradicts the claim is first."""
        settings = self._batches["settings"]
        seen = observations(self.recording.manifest, accounted_norm=float(settings[0, 1]))
        found = [*self._of_noise(), *self._of_sampling(), *seen]
        return tuple(sorted(found, key=lambda caveat: (not caveat.contradicts, not caveat.voids)))

    def _of_noise(self) -> Iterator[Caveat]:
        ratios, sizes = self.noise_ratios.numpy(), self._noise["sizes"].numpy()
        names, numbers = self.recording.manifest["tensors"], int(sizes.sum())
        level, slack = _CHANCE / 4, 1 - _ROUNDING
        whole = chi2.cdf(ratios.sum() / slack, self.steps * numbers) < level
        by_tensor = chi2.cdf(ratios.sum(0) / slack, self.steps * sizes) < level / len(sizes)
        by_step = chi2.cdf(ratios.sum(1) / slack, numbers) < level / self.steps
        single = chi2.cdf(ratios / slack, sizes) < level / ratios.size
        measured, claim = self.noise, self._per_step()[0][0]
        if whole or by_tensor.any() or by_step.any() or single.any():
            seen = (
                f"Measured noise {measured.value:.2f} ({measured.lower:.2f} to {measured.upper:.2f}), "
                f"claimed {claim:.2f}."
            )
            share = np.sqrt(ratios.sum(0) / (self.steps * sizes))
            low = np.flatnonzero(by_tensor & (share < 0.8 * math.sqrt(ratios.sum() / (self.steps * numbers))))
            if len(low):
                worst = low[share[low].argmin()]
                how = "is missing" if share[worst] < 0.01 else f"is {share[worst]:.2f} of what was claimed"
                seen = f"The noise on `{names[worst]}` {how}."
            elif not whole and not by_tensor.any():
                steps = int((by_step | single.any(1)).sum())
                seen = f"The noise of {steps} of {self.steps} steps is below the claim. {seen}"
            yield replace(caveats.NOISE_BELOW_CLAIM, seen=seen)
        yield from self._repeats()
        yield from self._shape()

    def _repeats(self) -> Iterator[Caveat]:
        noise, names = self._noise, self.recording.manifest["tensors"]
        sizes = noise["sizes"].tolist()
        numbers = np.array([compared_numbers(size) for size in sizes])
        tensors, later = len(sizes), max(self.steps - 1, 1)
        if int(noise["repeats"]):
            seen = f"The same noise was added {int(noise['repeats'])} times more than once."
            yield replace(caveats.NOISE_REPEATS, seen=seen)
            return
        shared = self.steps * np.minimum(numbers[:, None], numbers[None])
        between = noise["between_tensors"].abs().numpy() > chance_correlation(shared, tensors**2 / 2)
        if between.any():
            one, other = (names[place] for place in np.argwhere(between)[0])
            yield replace(caveats.NOISE_REPEATS, seen=f"The noise on `{one}` and on `{other}` is correlated.")
            return
        alike = chance_correlation(later * numbers, 2 * tensors)
        pairs = compared_steps(self.steps, tensors) ** 2 / 2 * tensors
        again = noise["largest_between_steps"].numpy() > chance_correlation(numbers, pairs)
        for name in ("with_the_step_before", "with_the_first_step"):
            again |= noise[name].abs().numpy() > alike
        if again.any():
            seen = f"The noise on `{names[np.flatnonzero(again)[0]]}` is correlated between steps."
            yield replace(caveats.NOISE_REPEATS, seen=seen)

    def _shape(self) -> Iterator[Caveat]:
        """The fourth moment: 3 for a Gaussian, with a standard deviation of √(24 / numbers)."""
        sums, sizes = self._noise["sums"].sum(0).numpy(), self._noise["sizes"].numpy()  # (3, tensors)
        numbers = np.append(self.steps * sizes, self.steps * sizes.sum())
        squares, fourths = (np.append(row, row.sum()) / numbers for row in sums[1:])
        kurtosis = fourths / np.maximum(squares, 1e-30) ** 2
        spread = np.sqrt(24 / numbers)
        # Small samples have a long tail to the right; there only a gross excess is named.
        odd = (kurtosis < 3 - 8 * spread) | (kurtosis > 3 + 12 * spread + 100 / numbers)
        odd &= (numbers >= 500) & (squares > 1e-20)
        if odd.any():
            place = np.flatnonzero(odd)[-1]
            where = (
                "the noise"
                if place == len(sizes)
                else f"the noise on `{self.recording.manifest['tensors'][place]}`"
            )
            seen = f"The fourth moment of {where} is {kurtosis[place]:.2f}; a Gaussian's is 3."
            yield replace(caveats.NOISE_NOT_GAUSSIAN, seen=seen)

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
        if len(rates) == 1 and rate < 1 and "batch-not-from-loader" not in manifest["observed"]:
            counts = torch.bincount(indices, minlength=records).double()
            if not _is_poisson(sizes, counts):
                seen = f"Batch sizes vary by {float(sizes.std(correction=0)):.1f} around {mean:.1f}."
                yield replace(caveats.SAMPLING_NOT_POISSON, seen=seen)
        counted = sum(segment.steps for segment in self.claimed) - manifest["steps_before"]
        if self.steps > counted:
            seen = f"{self.steps} steps were taken, {counted} were counted."
            yield replace(caveats.STEPS_UNACCOUNTED, seen=seen)
        if counted > self.steps and not {"recording-stopped", "ended-early"} & set(manifest["observed"]):
            seen = f"The accountant counted {counted} steps, {self.steps} were seen."
            yield replace(caveats.RECORDING_STOPPED, seen=seen)
        step_of = torch.repeat_interleave(torch.arange(self.steps), sizes.long())
        repeats = len(indices) - len(torch.unique(step_of * (records + 1) + indices))
        if repeats:
            yield replace(caveats.RECORDS_REPEAT, seen=f"{repeats} times in {self.steps} steps.")


def chance_correlation(numbers: np.ndarray, comparisons: float) -> np.ndarray:
    """What no correlation of so many independent numbers exceeds, but for one run in 10^9; 1 where they are too few."""
    freedom = np.maximum(numbers - 1, 1).astype(np.float64)
    t = -stdtrit(freedom, _CHANCE / max(comparisons, 1.0) / 2)
    return np.where(numbers < 4, 1.0, t / np.sqrt(freedom + t**2))


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
