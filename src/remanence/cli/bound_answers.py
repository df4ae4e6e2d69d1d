"""The answers of `remanence bound`: from settings, from an Opacus run, for final weights, for crowds and groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remanence.cli.training_options import BatchesBy, Batching, Whose
from remanence.core.checks import goes_with
from remanence.core.exceptions import InputError
from remanence.report.frequencies import EVERY_STEP, ceiling

if TYPE_CHECKING:
    from remanence.bounds import Person, Segment
    from remanence.bounds.bound import Bound

_NOTHING = 0.999  # a ceiling that no attack notices
_SIZES = "--sample-rate, or --dataset-size and --batch-size"


class Method(StrEnum):
    """Ways to bound."""

    CERTIFIED = "certified"
    RENYI = "renyi"
    FANO = "fano"
    DP = "dp"
    ALL = "all"


@dataclass(frozen=True)
class BoundQuestion:
    """A question, with everything derived that the options leave open."""

    batching: Batching
    person: Person
    log_baseline: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is about one record, Poisson sampling, left out."""
        return self.person == type(self.person)()


@dataclass(frozen=True)
class BoundAnswer:
    """Bounds by method, what is seen, and what a reader should know beside them."""

    found: dict[str, Bound]
    what: str = EVERY_STEP
    notes: tuple[str, ...] = ()
    run: tuple[Segment, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> tuple[str, Bound]:
        """The lowest ceiling and its method."""
        return min(self.found.items(), key=lambda item: item[1].log_success)


def from_budget(asked: BoundQuestion, method: Method) -> BoundAnswer:
    """From ε and δ alone, for any mechanism."""
    from remanence.bounds import approximate_dp

    rate = asked.batching.sample_rate
    if method not in (Method.CERTIFIED, Method.DP) or rate is not None or not asked.is_plain:
        raise InputError(
            "ε alone does not say how training ran.",
            needs="--steps, or --epochs, for any bound that depends on the training",
            got=f"--epsilon {asked.epsilon:g} with --method {method}, a sampling rate, or batches",
            hint="add --steps, or leave the other options out",
        )
    found = approximate_dp(
        log_baseline=asked.log_baseline, epsilon=asked.epsilon or 0.0, delta=asked.delta or 0.0
    )
    nothing = " Here it says nothing." if found.success > _NOTHING else ""
    notes = (
        f"Assumed: ({asked.epsilon:g}, {asked.delta or 0:g})-DP and nothing else, so this holds for every mechanism "
        f"with that guarantee.{nothing}",
        "The settings of DP-SGD sharpen it: add --steps and --sample-rate, or --dataset-size, --batch-size and "
        "--epochs.",
    )
    return BoundAnswer({"dp": found}, "whatever you release", notes)


def from_training(asked: BoundQuestion, method: Method) -> BoundAnswer:
    """From the noise, or from ε and δ, with the rate and the steps."""
    from remanence import bounds
    from remanence.bounds import Segment
    from remanence.bounds.calibration import noise_for_epsilon

    steps, rate, delta = asked.batching.steps or 0, asked.batching.sample_rate, asked.delta
    epsilon, noise, notes = asked.epsilon, asked.noise_multiplier, ()
    goes_with("--epsilon", epsilon, "--delta", delta, "--delta 1e-5")
    goes_with(
        "--epsilon with --steps", epsilon, _SIZES, rate, "--sample-rate 1 if every step uses all records"
    )
    if rate is None:
        rate = 1.0
        notes = (
            "Assumed: full batches, a sampling rate of 1. It holds for smaller batches too, where the truth is far "
            f"lower: add {_SIZES}.",
        )
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
    found = _by_method(method, run, replace(asked, epsilon=epsilon))
    return BoundAnswer(found, EVERY_STEP, notes, (run,), context)


def _by_method(method: Method, run: Segment, asked: BoundQuestion) -> dict[str, Bound]:
    from remanence import bounds

    log_baseline, person = asked.log_baseline, asked.person
    wanted = set(Method) - {Method.ALL} if method is Method.ALL else {method}
    if not asked.is_plain and wanted != {Method.CERTIFIED}:
        raise InputError(
            "The other methods speak about one record under Poisson sampling.",
            needs="--method certified",
            got=f"--method {method} for {person.whose}, batches {person.batches}",
            hint="leave --method out",
        )
    found: dict[str, Bound] = {}
    if Method.CERTIFIED in wanted:
        found["certified"] = bounds.dpsgd(log_baseline=log_baseline, schedule=[run], person=person)
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
        if asked.epsilon is not None and asked.delta is not None:
            found["dp"] = bounds.approximate_dp(
                log_baseline=log_baseline, epsilon=asked.epsilon, delta=asked.delta
            )
        elif method is Method.DP:
            raise InputError(
                "The bound from (ε, δ) needs a δ.", needs="--delta", got="none", hint="--delta 1e-5"
            )
    return found


def from_opacus(asked: BoundQuestion, path: Path) -> BoundAnswer:
    """The bound of a run that Opacus trained."""
    from remanence.bounds import dpsgd, epsilon_upper
    from remanence.private.accounting import accounted_schedule
    from remanence.private.consistency import read_run

    given = (asked.noise_multiplier, asked.epsilon, asked.batching.steps, asked.batching.sample_rate)
    if any(value is not None for value in given):
        raise InputError(
            "The settings are given twice.",
            needs="--opacus alone, or the settings",
            got="--opacus with the noise, ε, the sampling rate or the steps",
            hint="leave the settings out",
        )
    schedule = accounted_schedule(path, asked.person.batches)
    found = dpsgd(log_baseline=asked.log_baseline, schedule=schedule, person=asked.person)
    shuffled = asked.person.batches == "shuffled"  # without amplification, and theirs
    accounted = asked.person.schedules(schedule)[0] if shuffled else schedule
    epsilon = None if asked.delta is None else epsilon_upper(accounted, asked.delta)
    settings = [[s.noise_multiplier, s.sample_rate, s.steps] for s in schedule]
    source = "as it ran" if path.is_dir() else "as its accountant tells, not as measured"
    notes = tuple(
        f"Noise multiplier {noise:.6g}, sampling rate {rate:.6g}, {steps} steps, {source}."
        for noise, rate, steps in settings
    )
    if path.is_dir():
        run = read_run(path)
        asked.person.check_within(run.recording.manifest["records"])
        if run.duplicates and asked.person.most == 1:
            notes += (
                f"Warning: {run.duplicates} records of this run are equal to an earlier one. Whoever has several is "
                "not covered by a ceiling for one record: add --records-per-person.",
            )
    context = {"epsilon": epsilon, "delta": asked.delta, "schedule": settings}
    if shuffled:
        context["epsilon_of"] = f"{asked.person.whose}, without amplification"
    return BoundAnswer({"certified": found}, EVERY_STEP, notes, schedule, context)


def of_final_weights(asked: BoundQuestion, convexity: dict[str, float | None], *, only: bool) -> BoundAnswer:
    """For an adversary who sees the final weights alone."""
    from remanence.bounds import final_weights

    settings = {"noise_multiplier": asked.noise_multiplier, "steps": asked.batching.steps, **convexity}
    missing = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is None]
    full = asked.batching.sample_rate in (None, 1.0)
    if not only or missing or not full:
        raise InputError(
            "A ceiling for final weights alone is proven for noisy gradient descent on strongly convex objectives.",
            needs="--release final, --noise-multiplier, --steps, --learning-rate, --strong-convexity, --smoothness, "
            "and full batches",
            got=f"without {', '.join(missing)}" if missing else "other options beside them",
            hint="leave these out for a ceiling that holds whoever sees what",
        )
    found = final_weights(log_baseline=asked.log_baseline, person=asked.person, **settings)  # pyright: ignore
    return BoundAnswer({"final": found}, "your final weights", context=dict(settings))


