"""The commands that need no model: `remanence bound`, `calibrate`, `frontier` and `explore`."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from remanence.cli.grouped import options
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
from remanence.core.checks import exactly_one, extra, goes_with
from remanence.core.exceptions import InputError
from remanence.report.frequencies import EVERY_STEP, frequency, sentence

if TYPE_CHECKING:
    from remanence.bounds import Person
    from remanence.bounds.bound import Bound

_NOTHING = 0.999  # a ceiling that no attack notices
_SIZES = "--sample-rate, or --dataset-size and --batch-size"


@options()
class Noise:
    """How much noise there is: as such, or as ε and δ."""

    noise_multiplier: NoiseMultiplier = None
    epsilon: Annotated[float | None, "Privacy budget ε, instead of the noise."] = None
    delta: Delta = None


def bound(noise: Noise, batching: Batching, guess: Guess, whose: Whose, as_json: AsJson = False) -> None:
    """Bound the success of any reconstruction attack, from DP-SGD's settings alone.

    Needs no model and no data. Give the noise and the steps; or ε and δ with the steps, and the noise
    is solved for; or ε and δ alone, for any mechanism with that guarantee.
    The ceiling is about one record, or about a person with several (--records-per-person), under Poisson
    sampling or another way of batching (--batches).
    """
    started = time.perf_counter()
    training = batching.solved(passes=whose.passes)
    person = whose.person(batching.dataset_size)
    given = {"--noise-multiplier": noise.noise_multiplier, "--epsilon (with --delta)": noise.epsilon}
    hint = "remanence bound --noise-multiplier 1.1 --sample-rate 0.01 --steps 1000 --candidates 100"
    exactly_one(given, hint)
    if training.steps is None and noise.noise_multiplier is not None:
        raise InputError(
            "The number of steps is missing.",
            needs="--steps, or --epochs with --dataset-size and --batch-size",
            got="no steps",
            hint="--steps 1000",
        )
    alone = training.steps is None
    answer = _from_budget if alone else _from_training
    found, notes, context = answer(noise, training, person, guess.log_baseline)
    method, what = ("dp", "whatever you release") if alone else ("certified", EVERY_STEP)
    if as_json:
        document = {**bound_entry(method, found), **context, "assumed": notes}
        typer.echo(json.dumps({**document, "seconds": time.perf_counter() - started}, indent=2))
        return
    typer.echo(sentence(found, guess.candidates, what=what))
    if not found.converged and found.log_lower is not None:
        reached = frequency(found.log_lower, noun="times")
        typer.echo(f"This is valid, but could not be narrowed further: a known test reaches {reached}.")
    if training.derives:
        typer.echo(f"\n{training.echoed()}")
    if notes:
        typer.echo("\n" + "\n".join(notes))
    if (epsilon := context.get("epsilon")) is not None:
        over = f" over {context['steps']} steps"
        budget = spoken_budget(found, person, epsilon, context["delta"], context["sample_rate"], over)
        typer.echo(f"\nNoise multiplier {context['noise_multiplier']:.6g} is {budget}")
    typer.echo("\nThis holds if")
    for assumption in found.assumptions:
        typer.echo(f"  - {assumption}")
    typer.echo(f"Method: {method} ({found.reference.short}).")


Answer = tuple["Bound", list[str], dict[str, Any]]  # notes for the reader, and the settings that it holds for


def _from_budget(noise: Noise, training: Batching, person: Person, log_baseline: float) -> Answer:
    """From ε and δ alone, for any mechanism."""
    from remanence.bounds import approximate_dp

    epsilon, delta = noise.epsilon or 0.0, noise.delta or 0.0
    if training.sample_rate is not None or person != type(person)():
        raise InputError(
            "ε alone does not say how training ran.",
            needs="--steps, or --epochs, for any bound that depends on the training",
            got=f"--epsilon {epsilon:g} with a sampling rate, or batches, and no steps",
            hint="add --steps, or leave the other options out",
        )
    found = approximate_dp(log_baseline=log_baseline, epsilon=epsilon, delta=delta)
    nothing = " Here it says nothing." if found.success > _NOTHING else ""
    notes = [
        f"Assumed: ({epsilon:g}, {delta:g})-DP and nothing else, so this holds for every mechanism "
        f"with that guarantee.{nothing}",
        "The settings of DP-SGD sharpen it: add --steps and --sample-rate, or --dataset-size, --batch-size and "
        "--epochs.",
    ]
    return found, notes, {}


def _from_training(given: Noise, training: Batching, person: Person, log_baseline: float) -> Answer:
    """From the noise, or from ε and δ, with the rate and the steps."""
    from remanence import bounds
    from remanence.bounds import Segment
    from remanence.bounds.calibration import noise_for_epsilon

    steps, rate = training.steps or 0, training.sample_rate
    noise, epsilon, delta, notes = given.noise_multiplier, given.epsilon, given.delta, list[str]()
    goes_with("--epsilon", epsilon, "--delta", delta, "--delta 1e-5")
    every = "--sample-rate 1 if every step uses all records"
    goes_with("--epsilon with --steps", epsilon, _SIZES, rate, every)
    if rate is None:
        rate = 1.0
        notes = [
            "Assumed: full batches, a sampling rate of 1. It holds for smaller batches too, where the truth is far "
            f"lower: add {_SIZES}."
        ]
    if epsilon is not None and delta is not None:
        settings = {"delta": delta, "sample_rate": rate, "steps": steps}
        noise = noise_for_epsilon(epsilon, **settings)
        # Another training with this ε may have a little less noise than the one that is certainly enough.
        run = Segment(noise_for_epsilon(epsilon, **settings, enough=False), rate, steps)
    else:
        run = Segment(noise or 0.0, rate, steps)  # one of the two was given
    if epsilon is None and delta is not None:
        epsilon = bounds.epsilon_upper(run, delta)
    context = {
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": noise,
        "sample_rate": rate,
        "steps": steps,
    }
    found = bounds.dpsgd(log_baseline=log_baseline, schedule=[run], person=person)
    return found, notes, context


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
        names = "solved_for", "noise_multiplier", "sample_rate", "steps"
        document = {**{name: getattr(found, name) for name in names}, "max_success": max_success}
        document |= {**bound_entry("certified", found.bound), "epsilon": epsilon, "delta": delta}
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


def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is a free one.")] = 0,
    browser: Annotated[bool, "Open the page in a browser."] = True,
) -> None:
    """Open a page on which you drag the noise and watch the risk; needs no model and no data.

    It answers on this machine alone. The address keeps the settings that you choose.
    """
    for package in ("starlette", "uvicorn"):
        extra(package, "explore", "a small web server")
    from remanence.cli.interruption import let_go
    from remanence.report.explore.server import serve

    let_go()  # to the server, which ends when it is told to

    def ready(address: str) -> None:
        typer.echo(f"Page: {address} (Ctrl+C ends it)")
        if browser:
            typer.launch(address)

    serve(port=port, ready=ready)
