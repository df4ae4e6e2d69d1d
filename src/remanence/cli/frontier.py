"""remanence frontier: the ceiling along a line of settings."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from remanence.cli.training_options import AsJson, Batching, Whose
from remanence.core.exceptions import InputError
from remanence.report.frequencies import frequency

_STEPS = 100  # where none are given: as in the paper's figure
_RANGES = {"sample-rate": (0.01, 1.0), "epsilon": (0.5, 100.0), "candidates": (2, 1e6)}


def frontier(
    *,
    over: Annotated[
        Literal["sample-rate", "epsilon", "candidates"], "What varies; the other settings stay fixed."
    ] = "sample-rate",
    start: Annotated[float | None, "--from", "First value.", "by kind"] = None,
    end: Annotated[float | None, "--to", "Last value.", "by kind"] = None,
    points: Annotated[int, "How many values, at equal ratios."] = 15,
    epsilon: Annotated[float, "Privacy budget ε."] = 4.0,
    delta: Annotated[float, "δ."] = 1e-5,
    candidates: Annotated[int, "Length of the shortlist."] = 10,
    batching: Batching,
    whose: Whose,
    as_json: AsJson = False,
) -> None:
    """Trace the ceiling over the sampling rate at fixed ε, over ε, or over the shortlist.

    The noise is recalibrated to (ε, δ) at every point. The same ε is a different risk at a different
    sampling rate.
    """
    from remanence.bounds.frontier import evenly
    from remanence.bounds.frontier import frontier as trace

    if over == "sample-rate" and (batching.sample_rate is not None or batching.derives):
        raise InputError(
            "The sampling rate is both varied and given.",
            needs="--over epsilon or --over candidates, with a sampling rate or sizes",
            got="--over sample-rate with them",
            hint="--steps alone, or --from and --to",
        )
    settings = batching.solved(passes=whose.passes)
    rate = 1.0 if settings.sample_rate is None else settings.sample_rate
    steps = _STEPS if settings.steps is None else settings.steps
    person = whose.person(batching.dataset_size)
    axis, (low, high) = over.replace("-", "_"), _RANGES[over]
    found = trace(
        axis,  # pyright: ignore[reportArgumentType]
        evenly(low if start is None else start, high if end is None else end, points),
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        sample_rate=rate,
        candidates=candidates,
        person=person,
    )
    if as_json:
        document = {"over": axis, "points": [asdict(point) for point in found]}
        typer.echo(json.dumps(document, indent=2))
        return
    fixed = {
        "sample-rate": f"a sampling rate of {rate:.6g}{' (full batches)' if rate == 1 else ''}",
        "epsilon": f"ε = {epsilon:g}",
        "candidates": f"{candidates} candidates",
    }
    rest = ", ".join(words for name, words in fixed.items() if name != over)
    typer.echo(f"For {person.whose}: {rest}, δ = {delta:g}, {steps} steps.")
    typer.echo(f"{over:>12} {'noise':>10} {'a guess':>15} {'at most':>15}")
    for point in found:
        guess, most = -math.log(point.candidates), math.log(point.success_upper)
        value = getattr(point, axis)
        typer.echo(
            f"{value:12.5g} {point.noise_multiplier:10.5g} {frequency(guess):>15} {frequency(most, up=True):>15}"
        )
