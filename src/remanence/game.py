"""START HERE. The game that every attack plays (Balle et al. 2022, Algorithm 1).

             prior π ──► target z
                            │
    known data D₋ ──────────┤
                            ▼
                     mechanism M ──► release w ──► attack R ──► reconstruction ẑ
                                                                     │
                                                     error ρ(z, ẑ) ≤ threshold η ?

A trial succeeds if ẑ meets the criterion. The control compares ẑ with a target that was never trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, final

import torch
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack, blindly
from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, Reduction
from remanence.core.knowledge import Knowledge
from remanence.core.rates import CONFIDENCE
from remanence.core.records import Records
from remanence.protocol import AnyGame, MechanismT, Prepared, PriorT, Unit, Work, planned, several_of_one
from remanence.results import caveats
from remanence.results.evidence import ErrorSummary, Evidence, counted
from remanence.results.outcome import Outcome, Tensors, closest_guesses, join
from remanence.scale.journal import Plan
from remanence.scale.run import IN_PROCESS, Run
from remanence.scale.seeds import Draws

_NO_TRACE = 1e13  # the residual is mere rounding: even an exact optimum reveals nothing about the record


def play(
    game: AnyGame,
    attack: Attack,
    *,
    trials: int | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    device: torch.device | str = "cpu",
    run: Run = IN_PROCESS,
) -> Evidence:
    """Play an attack and count the main, control and baseline rates, each with its interval.

    The same seed gives the same evidence, and every attack gets the same targets and releases.
    """
    game, draws = game.to(device), Draws(seed, device)
    plan = planned(game, attack, trials, draws, run)
    attack.check(game.knowledge)
    return played(game, attack, plan, draws, run, confidence)


def played(
    game: AnyGame,
    attack: Attack,
    plan: Plan,
    draws: Draws,
    run: Run,
    confidence: float,
    guess: Callable[[int], Baseline] | None = None,
) -> Evidence:
    """Play and count the units of a plan. The attack is already checked; `guess` is the baseline, if known."""
    records = game.records(plan.total, draws)
    prepare = cache(partial(game.prepare, attack, draws, run))

    def get_ready() -> Callable[[int], Tensors]:
        prepared = prepare()
        unit = partial(Unit.of, plan, records, run.shows)
        return lambda number: game.trials(prepared, draws, unit(number)).tensors()

    outcome = Outcome.of(run.map(plan, get_ready, join))
    baseline = (guess or game.baseline)(outcome.chances)
    return _evidence(game, attack, outcome, confidence, records, prepare, baseline)


@final
@dataclass(frozen=True)
class Game(AnyGame[MechanismT], Generic[MechanismT, PriorT]):
    """A target is drawn, a model is trained on it and the known data, and the attack must reconstruct it.

    If there are too few targets to draw others, the control consists of models trained on `strangers` instead,
    whose reconstructions are compared with the same targets.
    """

    mechanism: MechanismT  # the training that is audited
    prior: PriorT  # what the adversary believes about targets
    known_data: Records | None  # the training records that the adversary knows; None for a weak one
    criterion: Criterion = Criterion()  # when a reconstruction counts
    targets: PriorT | None = None  # where targets come from, if not from the prior
    bounds: tuple[Bound, ...] = ()  # ceilings that are proven for this game
    strangers: PriorT | None = None  # records for the control, where targets are few

    def __post_init__(self) -> None:
        if self.targets is None:
            self.prior.require_targets()
        for name, records in self.held().items():
            records.require_finite(name)

    def trials(self, prepared: Prepared, draws: Draws, unit: Unit) -> Outcome:
        """Algorithm 1, for many trials at once."""
        reconstruct, train = prepared.for_unit(draws, unit), self.knowledge.release
        drawn, trained, controls, coins = draws.streams("targets training control coins", unit.number)
        if self.strangers is None:
            targets, strangers = self.source.sample_pair(unit.size, drawn, controls)
            release = train(targets, trained)
            guess = reconstruct(release)
            numbers, control = guess.numbers(), self.criterion.compare(strangers, guess.records)
        else:  # few targets may be easy to guess, so the control uses the same ones
            targets = self.source.sample(unit.size, drawn)
            strangers = self.strangers.sample(unit.size, controls)
            release, decoys = train(targets, trained), train(strangers, controls)
            guess, without = blindly(reconstruct, release, decoys, coins)
            numbers, control = guess.numbers(), self.criterion.compare(targets, without.records)
            numbers |= {f"control_{n}": v for n, v in without.diagnostics.items() if n == "public_error"}
        left = self.mechanism.remaining_gradient(self.known_data, targets, release)
        asked = self.criterion.reduction is Reduction.CLASS  # labels were given, not found
        shown = closest_guesses(self.criterion, targets, strangers, guess.records) if unit.shows else None
        return Outcome(
            main=self.criterion.compare(targets, guess.records),
            control=control,
            numbers=numbers if left is None else {**numbers, "remaining_gradient": left},
            gallery=shown,
            claims_labels=not asked and not bool(guess.records.labels.isnan().all()),
            chances=self.criterion.chance_factor(targets.batch_shape[1], guess.records.batch_shape[1]),
        )

    @property
    def knowledge(self) -> Knowledge:
        """All that the adversary has before the release."""
        return Knowledge(self.mechanism, self.prior, self.known_data)

    @property
    def source(self) -> PriorT:
        """Where targets come from."""
        return self.prior if self.targets is None else self.targets

    def baseline(self, chances: int = 1) -> Baseline:
        """The success of a guess without the release, on sets as large as the actual targets."""
        guess = self.prior.baseline_for(self.source, self.criterion).times(chances)
        return replace(guess, on_average=self.strangers is not None)

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """As many trials at once as fit into memory. No outcome depends on the bounds."""
        at_once = self.mechanism.trials_at_once(self.source.sample(1, draws.stream("size")))
        return Work(trials, at_once, (replace(self, bounds=()),))

    def caveats(self) -> Iterator[caveats.Caveat]:
        """Caveats about the game itself, whatever the attack."""
        if self.strangers is None and not self.source.has_strangers:
            yield caveats.OVERLAPPING_CONTROL
        yield from several_of_one(self.known_data, self.bounds)
        if self.targets is not None and self.knowledge.holds_some_of(self.targets):
            yield caveats.TARGETS_KNOWN


def _evidence(
    game: AnyGame,
    attack: Attack,
    outcome: Outcome,
    confidence: float,
    record: Tensor | None,
    prepare: Callable[[], Any],
    baseline: Baseline,
) -> Evidence:
    """Count the outcomes of all trials; `record` gives the training record that each trial is about."""
    confidence = 1 - (1 - confidence) / 2 if game.tests_more else confidence  # half for whole records
    main, control = (counted(side.succeeded, confidence) for side in (outcome.main, outcome.control))
    numbers, errors = dict(outcome.numbers), outcome.main.errors
    left, sensitivity = numbers.pop("remaining_gradient", None), numbers.pop("sensitivity", None)
    diverged = numbers.pop("diverged", None)
    findings = tuple(game.findings(outcome, confidence))
    tells = any(each.tells for each in findings)
    warnings = [*caveats.check_rates(main, control, baseline, tells=tells), *game.caveats()]
    record = torch.arange(len(errors)) if record is None else record
    facts, unresolved = dict(game.measures()), ()
    if left is not None and sensitivity is not None:
        predicted = sensitivity * left
        numbers["predicted_error"] = predicted
        traceless = ~(sensitivity < _NO_TRACE)
        hidden = ~(predicted <= game.criterion.threshold) & ~traceless
        warnings += [caveats.NO_TRACE] if traceless.any() else []
        warnings += [caveats.OPTIMISER_NOT_CONVERGED] if hidden.any() else []
        numbers["unresolved"] = hidden
        unresolved = tuple(record[hidden.cpu()].tolist())
    warnings += [caveat for each in findings for caveat in each.caveats(outcome)]
    if diverged is not None and diverged.any():
        warnings.append(caveats.DIVERGED)
        facts["diverged_trainings"] = float(diverged.sum())
    labelled = outcome.claims_labels and not errors.isnan().all()
    arrays = {"record": record, "error": errors, "control_error": outcome.control.errors}
    arrays |= {"succeeded": outcome.main.succeeded, "control_succeeded": outcome.control.succeeded}
    if labelled:
        arrays["labels_agree"] = outcome.main.labels_agree
    arrays = {**numbers, **arrays}
    return Evidence(
        attack=attack.info.name,
        main=game.certain(main),
        control=control,
        baseline=baseline,
        caveats=tuple(warnings),
        label_rate=counted(outcome.main.labels_agree, confidence) if labelled else None,
        errors=ErrorSummary.of(errors, numbers.get("predicted_error"), left),
        unresolved=unresolved,
        arrays={name: values.detach().cpu().contiguous() for name, values in arrays.items()},
        numbers=facts,
        gallery=None if outcome.gallery is None else outcome.gallery.tensors(),
        settings=attack.settings(),
        proven=None if outcome.proven is None else int(outcome.proven.sum()),
        proven_of=None if outcome.proven is None else game.how_many(outcome),
        findings=findings,
        reference=attack.info.reference.short,
        prepare=prepare,
    )
