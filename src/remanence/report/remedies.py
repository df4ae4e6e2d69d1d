"""What to do now, in order, and how to run an audit again."""

from __future__ import annotations

import math
import shlex

from remanence.auditing import AuditResult
from remanence.bounds import Segment, epsilon_upper
from remanence.bounds.bound import Bound
from remanence.bounds.calibration import calibrate
from remanence.core.catalogue import catalogue, load_attack
from remanence.core.exceptions import InputError
from remanence.report import words
from remanence.report.frequencies import thousandths, upwards
from remanence.results.evidence import Evidence
from remanence.results.verdict import Verdict

DELTA = 1e-5
_NOISE_BOUNDS = ("DP-SGD", "Gaussian mechanism")  # whose proof holds for any other noise as well


def remedies(result: AuditResult) -> list[str]:
    """Sentences, the most useful first."""
    ceiling, verdict = words.tightest(result), result.verdict
    if verdict is Verdict.CONTRADICTED:
        return [
            "Do not rely on the claim. Its proof does not apply to this training.",
            "Find out what differs from the claim: the noise, the clipping, the sampling, or the settings that the "
            "bound was computed for.",
            "Fix it, train again, and audit again. That costs one more training.",
        ]
    limit = result.policy.max_success
    found = [] if ceiling is None else _noise(result, ceiling)
    if ceiling is None:
        example = (
            f"remanence calibrate --max-success {limit:g} --candidates {max(100, math.ceil(10 / limit))}"
        )
        found.append(
            "Only a proof can make it PROTECTED, and none covers this training. Training with calibrated noise has "
            f"one, and costs accuracy. How much noise DP-SGD needs: `{example} --sample-rate 0.01 --steps 1000`, with "
            "your own sampling rate and steps."
        )
    elif ceiling.success > limit and not found:
        found.append(
            "Only a ceiling at or below the limit can make it PROTECTED. More noise lowers it, and costs accuracy."
        )
    if verdict is Verdict.EXPOSED:
        first = "Do not publish this release as it is. A published release cannot be taken back."
        less = result.words.less
        return [first, *found, *([f"{less} Audit that release too."] if less else [])]
    if verdict is Verdict.UNPROVEN:
        more = "A stronger attack" if result.words.by_record else "A stronger attack, or more trials,"
        found.append(
            f"This is not protection. {more} may still beat {thousandths(limit)} in 1000, its control and a guess. "
            "That would make it EXPOSED. Trying costs only time."
        )
        return found
    keep = (
        "Keep the settings that the proof covers. An attack that beats the ceiling would make it CONTRADICTED: "
        "the training would not match its claims."
    )
    return [keep, *found]


def epsilon(result: AuditResult, ceiling: Bound) -> float | None:
    """ε at `DELTA` for the noise that the ceiling covers; None for any other ceiling."""
    now = _segment(result, ceiling)
    try:
        return None if now is None else epsilon_upper(now, DELTA)
    except InputError:
        return None


def _segment(result: AuditResult, ceiling: Bound) -> Segment | None:
    """The training as noisy steps; None if it has another form."""
    settings = result.threat_model["mechanism"]
    noise, rate, steps = (settings.get(name, 1) for name in ("noise_multiplier", "sample_rate", "steps"))
    plain = all(isinstance(value, int | float) for value in (noise, rate, steps))
    known = ceiling.whose == "one record" and ceiling.name in _NOISE_BOUNDS and "noise_multiplier" in settings
    if not known or not plain:
        return None
    try:
        return Segment(noise, rate, steps)
    except InputError:  # impossible settings in a stored result
        return None


def _noise(result: AuditResult, ceiling: Bound) -> list[str]:
    """The least noise whose proof meets the limit, compared with the noise that was used."""
    now, spent = _segment(result, ceiling), epsilon(result, ceiling)
    if now is None or spent is None:
        return []
    noise, baseline = now.noise_multiplier, max(evidence.baseline.value for evidence in result.evidence)
    try:
        needed = calibrate(
            result.policy.max_success, baseline, sample_rate=now.sample_rate, steps=now.steps
        ).segment
        budget = epsilon_upper(needed, DELTA)
    except InputError:  # no noise is enough
        return []
    limit = f"{thousandths(result.policy.max_success)} in 1000, {result.policy.whose} limit"
    more = needed.noise_multiplier > noise
    side = f"would cap every attack at {limit}" if more else f"would already cap every attack at {limit}"
    return [
        f"A noise multiplier of {upwards(needed.noise_multiplier)} (now {noise:g}) {side}. "
        f"Its ε is {upwards(budget)}; now it is {upwards(spent)} (at δ = {DELTA:g})."
        + (" More noise costs accuracy." if more else "")
    ]


def command(result: AuditResult) -> str:
    """The command line that made this result, or an empty string.

    A stored command is shown only if it is one of ours and a shell reads it as written.
    """
    stored = str(result.environment.get("command", ""))
    try:
        words = shlex.split(stored)
    except ValueError:
        return ""
    return stored if words[:1] == ["remanence"] and shlex.join(words) == stored else ""


def python(result: AuditResult) -> str:
    """The call that plays the same game again."""
    limit, made = f"policy=Policy({result.policy.max_success:g})", list(map(_made, result.evidence))
    if result.words.python:
        return result.words.python.replace("...", limit)
    attacks = "attacks" if None in made else f"[{', '.join(filter(None, made))}]"
    rate = result.evidence[0].main
    return f"audit(game, {attacks}, {limit}, trials={rate.clusters or rate.trials}, seed={result.seed})"


def _made(evidence: Evidence) -> str | None:
    """The attack's constructor call, with the settings that are not its defaults."""
    if evidence.attack not in catalogue():
        return None
    attack = load_attack(evidence.attack)
    usual = attack.settings()
    own = {name: value for name, value in evidence.settings.items() if usual.get(name) != value}
    return f"{type(attack).__name__}({', '.join(f'{key}={value!r}' for key, value in own.items())})"
