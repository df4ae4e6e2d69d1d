"""What would change the verdict: the noise that would, its ε, and the limit at which it turns."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.bounds import Segment, epsilon_upper
from remanence.bounds.bound import Bound
from remanence.bounds.calibration import calibrate
from remanence.exceptions import InputError
from remanence.report import words
from remanence.report.tables import thousandths, upwards
from remanence.results.verdict import Verdict

DELTA = 1e-5
_NOISE_BOUNDS = ("DP-SGD", "Gaussian mechanism")  # whose proof holds for any other noise as well


def remedies(result: AuditResult) -> list[str]:
    """Sentences, the most useful first."""
    ceiling, limit = words.tightest(result), result.policy.max_success
    if result.verdict is Verdict.CONTRADICTED:
        return [
            "Find out what differs from the claim: the noise, the clipping, the sampling, or the settings "
            "that the bound was computed for. Until then the bound speaks about another training.",
        ]
    found = [] if ceiling is None else _noise(result, ceiling)
    if ceiling is None:
        found.append(
            "No proven bound covers this training, so no number of failed attacks can make it PROTECTED. "
            "Training with calibrated noise can: see remanence calibrate."
        )
    if result.verdict is Verdict.EXPOSED:
        found.insert(0, "Do not publish this release as it is. What has been published cannot be taken back.")
    elif result.verdict is Verdict.UNPROVEN:
        found.append(
            f"An attack that certainly beats {thousandths(limit)} in 1000, its control and a guess would make it "
            "EXPOSED. More trials, or a stronger attack, may find one."
        )
    elif ceiling is not None and ceiling.on_average:
        found.append("Less noise, more steps, or more records of a class would raise the ceiling.")
    else:
        found.append(
            "An attack that beats the ceiling would make it CONTRADICTED: the training would then not be "
            "what it claims to be."
        )
    return found


def _noise(result: AuditResult, ceiling: Bound) -> list[str]:
    """The least noise whose proof meets the limit, beside the noise that was used."""
    settings = result.threat_model["mechanism"]
    noise, rate, steps = (settings.get(name, 1) for name in ("noise_multiplier", "sample_rate", "steps"))
    plain = all(isinstance(value, int | float) for value in (noise, rate, steps))
    if ceiling.name not in _NOISE_BOUNDS or "noise_multiplier" not in settings or not plain:
        return []
    baseline = max(evidence.baseline.value for evidence in result.evidence)
    try:
        now = Segment(noise, rate, steps)
        needed = calibrate(
            result.policy.max_success, baseline, sample_rate=now.sample_rate, steps=now.steps
        ).segment
        budget, spent = epsilon_upper(needed, DELTA), epsilon_upper(now, DELTA)
    except InputError:  # settings that a stored result claims, and that no training can have
        return []
    limit = thousandths(result.policy.max_success)
    if needed.noise_multiplier > noise:
        side = f"would cap every attack at {limit} in 1000, your limit, and make it PROTECTED"
    else:
        side = f"is enough to cap every attack at {limit} in 1000, your limit"
    return [
        f"A noise multiplier of {upwards(needed.noise_multiplier)} (now {noise:g}) {side}. "
        f"That is ({upwards(budget)}, {DELTA:g})-DP; now it is ({upwards(spent)}, {DELTA:g})-DP."
    ]
