"""Per-record exposure: every record of a training set plays the target in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline, Uninformed
from remanence.attacks.attack import Attack, ExposesAll, Reconstruction
from remanence.bounds.bound import Bound
from remanence.data.records import Records, concatenate
from remanence.data.releases import Release
from remanence.exceptions import InputError
from remanence.mechanisms.mechanism import Mechanism
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.rounds import Gallery, Rounds, UnitOutcome, join, stream
from remanence.scale.journal import Plan
from remanence.scale.progress import track
from remanence.scale.run import Do, Tensors, current
from remanence.scoring.errors import Criterion

_SHOWN = 30  # reconstructions in a gallery
_AT_ONCE = 32  # records in a unit, where each is attacked on its own


@final
@dataclass(frozen=True)
class LeaveOneOut:
    """One model, and every record of its training set plays the target in turn.

    The adversary of each trial is informed: he knows all the other records. This audits a model
    that exists, `release`; left out, the mechanism trains one. `caveats` are known beforehand.
    """

    mechanism: Mechanism[Release]
    data: Records
    criterion: Criterion = Criterion()
    release: Release | None = None
    caveats: tuple[Caveat, ...] = ()
    bounds: tuple[Bound, ...] = ()

    def __post_init__(self) -> None:
        if len(self.data) < 2:
            raise InputError(
                "There is no record to leave out.",
                needs="at least 2 records",
                got=str(len(self.data)),
                hint="more data",
            )

        self.data.require_finite("data")

    @property
    def knowledge(self) -> Knowledge:
        """What the adversary has when the first record is the target."""
        return Knowledge(self.mechanism, Uninformed(), self.data[1:])

    @property
    def default_trials(self) -> int:
        """Every record."""
        return len(self.data)

    def guess(self) -> Baseline:
        """Nothing: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data that went in."""
        return {"data": self.data.sha256()}

    def to(self, device: torch.device | str) -> LeaveOneOut:
        """The same game on another device."""
        release = None if self.release is None else self.release.to(device)
        return replace(self, data=self.data.to(device), release=release)

    def work(
        self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu"
    ) -> tuple[Plan, Callable[[], Do]]:
        """All records, or as many of them, drawn at random, as there are trials; one unit where one pass does all."""
        run = current()
        chosen = self._chosen(trials, seed)
        at_once = (
            len(chosen) if isinstance(attack, ExposesAll) else min(_AT_ONCE, run.unit_trials or _AT_ONCE)
        )
        own = replace(self, bounds=(), caveats=())
        # Which records are drawn depends on how many.
        inputs = run.inputs(device, own, attack, seed, run.shows, len(chosen))
        plan = Plan(f"playing {attack.info.name}", inputs, len(chosen), at_once)

        def prepare() -> Do:
            first = self.data[:1][None]
            training = stream(seed, "training", device)
            release = self.release or self.mechanism.release(self.data[1:], first, training)
            gradient = self.mechanism.remaining_gradient(self.data[1:], first, release)
            audited = replace(self, release=release)
            return partial(audited._play_unit, attack, chosen, gradient, seed, device, run.shows, at_once)

        return plan, prepare

    def rounds(self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu") -> Rounds:
        """Play all units."""
        attack.check(self.knowledge)
        plan, prepare = self.work(attack, trials=trials, seed=seed, device=device)
        found = UnitOutcome.of(current().perform(plan, prepare, join))
        return Rounds(
            main=found.main,
            control=found.control,
            gallery=found.gallery,
            baseline=self.guess(),
            remaining_gradient=found.remaining_gradient,
            sensitivity=found.sensitivity,
            diagnostics=found.diagnostics,
            record=self._chosen(trials, seed),
            caveats=(ONE_RELEASE, *self.caveats),
        )

    def _chosen(self, trials: int, seed: int) -> Tensor:
        count = len(self.data)
        if trials >= count:
            return torch.arange(count)
        return torch.randperm(count, generator=stream(seed, "targets", "cpu"))[:trials].sort().values

    def _play_unit(
        self,
        attack: Attack,
        everyone: Tensor,
        gradient: Tensor | None,
        seed: int,
        device: torch.device | str,
        shows: bool,
        at_once: int,
        unit: int,
        size: int,
    ) -> Tensors:
        count = len(self.data)
        chosen = everyone[unit * at_once : unit * at_once + size]
        guess = self._reconstruct(attack, chosen, seed, device)
        shift = int(torch.randint(1, count, (), generator=stream(seed, "control", "cpu")))
        targets, strangers = self.data[chosen[:, None]], self.data[((chosen + shift) % count)[:, None]]
        main = self.criterion.compare(targets, guess.records)
        shown = (records.features[:_SHOWN, 0] for records in (targets, guess.records, strangers))
        return UnitOutcome(
            main=main,
            control=self.criterion.compare(strangers, guess.records),
            remaining_gradient=None if gradient is None else gradient.expand(size),
            sensitivity=guess.sensitivity,
            diagnostics=guess.diagnostics,
            gallery=Gallery(*shown, succeeded=main.succeeded[:_SHOWN, 0]) if shows and unit == 0 else None,
        ).tensors()

    def _reconstruct(
        self, attack: Attack, chosen: Tensor, seed: int, device: torch.device | str
    ) -> Reconstruction:
        assert self.release is not None
        if isinstance(attack, ExposesAll):
            everyone = attack.expose(self.mechanism, self.data, self.release)
            return Reconstruction(
                everyone.records[chosen],
                None if everyone.sensitivity is None else everyone.sensitivity[chosen],
                {name: values[chosen] for name, values in everyone.diagnostics.items()},
            )
        parts = []
        for index in track(chosen.tolist(), total=len(chosen), what=f"playing {attack.info.name}"):
            knowledge = Knowledge(self.mechanism, Uninformed(), self.data.without(index))
            parts.append(attack.prepare(knowledge, stream(seed, "attack", device))(self.release).records)
        return Reconstruction(concatenate(parts))
