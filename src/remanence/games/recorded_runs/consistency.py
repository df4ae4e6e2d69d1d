"""A recorded training run: what its accountant claims, what was measured, and where the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from scipy.special import stdtrit
from scipy.stats import chi2

from remanence.bounds import Segment
from remanence.exceptions import InputError
from remanence.games.recorded_runs.recording import Recording, read_recording, unreadable
from remanence.results import caveats
from remanence.results.caveats import Caveat
from remanence.scale.folders import MOST
from remanence.scale.reading import parse_state, read_bytes

_SURE = 6.0  # standard deviations that chance does not explain


@final
@dataclass(frozen=True)
class RecordedRun:
    """What the accountant claims about a run, and what was measured while it ran."""

    recording: Recording
    claimed: tuple[Segment, ...]
    noise_multiplier: float  # realised
    sample_rate: float  # realised

    @property
    def steps(self) -> int:
        """How many noisy gradients were released."""
        return self.recording.manifest["steps"]

    @property
    def realised(self) -> tuple[Segment, ...]:
        """The settings that ran, on the safe side: the least noise of any step and the largest rate."""
        squares = self.recording.tensors("batches")["noise_squares"]
        rate = max(self.sample_rate, *(segment.sample_rate for segment in self.claimed))
        return (Segment(math.sqrt(float(squares.min())), rate, self.steps),)

    def deviations(self) -> tuple[Caveat, ...]:
        """Where what ran differs from the claim, to the claim's disadvantage."""
        return tuple(self._deviations())

    def _deviations(self) -> Iterator[Caveat]:
        manifest = self.recording.manifest
        squares = self.recording.tensors("batches")["noise_squares"]
        noises = [s.noise_multiplier for s in self.claimed for _ in range(s.steps)]
        rates = [s.sample_rate for s in self.claimed for _ in range(s.steps)]
        compared = min(len(noises), self.steps)
        ratios = squares[:compared] / torch.tensor(noises[:compared]).square()
        numbers = manifest["parameters"]
        below = float(ratios.mean()) < 1 - _SURE * math.sqrt(2 / (compared * numbers)) - 1e-4
        if below or chi2.cdf(float(ratios.min()) * numbers / (1 - 1e-4), numbers) < 1e-9 / compared:
            yield caveats.NOISE_BELOW_CLAIM
        if manifest["noise_correlation"] > _chance_correlation(manifest["noise_numbers"], self.steps):
            yield caveats.NOISE_REPEATS
        if manifest["clipping_error"] > 1e-3:
            yield caveats.CLIPPING_NOT_PER_RECORD
        records, mean = manifest["records"], manifest["batch_sizes"]["mean"]
        rate = sum(rates) / len(rates)
        spread = math.sqrt(records * rate * (1 - rate) / self.steps)
        if mean > records * rate + _SURE * spread + 1e-9 * records:
            yield caveats.SAMPLING_ABOVE_CLAIM
        if len(set(rates)) == 1 and rate < 1 and not _is_poisson(manifest, self.steps):
            yield caveats.SAMPLING_NOT_POISSON
        if self.steps > len(noises):
            yield caveats.STEPS_UNACCOUNTED
        if manifest["repeated_in_a_step"]:
            yield caveats.RECORDS_REPEAT


def _chance_correlation(numbers: int, steps: int) -> float:
    """What no pair of steps with independent noise exceeds, but for one run in 10^9; 1 where that is too few."""
    if numbers < 4 or steps < 2:
        return 1.0
    t = -float(stdtrit(numbers - 1, 1e-9 / (steps * (steps - 1) / 2)))
    return t / math.sqrt(numbers - 1 + t**2)


def _is_poisson(manifest: dict, steps: int) -> bool:
    """Whether batch sizes, and batches per record, vary as independent draws would."""
    records = manifest["records"]
    rate = min(max(manifest["batch_sizes"]["mean"] / records, 1e-9), 1 - 1e-9)
    coin = rate * (1 - rate)
    if steps >= 10:
        spread = steps * manifest["batch_sizes"]["variance"] / (records * coin)
        if min(chi2.cdf(spread, steps - 1), chi2.sf(spread, steps - 1)) < 1e-9:
            return False
    # Σ (count − mean)² / variance over the records, whose variance follows from a binomial's fourth moment.
    spread = records * manifest["batches_per_record"]["variance"] / (steps * coin)
    deviation = math.sqrt(records * (2 + (1 - 6 * coin) / (steps * coin)))
    return abs(spread - records) <= _SURE * deviation


def read_run(folder: Path) -> RecordedRun:
    """Read a recorded run; refuse, with the reason, what is not one."""
    recording = read_recording(folder)
    manifest = recording.manifest
    squares = recording.tensors("batches")["noise_squares"]
    try:
        claimed = tuple(Segment(noise, min(rate, 1.0), steps) for noise, rate, steps in manifest["claimed"])
        rate = min(1.0, manifest["batch_sizes"]["mean"] / manifest["records"])
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(folder, f"the manifest does not describe a run: {error}") from None
    return RecordedRun(recording, claimed, math.sqrt(float(squares.mean())), rate)


def accounted_schedule(path: Path) -> tuple[Segment, ...]:
    """The settings to bound: of a recorded run as it ran, or of an Opacus checkpoint as its accountant tells.

    A run that deviates from its claim only in noise, rate or steps is bounded as it ran; no bound holds for
    one that clips, samples or draws noise in another way.
    """
    if not path.is_dir():
        return _checkpoint_schedule(path)
    run = read_run(path)
    deviations = run.deviations()
    measurable = {caveats.NOISE_BELOW_CLAIM, caveats.SAMPLING_ABOVE_CLAIM, caveats.STEPS_UNACCOUNTED}
    fatal = [caveat for caveat in deviations if caveat not in measurable]
    if fatal:
        raise InputError(
            "No bound holds for this run.",
            needs="clipping of every record's gradient, fresh noise, and Poisson sampling",
            got="; ".join(f"{caveat.id}: {caveat.means}" for caveat in fatal),
            hint=fatal[0].do,
        )
    return run.realised if deviations else run.claimed


def _checkpoint_schedule(path: Path) -> tuple[Segment, ...]:
    """The accountant's history in a checkpoint that `PrivacyEngine.save_checkpoint` wrote."""
    try:
        history = parse_state(read_bytes(path, MOST))["privacy_accountant_state_dict"]["history"]
        return tuple(
            Segment(float(noise), min(float(rate), 1.0), int(steps)) for noise, rate, steps in history
        )
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001  torch.load raises many kinds for a file that is none
        raise InputError(
            "The checkpoint does not hold an accountant's history.",
            needs="a folder written by record(...), or a file written by PrivacyEngine.save_checkpoint",
            got=f"{path}: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}",
            hint="privacy_engine.save_checkpoint(path=..., module=model)",
        ) from None
