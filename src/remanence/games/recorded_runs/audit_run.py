"""Audit a recorded run with its canaries: does the training claim less than they show?"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from remanence import bounds
from remanence.adversary.priors import Baseline
from remanence.auditing import AuditResult, environment
from remanence.bounds import Bound, Segment
from remanence.bounds.settings import DPSGD_ASSUMPTIONS
from remanence.exceptions import InputError
from remanence.games.recorded_runs.canaries import draw
from remanence.games.recorded_runs.claim_test import LEVEL, ClaimTest, scaled
from remanence.games.recorded_runs.consistency import RecordedRun, read_run
from remanence.games.recorded_runs.reading import guesses
from remanence.references import BESAG_1989, MAHLOUJIFAR_2024, REMANENCE
from remanence.results import caveats
from remanence.results.caveats import Caveat
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy, decide
from remanence.rounds import stream
from remanence.scoring.rates import SuccessRate

ATTACK = "one-run-canaries"


def audit_run(
    folder: str | Path,
    *,
    policy: Policy | None = None,
    seed: int = 0,
    guessed: int | None = None,
    delta: float = 1e-5,
    level: float = LEVEL,
    target: str | None = None,
) -> AuditResult:
    """Hold a recorded run against its accountant's claim, and guess its canaries.

    CONTRADICTED if something was measured that the claim excludes, or if the claimed training would make such a run
    with a probability of at most `level`, however its canaries depend on each other: by the exact test of
    `exchange_test` and the theorem of `remanence.bounds.one_run` together. `guessed` is how many canaries the theorem's
    attack does not abstain on, and must not be chosen by looking at the result.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    policy = policy or Policy()
    run = read_run(Path(folder))
    described = run.recording.manifest.get("canaries")
    if described is None:
        raise InputError(
            "The run was recorded without canaries.",
            needs="canaries in the training data, to be found again",
            got=f"{folder} with {run.steps} steps and no canary",
            hint="record(..., canaries=...); `remanence bound --opacus FOLDER` needs none",
        )
    tensors = run.recording.tensors("canaries")
    scores, chosen = tensors["scores"], tensors["chosen"]
    count, candidates = scores.shape
    choices = max(2, candidates)
    if policy.max_success <= 1 / choices:
        raise InputError(
            "No release can meet this limit.",
            needs=f"a limit above what a guess achieves ({1 / choices:.4g})",
            got=f"max_success = {policy.max_success:g}",
            hint="--max-success 0.75 for canaries that are in or out",
        )
    guess, sureness = guesses(scores)
    right = guess == chosen
    test = ClaimTest.of(run, scores, chosen, guessed=guessed, seed=seed)
    findings = {"accused_at": level, **test.findings(delta), **_measured(run)}
    ceiling = _ceiling(run.claimed, candidates)
    least = findings.get("noise_multiplier_at_most")
    shown = 0.0 if least is None else least / run.claimed[0].noise_multiplier
    best = 0.0 if least is None else float(_ceiling(scaled(run.claimed, shown), candidates).success)
    found = tuple(_caveats(run, findings["p_value_of_the_claim"], level))
    accused = findings["p_value_of_the_claim"] <= level or any(caveat.contradicts for caveat in found)
    stranger = guess == draw(count, candidates, stream(seed, "control", "cpu"))
    evidence = Evidence(
        attack=ATTACK,
        main=_rate(int(right.sum()), count, best if accused else min(best, float(ceiling.success))),
        control=SuccessRate(int(stranger.sum()), count),
        baseline=Baseline(1 / choices, 1 / choices, f"one of {choices} equally likely choices"),
        caveats=found,
        findings={"best_attack_at_least": best, **findings},
        arrays={"guess": guess, "sureness": sureness, "succeeded": right},
    )
    # A claim whose ground is gone protects nobody; it can still be contradicted.
    proven = () if any(caveat.voids or caveat.contradicts for caveat in found) else (ceiling,)
    return AuditResult(
        target=target or str(folder),
        seed=seed,
        verdict=decide(
            [evidence.main], min((b.success for b in proven), default=None), policy, rejected=accused
        ),
        policy=policy,
        threat_model=_threat_model(run, described),
        subject={"sha256": {"canaries": described["sha256"], **_hashes(run)}},
        evidence=(evidence,),
        bounds=proven,
        environment=environment(started, {"total": time.perf_counter() - clock}),
    )


def _caveats(run: RecordedRun, p_value: float, level: float) -> Iterator[Caveat]:
    yield from run.deviations()
    if level < p_value <= max(level, 0.05):
        yield replace(caveats.SUSPICIOUS, seen=f"p = {p_value:.2g}.")


def _measured(run: RecordedRun) -> dict[str, float]:
    noise, claim = run.noise, run.claimed[0]
    return {
        "claimed_noise_multiplier": claim.noise_multiplier,
        "measured_noise_multiplier": noise.value,
        "measured_noise_multiplier_from": noise.lower,
        "measured_noise_multiplier_to": noise.upper,
        "claimed_sample_rate": claim.sample_rate,
        "measured_sample_rate": run.sample_rate,
        "steps": run.steps,
    }


def _rate(right: int, count: int, best: float) -> SuccessRate:
    """The share found, with a lower limit on what the best attack on such a run finds.

    That limit may be above the share, which no interval should be, and so gives way to the exact one.
    """
    return SuccessRate(right, count, floor=min(best, SuccessRate(right, count).lower))


def _ceiling(claimed: Sequence[Segment], candidates: int) -> Bound:
    """What no attack exceeds under these settings: γ for a shortlist, (1 + δ(0)) / 2 for in or out."""
    if candidates > 1:
        return bounds.dpsgd(1 / candidates, schedule=list(claimed))
    success = (1 + bounds.delta_upper(claimed, 0.0)) / 2
    return Bound("DP-SGD as accounted, in or out", math.log(success), DPSGD_ASSUMPTIONS, REMANENCE)


def _threat_model(run: RecordedRun, described: dict) -> dict[str, Any]:
    first = run.claimed[0]
    kind = "in or out" if described["candidates"] == 1 else f"one of {described['candidates']} each"
    return {
        "game": "OneRun",
        "adversary": "informed",
        "sees": "every privatised gradient",
        "knows": [
            f"the training algorithm (DP-SGD by {run.recording.manifest['framework']})",
            "all training records but the canaries, and the batches they were in",
            f"{described['count']} canaries ({described['design']}; {kind})",
        ],
        "mechanism": {
            "name": "DP-SGD",
            "noise_multiplier": first.noise_multiplier,
            "sample_rate": first.sample_rate,
            "steps": run.steps,
            "max_grad_norm": run.max_grad_norm,
            "analysis": f"{BESAG_1989.short}; {MAHLOUJIFAR_2024.short}",
        },
        "criterion": {"error": "mismatch", "threshold": 0.5, "reduction": "each", "label_scale": None},
    }


def _hashes(run: RecordedRun) -> dict[str, str]:
    return {f"recording/{name}": value for name, value in run.recording.manifest["files"].items()}
