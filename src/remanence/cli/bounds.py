"""Commands that need no model and no data: bound, calibrate, frontier."""

from __future__ import annotations

import json
import math
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remanence.exceptions import InputError
from remanence.report.frequencies import ceiling, frequency, sentence

if TYPE_CHECKING:
    from remanence.bounds import Person, Segment
    from remanence.bounds.bound import Bound

NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Noise over clipping norm, as in Opacus.", show_default=False)
]
SampleRate = Annotated[float, typer.Option(help="The chance of a record to be in a batch; 1 is full batch.")]
Steps = Annotated[int | None, typer.Option(help="Training steps.", show_default=False)]
Epsilon = Annotated[
    float | None, typer.Option(help="Privacy budget ε, instead of the noise.", show_default=False)
]
Delta = Annotated[
    float | None, typer.Option(help="δ; with noise, prints the ε at this δ.", show_default=False)
]
Candidates = Annotated[
    int | None,
    typer.Option(help="The adversary has narrowed the record down to N candidates.", show_default=False),
]
Baseline = Annotated[
    float | None, typer.Option(help="How often a guess without the model succeeds.", show_default=False)
]
Log10Baseline = Annotated[
    float | None, typer.Option(help="The same as a power of ten, for -2000 and the like.", show_default=False)
]
RecordsPerPerson = Annotated[
    int, typer.Option(help="How many records one person has at most; the ceiling is theirs.")
]
People = Annotated[
    int | None,
    typer.Option(help="How many of so many people, at most? Needs --candidates.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Method(StrEnum):
    """Ways to bound."""

    CERTIFIED = "certified"
    RENYI = "renyi"
    FANO = "fano"
    DP = "dp"
    ALL = "all"


class BatchesBy(StrEnum):
    """How records get into batches."""

    POISSON = "poisson"
    PEOPLE = "people"
    SHUFFLED = "shuffled"
    FIXED = "fixed"
    BALLS_IN_BINS = "balls-in-bins"
    ALL = "all"


class Neighbours(StrEnum):
    """What the training is compared with."""

    REMOVE = "remove"
    REPLACE = "replace"


class Release(StrEnum):
    """What the adversary sees."""

    TRANSCRIPT = "transcript"
    FINAL = "final"


BatchesOption = Annotated[
    BatchesBy,
    typer.Option(
        "--batches",
        help="How records get into batches: each by its own coin (poisson), whole people by theirs, clipped as "
        "one (people), shuffled passes, draws of a fixed size, balls in bins.",
    ),
]
NeighboursOption = Annotated[
    Neighbours, typer.Option(help="Compare with the target left out, or replaced by somebody else.")
]


class Over(StrEnum):
    """What a frontier runs along."""

    SAMPLE_RATE = "sample-rate"
    EPSILON = "epsilon"
    CANDIDATES = "candidates"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(bound)
    app.command()(calibrate)
    app.command()(frontier)


def bound(
    noise_multiplier: NoiseMultiplier = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    sample_rate: SampleRate = 1.0,
    steps: Steps = None,
    candidates: Candidates = None,
    baseline: Baseline = None,
    log10_baseline: Log10Baseline = None,
    records_per_person: RecordsPerPerson = 1,
    batches: BatchesOption = BatchesBy.POISSON,
    neighbours: NeighboursOption = Neighbours.REMOVE,
    people: People = None,
    release: Annotated[
        Release, typer.Option(help="What is seen: every step, or the final weights alone.")
    ] = Release.TRANSCRIPT,
    learning_rate: Annotated[
        float | None, typer.Option(help="For --release final.", show_default=False)
    ] = None,
    strong_convexity: Annotated[
        float | None, typer.Option(help="Of the objective, for --release final.", show_default=False)
    ] = None,
    smoothness: Annotated[
        float | None, typer.Option(help="Of the objective, for --release final.", show_default=False)
    ] = None,
    method: Annotated[Method, typer.Option(help="Which bound; `all` compares them.")] = Method.CERTIFIED,
    opacus: Annotated[
        Path | None,
        typer.Option(help="A recorded run's folder or an Opacus checkpoint: read the settings there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bound the success of any reconstruction attack, from DP-SGD's settings alone.

    Needs no model and no data. Give the noise and the steps; or ε and δ with the steps, and the noise
    is solved for; or ε and δ alone, for any mechanism with that guarantee; or a run that Opacus trained.
    The ceiling is about one record, or about a person with several (--records-per-person), under Poisson
    sampling or another way of batching (--batches).
    """
    started = time.perf_counter()
    log_baseline = _log_baseline(candidates, baseline, log10_baseline)
    person = _person(records_per_person, batches, neighbours, several=True)
    convexity = {
        "learning_rate": learning_rate,
        "strong_convexity": strong_convexity,
        "smoothness": smoothness,
    }
    if release is Release.FINAL or any(value is not None for value in convexity.values()):
        settings = {"noise_multiplier": noise_multiplier, "steps": steps, **convexity}
        _final_weights(settings, log_baseline, candidates, release, person, sample_rate, as_json=as_json)
        return
    if opacus is not None:
        if noise_multiplier is not None or epsilon is not None or steps is not None:
            raise InputError(
                "The settings are given twice.",
                needs="--opacus alone, or the settings",
                got="--opacus with --noise-multiplier, --epsilon or --steps",
                hint="leave the settings out",
            )
        _from_opacus(opacus, log_baseline, candidates, delta, person, as_json=as_json)
        return
    if (noise_multiplier is None) == (epsilon is None):
        raise InputError(
            "The bound needs the noise or the privacy budget.",
            needs="either --noise-multiplier or --epsilon (with --delta)",
            got="neither" if epsilon is None else "both",
            hint="remanence bound --noise-multiplier 1.1 --sample-rate 0.01 --steps 1000 --candidates 100",
        )
    if noise_multiplier is not None and steps is None:
        raise InputError(
            "The number of steps is missing.",
            needs="--steps",
            got="--noise-multiplier alone",
            hint="--steps 1000",
        )
    if steps is None:
        epsilon = epsilon or 0.0  # one of the two was given
        if (
            method not in (Method.CERTIFIED, Method.DP)
            or sample_rate != 1.0
            or not _is_record(person, batches, people)
        ):
            raise InputError(
                "ε alone does not say how training ran.",
                needs="--steps, for any bound that depends on the training",
                got=f"--epsilon {epsilon:g} with --method {method}, --sample-rate {sample_rate:g}, or batches",
                hint="add --steps, or leave the other options out",
            )
        from remanence.bounds import approximate_dp

        found = {"dp": approximate_dp(log_baseline=log_baseline, epsilon=epsilon, delta=delta or 0.0)}
    else:
        noise_multiplier, epsilon, found = _from_training(
            method, noise_multiplier, epsilon, delta, sample_rate, steps, log_baseline, person
        )
    name, best = min(found.items(), key=lambda item: item[1].log_success)
    context: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
    if steps is not None and noise_multiplier is not None:
        from remanence.bounds import Segment

        run = Segment(noise_multiplier, sample_rate, steps)
        if people is not None:
            context["people"] = _crowd(people, candidates, run, person)
        if batches is BatchesBy.ALL:
            context["batches"] = _every_way(run, person, log_baseline)
    entries = {key: _entry(key, one) for key, one in found.items()}
    if as_json:
        document = {**entries[name], **context, "sample_rate": sample_rate, "steps": steps}
        if len(found) > 1:
            document["compared"] = list(entries.values())
        typer.echo(json.dumps({**document, "seconds": time.perf_counter() - started}, indent=2))
        return
    typer.echo(sentence(best, candidates, whole_run=steps is not None))
    if not best.converged and best.log_lower is not None:
        found_by_a_test = frequency(best.log_lower, noun="times")
        typer.echo(
            f"This is valid, but could not be narrowed down: a test that exists reaches {found_by_a_test}."
        )
    if "people" in context:
        from remanence.report.tables import upwards

        crowd = context["people"]
        share = f"with {crowd['confidence']:.0%} confidence at most {crowd['most']}"
        typer.echo(f"\nOf {people} people: at most {upwards(crowd['expected'])} on average, {share}.")
    if noise_multiplier is not None and epsilon is not None:
        from remanence.report.tables import upwards

        budget = f"({upwards(epsilon)}, {delta:g})-DP"
        who = "" if _is_record(person, BatchesBy.POISSON, None) else " for one record under Poisson sampling"
        typer.echo(f"\nNoise multiplier {noise_multiplier:.6g} is {budget} over {steps} steps{who}.")
    if "batches" in context:
        typer.echo("\nAt most, by how records get into batches:")
        for key, words in context["batches"].items():
            typer.echo(f"  {key:14} {words:>15}")
    if len(found) > 1:
        typer.echo("\nAt most, by method:")
        for key, one in found.items():
            typer.echo(f"  {key:10} {ceiling(one):>15}   {one.reference.short}")
    typer.echo("\nThis holds if")
    for assumption in best.assumptions:
        typer.echo(f"  - {assumption};")
    typer.echo(f"Method: {name} ({best.reference.short}).")


def calibrate(
    max_success: Annotated[float, typer.Option(help="Your limit: the largest acceptable success.")],
    noise_multiplier: NoiseMultiplier = None,
    sample_rate: Annotated[
        float | None,
        typer.Option(help="The chance of a record to be in a batch; 1 is full batch.", show_default=False),
    ] = None,
    steps: Steps = None,
    candidates: Candidates = None,
    baseline: Baseline = None,
    log10_baseline: Log10Baseline = None,
    delta: Delta = None,
    records_per_person: RecordsPerPerson = 1,
    batches: BatchesOption = BatchesBy.POISSON,
    neighbours: NeighboursOption = Neighbours.REMOVE,
    as_json: AsJson = False,
) -> None:
    """Find the noise, the steps or the sampling rate that keeps every attack below your limit.

    Leave out the one that you want to know. The answer is on the safe side and certified again.
    """
    started = time.perf_counter()
    from remanence.bounds.calibration import calibrate as solve
    from remanence.report.tables import downwards, upwards

    log_baseline = _log_baseline(candidates, baseline, log10_baseline)
    found = solve(
        max_success,
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        log_baseline=log_baseline,
        person=_person(records_per_person, batches, neighbours),
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
            **_entry("certified", found.bound),
            "epsilon": epsilon,
            "delta": delta,
        }
        typer.echo(json.dumps({**document, "seconds": time.perf_counter() - started}, indent=2))
        return
    names = {
        "noise_multiplier": "a noise multiplier",
        "steps": "a number of steps",
        "sample_rate": "a sampling rate",
    }
    value = getattr(found, found.solved_for)
    side = "at least" if found.solved_for == "noise_multiplier" else "at most"
    rounding = {"noise_multiplier": upwards, "sample_rate": downwards}
    shown = f"{value}" if found.solved_for == "steps" else rounding[found.solved_for](value, 6)
    limit = frequency(math.log(max_success), noun="times")
    typer.echo(f"To keep every attack at or below {limit}, use")
    typer.echo(f"  {names[found.solved_for]} of {side} {shown}\n")
    typer.echo(sentence(found.bound, candidates, whole_run=True))
    if epsilon is not None:
        who = "" if found.bound.whose == "one record" else " for one record under Poisson sampling"
        typer.echo(f"\nThat is ({upwards(epsilon)}, {delta:g})-DP{who}.")


def frontier(
    over: Annotated[Over, typer.Option(help="What runs; the other settings stay.")] = Over.SAMPLE_RATE,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 4.0,
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 100,
    sample_rate: SampleRate = 1.0,
    candidates: Annotated[int, typer.Option(help="Length of the shortlist.")] = 10,
    start: Annotated[
        float | None, typer.Option("--from", help="First value.", show_default="by kind")
    ] = None,
    end: Annotated[float | None, typer.Option("--to", help="Last value.", show_default="by kind")] = None,
    points: Annotated[int, typer.Option(help="How many values, at equal ratios.")] = 15,
    records_per_person: RecordsPerPerson = 1,
    batches: BatchesOption = BatchesBy.POISSON,
    neighbours: NeighboursOption = Neighbours.REMOVE,
    out: Annotated[
        list[Path] | None, typer.Option(help="A file ending in .csv, .json, .svg or .png; repeatable.")
    ] = None,
) -> None:
    """Trace the ceiling over the sampling rate at fixed ε, over ε, or over the shortlist.

    The noise is recalibrated to (ε, δ) at every point. The same ε is a different risk at a different
    sampling rate.
    """
    from remanence.bounds.frontier import check_name, evenly, write
    from remanence.bounds.frontier import frontier as trace

    for path in out or []:
        check_name(path)
    ranges = {Over.SAMPLE_RATE: (0.01, 1.0), Over.EPSILON: (0.5, 100.0), Over.CANDIDATES: (2, 1e6)}
    low, high = ranges[over]
    values = evenly(low if start is None else start, high if end is None else end, points)
    axis = over.value.replace("-", "_")
    found = trace(
        axis,  # pyright: ignore[reportArgumentType]
        values,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        sample_rate=sample_rate,
        candidates=candidates,
        person=_person(records_per_person, batches, neighbours),
    )
    for path in out or []:
        write(found, axis, path)  # pyright: ignore[reportArgumentType]
        typer.echo(f"wrote {path}", err=True)
    if not out:
        typer.echo(f"{over.value:>12} {'noise':>10} {'a guess':>15} {'at most':>15}")
        for point in found:
            guess, most = -math.log(point.candidates), math.log(point.success_upper)
            value = getattr(point, axis)
            typer.echo(
                f"{value:12.5g} {point.noise_multiplier:10.5g} {frequency(guess):>15} {frequency(most, up=True):>15}"
            )


def _from_opacus(
    path: Path,
    log_baseline: float,
    candidates: int | None,
    delta: float | None,
    person: Person,
    *,
    as_json: bool,
) -> None:
    """The bound of a run that Opacus trained."""
    from remanence.bounds import dpsgd, epsilon_upper
    from remanence.games.recorded_runs.consistency import accounted_schedule

    schedule = accounted_schedule(path)
    found = dpsgd(log_baseline=log_baseline, schedule=schedule, person=person)
    epsilon = None if delta is None else epsilon_upper(schedule, delta)
    settings = [[s.noise_multiplier, s.sample_rate, s.steps] for s in schedule]
    if as_json:
        document = {**_entry("certified", found), "epsilon": epsilon, "delta": delta, "schedule": settings}
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(sentence(found, candidates, whole_run=True))
    source = "as it ran" if path.is_dir() else "as its accountant tells, not as measured"
    for noise, rate, steps in settings:
        typer.echo(f"\nNoise multiplier {noise:.6g}, sampling rate {rate:.6g}, {steps} steps, {source}.")
    if epsilon is not None:
        from remanence.report.tables import upwards

        typer.echo(f"That is ({upwards(epsilon)}, {delta:g})-DP.")
    typer.echo("\nThis holds if")
    for assumption in found.assumptions:
        typer.echo(f"  - {assumption};")


def _from_training(
    method: Method,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float | None,
    sample_rate: float,
    steps: int,
    log_baseline: float,
    person: Person,
) -> tuple[float, float | None, dict[str, Bound]]:
    """The noise, the ε and the bounds that were asked for; ε is that of one record under Poisson sampling."""
    from remanence import bounds
    from remanence.bounds import Segment

    if epsilon is not None:
        if delta is None:
            raise InputError("ε needs a δ.", needs="--delta", got="--epsilon alone", hint="--delta 1e-5")
        from remanence.bounds.calibration import noise_for_epsilon

        settings = {"delta": delta, "sample_rate": sample_rate, "steps": steps}
        noise_multiplier = noise_for_epsilon(epsilon, **settings)
        # Another training with this ε may have a little less noise than the one that is certainly enough.
        run = Segment(noise_for_epsilon(epsilon, **settings, enough=False), sample_rate, steps)
    else:
        run = Segment(noise_multiplier or 0.0, sample_rate, steps)  # one of the two was given
    if epsilon is None and delta is not None:
        epsilon = bounds.epsilon_upper(run, delta)
    wanted = set(Method) - {Method.ALL} if method is Method.ALL else {method}
    found: dict[str, Bound] = {}
    if Method.CERTIFIED in wanted:
        found["certified"] = bounds.dpsgd(log_baseline=log_baseline, schedule=[run], person=person)
    if person != bounds.Person():
        if wanted != {Method.CERTIFIED}:
            raise InputError(
                "The other methods speak about one record under Poisson sampling.",
                needs="--method certified",
                got=f"--method {method} for {person.whose}, batches {person.batches}",
                hint="leave --method out",
            )
        return noise_multiplier or run.noise_multiplier, epsilon, found
    if Method.RENYI in wanted:
        found["renyi"] = bounds.dpsgd_renyi(log_baseline=log_baseline, schedule=[run])
    if Method.FANO in wanted:
        candidates = round(math.exp(-log_baseline)) if log_baseline > -30 else 0
        if candidates >= 2 and abs(candidates * math.exp(log_baseline) - 1) < 1e-9:
            information = bounds.mutual_information(run, candidates=candidates)
            found["fano"] = bounds.fano(candidates, mutual_information=information)
        elif method is Method.FANO:
            raise InputError(
                "Fano's inequality speaks about equally likely candidates.",
                needs="--candidates N",
                got="a baseline that is not 1 over a whole number",
                hint="--candidates 100",
            )
    if Method.DP in wanted:
        if epsilon is not None and delta is not None:
            found["dp"] = bounds.approximate_dp(log_baseline=log_baseline, epsilon=epsilon, delta=delta)
        elif method is Method.DP:
            raise InputError(
                "The bound from (ε, δ) needs a δ.", needs="--delta", got="none", hint="--delta 1e-5"
            )
    return noise_multiplier or run.noise_multiplier, epsilon, found


def _person(records: int, batches: BatchesBy, neighbours: Neighbours, *, several: bool = False) -> Person:
    from remanence.bounds import Person

    if batches is BatchesBy.ALL and not several:
        raise InputError(
            "Only one way of batching can be solved for.",
            needs="--batches with one of them",
            got="all",
            hint="remanence bound --batches all compares them",
        )
    way = BatchesBy.POISSON if batches is BatchesBy.ALL else batches
    return Person(records, way.value, neighbours is Neighbours.REPLACE)  # pyright: ignore[reportArgumentType]


def _is_record(person: Person, batches: BatchesBy, people: int | None) -> bool:
    """Whether the plain question is asked: one record, Poisson sampling, left out."""
    return person == type(person)() and batches is BatchesBy.POISSON and people is None


def _crowd(people: int, candidates: int | None, run: Segment, person: Person) -> dict[str, Any]:
    """How many of so many people, at most."""
    if candidates is None:
        raise InputError(
            "Many people are each one of a shortlist.",
            needs="--candidates with --people",
            got="another baseline",
            hint="--candidates 100",
        )
    from remanence.bounds import crowd

    found = crowd(people, candidates=candidates, schedule=run, person=person)
    return {
        "count": found.people,
        "expected": found.expected,
        "most": found.most,
        "confidence": found.confidence,
    }


def _every_way(run: Segment, person: Person, log_baseline: float) -> dict[str, str]:
    """The ceiling of every way of batching, in words; what the rate does not allow is said."""
    from dataclasses import replace

    from remanence.bounds import dpsgd

    found: dict[str, str] = {}
    for way in [way for way in BatchesBy if way is not BatchesBy.ALL]:
        try:
            one = dpsgd(log_baseline=log_baseline, schedule=[run], person=replace(person, batches=way.value))
        except InputError as refused:
            found[way.value] = f"none: needs {refused.needs}"
        else:
            found[way.value] = ceiling(one)
    return found


def _final_weights(
    settings: dict[str, Any],
    log_baseline: float,
    candidates: int | None,
    release: Release,
    person: Person,
    sample_rate: float,
    *,
    as_json: bool,
) -> None:
    """The bound for an adversary who sees the final weights alone."""
    from remanence.bounds import final_weights

    missing = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is None]
    plain = _is_record(person, BatchesBy.POISSON, None) and sample_rate == 1
    if release is not Release.FINAL or missing or not plain:
        raise InputError(
            "A ceiling for final weights alone is proven for noisy gradient descent on strongly convex objectives.",
            needs="--release final, --noise-multiplier, --steps, --learning-rate, --strong-convexity, --smoothness, "
            "full batches, and one record",
            got=f"without {', '.join(missing)}" if missing else "other options beside them",
            hint="leave these out for a ceiling that holds whoever sees what",
        )
    found = final_weights(log_baseline=log_baseline, **settings)
    if as_json:
        typer.echo(json.dumps({**_entry("final", found), **settings}, indent=2))
        return
    typer.echo(
        sentence(found, candidates, whole_run=False).replace("whatever you release", "your final weights")
    )
    typer.echo("\nThis holds if")
    for assumption in found.assumptions:
        typer.echo(f"  - {assumption};")
    typer.echo(f"Method: final weights ({found.reference.short}).")


def _log_baseline(candidates: int | None, baseline: float | None, log10_baseline: float | None) -> float:
    given = [value for value in (candidates, baseline, log10_baseline) if value is not None]
    if len(given) != 1:
        raise InputError(
            "The bound needs to know what a guess achieves.",
            needs="one of --candidates, --baseline and --log10-baseline",
            got=f"{len(given)} of them",
            hint="--candidates 100: the adversary has narrowed the record down to 100",
        )
    if candidates is not None:
        if candidates < 2:
            raise InputError(
                "A shortlist of one is no secret.",
                needs="--candidates of at least 2",
                got=str(candidates),
                hint="10",
            )
        return -math.log(candidates)
    if log10_baseline is not None:
        if not -math.inf < log10_baseline < 0:
            raise InputError(
                "The baseline cannot be used.",
                needs="a power of ten below 0",
                got=f"{log10_baseline}",
                hint="-6",
            )
        return log10_baseline * math.log(10)
    from remanence.bounds.bound import read_baselines

    return read_baselines(baseline, None).logs[0]


def _entry(method: str, one: Bound) -> dict[str, Any]:
    """A bound as JSON; shares below 1e-300 are null, because a printed 0.0 would be below the truth."""
    lower = one.log_baseline if one.log_lower is None else one.log_lower

    def share(log: float, value: float) -> float | None:
        return value if log > math.log(1e-300) else None

    baseline = share(one.log_baseline, math.exp(one.log_baseline))
    upper = share(one.log_success, float(one.success))
    return {
        "success": {"lower": share(lower, math.exp(lower)), "upper": upper},
        "log10_success": {"lower": lower / math.log(10), "upper": one.log_success / math.log(10)},
        "log10_complement": None
        if one.log_complement in (None, -math.inf)
        else one.log_complement / math.log(10),
        "estimate": None if one.log_estimate is None else share(one.log_estimate, math.exp(one.log_estimate)),
        "baseline": baseline,
        "log10_baseline": one.log_baseline / math.log(10),
        "advantage": None if baseline is None or upper is None else float(one.advantage),
        "whose": one.whose,
        "method": method,
        "converged": bool(one.converged),
        "assumptions": list(one.assumptions),
        "reference": one.reference.short,
    }
