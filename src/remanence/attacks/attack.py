"""R, the attack: from a release to a reconstruction, in two phases and without ever holding the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.catalogue import AttackInfo
from remanence.data.records import Records
from remanence.data.releases import Release
from remanence.mechanisms.mechanism import Mechanism

ReleaseT_contra = TypeVar("ReleaseT_contra", bound=Release, contravariant=True)


@dataclass(frozen=True)
class Reconstruction:
    """A batch of guesses and what the attack knows about their quality.

    `sensitivity` is the relative error that one unit of the optimiser's remaining gradient would
    cause; the auditor, who can measure that gradient, turns it into a predicted error.
    `diagnostics` are further numbers per trial that explain an outcome.
    """

    records: Records  # (trials, guesses)
    sensitivity: Tensor | None = None  # (trials,)
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)  # each (trials,)


class Attack(ABC, Generic[ReleaseT_contra]):
    """A frozen set of settings; all data arrives through `prepare` and the release."""

    info: ClassVar[AttackInfo]

    @abstractmethod
    def check(self, knowledge: Knowledge) -> None:
        """Raise `IncompatibleGameError` where this attack cannot play, before any time is spent."""

    @abstractmethod
    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[ReleaseT_contra], Reconstruction]:
        """Do all that can be done before the release is seen.

        The function returned maps a batch of releases to a batch of reconstructions.
        """


@runtime_checkable
class ExposesAll(Protocol):
    """An attack that can let every record of a training set play the target in one pass.

    The i-th reconstruction must be what `prepare` on the other records would have found;
    `remanence.testing.check_attack` verifies that record i itself has no influence on it.
    """

    def expose(self, mechanism: Mechanism, data: Records, release: Release) -> Reconstruction:
        """Reconstruct each record from the one release and the other records: batch `(records, 1)`."""
        ...
