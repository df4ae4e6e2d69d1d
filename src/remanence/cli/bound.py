"""remanence bound: what no attack exceeds, from the settings of a training alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from remanence.cli import bound_answers as answers
from remanence.cli.bound_answers import BoundAnswer, BoundQuestion, Method
from remanence.cli.grouped import options
from remanence.cli.people_in_data import Facts, InData
from remanence.cli.training_options import (
    AsJson,
    BatchesBy,
    Batching,
    Delta,
    Guess,
    NoiseMultiplier,
    Whose,
    bound_entry,
)
from remanence.core.checks import exactly_one
from remanence.core.exceptions import InputError
from remanence.report.frequencies import ceiling, frequency, sentence


class Published(StrEnum):
    """What the adversary sees."""

    TRANSCRIPT = "transcript"
    FINAL = "final"


@options()
class Noise:
    """How much noise there is: as such, as ε and δ, or as a run of Opacus tells."""

    noise_multiplier: NoiseMultiplier = None
    epsilon: Annotated[float | None, "Privacy budget ε, instead of the noise."] = None
    delta: Delta = None
    opacus: Annotated[
        Path | None, "A recorded run's folder or an Opacus checkpoint: read the settings there."
    ] = None


@options()
class Seen:
    """What is seen of the training: every step, or the final weights of a strongly convex one."""

    release: Annotated[Published, "What is seen: every step, or the final weights alone."] = (
        Published.TRANSCRIPT
    )
    learning_rate: Annotated[float | None, "For --release final."] = None
    strong_convexity: Annotated[float | None, "Of the objective, for --release final."] = None
    smoothness: Annotated[float | None, "Of the objective, for --release final."] = None

    @property
    def convexity(self) -> dict[str, float | None]:
        """What the proof needs to know of the objective."""
        return {name: value for name, value in vars(self).items() if name != "release"}


def bound(
    noise: Noise,
    batching: Batching,
    guess: Guess,
    whose: Whose,
    seen: Seen,
    data: InData,
    method: Annotated[Method, "Which bound; `all` compares them."] = Method.CERTIFIED,
    as_json: AsJson = False,
) -> None:
    """Bound the success of any reconstruction attack, from DP-SGD's settings alone.

    Needs no model and no data. Give the noise and the steps; or ε and δ with the steps, and the noise
    is solved for; or ε and δ alone, for any mechanism with that guarantee; or a run that Opacus trained.
    The ceiling is about one record, or about a person with several (--records-per-person), under Poisson
    sampling or another way of batching (--batches).
    """
    started = time.perf_counter()
    facts = data.read()
    if facts.most is not None and whose.records_per_person is None:
        whose = replace(whose, records_per_person=str(facts.most))
    batching = replace(batching, dataset_size=batching.dataset_size or facts.rows)
    asked = BoundQuestion(
        batching.solved(passes=whose.passes),
        whose.person(batching.dataset_size, several=True),
        facts.log_baseline(guess),
        noise.noise_multiplier,
        noise.epsilon,
        noise.delta,
    )
    about_training = whose.batches is BatchesBy.ALL or data.people is not None or facts.values is not None
    answer = _answer(asked, noise.opacus, seen, method, about_training=about_training)
    context = dict(answer.context)
    if data.people is not None:
        context["people"] = answers.crowd_of(data.people, guess.candidates, answer.run, asked.person)
    if whose.batches is BatchesBy.ALL and answer.run:
        context["batches"] = answers.every_way(answer.run[0], batching, asked.person, asked.log_baseline)
    groups = {}
    if facts.values is not None:
        groups = answers.of_groups(facts.values, facts.groups, answer.run, asked.person)
    if as_json:
        entries = {key: bound_entry(key, one) for key, one in answer.found.items()}
        document = {**entries[answer.best[0]], **context, "assumed": list(answer.notes)}
        document["warnings"] = facts.warnings(asked.person.covers)
        if len(entries) > 1:
            document["compared"] = list(entries.values())
        if groups:
            document["groups"] = {name: bound_entry("certified", one) for name, one in groups.items()}
        typer.echo(json.dumps({**document, "seconds": time.perf_counter() - started}, indent=2))
        return
    for line in _lines(answer, asked, guess.candidates, context, facts):
        typer.echo(line)
    if len(groups) > 1:
        width = max(len(name) for name in groups)
        typer.echo(f"\n{data.attribute} of one person, by {data.by}: a guess, and at most")
        for name, one in groups.items():
            typer.echo(f"  {name:{width}} {frequency(float(one.log_baseline)):>15} {ceiling(one):>15}")


def _answer(
    asked: BoundQuestion, opacus: Path | None, seen: Seen, method: Method, *, about_training: bool
) -> BoundAnswer:
    if seen.release is Published.FINAL or any(value is not None for value in seen.convexity.values()):
        return answers.of_final_weights(asked, seen.convexity, only=seen.release is Published.FINAL)
    if opacus is not None:
        return answers.from_opacus(asked, opacus)
    given = {"--noise-multiplier": asked.noise_multiplier, "--epsilon (with --delta)": asked.epsilon}
    exactly_one(
        given, "remanence bound --noise-multiplier 1.1 --sample-rate 0.01 --steps 1000 --candidates 100"
    )
    if asked.batching.steps is None and (asked.noise_multiplier is not None or about_training):
        raise InputError(
            "The number of steps is missing.",
            needs="--steps, or --epochs with --dataset-size and --batch-size",
            got="no steps",
            hint="--steps 1000",
        )
    if asked.batching.steps is None:
        return answers.from_budget(asked, method)
    return answers.from_training(asked, method)


def _lines(
    answer: BoundAnswer, asked: BoundQuestion, candidates: int | None, context: dict[str, Any], facts: Facts
) -> Iterator[str]:
    """What a person reads."""
    from remanence.report.tables import upwards

    name, best = answer.best
    yield sentence(best, candidates, what=answer.what)
    if not best.converged and best.log_lower is not None:
        reached = frequency(best.log_lower, noun="times")
        yield f"This is valid, but could not be narrowed down: a test that exists reaches {reached}."
    if best.on_average:
        yield "This is an average over people: those with more records have a higher ceiling."
    if asked.batching.derives:
        yield f"\n{asked.batching.echoed()}"
    if answer.notes:
        yield "\n" + "\n".join(answer.notes)
    if warnings := facts.warnings(asked.person.covers):
        yield "\n" + "\n".join(warnings)
    if crowd := context.get("people"):
        share = f"with {crowd['confidence']:.0%} confidence at most {crowd['most']}"
        yield f"\nOf {crowd['count']} people: at most {upwards(crowd['expected'])} on average, {share}."
    noise, epsilon = context.get("noise_multiplier"), context.get("epsilon")
    if epsilon is not None:
        budget = f"({upwards(epsilon)}, {asked.delta:g})-DP"
        of_whom = context.get("epsilon_of", "one record under Poisson sampling")
        who = "" if asked.is_plain else f" for {of_whom}"
        if noise is None:
            yield f"That is {budget}{who}."
        else:
            yield f"\nNoise multiplier {noise:.6g} is {budget} over {context['steps']} steps{who}."
    if ways := context.get("batches"):
        yield f"\nAt most for {asked.person.whose}, by how records get into batches:"
        yield from (f"  {key:14} {words:>15}" for key, words in ways.items())
    if len(answer.found) > 1:
        yield "\nAt most, by method:"
        yield from (
            f"  {key:10} {ceiling(one):>15}   {one.reference.short}" for key, one in answer.found.items()
        )
    yield "\nThis holds if"
    yield from (f"  - {assumption};" for assumption in best.assumptions)
    yield f"Method: {'final weights' if name == 'final' else name} ({best.reference.short})."
