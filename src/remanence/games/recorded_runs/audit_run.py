"""Audit a recorded run with its canaries: does the training claim less than they show?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from remanence import bounds
from remanence.adversary.priors import Baseline
from remanence.auditing import AuditResult, environment
from remanence.bounds import Bound, Segment
from remanence.bounds.one_run import Outcome, dpsgd_curve, gaussian_epsilon
from remanence.bounds.settings import DPSGD_ASSUMPTIONS
from remanence.exceptions import InputError
from remanence.games.recorded_runs.canaries import draw
from remanence.games.recorded_runs.consistency import RecordedRun, read_run
from remanence.games.recorded_runs.exchange_test import Projections
from remanence.games.recorded_runs.projections import guesses
from remanence.games.recorded_runs.recording import Recording
from remanence.references import BESAG_1989, MAHLOUJIFAR_2024, REMANENCE
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy, decide
from remanence.scale.progress import track
from remanence.scale.seeds import stream
from remanence.scoring.rates import CONFIDENCE, SuccessRate

ATTACK = "one-run-canaries"
_STATES = 100  # of the exact test: the smallest p-value is 1 in so many
_SEARCHING = 40  # states, while searching for the noise
_HALVINGS = 4  # to 4 % of the noise
_MOST_NOISE = 64.0  # times the claim's: what leaks less than that is not told from nothing
_SUREST = 0.3  # of the canaries that are in or out: guessing only these makes the strongest test


def audit_run(
    folder: str | Path,
    *,
    policy: Policy | None = None,
    seed: int = 0,
    guessed: int | None = None,
    delta: float = 1e-5,
    target: str | None = None,
) -> AuditResult:
    """Guess the canaries of a recorded run and hold the count against the accountant's claim.

    CONTRADICTED if the claimed training would give so many correct guesses with a probability of at most 5 %,
    however the canaries of one run depend on each other: by the exact test of `exchange_test` if the run's
    projections were kept, and by the theorem of `remanence.bounds.one_run` otherwise. The theorem's limits on μ and ε
    hold for any mechanism; `guessed` is how many canaries its attack does not abstain on, and must not be chosen
    by looking at the result.
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
    wanted = (round(_SUREST * count) if candidates == 1 else count) if guessed is None else guessed
    surest = sureness.argsort(descending=True)[: max(1, wanted)]
    right = guess == chosen
    outcome = Outcome(int(right[surest].sum()), len(surest), count, candidates)
    level = 1 - CONFIDENCE
    exact = _exact_test(run.recording, guess, chosen, candidates, seed)
    of_any = outcome.p_value(dpsgd_curve(run.claimed))
    p_value = of_any if exact is None else exact(1.0, _STATES)
    ceiling = _ceiling(run.claimed, candidates)

    def rejects(scale: float) -> bool:
        if exact is not None:
            return exact(scale, _SEARCHING) <= level
        return outcome.rejects(dpsgd_curve(_scaled(run.claimed, scale)), level)

    rejected = p_value <= level
    scale = _least_rejected(rejects, rejected=rejected)
    best = 0.0 if scale is None else float(_ceiling(_scaled(run.claimed, scale), candidates).success)
    deviations = run.deviations()
    stranger = guess == draw(count, candidates, stream(seed, "control", "cpu"))
    mu = outcome.mu_lower(level)
    evidence = Evidence(
        attack=ATTACK,
        main=_rate(int(right.sum()), count, best if rejected else min(best, ceiling.success)),
        control=SuccessRate(int(stranger.sum()), count),
        baseline=Baseline(1 / choices, 1 / choices, f"one of {choices} equally likely choices"),
        caveats=deviations,
        findings={
            "surest_guesses": outcome.guesses,
            "surest_guesses_correct": outcome.correct,
            "p_value_of_the_claim": p_value,
            "p_value_of_any_such_mechanism": of_any,
            "best_attack_at_least": best,
            "gaussian_mu_at_least": mu,
            "epsilon_at_least_if_gaussian": gaussian_epsilon(mu, delta),
            "epsilon_at_least": outcome.epsilon_lower(delta, level),
            **({} if scale is None else {"epsilon_at_least_if_dpsgd": _epsilon(run, scale, delta)}),
            "delta": delta,
            "claimed_epsilon": _epsilon(run, 1.0, delta),
            **(
                {} if scale is None else {"noise_multiplier_at_most": scale * run.claimed[0].noise_multiplier}
            ),
            "claimed_noise_multiplier": run.claimed[0].noise_multiplier,
            "realised_noise_multiplier": run.noise_multiplier,
            "claimed_sample_rate": run.claimed[0].sample_rate,
            "realised_sample_rate": run.sample_rate,
            "steps": run.steps,
        },
        arrays={"guess": guess, "sureness": sureness, "succeeded": right},
    )
    # A claim that the recording itself disproves protects nobody; it can still be contradicted.
    proven = (ceiling,) if not deviations or rejected else ()
    return AuditResult(
        target=target or str(folder),
        seed=seed,
        verdict=decide([evidence], proven, policy),
        policy=policy,
        threat_model=_threat_model(run, described),
        subject={"sha256": {"canaries": described["sha256"], **_hashes(run.recording)}},
        evidence=(evidence,),
        bounds=proven,
        environment=environment(started, {"total": time.perf_counter() - clock}),
    )


