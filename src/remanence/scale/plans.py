"""Work as units, each known by the hash of everything that it depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True)
class Plan:
    """A piece of work as units: so many trials (or models), so many of them in each unit.

    `inputs` is the fingerprint of all that the outcome depends on.
    """

    name: str
    inputs: str
    total: int
    at_once: int
    parts: Mapping[str, str] = field(
        default_factory=dict, compare=False
    )  # what `inputs` was made from, by name

    def __len__(self) -> int:
        return -(-self.total // self.at_once)

    def size(self, number: int) -> int:
        """How many trials a unit has; the last one has what is left.

        >>> plan = Plan("playing", "", total=10, at_once=4)
        >>> [plan.size(number) for number in range(len(plan))]
        [4, 4, 2]
        """
        return min(self.at_once, self.total - number * self.at_once)

    def key(self, number: int) -> str:
        """The name of a unit's file."""
        return hashlib.sha256(f"{self.inputs} {number} {self.size(number)}".encode()).hexdigest()
