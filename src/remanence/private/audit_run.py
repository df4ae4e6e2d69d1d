"""Audit a recorded run: does the training match its claim, and which canaries can be inferred?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import torch

from remanence import bounds
from remanence.auditing import AuditResult, audit
from remanence.bounds import Bound, Segment
from remanence.bounds.one_run import GuessCount, dpsgd_curve, gaussian_epsilon
from remanence.bounds.settings import DPSGD_ASSUMPTIONS
from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, mismatch
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.priors import FinitePrior
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.core.references import REMANENCE
from remanence.core.releases import Release
from remanence.private import caveats
from remanence.private.canaries import CanaryEvidence, OneRunCanaries, draw, guesses
from remanence.private.consistency import RecordedRun, read_run
from remanence.protocol import AnyGame, Prepared, Unit, Work
from remanence.results.caveats import Caveat
from remanence.results.claims import PrivacyTest, split
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.progress import track
from remanence.scale.seeds import Draws

_DELTA = 1e-5
_ROUNDING = 1e-4  # clipping norms that are always allowed for, so that a ceiling is the same on every machine
_LEVEL = 1e-3  # at which a run is accused: an honest one less than once in a thousand
_SEARCHED = 0.05  # level of the limits on noise, μ and ε
_LEAST_SCALE, _MOST_SCALE = 2.0**-10, 2.0**6  # of the claim's noise: a smaller leak counts as none
_HALVINGS = 8  # of that range of 16 octaves, to 4 % of the noise
_LEAST_NOISE = 0.05  # twenty standard deviations between a record and none, in every step that has it


@final
@dataclass(frozen=True)
class ClaimTest:
    """The accountant's claim, tested by the number of canaries guessed."""

    claimed: Sequence[Segment]
    counted: GuessCount

    @classmethod
    def of(cls, run: RecordedRun) -> ClaimTest:
        """The test of one run."""
        scores, chosen = run.tensors["scores"], run.tensors["chosen"]
        guess, sureness = guesses(scores)
        counted = GuessCount.of_surest(guess == chosen, sureness, candidates=scores.shape[1])
        return cls(run.claimed, counted)

    def p_value(self, scale: float = 1.0) -> float:
        """For every mechanism with the claim's trade-off curve, or that of `scale` times its noise."""
        claimed = scaled(self.claimed, scale)
        return self.counted.p_value(dpsgd_curve(claimed)) if hides(claimed) else 1.0

    def least_noise_rejected(self) -> float | None:
        """The least noise, in units of the claim's, at which this run is too revealing; None if at no noise."""
        kept, out = _LEAST_SCALE, _MOST_SCALE
        if self.p_value(out) > _SEARCHED:
            return None
        for _ in track(range(_HALVINGS), total=_HALVINGS, what="searching for the noise that explains it"):
            middle = math.sqrt(kept * out)
            kept, out = (kept, middle) if self.p_value(middle) <= _SEARCHED else (middle, out)
        return out

    def findings(self) -> dict[str, float]:
        """All that follows for the report, by name."""
        scale, mu = self.least_noise_rejected(), self.counted.mu_lower(_SEARCHED)
        found = {
            "p_value_of_the_claim": self.p_value(),
            "surest_guesses": self.counted.guesses,
            "surest_guesses_correct": self.counted.correct,
            "gaussian_mu_at_least": mu,
            "epsilon_at_least_if_gaussian": gaussian_epsilon(mu, _DELTA),
            "epsilon_at_least": self.counted.epsilon_lower(_DELTA, _SEARCHED),
            "delta": _DELTA,
        }
        if scale is not None:
            found["noise_multiplier_at_most"] = scale * self.claimed[0].noise_multiplier
            found |= _epsilon("epsilon_at_least_if_dpsgd", scaled(self.claimed, scale))
        return found | _epsilon("claimed_epsilon", self.claimed)


def hides(claimed: Sequence[Segment]) -> bool:
    """Whether there is so much noise that a bound is worth computing: with less, every record in a batch stands out."""
    return min(segment.noise_multiplier for segment in claimed) >= _LEAST_NOISE


