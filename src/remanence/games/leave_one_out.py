"""Per-record exposure: every record of a training set plays the target in turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from remanence.adversary.guess_from_others import guess_from_others
from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline, Uninformed
from remanence.attacks.attack import Attack, ExposesAll, Reconstruction
from remanence.bounds.bound import Bound
from remanence.data.records import Records, concatenate
from remanence.data.releases import Release
from remanence.exceptions import InputError, MisfitError
from remanence.mechanisms.mechanism import Mechanism
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.outcome import Gallery, Outcome
from remanence.scale.progress import track
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.scoring.errors import Criterion

_SHOWN = 30  # reconstructions in a gallery
_AT_ONCE = 32  # records in a unit, where each is attacked on its own


@final
@dataclass(frozen=True)
class _Model:
    """The release whose records are attacked, how far it is from its optimum, and who attacks."""

    attack: Attack
    release: Release
    remaining_gradient: Tensor | None


@final
@dataclass(frozen=True)
class LeaveOneOut(AnyGame):
    """One model, and every record of its training set plays the target in turn.

    The adversary of each trial is informed: they know all the other records. This audits a model
    that exists, `release`; left out, the mechanism trains one. `known_caveats` are known beforehand.
    """

    mechanism: Mechanism[Release]
    data: Records
    criterion: Criterion = Criterion()
    release: Release | None = None
    known_caveats: tuple[Caveat, ...] = ()
    bounds: tuple[Bound, ...] = ()
    totals: Tensor | None = None  # that a design fixes: per feature and of the label, NaN where they are free
    default_trials: int = field(init=False, repr=False)  # every record

    def __post_init__(self) -> None:
        if len(self.data) < 2:
            raise InputError(
                "There is no record to leave out.",
                needs="at least 2 records",
                got=str(len(self.data)),
                hint="more data",
            )
        self.data.require_finite("data")
        object.__setattr__(self, "default_trials", len(self.data))

    def fits(self) -> None:
        """The model has finite numbers, and its own equations hold on these data."""
        if self.release is None:
            return
        if self.release.not_finite().any():
            raise MisfitError(
                "The model is not a trained one.",
                needs="finite numbers in all its parameters",
                got="NaN or infinite ones",
                hint="train it again, with scaled features or a smaller rate",
            )
        self.mechanism.check_fit(self.data, self.release)

    @property
    def knowledge(self) -> Knowledge:
        """What the adversary has when the first record is the target."""
        return Knowledge(self.mechanism, Uninformed(), self.data[1:])

    def baseline(self, chances: int = 1) -> Baseline:
        """What somebody guesses who knows the other records, measured."""
        return guess_from_others(self.data, self.criterion, self.totals)

    def caveats(self) -> tuple[Caveat, ...]:
        """The trials share one release."""
        return (ONE_RELEASE, *self.known_caveats)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data, and of the model where one was handed in."""
        if self.release is None:
            return super().fingerprints()
        return {**super().fingerprints(), "release": self.release.sha256()}

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All records, or as many of them, drawn at random, as there are trials; one unit where one pass does all."""
        total = min(trials, len(self.data))
        at_once = total if isinstance(attack, ExposesAll) else _AT_ONCE
        own = replace(self, bounds=(), known_caveats=())
        return Work(total, at_once, (own, total))  # which records are drawn depends on how many

    def records(self, trials: int, draws: Draws) -> Tensor:
        """The records that play the target."""
        count = len(self.data)
        if trials >= count:
            return torch.arange(count)
        order = torch.randperm(count, generator=replace(draws, device="cpu").stream("targets"))
        return order[:trials].sort().values

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> _Model:
        """The model, trained where none was handed in. Each trial has an adversary of its own."""
        first = self.data[:1][None]
        release = self.release or self.mechanism.release(self.data[1:], first, draws.stream("training"))
        gradient = self.mechanism.remaining_gradient(self.data[1:], first, release)
        return _Model(attack, release, gradient)

    def trials(self, prepared: _Model, draws: Draws, unit: Unit) -> Outcome:
        """Hold what the attack finds for each record against that record, and against another one."""
        count, chosen = len(self.data), unit.records
        assert chosen is not None
        guess = self._reconstruct(prepared, chosen, draws)
        fixed = replace(draws, device="cpu")
        shift = int(torch.randint(1, count, (), generator=fixed.stream("control")))
        targets, strangers = self.data[chosen[:, None]], self.data[((chosen + shift) % count)[:, None]]
        main = self.criterion.compare(targets, guess.records)
        left, numbers = prepared.remaining_gradient, guess.numbers()
        shown = (records.features[:_SHOWN, 0] for records in (targets, guess.records, strangers))
        return Outcome(
            main=main,
            control=self.criterion.compare(strangers, guess.records),
            numbers=numbers if left is None else {**numbers, "remaining_gradient": left.expand(unit.size)},
            gallery=Gallery(*shown, succeeded=main.succeeded[:_SHOWN, 0]) if unit.shows else None,
        )

    def _reconstruct(self, model: _Model, chosen: Tensor, draws: Draws) -> Reconstruction:
        attack = model.attack
        if isinstance(attack, ExposesAll):
            everyone = attack.expose(self.mechanism, self.data, model.release)
            return Reconstruction(
                everyone.records[chosen],
                None if everyone.sensitivity is None else everyone.sensitivity[chosen],
                {name: values[chosen] for name, values in everyone.diagnostics.items()},
            )
        parts = []
        for index in track(chosen.tolist(), total=len(chosen), what=f"playing {attack.info.name}"):
            knowledge = Knowledge(self.mechanism, Uninformed(), self.data.without(index))
            parts.append(attack.prepare(knowledge, draws.stream("attack"))(model.release).records)
        return Reconstruction(concatenate(parts))
