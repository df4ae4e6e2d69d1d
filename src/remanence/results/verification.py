"""What of a stored result can be computed again from the result alone, and what that leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from remanence.bounds.bound import Bound
from remanence.bounds.recipes import recompute
from remanence.core.exceptions import InputError
from remanence.results.caveats import check_rates, check_trials
from remanence.results.evidence import Evidence
from remanence.results.result import AuditResult
from remanence.results.verdict import Policy, Verdict, decide

Json = dict[str, Any]

_ROUNDING = 1e-6  # between two computations of a ceiling, on two machines
_SETTINGS = ("noise_multiplier", "sample_rate", "steps")
_LESS_NOISE = (
    0.05  # a ceiling for this much less noise still counts: so a recorded run pays for rounding, at most 4 %
)


@dataclass(frozen=True)
class CeilingCheck:
    """Whether a ceiling was computed again from its recipe: `wrong` is what it contradicts, `open` why it was not."""

    wrong: str = ""
    open: str = ""

    @property
    def holds(self) -> bool:
        """Whether the same ceiling came out."""
        return not self.wrong and not self.open


def check_ceiling(stored: Bound, settings: Json, largest_guess: float) -> CeilingCheck:
    """Compute a ceiling again: its number, whose it is, what it assumes, and that it is about this training.

    `settings` are the training's, as the result states them; `largest_guess` is what a guess achieves at most.
    """
    if stored.recipe is None:
        return CeilingCheck(open=f"{stored.name!r} has no recipe to compute it by")
    try:
        again = recompute(stored.recipe)
    except InputError as error:
        return CeilingCheck(wrong=f"the recipe of {stored.name!r} cannot be followed: {error.got}"[:300])
    if np.ndim(again.log_success) or float(again.log_success) > float(stored.log_success) + _ROUNDING:
        return CeilingCheck(
            wrong=f"{stored.name!r} is {stored.success:.6g}, and its recipe gives {np.max(again.success):.6g}"
        )
    for name in ("name", "whose", "on_average"):
        if getattr(stored, name) != getattr(again, name):
            return CeilingCheck(
                wrong=f"{stored.name!r}: {name} {getattr(stored, name)!r}, and its recipe says {getattr(again, name)!r}"
            )
    if missing := [each for each in again.assumptions if each not in stored.assumptions]:
        return CeilingCheck(wrong=f"{stored.name!r} leaves out that {missing[0]}")
    if again.log_baseline is not None and largest_guess > float(again.baseline) * (1 + 1e-9):
        return CeilingCheck(
            wrong=f"{stored.name!r} was computed for a guess of {again.baseline:.6g}, not {largest_guess:.6g}"
        )
    told = _told_settings(stored.recipe["arguments"])
    for name in _SETTINGS:
        if name in told and settings.get(name) is not None and not _covers(name, told[name], settings[name]):
            return CeilingCheck(
                wrong=f"{stored.name!r} was computed for {name} {told[name]}, and the training has {settings[name]}"
            )
    if "noise_multiplier" in told and settings.get("noise_multiplier") is None:
        return CeilingCheck(open=f"the result does not state the noise that {stored.name!r} was computed for")
    return CeilingCheck()


def _covers(name: str, told: Any, stated: Any) -> bool:
    """Whether a ceiling for the told setting holds for the stated one: the same, or a little less noise."""
    if name != "noise_multiplier" or not all(isinstance(value, int | float) for value in (told, stated)):
        return told == stated
    return (1 - _LESS_NOISE) * stated <= told <= stated


def _told_settings(arguments: Json) -> Json:
    """The noise, rate and steps that a recipe names, by itself or as a schedule of one segment."""
    schedule = arguments.get("schedule")
    if isinstance(schedule, list) and len(schedule) == 1 and isinstance(schedule[0], dict):
        return schedule[0]
    return arguments


def missing_caveats(found: Evidence, policy: Policy) -> list[str]:
    """The caveats that follow from the rates and are not there."""
    tells = any(each.tells for each in found.findings)
    due = [*check_rates(found.main, found.control, found.baseline, tells=tells), *check_trials(found, policy)]
    there = {caveat.id for caveat in found.caveats}
    return [f"{found.attack}: the caveat {each.id} is missing" for each in due if each.id not in there]


@dataclass(frozen=True)
class Verified:
    """What came out: contradictions, ceilings that were computed again, and what stays open."""

    wrong: tuple[str, ...]
    ceilings: int
    open: tuple[str, ...]


def verified(result: AuditResult) -> Verified:
    """Compute ceilings, caveats and thresholds of a result again, as far as the result alone allows.

    A PROTECTED that rests on a ceiling which could not be computed again is open, and so not verified.
    """
    settings, wrong = result.threat_model["mechanism"], []
    guess = max(entry.baseline.value for entry in result.evidence)
    checks = [check_ceiling(bound, settings, guess) for bound in result.bounds]
    wrong += [check.wrong for check in checks if check.wrong]
    for entry in result.evidence:
        wrong += missing_caveats(entry, result.policy)
        wrong += _beyond_the_threshold(entry, result.threat_model["criterion"]["threshold"])
    sure = [bound for bound, check in zip(result.bounds, checks, strict=True) if check.holds]
    unsure = tuple(check.open for check in checks if check.open)
    if result.verdict is Verdict.PROTECTED:
        still = decide(result.evidence, sure, result.policy) is Verdict.PROTECTED
        unsure = () if still else (*unsure, "PROTECTED rests on a ceiling that was not computed again")
    return Verified(tuple(wrong), len(sure), unsure)


def _beyond_the_threshold(found: Evidence, threshold: float) -> list[str]:
    """Trials that count as recovered although their error is above the threshold."""
    errors, succeeded = (found.arrays.get(name) for name in ("error", "succeeded"))
    if errors is None or succeeded is None or errors.shape != succeeded.shape:
        return []
    beyond = int((succeeded.bool() & (errors > threshold)).sum())
    return (
        [f"{found.attack}: {beyond} trials count although their error is above the threshold"]
        if beyond
        else []
    )
