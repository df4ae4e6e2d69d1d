"""remanence bound: the ceiling for every attack, from the settings of a training alone."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

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
from remanence.core.checks import exactly_one, goes_with
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
