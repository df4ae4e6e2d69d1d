"""Recompute as much of a stored result as the result alone allows, and list the rest as open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from remanence.bounds.bound import Bound
from remanence.bounds.recipes import recompute
from remanence.core.exceptions import InputError
from remanence.results.caveats import check_rates, check_trials
from remanence.results.evidence import Evidence, Json, contradictions
from remanence.results.findings import UnknownFinding
from remanence.results.result import AuditResult
from remanence.results.verdict import Policy, Verdict, decide

_ROUNDING = 1e-6  # tolerance between computations of a ceiling on two machines
_SETTINGS = ("noise_multiplier", "sample_rate", "steps")
_LESS_NOISE = 0.05  # accept a ceiling for this much less noise: a recorded run loses at most 4 % to rounding


def check_ceiling(stored: Bound, settings: Json, largest_guess: float) -> tuple[str, str]:
    """Recompute a ceiling: its value, its reference and assumptions, and that it applies to this training.

    `settings` are the training's, as the result states them; `largest_guess` is the largest success of a guess.
    Returns what contradicts it, and why it was not recomputed: both empty where recomputation gave the same.
    """
    named = repr(stored.name)
    if stored.recipe is None:
        return "", f"{named} has no recipe to compute it by"
    try:
        again = recompute(stored.recipe)
    except InputError as error:
        return f"the recipe of {named} cannot be followed: {error.got}"[:300], ""
    if np.ndim(again.log_success) or float(again.log_success) > float(stored.log_success) + _ROUNDING:
        return f"{named} is {stored.success:.6g}, and its recipe gives {np.max(again.success):.6g}", ""
    for name in ("name", "whose", "on_average"):
        here, there = getattr(stored, name), getattr(again, name)
        if here != there:
            return f"{named}: {name} {here!r}, and its recipe says {there!r}", ""
    if missing := [each for each in again.assumptions if each not in stored.assumptions]:
        return f"{named} leaves out that {missing[0]}", ""
    if again.log_baseline is not None and largest_guess > float(again.baseline) * (1 + 1e-9):
        return f"{named} was computed for a guess of {again.baseline:.6g}, not {largest_guess:.6g}", ""
    told = stored.recipe["arguments"]
    schedule = told.get("schedule")  # the noise, rate and steps may be those of its one segment
    if isinstance(schedule, list) and len(schedule) == 1 and isinstance(schedule[0], dict):
        told = schedule[0]
    for name in _SETTINGS:
        if name in told and settings.get(name) is not None and not _covers(name, told[name], settings[name]):
            return f"{named} was computed for {name} {told[name]}, and the training has {settings[name]}", ""
    if "noise_multiplier" in told and settings.get("noise_multiplier") is None:
        return "", f"the result does not state the noise that {named} was computed for"
    return "", ""


def _covers(name: str, told: Any, stated: Any) -> bool:
    """Whether a ceiling for the recipe's setting holds for the stated one: the same, or slightly less noise."""
    if name != "noise_multiplier" or not all(isinstance(value, int | float) for value in (told, stated)):
        return told == stated
    return (1 - _LESS_NOISE) * stated <= told <= stated


def missing_caveats(found: Evidence, policy: Policy) -> list[str]:
    """The caveats that follow from the rates but are missing."""
    tells = any(each.tells for each in found.findings)
    # An audit compares what it counted, before its game adjusts the ends.
    counted = replace(found.main, floor=None)
    due = [*check_rates(counted, found.control, found.baseline, tells=tells), *check_trials(found, policy)]
    there = {caveat.id for caveat in found.caveats}
    return [f"{found.attack}: the caveat {each.id} is missing" for each in due if each.id not in there]


@dataclass(frozen=True)
class Verified:
    """The outcome: contradictions, attacks counted from their trials, recomputed ceilings, and open questions."""

    wrong: tuple[str, ...]
    counted: int
    ceilings: int
    open: tuple[str, ...]
    unknown: tuple[str, ...]  # findings that cannot be recomputed here: no target can vouch for them


def verified(result: AuditResult) -> Verified:
    """Recompute the counts, ceilings, caveats and verdict of a result, as far as the result alone allows.

    A PROTECTED verdict is open, hence not verified, if it rests on a ceiling or a finding that could not be recomputed.
    """
    settings, wrong = result.threat_model["mechanism"], []
    guess = max(entry.baseline.value for entry in result.evidence)
    for entry in result.evidence:
        wrong += contradictions(entry.to_json(result.policy), entry.arrays)
        wrong += missing_caveats(entry, result.policy)
        wrong += _beyond_the_threshold(entry, result.threat_model["criterion"]["threshold"])
    checks = [check_ceiling(bound, settings, guess) for bound in result.bounds]
    wrong += [told for told, _ in checks if told]
    if decide(result.evidence, result.bounds, result.policy) is not result.verdict:
        wrong.append(f"the verdict {result.verdict} does not follow from the evidence and the ceilings")
    sure = [bound for bound, check in zip(result.bounds, checks, strict=True) if not any(check)]
    unsure = [why for _, why in checks if why]
    if result.verdict is Verdict.PROTECTED:
        still = decide(result.evidence, sure, result.policy) is Verdict.PROTECTED
        unsure = [] if still else [*unsure, "PROTECTED rests on a ceiling that was not computed again"]
    findings = [each for entry in result.evidence for each in entry.findings]
    kinds = dict.fromkeys(each.entry["kind"] for each in findings if isinstance(each, UnknownFinding))
    unknown = tuple(f"the finding {kind!r} of a part that is not installed here" for kind in kinds)
    counted = sum("succeeded" in entry.arrays for entry in result.evidence)
    return Verified(tuple(wrong), counted, len(sure), (*unsure, *unknown), unknown)


def _beyond_the_threshold(found: Evidence, threshold: float) -> list[str]:
    """Trials that count as recovered although their error is above the threshold."""
    errors, succeeded = (found.arrays.get(name) for name in ("error", "succeeded"))
    if errors is None or succeeded is None or errors.shape != succeeded.shape:
        return []
    beyond = int((succeeded.bool() & (errors > threshold)).sum())
    told = f"{found.attack}: {beyond} trials count although their error is above the threshold"
    return [told] if beyond else []
