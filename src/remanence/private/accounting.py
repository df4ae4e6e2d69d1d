"""The settings to bound a training by: as it was recorded, or as an Opacus checkpoint tells."""

from __future__ import annotations

from pathlib import Path

from remanence.bounds import Segment
from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.private import caveats
from remanence.private.consistency import read_run
from remanence.scale.folders import MOST
from remanence.scale.reading import parse_state, read_bytes


def accounted_schedule(path: Path, batches: str = "poisson") -> tuple[Segment, ...]:
    """The settings to bound: of a recorded run as it ran, or of an Opacus checkpoint as its accountant tells.

    A run that deviates from its claim only in noise, rate or steps is bounded as it ran; no bound holds for
    one that clips, samples, updates or draws noise in another way. With `batches` of "shuffled" no amplification is
    claimed, so that any sampling will do: what counts is in how many batches the most frequent record was.
    """
    if not path.is_dir():
        return checkpoint_schedule(path)
    run = read_run(path)
    measurable = {
        c.id for c in (caveats.NOISE_BELOW_CLAIM, caveats.SAMPLING_ABOVE_CLAIM, caveats.STEPS_UNACCOUNTED)
    }
    measurable |= {caveats.SAMPLING_NOT_POISSON.id} if batches == "shuffled" else set()
    wrong = [caveat for caveat in run.deviations() if caveat.contradicts]
    fatal = [caveat for caveat in wrong if caveat.id not in measurable]
    if fatal:
        raise InputError(
            f"No bound holds for this run. {fatal[0].seen}",
            needs="clipping of every record's gradient, fresh noise, updates from it, and Poisson sampling",
            got="; ".join(f"{caveat.id}: {caveat.means}" for caveat in fatal),
            hint="--batches shuffled, for a ceiling without amplification"
            if {caveat.id for caveat in fatal} == {caveats.SAMPLING_NOT_POISSON.id}
            else fatal[0].do,
        )
    schedule = run.realised if wrong else run.claimed
    if batches == "shuffled":
        least = min(segment.noise_multiplier for segment in schedule)
        schedule = (Segment(least, run.most_frequent / run.steps, run.steps),)
    return schedule


def checkpoint_schedule(path: Path) -> tuple[Segment, ...]:
    """The accountant's history in a checkpoint that `PrivacyEngine.save_checkpoint` wrote."""
    summary = "The checkpoint does not hold an accountant's history."
    needs = "a folder written by record(...), or a file written by PrivacyEngine.save_checkpoint"
    hint = "privacy_engine.save_checkpoint(path=..., module=model)"
    with refusing(Exception, summary, needs=needs, got=path, hint=hint):  # torch.load raises many kinds
        history = parse_state(read_bytes(path, MOST))["privacy_accountant_state_dict"]["history"]
        return tuple(
            Segment(float(noise), min(float(rate), 1.0), int(steps)) for noise, rate, steps in history
        )
