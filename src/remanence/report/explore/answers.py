"""What the page asks and what it is answered: plain numbers and the command line's own sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from remanence import bounds
from remanence.bounds.calibration import calibrate, noise_for_epsilon
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.frontier import evenly, frontier
from remanence.bounds.person import Person
from remanence.core.checks import exactly_one
from remanence.core.exceptions import InputError
from remanence.report.frequencies import ceiling, frequency, sentence, upwards

Json = dict[str, Any]

# What the page accepts: wide enough for any training, narrow enough for an answer in seconds.
RANGES: dict[str, tuple[float, float]] = {
    "noise_multiplier": (0.1, 1000.0),
    "sample_rate": (1e-4, 1.0),
    "steps": (1, 10**6),
    "candidates": (2, 10**9),
    "records_per_person": (1, 100),
    "epsilon": (0.01, 100.0),
    "delta": (1e-12, 0.1),
    "max_success": (1e-9, 0.999),
}
_WHOLE = ("steps", "candidates", "records_per_person")
_NOISES = evenly(0.2, 20.0, 33)
_RATES = evenly(0.01, 1.0, 9)


@dataclass(frozen=True)
class Question:
    """The settings that the page shows; the noise, or ε, for which it is solved."""

    delta: float
    sample_rate: float
    steps: int
    candidates: int
    records_per_person: int = 1
    noise_multiplier: float | None = None
    epsilon: float | None = None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Question:
        """From the address; refuses, with a sentence, what no training can have."""
        exactly_one(
            {name: given.get(name) for name in ("noise_multiplier", "epsilon")}, "noise_multiplier=1.1"
        )
        asked = [each.name for each in fields(cls) if each.name in given or each.default is MISSING]
        return cls(**{name: number(given, name) for name in asked})

    @property
    def person(self) -> Person:
        """Whose ceiling is asked for."""
        return Person(self.records_per_person)

    @property
    def log_baseline(self) -> float:
        """log κ of a guess among the candidates."""
        return -math.log(self.candidates)

    @property
    def run(self) -> Segment:
        """The training that is asked about; with a budget, the riskiest that keeps it."""
        return self.at(self.noise(enough=False))

    def at(self, noise: float) -> Segment:
        """The training with this noise."""
        return Segment(noise, self.sample_rate, self.steps)

    def noise(self, *, enough: bool = True) -> float:
        """The noise that was given, or that is certainly enough for the budget; or else, certainly not more."""
        if self.noise_multiplier is not None or self.epsilon is None:
            return self.noise_multiplier or 0.0
        settings = {"delta": self.delta, "sample_rate": self.sample_rate, "steps": self.steps}
        return noise_for_epsilon(self.epsilon, **settings, enough=enough)

    @property
    def command(self) -> str:
        """The same question on the command line."""
        if self.epsilon is None:
            first = f"--noise-multiplier {self.noise_multiplier!r}"
        else:
            first = f"--epsilon {self.epsilon!r} --delta {self.delta!r}"
        rest = f"--sample-rate {self.sample_rate!r} --steps {self.steps} --candidates {self.candidates}"
        if self.records_per_person > 1:
            rest += f" --records-per-person {self.records_per_person}"
        return f"remanence bound {first} {rest}"

    @property
    def python(self) -> str:
        """The same question in Python."""
        noise, names = f"{self.noise_multiplier!r}", "bounds"
        training = f"sample_rate={self.sample_rate!r}, steps={self.steps}"
        if self.epsilon is not None:
            noise = f"noise_for_epsilon({self.epsilon!r}, delta={self.delta!r}, {training}, enough=False)"
            names = "bounds, noise_for_epsilon"
        if self.records_per_person > 1:
            training += f", person=bounds.Person({self.records_per_person})"
        call = f"bounds.dpsgd(1 / {self.candidates}, noise_multiplier={noise}, {training})"
        return f"from remanence import {names}; print({call}.success)"


def number(given: Mapping[str, str], name: str) -> Any:
    """One number of the address, within its range."""
    low, high = RANGES[name]
    text = given.get(name, "")
    try:
        value = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        value = math.nan
    whole = name not in _WHOLE or value.is_integer()
    if not (low <= value <= high and whole):
        kind = "a whole number" if name in _WHOLE else "a number"
        raise InputError(
            f"The page cannot use this {name.replace('_', ' ')}.",
            needs=f"{kind} from {low:g} to {high:g}",
            got=text[:40] or "nothing",
            hint="the command line takes wider ranges",
        )
    return int(value) if name in _WHOLE else value


def estimate(question: Question) -> Json:
    """An answer while the slider moves: the ceiling to within a five-hundredth, in milliseconds."""
    log_success = _estimated(question, question.noise())
    return {"most": frequency(log_success, up=True), **_dots(question, log_success)}


def answer(question: Question) -> Json:
    """The certified ceiling with its sentence, and the same as a command."""
    noise, log_baseline = question.noise(), question.log_baseline
    best = bounds.dpsgd(log_baseline=log_baseline, schedule=[question.run], person=question.person)
    return {
        "sentence": sentence(best, question.candidates),
        "guess": frequency(log_baseline),
        "most": ceiling(best),
        **_dots(question, best.log_success),
        "noise_multiplier": noise,
        "noise": upwards(noise, 6),
        "assumptions": list(best.assumptions),
        "command": question.command,
        "python": question.python,
    }


def budget(question: Question) -> Json:
    """The ε of these settings at δ, one record's and the person's, and what the latter and δ alone would prove."""
    record = question.run
    person = replace(record, records=question.records_per_person)
    epsilon = bounds.epsilon_upper(record, question.delta) if question.epsilon is None else question.epsilon
    theirs = epsilon if question.records_per_person == 1 else bounds.epsilon_upper(person, question.delta)
    alone = bounds.approximate_dp(log_baseline=question.log_baseline, epsilon=theirs, delta=question.delta)
    return {"epsilon": epsilon, "budget": upwards(theirs), "alone": ceiling(alone)}


def noise_curve(question: Question) -> Json:
    """γ against the noise, other settings fixed; estimates, for a picture."""
    points = [[noise, math.exp(_estimated(question, noise))] for noise in _NOISES]
    return {"points": points, "baseline": 1 / question.candidates}


def rate_curve(question: Question, epsilon: float) -> Json:
    """γ against the sampling rate at the same ε (Hayes et al. 2023, Figure 5): one ε, different risks."""
    settings = {"epsilon": epsilon, "delta": question.delta, "steps": question.steps}
    found = frontier(
        "sample_rate", _RATES, candidates=question.candidates, person=question.person, **settings
    )
    points = [[point.sample_rate, point.success_upper] for point in found]
    return {"points": points, "baseline": 1 / question.candidates, "budget": upwards(epsilon)}


def solve(question: Question, max_success: float) -> Json:
    """The least noise that keeps every attack at or below a limit."""
    found = calibrate(
        max_success,
        sample_rate=question.sample_rate,
        steps=question.steps,
        log_baseline=question.log_baseline,
        person=question.person,
    )
    return {"noise_multiplier": float(upwards(found.noise_multiplier, 6))}


# They take seconds, and so a process of their own.
QUESTIONS: dict[str, Callable[[Question, Mapping[str, str]], Json]] = {
    "bound": lambda question, _: answer(question),
    "budget": lambda question, _: budget(question),
    "rate-curve": lambda question, _: rate_curve(question, budget(question)["epsilon"]),
    "solve": lambda question, given: solve(question, number(given, "max_success")),
}


def compute(name: str, given: Mapping[str, str]) -> Json:
    """The answer to one of them."""
    return QUESTIONS[name](Question.read(given), given)


def _estimated(question: Question, noise: float) -> float:
    """The ceiling at this noise to within a five-hundredth, in a few milliseconds."""
    settings = {"log_baseline": question.log_baseline, "person": question.person, "rtol": 2e-3}
    return float(bounds.dpsgd(schedule=[question.at(noise)], **settings).log_success)


def _dots(question: Question, log_success: float) -> Json:
    """How many of a thousand a guess finds, and how many more the release adds at most."""
    guess = round(1000 / question.candidates)
    return {"dots": {"guess": guess, "extra": max(0, math.ceil(1000 * math.exp(log_success) - 1e-9) - guess)}}
