"""Updates that are explained whole or not at all: what they share, whether texts or pictures come back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack, Reconstruction, blindly
from remanence.core.baseline import Baseline
from remanence.core.errors import Comparison, Criterion, Reduction
from remanence.core.knowledge import Knowledge
from remanence.core.priors import Uninformed
from remanence.core.releases import Gradient
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.outcome import Outcome
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.updates.captured import proven_sizes, require_finite, shuffled
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import SharedGradient

Reconstruct = Callable[[Gradient], Reconstruction]


class Recomputed(Protocol):
    """What recomputation says about the records that were named for one update."""

    @property
    def proven(self) -> int:
        """How many of them are proven."""
        ...

    @property
    def number(self) -> int:
        """How many there were, where that is proven too; 0 else."""
        ...

    @property
    def unexplained(self) -> float:
        """The share of the update that is left."""
        ...

    @property
    def named(self) -> int:
        """How many are named, proven or not."""
        ...

    @property
    def similarity(self) -> float:
        """The cosine between the update and what they make."""
        ...

    @property
    def explains_all(self) -> bool:
        """Whether nothing is."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether no other order of a record's parts explains it as well."""
        ...


@dataclass(frozen=True)
class CapturedWhole(AnyGame[SharedGradient]):
    """One or more updates. Each is a trial, and succeeds if all that was named for it recomputes it.

    The control is the same attack on the same update with the entries of every tensor shuffled.
    """

    mechanism: SharedGradient
    gradients: Gradient
    criterion: Criterion = Criterion(reduction=Reduction.EACH)
    bounds: tuple[Bound, ...] = ()
    rounding: Rounding | None = None  # of the updates' numbers; relative to each by default
    door: ClassVar[str] = "updates"
    default_trials: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_trials", len(self.gradients))

    @property
    def coarse(self) -> Rounding:
        """How coarse the updates' numbers are."""
        return self.rounding or Rounding(self.mechanism.precision)

    @property
    def knowledge(self) -> Knowledge:
        """The adversary knows the network and nothing else."""
        return Knowledge(self.mechanism, Uninformed(), None)

    def how_many(self, outcome: Outcome) -> int | None:
        """All updates together, where each number is proven."""
        return proven_sizes(outcome)

    def fits(self) -> None:
        """The gradients are numbers. Whether they belong to the network, recomputation tells."""
        require_finite(self.gradients)

    def baseline(self, chances: int = 1) -> Baseline:
        """Nothing: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of what went in."""
        return {"gradients": self.gradients.sha256()}

    def to(self, device: torch.device | str) -> Self:
        """The same game: the search runs on the CPU, where the network is."""
        return self

    def records(self, trials: int, draws: Draws) -> None:
        """Nobody knows which records they were."""

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All updates together."""
        count = min(trials, len(self.gradients))
        return Work(count, count, (replace(self, bounds=()),))

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> Reconstruct:
        """The attack, ready for any update of this network."""
        return attack.prepare_on(run, self.knowledge, draws.stream("attack"))

    def trials(self, prepared: Reconstruct, draws: Draws, unit: Unit) -> Outcome:
        """Attack every update, and a shuffled copy of each."""
        gradients = self.gradients.take(slice(0, unit.size))
        mixed = shuffled(gradients, draws.stream("control"))
        guess, decoy = blindly(prepared, gradients, mixed, draws.stream("coins"))
        found, controls = self.verified(guess, gradients), self.verified(decoy, mixed)
        counts, sizes = (torch.tensor([getattr(one, n) for one in found]) for n in ("proven", "number"))
        left = torch.tensor([one.unexplained for one in found], dtype=torch.float64)
        return Outcome(
            main=_counted(found),
            control=_counted(controls),
            numbers={
                **guess.numbers(),
                "proven": counts,
                "proven_batch_size": sizes,
                "unexplained": left,
                "named": torch.tensor([one.named for one in found]),
                "similarity": torch.tensor([one.similarity for one in found], dtype=torch.float64),
                "is_ordered": torch.tensor([one.is_ordered for one in found]),
            },
            proven=counts,
        )

    @abstractmethod
    def verified(self, guess: Reconstruction, gradients: Gradient) -> Sequence[Recomputed]:
        """What recomputation says about each update and the records that were named."""


def coarsest(gradients: Sequence[Mapping[str, Tensor]], rounding: Rounding) -> float:
    """How coarse the matrices of updates are, relative to the largest number of each."""
    return max(
        rounding.of_tensor(name).of_largest(value)
        for one in gradients
        for name, value in one.items()
        if value.ndim > 1 and value.any()
    )


def _counted(found: Sequence[Recomputed]) -> Comparison:
    proven = torch.tensor([[one.proven > 0] for one in found])
    return Comparison(torch.full(proven.shape, torch.nan, dtype=torch.float64), proven, proven)
