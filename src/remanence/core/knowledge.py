"""The adversary's knowledge, which never includes the target."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import torch

from remanence.core.errors import Error
from remanence.core.mechanism import Mechanism
from remanence.core.priors import Prior
from remanence.core.records import Records
from remanence.core.releases import Release


@dataclass(frozen=True)
class Given:
    """Columns of the missing record that the adversary knows: names, features, how to compare them, their values."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    error: Error
    record: Records | None = None  # its other columns come from another record

    def kept(self, record: Records, other: Records) -> Records:
        """`other`, with the known columns replaced by those of `record`."""
        features = other.features.clone()
        features[..., list(self.places)] = record.features[..., list(self.places)]
        return replace(other, features=features)


@dataclass(frozen=True)
class Knowledge:
    """Everything an attack may use before it sees the release."""

    mechanism: Mechanism[Release]
    prior: Prior
    known_data: Records | None  # all training records but the target; None for a weak adversary
    given: Given | None = None  # known columns of the missing record
    place: int | None = None  # index of the missing record, if the others are known in order

    @property
    def adversary(self) -> str:
        """The adversary's name in the literature."""
        return "weak" if self.known_data is None else "informed"

    def release(self, targets: Records, generator: torch.Generator) -> Release:
        """Train on copies of these targets and return the release: a user's mechanism may modify its records."""
        known = None if self.known_data is None else self.known_data.copied()
        return self.mechanism.release(known, targets.copied(), generator)

    def holds_some_of(self, targets: Prior) -> bool:
        """Whether the known data contains some of the targets."""
        collected = None if self.prior.draws_targets else self.prior.samples
        held = (records for records in (self.known_data, collected) if records is not None)
        return any(targets.shares_records_with(records) for records in held)

    def apart(self) -> Knowledge:
        """A copy in memory of its own, since targets are often slices of the same tensor."""
        known = None if self.known_data is None else self.known_data.apart()
        prior = self.prior
        if is_dataclass(prior):
            parts = {field.name: getattr(prior, field.name) for field in fields(prior) if field.init}
            prior = replace(
                prior, **{n: part.apart() for n, part in parts.items() if isinstance(part, Records)}
            )
        return replace(self, prior=prior, known_data=known)

    def describe(self) -> list[str]:
        """The adversary's knowledge, one item per line."""
        known = "none of the training records"
        if self.known_data is not None:
            known = f"the {len(self.known_data)} other training records"
        if self.given is not None:
            known += f"; of the missing one {', '.join(self.given.names)}"
        return [f"the training algorithm ({self.mechanism.name})", known, self.prior.describe()]
