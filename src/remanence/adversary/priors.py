"""π, what the adversary believes before seeing the release, and κ, how far belief alone gets.

κ(η) = sup over ẑ of P(ρ(z, ẑ) ≤ η): the success of the best guess that ignores the release
(Balle et al. 2022, §VII). What we report as the baseline is never below κ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from remanence.adversary.guess_coverage import good_guess, largest_mass, most_met
from remanence.adversary.set_draws import draw_others, draw_sets
from remanence.data.records import Records
from remanence.exceptions import InputError
from remanence.scale.progress import track
from remanence.scoring.errors import Criterion, Reduction
from remanence.scoring.rates import CONFIDENCE, clopper_pearson

_BASELINE_RECORDS = 2000


@dataclass(frozen=True)
class Baseline:
    """κ from above (`value`) and from below (`lower`), and where it comes from."""

    value: float
    lower: float
    note: str
    on_average: bool = (
        False  # over records at random, where all trials have the same few: those may be easier
    )

    @property
    def loose(self) -> bool:
        """Whether the certain upper value is more than twice what a guess was seen to achieve."""
        return self.value > 2 * self.lower

    @property
    def seen(self) -> float:
        """What guessing is known to achieve: the value, or where that is loose what a guess was seen to do."""
        return self.lower if self.loose else self.value

    def times(self, factor: int) -> Baseline:
        """The baseline when `factor` pairs of guess and record could each succeed (union bound)."""
        if factor == 1:
            return self
        note = f"{self.note}; times {factor} chances"
        return replace(self, value=min(1.0, self.value * factor), note=note)


class Prior(ABC):
    """What the adversary believes about the targets."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n targets, each a set of records: batch `(n, set)`."""

    @property
    def has_strangers(self) -> bool:
        """Whether `sample_pair` has records enough for strangers that share none with their target."""
        return True

    @property
    def draws_targets(self) -> bool:
        """Whether targets may be drawn from it: not where it is all that the adversary collected."""
        return self.samples is None

    @property
    def samples(self) -> Records | None:
        """The records that it is made of, if it is made of any."""
        return None

    def shares_records_with(self, held: Records) -> bool:
        """Whether one of its records is among those that somebody holds.

        Where its records equal each other (tables of few categories), equal records say nothing.
        """
        if self.samples is None:
            return False
        own = {row.tobytes() for row in self.samples.flat.cpu().numpy()}
        distinct = len(own) == len(self.samples)
        return distinct and any(row.tobytes() in own for row in held.flat.cpu().numpy())

    def sample_pair(
        self, n: int, generator: torch.Generator, controls: torch.Generator
    ) -> tuple[Records, Records]:
        """Draw n targets and, for each, a stranger to hold its reconstruction against.

        Where records stand for a large population, a stranger has no record in common with the target.
        """
        return self.sample(n, generator), self.sample(n, controls)

    @abstractmethod
    def baseline(self, criterion: Criterion) -> Baseline:
        """κ: how often the best guess succeeds without the release."""

    def baseline_for(self, targets: Prior, criterion: Criterion) -> Baseline:
        """κ on targets that come from elsewhere, whose sets may have another shape."""
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
    """The adversary believes nothing about the record before seeing the release.

    There is no distribution to guess from, so the baseline is 0 by convention. A game with this
    belief must say where its targets come from.
    """

    @property
    def draws_targets(self) -> bool:
        """Nothing can be drawn from it."""
        return False

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Refuse: nothing is believed, so nothing can be drawn."""
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
        return "uninformed: nothing is believed about the record"

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
        """A shortlist names its candidates anyway."""
        return False

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n candidates by their weights: batch `(n, 1)`."""
        weights = self.weights.to(generator.device)
        index = torch.multinomial(weights, n, replacement=True, generator=generator)
        return self.candidates[index.to(self.weights.device)[:, None]]

    def baseline(self, criterion: Criterion) -> Baseline:
        """The largest mass within reach of one guess.

        Guessing a candidate is one strategy (the lower value). A better guess may lie between
        candidates; all that it meets are within `reach` of each other, which gives the upper value.
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
        return (
            f"a shortlist of {len(self.candidates)} candidates, the likeliest with {self.weights.max():.3g}"
        )

    def to(self, device: torch.device | str) -> FinitePrior:
        """The same shortlist on another device."""
        return FinitePrior(self.candidates.to(device), self.weights.to(device))


@final
@dataclass(frozen=True)
class EmpiricalPrior(Prior):
    """A distribution known through independent samples from it.

    As a belief it is what the adversary collected, and the game must draw its targets from other
    records of the same kind; as the source of a game's targets it is the auditor's own records.
    """

    records: Records  # (records,)
    set_size: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.set_size <= len(self.records):
            raise InputError(
                "A set cannot be drawn.",
                needs=f"a set size from 1 to the {len(self.records)} records",
                got=str(self.set_size),
                hint="fewer records per set, or more records",
            )

    @property
    def samples(self) -> Records:
        """What was collected."""
        return self.records

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n independent sets of records, each set without replacement: batch `(n, set_size)`."""
        return self.records.take(self._index(n, generator))

    def sample_pair(
        self, n: int, generator: torch.Generator, controls: torch.Generator
    ) -> tuple[Records, Records]:
        """Disjoint sets, where there are records enough."""
        index = self._index(n, generator)
        if not self.has_strangers:
            return self.records.take(index), self.sample(n, controls)
        others = draw_others(index, len(self.records), controls)
        return self.records.take(index), self.records.take(others)

    @property
    def has_strangers(self) -> bool:
        """Two sets' worth of records."""
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
        records, tail = _some(self.records), 1 - CONFIDENCE
        count, lower = len(records), _of_good_guess(records, criterion, tail)
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
        return f"{len(self.records)} samples from the population"

    def to(self, device: torch.device | str) -> EmpiricalPrior:
        """The same samples on another device."""
        return EmpiricalPrior(self.records.to(device), self.set_size)


