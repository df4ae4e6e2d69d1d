"""R, the attack: from a release to a reconstruction, in two phases and without access to the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import IncompatibleGameError, InputError
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release
from remanence.scale.run import Run

ReleaseT = TypeVar("ReleaseT", bound=Release)
ReleaseT_contra = TypeVar("ReleaseT_contra", bound=Release, contravariant=True)


@dataclass(frozen=True)
class Reconstruction:
    """A batch of guesses, with the attack's own estimates of their quality.

    `sensitivity` is the relative error that one unit of the optimiser's remaining gradient would
    cause; the auditor, who can measure that gradient, turns it into a predicted error.
    `diagnostics` are further numbers per trial that explain an outcome.
    """

    records: Records  # (trials, guesses)
    sensitivity: Tensor | None = None  # (trials,)
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)  # each (trials,)

    def take(self, index: Tensor) -> Reconstruction:
        """The reconstructions of some of the trials."""
        return Reconstruction(
            self.records[index],
            None if self.sensitivity is None else self.sensitivity[index],
            {name: values[index.to(values.device)] for name, values in self.diagnostics.items()},
        )

    @property
    def diverged(self) -> dict[str, Tensor]:
        """The mask of trials whose release was not finite; empty if there are none."""
        return {name: values for name, values in self.diagnostics.items() if name == "diverged"}

    def numbers(self) -> dict[str, Tensor]:
        """All numbers per trial, by name."""
        return dict(self.diagnostics) | (
            {} if self.sensitivity is None else {"sensitivity": self.sensitivity}
        )


class Attack(ABC, Generic[ReleaseT_contra]):
    """A frozen set of settings; all data arrives through `prepare` and the release."""

    info: ClassVar[AttackInfo]

    @abstractmethod
    def check(self, knowledge: Knowledge) -> object:
        """Raise `IncompatibleGameError` if this attack cannot play, before any time is spent.

        The return value is for the attack's own `prepare`: its opponent, narrowed to the types that it needs.
        """

    @abstractmethod
    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[ReleaseT_contra], Reconstruction]:
        """Do all the work that does not need the release.

        The function returned maps a batch of releases to a batch of reconstructions.
        """

    def prepare_on(
        self, run: Run, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[ReleaseT_contra], Reconstruction]:
        """Like `prepare`, for attacks whose preparation is distributed over a run's workers; most need none."""
        return self.prepare(knowledge, generator)

    def can_play(self, knowledge: Knowledge) -> bool:
        """Whether `check` passes."""
        try:
            self.check(knowledge)
        except IncompatibleGameError:
            return False
        return True

    def refusal(self, *, got: str | Knowledge, hint: str, needs: str = "") -> IncompatibleGameError:
        """The error to raise for a game that this attack cannot play."""
        summary = f"The attack {self.info.name} cannot attack this game."
        if isinstance(got, Knowledge):
            training, prior = got.mechanism, got.prior.describe()
            sees = f"{training.name} releasing {training.releases.sees}"
            got = f"{sees}; an adversary who is {got.adversary}; {prior}"
        return IncompatibleGameError(summary, needs=needs or self.info.needs, got=got, hint=hint)

    def settings(self) -> dict[str, str | int | float | bool | None]:
        """The attack's settings, as plain values."""
        if not is_dataclass(self):
            return {}
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.repr}


_LARGE = 2**24  # numbers of a release


def attempt(reconstruct: Callable[[Release], Reconstruction], release: Release) -> Reconstruction:
    """Run an attack on releases. Trials whose release is not finite yield NaN and are counted as diverged."""
    lost = release.not_finite()
    if not lost.any():
        return reconstruct(release)
    if 2 * int(lost.sum()) > len(lost):
        raise training_failed(lost)
    stand_in = torch.arange(len(lost)).where(~lost, (~lost).nonzero()[0])
    guess = reconstruct(release.take(stand_in.to(next(iter(release.tensors.values())).device)))
    features = guess.records.features
    features = features.clone() if features.is_floating_point() else features.double()
    features[lost.to(features.device)] = torch.nan
    records = replace(guess.records, features=features)
    return replace(guess, records=records, diagnostics={**guess.diagnostics, "diverged": lost})


def blindly(
    reconstruct: Callable[[ReleaseT], Reconstruction],
    real: ReleaseT,
    decoys: ReleaseT,
    coins: torch.Generator,
) -> tuple[Reconstruction, Reconstruction]:
    """Run an attack on real releases and decoys together, in a random order unknown to the attack.

    Large releases are passed one at a time, also in random order, so that they are not copied.
    """
    if sum(tensor.numel() for tensor in real.tensors.values()) > _LARGE:
        real_first = bool(torch.randint(2, (), generator=coins, device=coins.device))
        first, second = (reconstruct(one) for one in ((real, decoys) if real_first else (decoys, real)))
        return (first, second) if real_first else (second, first)
    both = type(real).concatenate([real, decoys])
    order = torch.randperm(len(both), generator=coins, device=coins.device)
    guess, places = reconstruct(both.take(order)), order.argsort()
    return guess.take(places[: len(real)]), guess.take(places[len(real) :])


def training_failed(lost: Tensor) -> InputError:
    """The error for an audit in which most training runs diverged, so that nothing can be concluded."""
    return InputError(
        "Training diverged.",
        needs="finite numbers in what is released",
        got=f"NaN or infinite ones in {int(lost.sum())} of {len(lost)} trials",
        hint="a smaller learning rate, or records without extreme values",
    )


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)[:200]


@runtime_checkable
class ExposesAll(Protocol):
    """An attack that can treat every record of a training set as the target in one pass.

    The i-th reconstruction must be what `prepare` on the other records would have found;
    `remanence.testing.check_attack` verifies that record i itself has no influence on it.
    """

    def expose(self, mechanism: Mechanism, data: Records, release: Release) -> Reconstruction:
        """Reconstruct each record from the one release and the other records: batch `(records, 1)`."""
        ...


MechanismT = TypeVar("MechanismT", bound=Mechanism)


class ExposesInParts(ABC, Generic[MechanismT]):
    """An attack that exposes every record, in parts that bound its memory."""

    @abstractmethod
    def exposer(
        self, mechanism: MechanismT, data: Records, release: Release
    ) -> Callable[[Tensor], Reconstruction]:
        """A function from record indices to the reconstruction of each, given the release and all other records."""

    def expose(self, mechanism: MechanismT, data: Records, release: Release) -> Reconstruction:
        """Every record in turn."""
        places = torch.arange(len(data), device=data.labels.device)
        return self.exposer(mechanism, data, release)(places)


def joined(parts: Sequence[Reconstruction]) -> Reconstruction:
    """Reconstructions of several batches as one."""
    sensitivities = [part.sensitivity for part in parts if part.sensitivity is not None]
    return Reconstruction(
        concatenate([part.records for part in parts]),
        torch.cat(sensitivities) if sensitivities else None,
        {name: torch.cat([part.diagnostics[name] for part in parts]) for name in parts[0].diagnostics},
    )
