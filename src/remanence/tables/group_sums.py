"""Sums over groups of people, as a dashboard or a statistics office publishes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from remanence.core.exceptions import MisfitError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import PublishedSums, Release

_NOISE_AT_MOST = 6.0  # standard deviations


@final
@dataclass(frozen=True)
class GroupSums(Mechanism[PublishedSums]):
    """The sum of one column over each group, as exactly as it was printed, with Gaussian noise or without.

    `low` and `high` are what must hold for each person's value, where that was worked out.
    """

    members: np.ndarray = field(compare=False)  # (groups, people), 0 and 1
    rounding: np.ndarray = field(compare=False)  # (groups,), how far a printed sum may be off
    noise: float = 0.0
    limits: tuple[float, float] = (0.0, 1.0)  # what anybody's value may be
    bits: bool = False  # whether every value is 0 or 1
    precision: float = 0.0  # how wide a range may be that still tells a value
    low: np.ndarray | None = field(default=None, compare=False)  # (people,)
    high: np.ndarray | None = field(default=None, compare=False)
    name: ClassVar[str] = "sums over groups"
    held_because: ClassVar[str] = "no other value fits all the published numbers"

    @property
    def releases(self) -> type[Release]:
        """The sums."""
        return PublishedSums

    def settings(self) -> dict[str, Setting]:
        """What a report prints about what was published."""
        groups, people = self.members.shape
        return {
            "groups": groups,
            "people": people,
            "noise": self.noise,
            "rounded_by": float(self.rounding.max()),
        }

    def release(
        self, known_data: Records | None, targets: Records, generator: torch.Generator
    ) -> PublishedSums:
        """The sums for each trial, the missing person being the last."""
        parts = [
            targets[trial] if known_data is None else concatenate([known_data, targets[trial]])
            for trial in range(len(targets))
        ]
        values = torch.stack([part.flat[:, 0].double() for part in parts])
        sums = values @ torch.from_numpy(self.members.T).double()
        return PublishedSums(
            {"sums": sums + self.noise * torch.randn(sums.shape, generator=generator).double()}
        )

    def check_fit(self, data: Records, release: Release) -> None:
        """Every published number is the table's, but for rounding and noise."""
        sums, own = release["sums"][0].numpy(), self.members @ data.flat[:, 0].double().numpy()
        allowed = self.rounding + _NOISE_AT_MOST * self.noise + 1e-9 * np.abs(own)
        wrong = np.flatnonzero(np.abs(sums - own) > allowed)
        if len(wrong):
            first = int(wrong[0])
            raise MisfitError(
                "These numbers were not published about this table.",
                needs="sums, means and counts of the table's own groups",
                got=f"{len(wrong)} of {len(sums)} differ; line {first + 1} says a sum of {sums[first]:g}, "
                f"and its {int(self.members[first].sum())} people have {own[first]:g}",
                hint="the table that they were computed from; --noise where noise was added",
            )

    def held_rows(self, data: Records) -> Tensor | None:
        """People whose value follows: the smallest and the largest that anything published allows are the same."""
        return None if self.low is None or self.high is None else torch.from_numpy(self.told)

    @property
    def told(self) -> np.ndarray:
        """Whose value follows, as precisely as is asked for; nobody's where nothing was worked out."""
        if self.low is None or self.high is None:
            return np.zeros(self.members.shape[1], dtype=bool)
        return determined(self.low, self.high, self.precision)


def determined(low: np.ndarray, high: np.ndarray, precision: float = 0.0) -> np.ndarray:
    """Where both ends of a range agree."""
    with np.errstate(invalid="ignore"):
        return high - low <= np.maximum(precision, 1e-7 * np.maximum(1.0, np.abs(high)))