@final
@dataclass(frozen=True)
class StratifiedPrior(Prior):
    """Sets with a given number of records of each class, drawn from a pool: what a weak adversary knows.

    `counts` is the number per class, one for all classes or one for each; the classes are those of the
    pool, in order. The i-th records of all sets have the same class. A pool that `augment` made is so many
    `copies` of the same records, one after the other.

    >>> pool = Records(torch.arange(6.0)[:, None], torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> StratifiedPrior(pool, 2).sample(1, torch.Generator().manual_seed(0)).labels
    tensor([[0, 0, 1, 1]])
    """

    records: Records  # (records,)
    counts: int | tuple[int, ...] = 1
    copies: int = 1
    _layout: tuple[Tensor, list[int], list[int], tuple[int, ...]] = field(
        init=False, repr=False, compare=False
    )  # the records by class; each class's first place, its size, and how many a set takes
    _known: dict[tuple[Criterion, tuple[float, ...]], list[Baseline]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )  # baselines take seconds for many pictures

    def __post_init__(self) -> None:
        classes, sizes = torch.unique(self.records.labels, return_counts=True)
        counts = (self.counts,) * len(classes) if isinstance(self.counts, int) else self.counts
        if len(counts) != len(classes) or any(
            not 0 <= n <= m for n, m in zip(counts, sizes.tolist(), strict=True)
        ):
            raise InputError(
                "A set cannot be drawn.",
                needs=f"a number per class, at most those of the pool ({', '.join(map(str, sizes.tolist()))})",
                got=str(self.counts),
                hint="fewer records per class, or a larger pool",
            )
        by_class = self.records.labels.argsort(stable=True)
        starts = (sizes.cumsum(0) - sizes).tolist()
        object.__setattr__(self, "_layout", (by_class, starts, sizes.tolist(), counts))

    @property
    def samples(self) -> Records:
        """The pool."""
        return self.records

    @property
    def set_size(self) -> int:
        """How many records a set has."""
        return sum(self._layout[3])

    @property
    def classes(self) -> Tensor:
        """The labels of the classes that a set has records of, in order."""
        counts = torch.tensor(self._layout[3], device=self.records.labels.device)
        return torch.unique(self.records.labels)[counts > 0]

    @property
    def present(self) -> list[tuple[float, int]]:
        """The label of each class that a set has records of, and how many."""
        return list(zip(self.classes.tolist(), (n for n in self._layout[3] if n), strict=True))

    @property
    def places(self) -> Tensor:
        """Where in a set the records of each class stand, `(classes, most)`; the last is repeated."""
        starts = [sum(self._layout[3][:i]) for i in range(len(self._layout[3]))]
        most = max(self._layout[3])
        rows = [
            [start + min(i, count - 1) for i in range(most)]
            for start, count in zip(starts, self._layout[3], strict=True)
            if count
        ]
        return torch.tensor(rows)

    def sample(self, n: int, generator: torch.Generator) -> Records:
        """Draw n independent sets, each without replacement (Floyd's algorithm): batch `(n, set_size)`."""
        return self._gather([draw_sets(n, size, count, generator) for size, count in self.sizes])

    def sample_pair(
        self, n: int, generator: torch.Generator, controls: torch.Generator
    ) -> tuple[Records, Records]:
        """Disjoint sets, where there are records enough of every class."""
        index = [draw_sets(n, size, count, generator) for size, count in self.sizes]
        if not self.has_strangers:
            return self._gather(index), self.sample(n, controls)
        others = [draw_others(own, size, controls) for own, (size, _) in zip(index, self.sizes, strict=True)]
        return self._gather(index), self._gather(others)

    @property
    def has_strangers(self) -> bool:
        """Two sets' worth of records of every class."""
        return all(2 * count <= size for size, count in self.sizes)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """How many records the pool has of each class, and how many a set takes."""
        return list(zip(self._layout[2], self._layout[3], strict=True))

    def _gather(self, index: list[Tensor]) -> Records:
        """The records at these places of each class."""
        by_class, starts, _, _ = self._layout
        places = torch.cat([start + own for start, own in zip(starts, index, strict=True)], 1)
        return self.records.take(by_class[places.to(by_class.device)])

    def baseline(self, criterion: Criterion, present: Sequence[tuple[float, int]] | None = None) -> Baseline:
        """κ for a guess per class: 1 − (1 − κ_c)^n for n records of class c, averaged over the classes.

        `present` are the labels and numbers of records that sets really have, where this belief is another.
        """
        present = self.present if present is None else present
        found = self.class_baselines(criterion, [label for label, _ in present])
        classes = list(zip(found, (n for _, n in present), strict=True))
        if criterion.reduction in (Reduction.BEST, Reduction.MATCHED):
            worst = max(own.value for own, _ in classes)
            return Baseline(
                worst, 0.0, f"the largest of {len(classes)} classes, at {CONFIDENCE:.0%} confidence"
            )
        if criterion.reduction is Reduction.EACH:  # a guess per record, whose class is known
            total = sum(n for _, n in present)
            weigh = lambda pairs: sum(share * n for share, n in pairs) / total  # noqa: E731
        else:
            weigh = lambda pairs: sum(1 - (1 - share) ** n for share, n in pairs) / len(classes)  # noqa: E731
        note = f"mean over {len(classes)} classes, at {CONFIDENCE:.0%} confidence from samples of each"
        upper, lower = (weigh((getattr(own, end), n) for own, n in classes) for end in ("value", "lower"))
        return Baseline(upper, lower, note)

    def baseline_for(self, targets: Prior, criterion: Criterion) -> Baseline:
        """κ on sets of the classes and sizes that the targets really have."""
        present = targets.present if isinstance(targets, StratifiedPrior) else None
        return self.baseline(criterion, present)

    def class_baselines(self, criterion: Criterion, labels: Sequence[float]) -> list[Baseline]:
        """κ_c for one record of each of these classes.

        Bounded as for an `EmpiricalPrior`, from at most two thousand records of the class, and all classes hold
        together. From below: a good guess that was chosen on one half of the records and counted on the other.
        """
        tail = (1 - CONFIDENCE) / len(labels)
        if (criterion, tuple(labels)) not in self._known:
            originals = self.records[: len(self.records) // self.copies]  # a copy is no further sample
            found = [
                _of_one_class(originals[originals.labels == label], criterion, tail)
                for label in track(labels, total=len(labels), what="guessing")
            ]
            self._known[criterion, tuple(labels)] = found
        return self._known[criterion, tuple(labels)]

    def describe(self) -> str:
        """One line for a report."""
        counts = self._layout[3]
        each = f"{counts[0]} of each" if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} of them"
        return f"{len(self.records)} samples from {len(counts)} classes; sets have {each}"

    def to(self, device: torch.device | str) -> StratifiedPrior:
        """The same samples on another device."""
        moved = StratifiedPrior(self.records.to(device), self.counts, self.copies)
        moved._known.update(self._known)
        return moved


