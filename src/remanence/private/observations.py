"""What the recorder saw going wrong while a run ran, as caveats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from remanence.private import caveats
from remanence.results.caveats import Caveat

# The caveat for each thing that a recorder notes, and how what it saw is said.
_SAID: dict[str, tuple[Caveat, str]] = {
    "clipping-wrong": (
        caveats.CLIPPING_NOT_PER_RECORD,
        "The sum is off by {worst:.2g} clipping norms per record, {times}.",
    ),
    "clipped-elsewhere": (caveats.CLIPPED_ELSEWHERE, "Clipped at {where}, accounted at {norm:.4g}."),
    "norm-from-the-batch": (
        caveats.NORM_FROM_THE_BATCH,
        "The clipping norm equals a statistic of its batch {times}.",
    ),
    "update-not-from-gradient": (
        caveats.UPDATE_NOT_FROM_GRADIENT,
        "`{where}` is {worst:.2g} updates away from where the recorded gradient leads.",
    ),
    "divided-by-the-real-batch": (caveats.DIVIDED_BY_THE_BATCH, "On `{where}` and others, {times}."),
    "trained-outside": (caveats.TRAINED_OUTSIDE, "`{where}` changed, and is not the optimizer's."),
    "buffers-changed": (caveats.BUFFERS_CHANGED, "`{where}` changed."),
    "records-mixed": (caveats.RECORDS_MIXED, "The layer `{where}` does."),
    "loss-over-the-batch": (
        caveats.LOSS_OVER_THE_BATCH,
        "The same record's gradient was up to {worst:.2g} times as large in another batch.",
    ),
    "seeded-in-the-loop": (
        caveats.SEEDED_IN_THE_LOOP,
        "Seeds were set {times}, the last to {worst:.0f}.",
    ),
    "batch-not-from-loader": (caveats.BATCH_NOT_FROM_LOADER, "This happened {times}."),
    "records-duplicated": (caveats.RECORDS_DUPLICATED, "{count} of them are equal to an earlier one."),
    "records-nearly-duplicated": (caveats.RECORDS_NEARLY_DUPLICATED, "{count} of them are."),
    "updates-unchecked": (caveats.UPDATES_UNCHECKED, "{where}"),
    "recording-stopped": (caveats.RECORDING_STOPPED, "After {steps} steps: {where}"),
    "canary-gradients-differ": (
        caveats.CANARY_GRADIENTS_DIFFER,
        "They differ by {worst:.2g} clipping norms.",
    ),
    "never-updated": (caveats.NEVER_UPDATED, "{count} never moved: {where}."),
}


def observations(manifest: Mapping[str, Any], accounted_norm: float) -> Iterator[Caveat]:
    """A caveat for each thing that was noted; names that are not known say nothing."""
    steps = manifest["steps"]
    for name, seen in manifest["observed"].items():
        if name == "norm-from-the-batch" and seen["count"] < max(2, steps / 2):
            continue  # by chance, once in a while
        # A wrong sum that another norm explains was clipped there.
        known = "clipped-elsewhere" if name == "clipping-wrong" and seen["where"] else name
        if known in _SAID:
            many = seen["count"] > 1
            times = f"in {seen['count']} of {steps} steps" if many else f"in step {seen['first_step'] + 1}"
            caveat, words = _SAID[known]
            yield replace(caveat, seen=words.format(**seen, times=times, steps=steps, norm=accounted_norm))
    if manifest["steps_before"]:
        yield replace(caveats.RECORDED_IN_PART, seen=f"{manifest['steps_before']} steps came before.")
