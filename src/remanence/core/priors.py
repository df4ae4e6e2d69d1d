"""π, the adversary's prior before seeing the release, and κ, the success of a guess from the prior alone.

κ(η) = sup over ẑ of P(ρ(z, ẑ) ≤ η): the success of the best guess that ignores the release
(Balle et al. 2022, §VII). The reported baseline is never below κ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from remanence.core.baseline import Baseline
from remanence.core.checks import whole
from remanence.core.errors import Criterion
from remanence.core.exceptions import InputError
from remanence.core.guess_coverage import largest_mass, most_met, some_of, sure_of_a_guess
from remanence.core.rates import CONFIDENCE, clopper_pearson
from remanence.core.records import Records
from remanence.core.set_draws import draw_others


class Prior(ABC):
    """The adversary's belief about the targets."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n targets, each a set of records: batch `(n, set)`."""

    @property
    def has_strangers(self) -> bool:
        """Whether there are enough records for `sample_pair` to draw strangers disjoint from their target."""
        return True

    @property
    def draws_targets(self) -> bool:
        """Whether targets may be drawn from it: not if it is the adversary's own collection."""
        return self.samples is None

    @property
    def samples(self) -> Records | None:
        """The records that define it, if any."""
        return None

    def require_targets(self) -> None:
        """Refuse to be the source of a game's targets if it is the adversary's own collection."""
        if not self.draws_targets:
            raise InputError(
                "The game does not say where its targets come from.",
                needs="targets that the adversary does not hold",
                got=f"a prior ({self.describe()}) and no targets",
                hint="Game(..., targets=EmpiricalPrior(held_out_records))",
            )

    def shares_records_with(self, held: Records) -> bool:
        """Whether one of its records is in `held`.

        If its own records repeat (tables with few categories), equal records are not evidence of overlap.
        """
        if self.samples is None:
            return False
        own = {row.tobytes() for row in self.samples.flat.cpu().numpy()}
        distinct = len(own) == len(self.samples)
        return distinct and any(row.tobytes() in own for row in held.flat.cpu().numpy())

    def sample_pair(
        self, n: int, generator: torch.Generator, controls: torch.Generator
    ) -> tuple[Records, Records]:
        """Draw n targets and, for each, a stranger to compare its reconstruction with.

        If the records represent a large population, a stranger has no record in common with the target.
        """
        return self.sample(n, generator), self.sample(n, controls)

    @abstractmethod
    def baseline(self, criterion: Criterion) -> Baseline:
        """κ: how often the best guess succeeds without the release."""

    def baseline_for(self, targets: Prior, criterion: Criterion) -> Baseline:
        """κ on targets from another source, whose sets may have another shape."""
        return self.baseline(criterion)

    @abstractmethod
    def describe(self) -> str:
        """One line for a report."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Prior:
        """The same belief on another device."""


@final
@dataclass(frozen=True)
class Uninformed(Prior):
    """The adversary has no prior belief about the record.

    There is no distribution to guess from, so the baseline is 0 by convention. A game with this
    belief must say where its targets come from.
    """

    @property
    def draws_targets(self) -> bool:
        """Nothing can be drawn from it."""
        return False

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Refuse: there is no distribution to draw from."""
        raise InputError(
            "An uninformed adversary has no distribution to draw targets from.",
            needs="targets of the game's own",
            got="Uninformed() alone",
            hint="Game(..., prior=Uninformed(), targets=EmpiricalPrior(records))",
        )

    def baseline(self, criterion: Criterion) -> Baseline:
        """0, by convention."""
        return Baseline(0.0, 0.0, "0 by convention: an uninformed adversary has nothing to guess from")

    def describe(self) -> str:
        """One line for a report."""
        return "nothing else about the record"

    def to(self, device: torch.device | str) -> Uninformed:
        """Itself: there is nothing to move."""
        return self


