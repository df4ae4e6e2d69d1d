"""Bounds from a mechanism's settings: DP-SGD, the Gaussian and the Laplace mechanism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from remanence.bounds.bound import Bound, Values, read_baselines
from remanence.bounds.engine.bracket import Bracket, ceiling
from remanence.bounds.engine.closed_forms import log_complement
from remanence.bounds.engine.dpsgd import delta_upper
from remanence.bounds.engine.schedule import Segment, normalise
from remanence.bounds.person import Person, read_person, replaced
from remanence.bounds.recipes import recomputable
from remanence.core.checks import exactly_one, number
from remanence.core.exceptions import InputError
from remanence.core.references import FELDMAN_2026, HAYES_2023, REMANENCE

DPSGD_ASSUMPTIONS = Person().assumptions


@recomputable
def dpsgd(
    baseline: Values = None,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float = 1.0,
    steps: int = 1,
    schedule: Segment | Sequence[Segment] | None = None,
    log_baseline: Values = None,
    person: Person | None = None,
    rtol: float = 1e-4,
) -> Bound:
    """The ceiling for DP-SGD, certified: never below the truth, and at most `rtol` above it.

    γ = sup{μ(E): ν(E) ≤ κ}, μ the transcript with the target and ν without (Hayes et al. 2023,
    Corollary 4). Settings that change over training are a `schedule` of segments. A `person` may have several
    records, which may be batched in other ways than by Poisson sampling.

    >>> bound = dpsgd(0.1, noise_multiplier=0.987386, sample_rate=0.02, steps=1000)
    >>> round(bound.lower, 4), round(bound.success, 4)
    (0.3274, 0.3274)
    >>> five = dpsgd(0.01, noise_multiplier=1.1, sample_rate=0.01, steps=1000, person=Person(records=5))
    >>> five.whose, round(five.success, 3)
    ('a person with at most 5 records', 0.293)
    """
    segments = read_schedule(noise_multiplier, sample_rate, steps, schedule)
    baselines, person = read_baselines(baseline, log_baseline), read_person(person)
    brackets = person.brackets(segments, baselines.logs, rtol=rtol)
    reference = HAYES_2023.at("Corollary 4") if person == Person() else REMANENCE
    if person == Person(batches="balls-in-bins"):
        reference = FELDMAN_2026
    bound = baselines.bound("DP-SGD", brackets, person.assumptions_of(brackets), reference)
    return replace(bound, whose=person.whose)


@recomputable
def true_positives(
    false_positive_rate: Values,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float = 1.0,
    steps: int = 1,
    schedule: Segment | Sequence[Segment] | None = None,
) -> Bound:
    """The largest true positive rate of any test of whether a record, or another one in its place, was trained on.

    With γ from `dpsgd`: an event of probability α with the other record has probability at most
    1 − γ⁻¹(1 − α) with neither, and hence at most γ of that with the record itself. The records may come from
    any distribution. The bound's `baseline` is the false positive rate.

    >>> round(true_positives(0.01, noise_multiplier=2.0).success, 4)  # Φ(Φ⁻¹(0.01) + 2 · 1/2)
    0.0924
    """
    segments = read_schedule(noise_multiplier, sample_rate, steps, schedule)
    rates = read_baselines(false_positive_rate, None)
    ends = [ceiling(replaced(segments, log, rtol=1e-4).log_upper) for log in rates.logs]
    assumptions = (
        *DPSGD_ASSUMPTIONS[:3],
        "the other model was trained on the same records but one, or on records drawn alike",
    )
    return rates.bound("DP-SGD, one record or another", ends, assumptions, REMANENCE)


@recomputable
def in_or_out(schedule: Segment | Sequence[Segment]) -> Bound:
    """The ceiling on guessing whether a record was trained on, if a fair coin decided: (1 + δ(0)) / 2.

    >>> round(in_or_out(Segment(1.0)).success, 5)  # Φ(1/2)
    0.69146
    """
    log_success = math.log((1 + delta_upper(schedule, 0.0)) / 2)
    return Bound("DP-SGD as accounted, in or out", log_success, DPSGD_ASSUMPTIONS, REMANENCE)


@recomputable
def gaussian(
    baseline: Values = None, *, noise_multiplier: float, steps: int = 1, log_baseline: Values = None
) -> Bound:
    """The ceiling for a Gaussian mechanism whose noise is `noise_multiplier` times the sensitivity.

    γ = Φ(Φ⁻¹(κ) + √T/σ).

    >>> round(gaussian(0.1, noise_multiplier=1.0).success, 5)
    0.38914
    """
    bound = dpsgd(baseline, noise_multiplier=noise_multiplier, steps=steps, log_baseline=log_baseline)
    assumptions = ("the target moves the released vector by at most 1 before the noise", DPSGD_ASSUMPTIONS[3])
    return Bound(**{**vars(bound), "name": "Gaussian mechanism", "assumptions": assumptions})


@recomputable
def laplace(baseline: Values = None, *, scale: float, log_baseline: Values = None) -> Bound:
    """The ceiling for a Laplace mechanism whose noise is `scale` times the sensitivity.

    One dimension, sensitivity 1, ε = 1/b: γ = κ·e^ε up to κ = e^−ε/2, then 1 − e^−ε/(4κ) up to κ = 1/2,
    then 1 − (1 − κ)·e^−ε: the power of the test {x > t} at size κ.

    >>> round(laplace(0.1, scale=1.0).success, 5), round(laplace(0.4, scale=1.0).success, 5)
    (0.27183, 0.77008)
    """
    number("scale", scale, above=0, hint="scale=1 is 1-DP")
    baselines = read_baselines(baseline, log_baseline)
    epsilon = 1 / scale
    ends = []
    for log in baselines.logs:
        slack = 1e-14 * (1 + abs(log) + epsilon)
        if log <= -epsilon - math.log(2):
            log_success = log + epsilon
            ends.append(Bracket(log_success - slack, log_success + slack))
            continue
        tail = -epsilon - math.log(4) - log if log <= -math.log(2) else float(log_complement(log)) - epsilon
        upper, lower = (float(log_complement(tail + sign * slack)) for sign in (-1, 1))
        ends.append(Bracket(lower, upper, tail - slack))
    assumptions = ("the target moves the released number by at most 1 before the noise", DPSGD_ASSUMPTIONS[3])
    return baselines.bound("Laplace mechanism", ends, assumptions, REMANENCE)


def read_schedule(
    noise_multiplier: float | None,
    sample_rate: float,
    steps: int,
    schedule: Segment | Sequence[Segment] | None,
) -> tuple[Segment, ...]:
    """The settings of a run as segments, from a schedule or from single settings."""
    exactly_one({"noise_multiplier": noise_multiplier, "schedule": schedule}, "noise_multiplier=1.1")
    if noise_multiplier is not None:
        return (Segment(noise_multiplier, sample_rate, steps),)
    given = [] if schedule is None else schedule
    segments = normalise(given)
    if any(segment.records > 1 for segment in ([given] if isinstance(given, Segment) else given)):
        raise InputError(
            "The records of a person belong to the person, not to the schedule.",
            needs="segments of one record, and person=Person(records=...)",
            got=f"{schedule!r:.100}",
            hint="person=Person(records=5)",
        )
    return segments