def _epsilon(name: str, claimed: Sequence[Segment]) -> dict[str, float]:
    return {name: bounds.epsilon_upper(claimed, _DELTA)} if hides(claimed) else {}


def scaled(claimed: Sequence[Segment], scale: float) -> list[Segment]:
    """The same settings with more or less noise."""
    return [Segment(scale * s.noise_multiplier, s.sample_rate, s.steps) for s in claimed]


@final
@dataclass(frozen=True)
class RecordedTraining(Mechanism[CanaryEvidence]):
    """A recorded run by its claim."""

    run: RecordedRun
    name: ClassVar[str] = "DP-SGD, recorded"

    @property
    def releases(self) -> type[Release]:
        """Log odds."""
        return CanaryEvidence

    def release(
        self, known_data: Records | None, targets: Records, generator: torch.Generator
    ) -> CanaryEvidence:
        """It is over."""
        raise NotImplementedError("a recorded run is not trained again")

    def settings(self) -> dict[str, Setting]:
        """What was claimed, and by whom."""
        claim = self.run.claimed[0]
        return {
            "noise_multiplier": claim.noise_multiplier,
            "sample_rate": claim.sample_rate,
            "steps": self.run.steps,
            "max_grad_norm": float(self.run.tensors["settings"][0, 0]),
            "framework": self.run.manifest["framework"],
        }


@final
@dataclass(frozen=True)
class CanaryKnowledge(Knowledge):
    """What an adversary knows who wants to identify canaries."""

    canaries: str = ""

    @property
    def adversary(self) -> str:
        """All records but the canaries are known."""
        return "informed"

    def describe(self) -> list[str]:
        """What is known, a line each."""
        return [
            f"the training algorithm ({self.mechanism.name} by {self.mechanism.settings()['framework']})",
            "all training records but the canaries, and the batches they were in",
            self.canaries,
        ]