def _of_one_class(records: Records, criterion: Criterion, tail: float) -> Baseline:
    records = _some(records)
    size = len(records)
    upper = 1.0
    if criterion.error.reach is not None and size:
        upper = clopper_pearson(most_met(records, criterion), size, tail)[1]
    lower = _of_good_guess(records, replace(criterion, label_scale=None), tail)  # the class is known
    return Baseline(upper, lower, f"from {size} samples of the class")


def _of_good_guess(records: Records, criterion: Criterion, tail: float) -> float:
    """What a guess certainly achieves: chosen on one half of the records, counted on the other."""
    half = len(records) // 2
    if half < 2:
        return 0.0
    guess = good_guess(records[:half], criterion)
    others = records[half:]
    alike = guess[torch.zeros(len(others), dtype=torch.int64, device=others.labels.device)]
    each = replace(criterion, reduction=Reduction.EACH)
    hits = int(each.compare(others[:, None], alike[:, None]).succeeded.sum())
    return clopper_pearson(hits, len(others), tail)[0]


def _some(records: Records) -> Records:
    """At most so many of them, at random: pairs grow with the square of their number, precision with its root."""
    if len(records) <= _BASELINE_RECORDS:
        return records
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    return records[order[:_BASELINE_RECORDS].to(records.labels.device)]
