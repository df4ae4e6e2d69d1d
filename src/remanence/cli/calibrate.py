"""remanence calibrate: the noise, the steps or the sampling rate that keeps every attack below a limit."""

from __future__ import annotations

import json
import math
import time
from typing import Annotated

import typer

from remanence.cli.training_options import (
    AsJson,
    Batching,
    Delta,
    Guess,
    NoiseMultiplier,
    Whose,
    bound_entry,
    spoken_budget,
)
from remanence.report.frequencies import frequency, sentence

_NAMES = {
    "noise_multiplier": "a noise multiplier of at least",
    "steps": "a number of steps of at most",
    "sample_rate": "a sampling rate of at most",
}


def calibrate(
    max_success: Annotated[float, "Your limit: the largest success that you accept."],
    batching: Batching,
    guess: Guess,
    whose: Whose,
    noise_multiplier: NoiseMultiplier = None,
    delta: Delta = None,
    as_json: AsJson = False,
) -> None:
    """Find the noise, the steps or the sampling rate that keeps every attack below your limit.

    Leave out the one that you want to know. The answer is on the safe side and certified again.
    """
    started = time.perf_counter()
    from remanence.bounds.calibration import calibrate as solve
    from remanence.report.frequencies import downwards, upwards

    settings = batching.solved(passes=whose.passes)
    person = whose.person(batching.dataset_size)
    found = solve(
        max_success,
        noise_multiplier=noise_multiplier,
        sample_rate=settings.sample_rate,
        steps=settings.steps,
        log_baseline=guess.log_baseline,
        person=person,
    )
    epsilon = None
    if delta is not None:
        from remanence.bounds import epsilon_upper

        epsilon = epsilon_upper(found.segment, delta)
    if as_json:
        document = {
            "solved_for": found.solved_for,
            "noise_multiplier": found.noise_multiplier,
            "sample_rate": found.sample_rate,
            "steps": found.steps,
            "max_success": max_success,
            **bound_entry("certified", found.bound),
            "epsilon": epsilon,
            "delta": delta,
        }
        typer.echo(json.dumps({**document, "seconds": time.perf_counter() - started}, indent=2))
        return
    value = getattr(found, found.solved_for)
    rounding = {"noise_multiplier": upwards, "sample_rate": downwards}
    shown = f"{value}" if found.solved_for == "steps" else rounding[found.solved_for](value, 6)
    limit = frequency(math.log(max_success), noun="times")
    typer.echo(f"To keep every attack at or below {limit}, use")
    typer.echo(f"  {_NAMES[found.solved_for]} {shown}\n")
    typer.echo(sentence(found.bound, guess.candidates))
    if settings.derives:
        typer.echo(f"\nYour settings: {settings.echoed().removeprefix('That is ')}")
    if epsilon is not None and delta is not None:
        typer.echo(f"\nThat is {spoken_budget(found.bound, person, epsilon, delta, found.sample_rate)}")
