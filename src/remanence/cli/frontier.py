"""remanence frontier: the ceiling along a line of settings."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from remanence.cli.grouped import options
from remanence.cli.training_options import AsJson, Batching, Whose
from remanence.core.exceptions import InputError
from remanence.report.frequencies import frequency

_STEPS = 100  # where none are given: as in the paper's figure


_RANGES = {"sample-rate": (0.01, 1.0), "epsilon": (0.5, 100.0), "candidates": (2, 1e6)}


@options()
class Along:
    """What runs, and between which values."""

    over: Annotated[
        Literal["sample-rate", "epsilon", "candidates"], "What varies; the other settings stay fixed."
    ] = "sample-rate"
    start: Annotated[float | None, "--from", "First value.", "by kind"] = None
    end: Annotated[float | None, "--to", "Last value.", "by kind"] = None
    points: Annotated[int, "How many values, at equal ratios."] = 15

    def values(self) -> list[float]:
        """Them."""
        from remanence.bounds.frontier import evenly

        low, high = _RANGES[self.over]
        return evenly(
            low if self.start is None else self.start, high if self.end is None else self.end, self.points
        )


@options()
class Budget:
    """ε, δ and the shortlist."""

    epsilon: Annotated[float, "Privacy budget ε."] = 4.0
    delta: Annotated[float, "δ."] = 1e-5
    candidates: Annotated[int, "Length of the shortlist."] = 10


def frontier(
    line: Along,
    budget: Budget,
    batching: Batching,
    whose: Whose,
    as_json: AsJson = False,
) -> None:
    """Trace the ceiling over the sampling rate at fixed ε, over ε, or over the shortlist.

    The noise is recalibrated to (ε, δ) at every point. The same ε is a different risk at a different
    sampling rate.
    """
    from remanence.bounds.frontier import frontier as trace

    if line.over == "sample-rate" and (batching.sample_rate is not None or batching.derives):
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
    axis = line.over.replace("-", "_")
    found = trace(
        axis,  # pyright: ignore[reportArgumentType]
        line.values(),
        epsilon=budget.epsilon,
        delta=budget.delta,
        steps=steps,
        sample_rate=rate,
        candidates=budget.candidates,
        person=person,
    )
    if as_json:
        document = {"over": axis, "points": [asdict(point) for point in found]}
        typer.echo(json.dumps(document, indent=2))
        return
    fixed = {
        "sample-rate": f"a sampling rate of {rate:.6g}{' (full batches)' if rate == 1 else ''}",
        "epsilon": f"ε = {budget.epsilon:g}",
        "candidates": f"{budget.candidates} candidates",
    }
    rest = ", ".join(words for name, words in fixed.items() if name != line.over)
    typer.echo(f"For {person.whose}: {rest}, δ = {budget.delta:g}, {steps} steps.")
    typer.echo(f"{line.over:>12} {'noise':>10} {'a guess':>15} {'at most':>15}")
    for point in found:
        guess, most = -math.log(point.candidates), math.log(point.success_upper)
        value = getattr(point, axis)
        typer.echo(
            f"{value:12.5g} {point.noise_multiplier:10.5g} {frequency(guess):>15} {frequency(most, up=True):>15}"
        )
