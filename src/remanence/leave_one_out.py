"""Per-record exposure: every record of a training set plays the target in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.adversary import Knowledge
from remanence.attacks.attack import Attack, ExposesAll, Reconstruction
from remanence.bounds.bound import Bound
from remanence.caveats import ONE_RELEASE, Caveat
from remanence.errors import Criterion
from remanence.exceptions import InputError
from remanence.mechanisms.mechanism import Mechanism
from remanence.priors import Baseline, Uninformed
from remanence.progress import track
from remanence.records import Records, concatenate
from remanence.releases import Release
from remanence.rounds import Gallery, Rounds, stream

_SHOWN = 30  # reconstructions in a gallery


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

    def rounds(self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu") -> Rounds:
        """Play with all records, or with as many of them, drawn at random, as there are trials."""
        attack.check(self.knowledge)
        count = len(self.data)
        first = self.data[:1][None]
        generator = stream(seed, "training", device)
        release = self.release or self.mechanism.release(self.data[1:], first, generator)
        chosen = torch.arange(count)
        if trials < count:
            chosen = torch.randperm(count, generator=stream(seed, "targets", "cpu"))[:trials].sort().values
        guess = self._reconstruct(attack, release, chosen, seed, device)
        shift = int(torch.randint(1, count, (), generator=stream(seed, "control", "cpu")))
        gradient = self.mechanism.remaining_gradient(self.data[1:], first, release)
        targets, strangers = self.data[chosen[:, None]], self.data[((chosen + shift) % count)[:, None]]
        main = self.criterion.compare(targets, guess.records)
        shown = (records.features[:_SHOWN, 0] for records in (targets, guess.records, strangers))
        return Rounds(
            main=main,
            control=self.criterion.compare(strangers, guess.records),
            gallery=Gallery(*shown, succeeded=main.succeeded[:_SHOWN, 0]),
            baseline=self.guess(),
            remaining_gradient=None if gradient is None else gradient.expand(len(chosen)),
            sensitivity=guess.sensitivity,
            diagnostics=guess.diagnostics,
            record=chosen,
            caveats=(ONE_RELEASE, *self.caveats),
        )

    def _reconstruct(
        self, attack: Attack, release: Release, chosen: Tensor, seed: int, device: torch.device | str
    ) -> Reconstruction:
        if isinstance(attack, ExposesAll):
            everyone = attack.expose(self.mechanism, self.data, release)
            return Reconstruction(
                everyone.records[chosen],
                None if everyone.sensitivity is None else everyone.sensitivity[chosen],
                {name: values[chosen] for name, values in everyone.diagnostics.items()},
            )
        parts = []
        for index in track(chosen.tolist(), total=len(chosen), what=f"playing {attack.info.name}"):
            knowledge = Knowledge(self.mechanism, Uninformed(), self.data.without(index))
            parts.append(attack.prepare(knowledge, stream(seed, "attack", device))(release).records)
        return Reconstruction(concatenate(parts))
