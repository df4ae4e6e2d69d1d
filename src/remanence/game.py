"""START HERE. The game that every attack plays (Balle et al. 2022, Algorithm 1).

             prior π ──► target z
                            │
    known data D₋ ──────────┤
                            ▼
                     mechanism M ──► release w ──► attack R ──► reconstruction ẑ
                                                                     │
                                                     error ρ(z, ẑ) ≤ threshold η ?

A trial succeeds if the reconstruction meets the criterion. The control holds the same
reconstruction against a target that was never trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline, EmpiricalPrior, Prior, StratifiedPrior, Uninformed
from remanence.attacks.attack import Attack
from remanence.bounds.bound import Bound
from remanence.data.records import Records
from remanence.data.releases import Release
from remanence.exceptions import InputError
from remanence.mechanisms.known_attributes import Disclosed
from remanence.mechanisms.mechanism import Mechanism
from remanence.results.caveats import (
    ATTRIBUTES_GIVEN,
    NO_TRACE,
    OPTIMISER_NOT_CONVERGED,
    OVERLAPPING_CONTROL,
    TARGETS_KNOWN,
    Caveat,
    check_rates,
)
from remanence.results.evidence import Evidence
from remanence.rounds import AnyGame, Gallery, Prepared, Rounds, UnitOutcome, join, stream
from remanence.scale.journal import Plan
from remanence.scale.run import Do, Tensors, current
from remanence.scoring.errors import Criterion, Reduction
from remanence.scoring.rates import CONFIDENCE, SuccessRate

_SHOWN = 30  # reconstructions in a gallery
_NO_TRACE = 1e13  # a residual of rounding size: even an exact optimum says nothing about the record


@final
@dataclass(frozen=True)
class Game:
    """A target is drawn, a model is trained on it and the known data, and the attack must find it.

    `prior` is what the adversary believes. `targets` says where targets really come from; left
    out, the belief is right. `known_data` is None for a weak adversary. `bounds` are ceilings that
    somebody has proven for this game. `strangers` are for a control where the targets are too few to draw others
    from: models are trained on strangers instead, and what comes out of these is held against the same targets.
    """

    mechanism: Mechanism[Release]
    prior: Prior
    known_data: Records | None
    criterion: Criterion = Criterion()
    targets: Prior | None = None
    bounds: tuple[Bound, ...] = ()
    strangers: Prior | None = None

    def __post_init__(self) -> None:
        if self.targets is None and isinstance(self.prior, Uninformed | EmpiricalPrior | StratifiedPrior):
            raise InputError(
                "The game does not say where its targets come from.",
                needs="targets that the adversary does not hold",
                got=f"a prior ({self.prior.describe()}) and no targets",
                hint="Game(..., targets=EmpiricalPrior(held_out_records))",
            )

        for name, records in self._records().items():
            records.require_finite(name)

    def _records(self) -> dict[str, Records]:
        """All the data that the game holds."""
        found = {} if self.known_data is None else {"known_data": self.known_data}
        sources = {"prior": self.prior, "targets": self.targets, "strangers": self.strangers}
        for name, source in sources.items():
            records = getattr(source, "candidates", getattr(source, "records", None))
            if isinstance(records, Records):
                found[name] = records
        return found

    @property
    def knowledge(self) -> Knowledge:
        """All that the adversary has before the release."""
        return Knowledge(self.mechanism, self.prior, self.known_data)

    @property
    def default_trials(self) -> int:
        """Enough to tell a rate of one in ten from one in a hundred."""
        return 200

    def guess(self) -> Baseline:
        """What one guess without the release achieves, on sets as large as the targets really are."""
        if isinstance(self.prior, StratifiedPrior) and isinstance(self.targets, StratifiedPrior):
            return self.prior.baseline(self.criterion, self.targets.present)
        return self.prior.baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data that went in."""
        return {name: records.sha256() for name, records in self._records().items()}

    def to(self, device: torch.device | str) -> Game:
        """The same game on another device."""
        return replace(
            self,
            prior=self.prior.to(device),
            known_data=None if self.known_data is None else self.known_data.to(device),
            targets=None if self.targets is None else self.targets.to(device),
            strangers=None if self.strangers is None else self.strangers.to(device),
        )

    def work(
        self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu"
    ) -> tuple[Plan, Callable[[], Do]]:
        """The trials as units; memory is bounded by their size, whatever the number of trials."""
        run = current()
        source = self.prior if self.targets is None else self.targets
        at_once = self.mechanism.trials_at_once(source.sample(1, stream(seed, "size", device)))
        at_once = min(at_once, run.unit_trials or at_once)
        own = replace(self, bounds=())  # no outcome depends on what is proven
        inputs = run.inputs(device, own, attack, seed, run.shows)
        plan = Plan(f"playing {attack.info.name}", inputs, trials, at_once)

        def prepare() -> Do:
            prepared = Prepared.of(attack, self.knowledge, seed, device)
            return partial(self._play_unit, prepared, seed, device, run.shows)

        return plan, prepare

    def _caveats(self) -> Iterator[Caveat]:
        """What to mind about the game itself, whatever the attack."""
        source = self.prior if self.targets is None else self.targets
        if self.strangers is None and not source.has_strangers:
            yield OVERLAPPING_CONTROL
        if isinstance(self.mechanism, Disclosed):
            yield ATTRIBUTES_GIVEN
        if self._targets_are_known():
            yield TARGETS_KNOWN

    def _targets_are_known(self) -> bool:
        """Whether the adversary's samples or the known data have a record that is a target too.

        Where targets equal each other (tables of few categories), equal records say nothing.
        """
        if not isinstance(self.targets, EmpiricalPrior | StratifiedPrior):
            return False
        held = [self.known_data]
        if isinstance(self.prior, EmpiricalPrior | StratifiedPrior):
            held.append(self.prior.records)
        own = {row.tobytes() for row in self.targets.records.flat.cpu().numpy()}
        return len(own) == len(self.targets.records) and any(
            row.tobytes() in own for records in held if records for row in records.flat.cpu().numpy()
        )

    def rounds(self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu") -> Rounds:
        """Play all units."""
        attack.check(self.knowledge)
        plan, prepare = self.work(attack, trials=trials, seed=seed, device=device)
        found = UnitOutcome.of(current().perform(plan, prepare, join))
        return Rounds(
            main=found.main,
            control=found.control,
            baseline=replace(self.guess().times(found.chances), on_average=self.strangers is not None),
            remaining_gradient=found.remaining_gradient,
            caveats=tuple(self._caveats()),
            gallery=found.gallery,
            claims_labels=found.claims_labels,
            sensitivity=found.sensitivity,
            diagnostics=found.diagnostics,
        )

    def _play_unit(
        self,
        prepared: Prepared,
        seed: int,
        device: torch.device | str,
        shows: bool,
        unit: int,
        count: int,
    ) -> Tensors:
        draws, trainings, controls = (
            stream(seed, purpose, device, unit) for purpose in ("targets", "training", "control")
        )
        source = self.prior if self.targets is None else self.targets
        if self.strangers is None:
            targets, others = source.sample_pair(count, draws, controls)
        else:
            targets, others = source.sample(count, draws), self.strangers.sample(count, controls)
        release = self.mechanism.release(self.known_data, targets, trainings).require_numbers()
        reconstruct = prepared.for_unit(seed, unit)
        guess = reconstruct(release)
        diagnostics, control = dict(guess.diagnostics), self.criterion.compare(others, guess.records)
        if (
            self.strangers is not None
        ):  # few targets may be easy to guess: the control must be about the same ones
            without = reconstruct(self.mechanism.release(self.known_data, others, controls))
            control = self.criterion.compare(targets, without.records)
            if "public_error" in without.diagnostics:
                diagnostics["control_public_error"] = without.diagnostics["public_error"]
        asked = self.criterion.reduction is Reduction.CLASS  # labels that were asked for, not found
        return UnitOutcome(
            main=self.criterion.compare(targets, guess.records),
            control=control,
            remaining_gradient=self.mechanism.remaining_gradient(self.known_data, targets, release),
            sensitivity=guess.sensitivity,
            diagnostics=diagnostics,
            gallery=self._gallery(targets, others, guess.records) if shows and unit == 0 else None,
            claims_labels=not asked and not bool(guess.records.labels.isnan().all()),
            chances=self.criterion.chance_factor(targets.batch_shape[1], guess.records.batch_shape[1]),
        ).tensors()

    def _gallery(self, targets: Records, others: Records, guesses: Records) -> Gallery:
        """The first guesses, each beside the record that comes closest to it."""
        trials = -(-_SHOWN // guesses.batch_shape[1])
        targets, others, guesses = targets[:trials], others[:trials], guesses[:trials]

        def closest(records: Records) -> tuple[Tensor, Tensor]:
            errors = self.criterion.error(records[:, None, :], guesses[:, :, None])  # (trials, guesses, set)
            if self.criterion.reduction is Reduction.CLASS:
                agree = records.labels[:, None, :] == guesses.labels[:, :, None]
                errors = errors.where(agree, torch.inf)
            best = errors.nan_to_num(nan=torch.inf, posinf=torch.inf).min(2)
            rows = torch.arange(len(records), device=best.indices.device)[:, None]
            return records[rows, best.indices].features.flatten(0, 1), best.values.flatten()

        (near, errors), (strangers, _) = closest(targets), closest(others)
        shown = near, guesses.features.flatten(0, 1), strangers, errors <= self.criterion.threshold
        return Gallery(*(values[:_SHOWN].clone() for values in shown))


def play(
    game: AnyGame,
    attack: Attack,
    *,
    trials: int | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    device: torch.device | str = "cpu",
) -> Evidence:
    """Let an attack play and count: main, control and baseline, each rate with its interval.

    The same seed gives the same evidence, and every attack meets the same targets and releases.
    """
    trials = game.default_trials if trials is None else trials
    check_numbers(trials, seed)
    rounds = game.to(device).rounds(attack, trials=trials, seed=seed, device=device)
    main, control = (_rate(side.succeeded, confidence) for side in (rounds.main, rounds.control))
    caveats = [*check_rates(main, control, rounds.baseline), *rounds.caveats]
    predicted = unresolved = None
    if rounds.sensitivity is not None and rounds.remaining_gradient is not None:
        predicted = rounds.sensitivity * rounds.remaining_gradient
        traceless = ~(rounds.sensitivity < _NO_TRACE)
        unresolved = ~(predicted <= game.criterion.threshold) & ~traceless
        caveats += [NO_TRACE] if traceless.any() else []
        caveats += [OPTIMISER_NOT_CONVERGED] if unresolved.any() else []
    record = torch.arange(len(rounds.main.succeeded)) if rounds.record is None else rounds.record
    arrays = {
        "record": record,
        "error": rounds.main.errors,
        "control_error": rounds.control.errors,
        "succeeded": rounds.main.succeeded,
        **({} if predicted is None else {"predicted_error": predicted}),
    }
    arrays = {**rounds.diagnostics, **arrays}
    has_errors = not rounds.main.errors.isnan().all()
    return Evidence(
        attack=attack.info.name,
        main=main,
        control=control,
        baseline=rounds.baseline,
        caveats=tuple(caveats),
        label_rate=_rate(rounds.main.labels_agree, confidence)
        if has_errors and rounds.claims_labels
        else None,
        median_error=_summary(rounds.main.errors, torch.nanmedian) if has_errors else None,
        worst_error=_summary(rounds.main.errors, torch.max) if has_errors else None,
        median_predicted_error=None if predicted is None else float(predicted.median()),
        remaining_gradient=None
        if rounds.remaining_gradient is None
        else float(rounds.remaining_gradient.max()),
        unresolved=() if unresolved is None else tuple(record[unresolved.cpu()].tolist()),
        arrays={name: values.detach().cpu().contiguous() for name, values in arrays.items()},
        gallery=None if rounds.gallery is None else rounds.gallery.tensors(),
    )


def check_numbers(trials: int, seed: int) -> None:
    """Refuse what cannot be played, before any time is spent."""
    if trials < 1:
        raise InputError("Nothing to play.", needs="at least 1 trial", got=str(trials), hint="--trials 200")
    if not 0 <= seed < 2**63:
        raise InputError(
            "The seed cannot be used.", needs="a whole number from 0 up", got=str(seed), hint="0"
        )


def _rate(succeeded: Tensor, confidence: float) -> SuccessRate:
    trials, counted = succeeded.shape
    return SuccessRate(
        int(succeeded.sum()), succeeded.numel(), confidence, clusters=trials if counted > 1 else None
    )


def _summary(errors: Tensor, function) -> float:
    return float(function(errors.nan_to_num(nan=torch.inf, posinf=torch.inf)))