@final
@dataclass(frozen=True)
class OneRun(AnyGame):
    """One recorded run in which every canary is a trial: was it trained on, or which of its shortlist was?

    What was measured while it ran, and the tests of its claim, are findings and caveats of the game. `best` is what
    the best attack on such a run achieves at least; canaries share the run's noise, and no binomial interval would do.
    """

    door: ClassVar[str] = "private"

    run: RecordedRun
    mechanism: Mechanism[Release]
    test: PrivacyTest
    numbers: Mapping[str, float]
    found: tuple[Caveat, ...]
    best: float
    bounds: tuple[Bound, ...]
    criterion: Criterion = Criterion(mismatch, 0.5)

    @classmethod
    def of(cls, run: RecordedRun) -> OneRun:
        """The game of a run, with what its claim's test says."""
        candidates = run.tensors["scores"].shape[1]
        test, numbers = split({"accused_at": _LEVEL, **ClaimTest.of(run).findings(), **run.measured()})
        assert test is not None
        least, found = numbers.get("noise_multiplier_at_most"), run.deviations()
        if test.suspicious:
            found += (replace(caveats.SUSPICIOUS, seen=f"p = {test.p_value_of_the_claim:.2g}."),)
        # One record moves sums that differ by rounding by at most this much more than the clipping norm.
        off = max(_ROUNDING, run.manifest["rounding"])
        ceiling = _ceiling(scaled(run.claimed, 1 / (1 + 2 * off)), candidates)
        best = 0.0
        if least is not None:
            shown = scaled(run.claimed, least / run.claimed[0].noise_multiplier)
            best = float(_ceiling(shown, candidates).success)
        accused = test.contradicts or any(caveat.contradicts for caveat in found)
        sound = not any(caveat.voids or caveat.contradicts for caveat in found)
        return cls(
            run,
            RecordedTraining(run),
            test,
            {"best_attack_at_least": best, **numbers},
            found,
            best if accused else min(best, float(ceiling.success)),
            (ceiling,) if sound else (),  # a claim that was refuted protects no one
        )

    @property
    def _candidates(self) -> int:
        return self.run.tensors["scores"].shape[1]

    @property
    def default_trials(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Every canary is one."""
        return len(self.run.tensors["chosen"])

    @property
    def knowledge(self) -> Knowledge:
        """Everything but the coin."""
        planted, choices = self.run.manifest["canaries"], self._candidates
        kind = "in or out" if choices == 1 else f"one of {choices} each"
        candidates = torch.arange(-1.0, 1.0) if choices == 1 else torch.arange(float(choices))
        prior = FinitePrior(Records(candidates[:, None], torch.zeros(len(candidates))))
        words = f"{planted['count']} canaries ({planted['design']}; {kind})"
        return CanaryKnowledge(self.mechanism, prior, None, canaries=words)

    def trials(self, prepared: Prepared, draws: Draws, unit: Unit) -> Outcome:
        """Every canary against its coin, and against one that decided nothing."""
        guess = prepared.for_unit(draws, unit)(CanaryEvidence({"log_odds": self.run.tensors["scores"]}))
        coins = draw(self.default_trials, self._candidates, draws.stream("control", unit.number))
        own, strangers = (
            Records(choices.double()[:, None, None], torch.zeros(len(choices), 1))
            for choices in (self.run.tensors["chosen"], coins)
        )
        return Outcome(
            main=self.criterion.compare(own, guess.records),
            control=self.criterion.compare(strangers, guess.records),
            numbers=guess.numbers(),
            claims_labels=False,
        )

    def baseline(self, chances: int = 1) -> Baseline:
        """A guess among equally likely choices."""
        choices = max(2, self._candidates)
        return Baseline(1 / choices, 1 / choices, f"one of {choices} equally likely choices")

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All canaries at once: they were drawn when the run was recorded."""
        return Work(self.default_trials, self.default_trials, (self.fingerprints(),))

    @property
    def words(self) -> Words:
        """Canaries: in or out, or one of a shortlist."""
        listed = self._candidates > 1
        picked = "it is picked out of its shortlist" if listed else "the guess, in or out, is right"
        return Words("identified", "canaries", counts=f"A canary counts if {picked}.")

    def caveats(self) -> Iterator[Caveat]:
        """Where the run deviates from its claim."""
        return iter(self.found)

    def measures(self) -> dict[str, float]:
        """What was measured."""
        return dict(self.numbers)

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """The test of the claim."""
        return (self.test,)

    def certain(self, rate: SuccessRate) -> SuccessRate:
        """The share that was told, with a lower limit on what the best attack on such a run tells.

        That limit may be above the share, which no interval should be, and so gives way to the exact one.
        """
        return replace(rate, floor=min(self.best, rate.lower))

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the recording."""
        manifest = self.run.manifest
        return {"canaries": manifest["canaries"]["sha256"], "recording": manifest["sha256"]}


def audit_run(
    folder: str | Path, *, policy: Policy | None = None, seed: int = 0, target: str | None = None
) -> AuditResult:
    """Hold a recorded run against its accountant's claim, and guess its canaries.

    CONTRADICTED if something was measured that the claim excludes, or if the claimed training would make such a run
    with a probability of at most 0.001, however its canaries depend on each other: by the theorem of
    `remanence.bounds.one_run`.
    """
    game = OneRun.of(read_run(folder))
    return audit(game, [OneRunCanaries()], policy=policy, seed=seed, target=target or str(folder))


def _ceiling(claimed: Sequence[Segment], candidates: int) -> Bound:
    """What no attack exceeds under these settings: γ for a shortlist, (1 + δ(0)) / 2 for in or out."""
    if not hides(claimed):
        return Bound("DP-SGD as accounted, in or out", 0.0, DPSGD_ASSUMPTIONS, REMANENCE)
    if candidates > 1:
        return bounds.dpsgd(1 / candidates, schedule=list(claimed))
    return bounds.in_or_out(claimed)
