"""Tell by their loss which canaries a fine-tuning saw, and hold the count against its claim.

One fine-tuning suffices. How many coins can be told from the losses limits ε from below, for any way of training
(`remanence.bounds.one_run`), and holds a claim of private fine-tuning to its word.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, final

import torch
from scipy.special import ndtr
from torch import Tensor

from remanence import bounds
from remanence.adversary.baseline import Baseline
from remanence.attacks.texts.decoding import Decoding
from remanence.attacks.texts.odds import log_probabilities
from remanence.auditing import AuditResult, environment
from remanence.bounds import Bound, Segment
from remanence.bounds.one_run import GuessCount, LinesCurve, TradeOff, dpsgd_curve
from remanence.bounds.settings import DPSGD_ASSUMPTIONS
from remanence.checks import number
from remanence.exceptions import InputError
from remanence.games.texts.canaries import TextCanaries
from remanence.games.texts.secrets import read_records
from remanence.mechanisms.language_model import LanguageModel
from remanence.references import REMANENCE
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy, decide
from remanence.scale.seeds import stream
from remanence.scoring.rates import CONFIDENCE, SuccessRate

ATTACK = "one-run-texts"
_SUREST = 0.3  # of the canaries: guessing only these makes the strongest test


@final
@dataclass(frozen=True)
class Claim:
    """What a private fine-tuning says of itself: (ε, δ), or the settings of its DP-SGD, which say more."""

    epsilon: float | None = None
    delta: float = 1e-5
    dpsgd: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (not self.dpsgd):
            raise InputError(
                "The claim says nothing, or two things.",
                needs="either epsilon and delta, or the settings of DP-SGD",
                got=f"epsilon={self.epsilon}, {len(self.dpsgd)} segments",
                hint="Claim(epsilon=8, delta=1e-5), or Claim(dpsgd=(Segment(1.0, 0.01, 1000),))",
            )
        if self.epsilon is not None:
            number("epsilon", self.epsilon, least=0)
        number("delta", self.delta, above=0, below=1)

    @property
    def curve(self) -> TradeOff:
        """What it allows, as a trade-off."""
        if self.epsilon is None:
            return dpsgd_curve(list(self.dpsgd))
        return LinesCurve(((self.epsilon, self.delta),))

    def ceiling(self) -> Bound:
        """How often anybody tells in from out: (e^ε + δ) / (e^ε + 1), or (1 + δ(0)) / 2 by the settings."""
        if self.epsilon is None:
            success = (1 + bounds.delta_upper(list(self.dpsgd), 0.0)) / 2
            return Bound("DP-SGD as claimed, in or out", math.log(success), DPSGD_ASSUMPTIONS, REMANENCE)
        odds = math.exp(min(self.epsilon, 700.0))
        success = min(1.0, (odds + self.delta) / (odds + 1))
        assumptions = (
            f"the fine-tuning is ({self.epsilon:g}, {self.delta:g})-DP when a text is added or removed",
        )
        return Bound("(ε, δ)-DP as claimed, in or out", math.log(success), assumptions, REMANENCE)

    def extraction(self, baseline: float) -> Bound:
        """γ: how often anybody brings out a secret at most that a guess finds this often."""
        if self.epsilon is None:
            return bounds.dpsgd(baseline, schedule=list(self.dpsgd))
        return bounds.approximate_dp(baseline, epsilon=self.epsilon, delta=self.delta)


def audit_canaries(
    model: LanguageModel,
    canaries: TextCanaries,
    *,
    base: LanguageModel | None = None,
    claim: Claim | None = None,
    policy: Policy | None = None,
    seed: int = 0,
) -> AuditResult:
    """Tell by their loss which canaries a fine-tuning saw, and hold the count against its claim.

    A canary's score is how much likelier its secret became since the base model. The limit is on telling in from out,
    of which a guess achieves half; 0.75 if nobody says. CONTRADICTED if the claim makes so many correct guesses less
    likely than 5 %.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    model.require_causal()
    secrets = read_records(list(canaries.records), model)
    scores = log_probabilities(model, secrets, [Decoding()])[0]
    if base is not None:
        scores = scores - log_probabilities(base, secrets, [Decoding()])[0]
    policy = policy or Policy(0.75)
    if policy.max_success <= 0.5:
        raise InputError(
            "No fine-tuning can meet this limit.",
            needs="a limit above 0.5, which a coin achieves",
            got=f"max_success = {policy.max_success:g}",
            hint="Policy(0.75)",
        )
    evidence = judge(scores, canaries.chosen, claim, seed=seed)
    proven = () if claim is None else (claim.ceiling(),)
    packed = json.dumps([list(canaries.records), canaries.chosen.tolist()]).encode()
    hashes = {"canaries": hashlib.sha256(packed).hexdigest(), "model": model.sha256}
    return AuditResult(
        target=model.name,
        seed=seed,
        verdict=decide([evidence], proven, policy),
        policy=policy,
        threat_model=_threat_model(model, base, canaries),
        subject={"sha256": {name: value for name, value in hashes.items() if value}},
        evidence=(evidence,),
        bounds=proven,
        environment=environment(started, {"total": time.perf_counter() - clock}),
    )


def judge(scores: Tensor, chosen: Tensor, claim: Claim | None, *, seed: int = 0) -> Evidence:
    """What scores tell about coins: larger ones are guessed in, and the surest guesses are counted."""
    level, delta = 1 - CONFIDENCE, 1e-5 if claim is None else claim.delta
    centred = scores.double().nan_to_num(nan=0.0) - scores.double().nanmedian()
    guess = centred > 0
    right = guess == chosen
    surest = centred.abs().argsort(descending=True)[: max(1, round(_SUREST * len(scores)))]
    outcome = GuessCount(int(right[surest].sum()), len(surest), len(scores))
    again = torch.randint(2, chosen.shape, generator=stream(seed, "control", "cpu")).bool()
    count = int(right.sum())
    mu = outcome.mu_lower(level)
    least = float(ndtr(mu / 2))  # the success of the best attack on one canary, if the training is Gaussian
    return Evidence(
        attack=ATTACK,
        # Canaries of one run depend on each other: the lower limit is the theorem's.
        main=SuccessRate(count, len(right), floor=min(least, SuccessRate(count, len(right)).lower)),
        control=SuccessRate(int((guess == again).sum()), len(right)),
        baseline=Baseline(0.5, 0.5, "a coin"),
        findings={
            "surest_guesses": outcome.guesses,
            "surest_guesses_correct": outcome.correct,
            "epsilon_at_least": outcome.epsilon_lower(delta, level),
            "gaussian_mu_at_least": mu,
            "delta": delta,
            **({} if claim is None else {"p_value_of_the_claim": outcome.p_value(claim.curve)}),
            **({} if claim is None or claim.epsilon is None else {"claimed_epsilon": claim.epsilon}),
        },
        arrays={"score": scores.double(), "guess": guess, "succeeded": right},
    )


def _threat_model(model: LanguageModel, base: LanguageModel | None, canaries: TextCanaries) -> dict[str, Any]:
    against = "their probability under the base model" if base is not None else "no base model"
    return {
        "game": "OneRun",
        "adversary": "informed",
        "sees": "the probability that the model gives to any text",
        "knows": [f"{len(canaries)} canaries ({canaries.design}; in or out)", against],
        "mechanism": {"name": "fine-tuning of a language model", "model": model.name},
        "criterion": {"error": "mismatch", "threshold": 0.5, "reduction": "each", "label_scale": None},
    }