def _exact_test(
    recording: Recording, guess: Tensor, chosen: Tensor, candidates: int, seed: int
) -> Callable[[float, int], float] | None:
    """The p-value of the claim with so many times its noise; None where the projections were too large to keep."""
    if "projections.safetensors" not in recording.manifest["files"]:
        return None
    arrays: dict[str, Any] = {name: t.numpy() for name, t in recording.tensors("projections").items()}
    run = Projections(**arrays, candidates=candidates)

    def p_value(scale: float, states: int) -> float:
        return run.p_value(guess.numpy(), chosen.numpy(), seed=seed, scale=scale, states=states)

    return p_value


def _least_rejected(rejects: Callable[[float], bool], *, rejected: bool) -> float | None:
    """The least noise, in units of the claim's, at which this outcome is too good; None if at no noise."""
    kept, out = (0.5, 1.0) if rejected else (1.0, 2.0)
    while rejected and kept > 1e-3 and rejects(kept):
        kept, out = kept / 2, kept
    while not rejected and not rejects(out):
        kept, out = out, 2 * out
        if out > _MOST_NOISE:
            return None
    for _ in track(range(_HALVINGS), total=_HALVINGS, what="searching the noise that explains it"):
        middle = math.sqrt(kept * out)
        kept, out = (kept, middle) if rejects(middle) else (middle, out)
    return out


def _rate(right: int, count: int, best: float) -> SuccessRate:
    """The share found, with a lower limit on what the best attack on such a run finds.

    That limit may be above the share, which no interval should be, and so gives way to the exact one.
    """
    return SuccessRate(right, count, floor=min(best, SuccessRate(right, count).lower))


def _epsilon(run: RecordedRun, scale: float, delta: float) -> float:
    return bounds.epsilon_upper(_scaled(run.claimed, scale), delta)


def _scaled(claimed: Sequence[Segment], scale: float) -> list[Segment]:
    return [Segment(scale * s.noise_multiplier, s.sample_rate, s.steps) for s in claimed]


def _ceiling(claimed: Sequence[Segment], candidates: int) -> Bound:
    """What no attack exceeds under these settings: γ for a shortlist, (1 + δ(0)) / 2 for in or out."""
    if candidates > 1:
        return bounds.dpsgd(1 / candidates, schedule=list(claimed))
    success = (1 + bounds.delta_upper(claimed, 0.0)) / 2
    return Bound("DP-SGD as accounted, in or out", math.log(success), DPSGD_ASSUMPTIONS, REMANENCE)


def _threat_model(run: RecordedRun, described: dict) -> dict:
    first = run.claimed[0]
    kind = "in or out" if described["candidates"] == 1 else f"one of {described['candidates']} each"
    return {
        "game": "OneRun",
        "adversary": "informed",
        "sees": "every privatised gradient",
        "knows": [
            "the training algorithm (DP-SGD by Opacus)",
            "all training records but the canaries, and the batches they were in",
            f"{described['count']} canaries ({described['design']}; {kind})",
        ],
        "mechanism": {
            "name": "DP-SGD (Opacus)",
            "noise_multiplier": first.noise_multiplier,
            "sample_rate": first.sample_rate,
            "steps": run.steps,
            "max_grad_norm": run.recording.manifest["max_grad_norm"],
            "analysis": f"{BESAG_1989.short}; {MAHLOUJIFAR_2024.short}",
        },
        "criterion": {"error": "mismatch", "threshold": 0.5, "reduction": "each", "label_scale": None},
    }


def _hashes(recording: Recording) -> dict[str, str]:
    return {f"recording/{name}": value for name, value in recording.manifest["files"].items()}