def crowd_of(people: int, candidates: int | None, run: tuple[Segment, ...], person: Person) -> dict[str, Any]:
    """How many of so many people, at most."""
    if candidates is None or not run:
        raise InputError(
            "Many people are each one of a shortlist.",
            needs="--candidates with --people, and the settings of the training",
            got="another baseline" if run else "no steps",
            hint="--candidates 100 --steps 1000 --sample-rate 0.01",
        )
    from remanence.bounds import crowd

    found = crowd(people, candidates=candidates, schedule=run, person=person)
    return {
        "count": found.people,
        "expected": found.expected,
        "most": found.most,
        "confidence": found.confidence,
    }


def every_way(run: Segment, batching: Batching, person: Person, log_baseline: float) -> dict[str, str]:
    """The ceiling of every way of batching, in words; what the rate does not allow is said."""
    from remanence.bounds import dpsgd

    found: dict[str, str] = {}
    for way in [way for way in BatchesBy if way is not BatchesBy.ALL]:
        settings = batching.solved(passes=Whose(batches=way).passes)
        one = replace(run, sample_rate=settings.sample_rate or run.sample_rate)
        try:
            bound = dpsgd(
                log_baseline=log_baseline, schedule=[one], person=replace(person, batches=way.value)
            )
        except InputError as refused:
            found[way.value] = f"none: needs {refused.needs}"
        else:
            found[way.value] = ceiling(bound)
    return found


def of_groups(
    values: list[str], groups: list[str] | None, run: tuple[Segment, ...], person: Person
) -> dict[str, Any]:
    """The ceiling on guessing one hidden value, for each group."""
    from remanence.bounds import attribute

    if not run:
        raise InputError(
            "A hidden value is guessed from a training.",
            needs=f"the noise, --steps and {_SIZES}, with --attribute",
            got="no settings of a training",
            hint="--noise-multiplier 1.1 --sample-rate 0.01 --steps 1000",
        )
    return attribute(values, by=groups, schedule=run, person=person)