@final
@dataclass(frozen=True)
class FinitePrior(Prior):
    """A shortlist of candidates, one of which is the target.

    >>> shortlist = Records(torch.eye(4), torch.arange(4))
    >>> FinitePrior(shortlist).baseline(Criterion(threshold=0.1)).value
    0.25
    """

    candidates: Records  # (candidates,)
    weights: Tensor = field(default_factory=lambda: torch.empty(0))  # (candidates,); uniform if left out

    def __post_init__(self) -> None:
        count = len(self.candidates)
        weights = self.weights.double() if len(self.weights) else torch.full((count,), 1.0).double()
        if weights.shape != (count,) or not (weights >= 0).all() or not 0 < weights.sum() < torch.inf:
            raise InputError(
                "The weights of the shortlist cannot be used.",
                needs=f"{count} numbers of at least 0 that are not all 0",
                got=f"shape {tuple(weights.shape)}, smallest {weights.min():.3g}, sum {weights.sum():.3g}",
                hint="leave the weights out for a uniform prior",
            )
        object.__setattr__(self, "weights", (weights / weights.sum()).to(self.candidates.features.device))

    @property
    def draws_targets(self) -> bool:
        """One of the candidates is the target."""
        return True

    @property
    def samples(self) -> Records:
        """The candidates."""
        return self.candidates

    def shares_records_with(self, held: Records) -> bool:
        """False: the candidates of a shortlist are known to the adversary by definition."""
        return False

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n candidates by their weights: batch `(n, 1)`."""
        weights = self.weights.to(generator.device)
        index = torch.multinomial(weights, n, replacement=True, generator=generator)
        return self.candidates[index.to(self.weights.device)[:, None]]

    def baseline(self, criterion: Criterion) -> Baseline:
        """The largest mass within reach of one guess.

        Guessing a candidate is one strategy (the lower value). A better guess may lie between
        candidates; all candidates that it meets are within `reach` of each other, which gives the upper value.
        """
        lower = largest_mass(self.candidates, self.weights, criterion, criterion.threshold, 1)
        if criterion.error.reach is None:
            return Baseline(1.0, lower, "1: this error states no reach, so no smaller value is certain")
        reach = criterion.error.reach(criterion.threshold)
        upper = largest_mass(self.candidates, self.weights, criterion, reach, 2)
        how = "exact" if upper == lower else f"safe upper value; guessing a candidate alone gives {lower:.4g}"
        return Baseline(upper, lower, f"{how}, over {len(self.candidates)} weighted candidates")

    def describe(self) -> str:
        """One line for a report."""
        most = self.weights.max().item()
        likeliest = (
            "" if most * len(self.candidates) < 1.001 else f", the likeliest {1000 * most:.3g} times in 1000"
        )
        return f"a shortlist of {len(self.candidates)} candidates, one of which is the record{likeliest}"

    def to(self, device: torch.device | str) -> FinitePrior:
        """The same shortlist on another device."""
        return FinitePrior(self.candidates.to(device), self.weights.to(device))


@final
@dataclass(frozen=True)
class EmpiricalPrior(Prior):
    """A distribution known through independent samples from it.

    As a prior it is the adversary's collection, and the game must draw its targets from other
    records of the same distribution; as the source of targets it is the auditor's own records.
    """

    records: Records  # (records,)
    set_size: int = 1
    called: str = "samples from the population"

    def __post_init__(self) -> None:
        whole("set_size", self.set_size, most=len(self.records), hint="fewer in a set, or more records")

    @property
    def samples(self) -> Records:
        """The collected records."""
        return self.records

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n independent sets of records, each set without replacement: batch `(n, set_size)`."""
        return self.records.take(self._index(n, generator))

    def sample_pair(
        self, n: int, generator: torch.Generator, controls: torch.Generator
    ) -> tuple[Records, Records]:
        """Disjoint sets, if there are enough records."""
        index = self._index(n, generator)
        if not self.has_strangers:
            return self.records.take(index), self.sample(n, controls)
        others = draw_others(index, len(self.records), controls)
        return self.records.take(index), self.records.take(others)

    @property
    def has_strangers(self) -> bool:
        """Whether there are enough records for two sets."""
        return 2 * self.set_size <= len(self.records)

    def _index(self, n: int, generator: torch.Generator) -> Tensor:
        count = len(self.records)
        if self.set_size == 1:
            index = torch.randint(count, (n, 1), generator=generator, device=generator.device)
        else:
            keys = torch.rand(n, count, generator=generator, device=generator.device)
            index = keys.topk(self.set_size, dim=1).indices
        return index.to(self.records.features.device)

    def baseline(self, criterion: Criterion) -> Baseline:
        """κ from samples: Clopper–Pearson on the largest number of samples within reach of one guess.

        Hayes et al. 2023, Proposition 6 as corrected: its failure probability contains the unknown
        κ, and its balls must be allowed any centre. `most_met` bounds the number of samples that one
        guess meets, which for the best guess is binomial. From below: a good guess, chosen on one half of the
        samples and counted on the other.
        """
        records, tail = some_of(self.records), 1 - CONFIDENCE
        count, lower = len(records), sure_of_a_guess(records, criterion, tail)
        if criterion.error.reach is None:
            return Baseline(1.0, lower, "1: this error states no reach, so no smaller value is certain")
        best = most_met(records, criterion)
        _, upper = clopper_pearson(best, count, tail)
        note = (
            f"at {CONFIDENCE:.0%} confidence from {count} samples, {best} of them within reach of one guess"
        )
        return Baseline(upper, lower, note)

    def describe(self) -> str:
        """One line for a report."""
        return f"{len(self.records)} {self.called}"

    def to(self, device: torch.device | str) -> EmpiricalPrior:
        """The same samples on another device."""
        return EmpiricalPrior(self.records.to(device), self.set_size, self.called)
