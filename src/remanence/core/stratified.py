"""A prior over sets with a given number of records of each class: what a weak adversary knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, Reduction
from remanence.core.exceptions import InputError
from remanence.core.guess_coverage import most_met, some_of, sure_of_a_guess
from remanence.core.priors import Prior
from remanence.core.rates import CONFIDENCE, clopper_pearson
from remanence.core.records import Records
from remanence.core.set_draws import draw_others, draw_sets
from remanence.scale.progress import track


@final
@dataclass(frozen=True)
class StratifiedPrior(Prior):
    """Sets with a given number of records of each class, drawn from a pool: what a weak adversary knows.

    `counts` is the number per class, one for all classes or one for each; the classes are those of the
    pool, in order. The i-th records of all sets have the same class. A pool made by `augment` consists of
    `copies` versions of the same records, one after the other.

    >>> pool = Records(torch.arange(6.0)[:, None], torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> StratifiedPrior(pool, 2).sample(1, torch.Generator().manual_seed(0)).labels
    tensor([[0, 0, 1, 1]])
    """

    records: Records  # (records,)
    counts: int | tuple[int, ...] = 1
    copies: int = 1
    _layout: tuple[Tensor, list[int], list[int], tuple[int, ...]] = field(
        init=False, repr=False, compare=False
    )  # the records by class; each class's first index, its size, and its number per set
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
        """The indices within a set of each class's records, `(classes, most)`, padded with the last one."""
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
        """Disjoint sets, if there are enough records of every class."""
        index = [draw_sets(n, size, count, generator) for size, count in self.sizes]
        if not self.has_strangers:
            return self._gather(index), self.sample(n, controls)
        others = [draw_others(own, size, controls) for own, (size, _) in zip(index, self.sizes, strict=True)]
        return self._gather(index), self._gather(others)

    @property
    def has_strangers(self) -> bool:
        """Whether there are enough records of every class for two sets."""
        return all(2 * count <= size for size, count in self.sizes)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """How many records the pool has of each class, and how many a set takes."""
        return list(zip(self._layout[2], self._layout[3], strict=True))

    def _gather(self, index: list[Tensor]) -> Records:
        """The records at these indices within each class."""
        by_class, starts, _, _ = self._layout
        places = torch.cat([start + own for start, own in zip(starts, index, strict=True)], 1)
        return self.records.take(by_class[places.to(by_class.device)])

    def baseline(self, criterion: Criterion, present: Sequence[tuple[float, int]] | None = None) -> Baseline:
        """κ for a guess per class: 1 − (1 − κ_c)^n for n records of class c, averaged over the classes.

        `present` gives the labels and record counts of the actual sets, if this prior assumes others.
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
        """κ on sets with the classes and sizes of the actual targets."""
        present = targets.present if isinstance(targets, StratifiedPrior) else None
        return self.baseline(criterion, present)

    def class_baselines(self, criterion: Criterion, labels: Sequence[float]) -> list[Baseline]:
        """κ_c for one record of each of these classes.

        Bounded as for an `EmpiricalPrior`, from at most two thousand records of the class, simultaneously for all
        classes. From below: a good guess, chosen on one half of the records and counted on the other.
        """
        tail = (1 - CONFIDENCE) / len(labels)
        if (criterion, tuple(labels)) not in self._known:
            originals = self.records[: len(self.records) // self.copies]  # copies are not independent samples
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
        return f"{len(self.records)} samples of {len(counts)} classes; how many were trained on ({each})"

    def to(self, device: torch.device | str) -> StratifiedPrior:
        """The same samples on another device."""
        moved = StratifiedPrior(self.records.to(device), self.counts, self.copies)
        moved._known.update(self._known)
        return moved


def _of_one_class(records: Records, criterion: Criterion, tail: float) -> Baseline:
    records = some_of(records)
    size = len(records)
    upper = 1.0
    if criterion.error.reach is not None and size:
        upper = clopper_pearson(most_met(records, criterion), size, tail)[1]
    lower = sure_of_a_guess(records, replace(criterion, label_scale=None), tail)  # the class is known
    return Baseline(upper, lower, f"from {size} samples of the class")
