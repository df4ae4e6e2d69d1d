"""The audit: several attacks play one game, and their results are compared with a policy."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.catalogue import catalogue
from remanence.core.checks import instance
from remanence.core.exceptions import IncompatibleGameError, InputError
from remanence.core.rates import CONFIDENCE
from remanence.game import played
from remanence.protocol import AnyGame, planned
from remanence.results.caveats import check_trials
from remanence.results.evidence import Evidence, Json
from remanence.results.result import AuditResult, achieved
from remanence.results.verdict import Policy, decide
from remanence.scale.fingerprints import device_kind
from remanence.scale.progress import note
from remanence.scale.run import IN_PROCESS, Run
from remanence.scale.seeds import Draws

_PATIENCE = 2.0  # seconds: a slower attack reports its result before the next one begins
_PACKAGES = ("remanence", "torch", "numpy", "scipy", "scikit-learn")


def audit(
    game: AnyGame,
    attacks: Sequence[Attack] | None = None,
    *,
    policy: Policy | None = None,
    trials: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    target: str = "game",
    run: Run = IN_PROCESS,
) -> AuditResult:
    """Let attacks play a game, and reach a verdict.

    Without `attacks`, every attack that can play does. The intervals of all attacks hold simultaneously
    at 95 % (each at 1 − 5 % / attacks), so trying many attacks cannot inflate the verdict. Raises `MisfitError` if
    an input does not match its declaration.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    draws, placed = Draws(seed, device), game.to(device)
    game.fits()
    guess, policy = placed.baseline(), policy or placed.limit()
    _check_limit(guess, policy)
    chosen = _chosen(placed, attacks)
    companions = placed.companions()
    confidence = 1 - (1 - CONFIDENCE) / (len(chosen) + len(companions))
    plans = [planned(placed, attack, trials, draws, run) for attack in chosen]
    run.announce(plans)
    evidence, seconds = [], {}
    for attack, plan, following in zip(chosen, plans, [*chosen[1:], None], strict=True):
        before = time.perf_counter()
        found = played(placed, attack, plan, draws, run, confidence, guess.times)
        seconds[attack.info.name] = time.perf_counter() - before
        evidence.append(replace(found, caveats=(*check_trials(found, policy), *found.caveats)))
        if following is not None and seconds[attack.info.name] > _PATIENCE:
            note(_so_far(game, evidence[-1], seconds[attack.info.name], following))
    beside = []
    for each in companions:
        plan = planned(each.game, each.attack, trials or game.default_trials, draws, run)
        beside.append(replace(played(each.game, each.attack, plan, draws, run, confidence), attack=each.name))
    for bound in game.bounds:
        _check_bound(bound, evidence)
    return AuditResult(
        target=target,
        seed=seed,
        verdict=decide(evidence, game.bounds, policy),
        policy=policy,
        threat_model=_threat_model(game),
        subject={"sha256": game.fingerprints(), **({"columns": list(game.columns)} if game.columns else {})},
        evidence=tuple(evidence),
        bounds=game.bounds,
        environment=environment(started, {**seconds, "total": time.perf_counter() - clock}, device, run),
        companions=tuple(beside),
    )


def _chosen(game: AnyGame, attacks: Sequence[Attack] | None) -> list[Attack]:
    """The attacks that play, each checked once."""
    given: Any = game.attacks() if attacks is None else attacks
    chosen = list(given) if isinstance(given, Iterable) else [given]
    for attack in chosen if attacks is not None else ():
        instance("attacks", attack, Attack, "a list of attacks", "attacks=[MyAttack()]")
        attack.check(game.knowledge)
    if not chosen:
        raise IncompatibleGameError(
            "No attack can play this game.",
            needs="; or ".join(sorted({info.needs for info in catalogue().values()})),
            got=", ".join(game.knowledge.describe()),
            hint="`remanence attacks` lists what each attack needs",
        )
    names = [attack.info.name for attack in chosen]
    if len(set(names)) != len(names):
        raise InputError(
            "An attack was named twice.", needs="each once", got=", ".join(names), hint="drop one"
        )
    return chosen


def _so_far(game: AnyGame, found: Evidence, seconds: float, following: Attack) -> str:
    """One attack's result, shown while the next one runs."""
    done, control = achieved(found, game.words, game.criterion.reduction), found.control
    more = "".join(f" {each.headline(game.words)}" for each in found.findings if each.tells)
    return (
        f"After {seconds:.0f} s: {found.attack} {done}, its control {control.successes} of {control.trials}.{more} "
        f"Now {following.info.name}."
    )


def environment(
    started: datetime, seconds: Mapping[str, float], device: torch.device | str = "cpu", run: Run = IN_PROCESS
) -> Json:
    """When and where an audit ran: everything that may differ between identical runs."""
    return {
        "started": started.isoformat(timespec="seconds"),
        "seconds": dict(seconds),
        "device": device_kind(device),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package: version(package) for package in _PACKAGES},
        **run.describe(),
    }


def _check_limit(guess: Baseline, policy: Policy) -> None:
    """Refuse a limit that a guess already exceeds: every release would be EXPOSED."""
    if policy.max_success <= guess.lower:
        raise InputError(
            "No release can meet this limit.",
            needs=f"a limit above what a guess achieves ({guess.lower:.4g}: {guess.note})",
            got=f"max_success = {policy.max_success:g}",
            hint=f"--max-success {math.ceil(100 * (guess.lower + 0.1 * (1 - guess.lower)) - 1e-9) / 100:g}",
        )


def _check_bound(bound: Bound, evidence: Sequence[Evidence]) -> None:
    """Refuse a bound that applies to another game, since the verdict would rest on it."""
    if np.ndim(bound.log_success) > 0:
        raise InputError(
            "A game needs a bound at one baseline.",
            needs="one number",
            got=f"{np.size(bound.log_success)} of them",
            hint="bounds.dpsgd(baseline, ...) with a single baseline",
        )
    largest = max(entry.baseline.value for entry in evidence)
    if bound.log_baseline is not None and largest > bound.baseline * (1 + 1e-9):
        raise InputError(
            f"The bound {bound.name!r} was computed for another baseline.",
            needs=f"a baseline of at least {largest:.6g}, which a guess in this game may achieve",
            got=f"{float(bound.baseline):.6g}",
            hint="compute it at prior.baseline(criterion).value; for sets of records, times the chances",
        )


def _threat_model(game: AnyGame) -> Json:
    knowledge, criterion = game.knowledge, game.criterion
    return {
        "game": type(game).__name__,
        "door": game.door,
        "said": {**asdict(game.words), "tests": list(game.words.tests)},
        "adversary": knowledge.adversary,
        "sees": game.mechanism.releases.sees,
        "knows": knowledge.describe(),
        "mechanism": {"name": game.mechanism.name, **game.mechanism.settings()},
        "criterion": {
            "error": criterion.error.name,
            "threshold": criterion.threshold,
            "reduction": str(criterion.reduction),
            "label_scale": criterion.label_scale,
        },
    }
