"""What every kind of game has in common: rounds to play and an outcome for each trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline
from remanence.attacks.attack import Attack, Reconstruction
from remanence.bounds.bound import Bound
from remanence.data.releases import Release
from remanence.mechanisms.mechanism import Mechanism
from remanence.results.caveats import Caveat
from remanence.scale.journal import Plan
from remanence.scale.run import Do, Tensors
from remanence.scale.seeds import unit_seed
from remanence.scoring.errors import Comparison, Criterion


@dataclass(frozen=True)
class Gallery:
    """A few reconstructions beside their closest targets and strangers. This is data: kept on request only."""

    targets: Tensor  # (shown, *example)
    reconstructions: Tensor
    controls: Tensor
    succeeded: Tensor  # (shown,)

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored."""
        return {name: values.detach().cpu().contiguous() for name, values in vars(self).items()}


@dataclass(frozen=True)
class Rounds:
    """The outcome of playing, trial by trial."""

    main: Comparison
    control: Comparison
    baseline: Baseline
    remaining_gradient: Tensor | None = None  # (trials,)
    sensitivity: Tensor | None = None  # (trials,)
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)  # each (trials,)
    record: Tensor | None = None  # (trials,), which record of the training set was the target
    caveats: tuple[Caveat, ...] = ()
    gallery: Gallery | None = None
    claims_labels: bool = True  # whether the attack says anything about labels


@dataclass(frozen=True)
class UnitOutcome:
    """What one unit of trials found: all of `Rounds` that differs from unit to unit, as tensors to be stored."""

    main: Comparison
    control: Comparison
    remaining_gradient: Tensor | None = None
    sensitivity: Tensor | None = None
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    gallery: Gallery | None = None
    claims_labels: bool = True
    chances: int = 1  # how many guesses each record got

    def tensors(self) -> Tensors:
        """By names that `join` knows."""
        found = {f"main.{name}": values for name, values in vars(self.main).items()}
        found |= {f"control.{name}": values for name, values in vars(self.control).items()}
        found |= {f"diagnostics.{name}": values for name, values in self.diagnostics.items()}
        if self.gallery is not None:
            found |= {f"gallery.{name}": values for name, values in self.gallery.tensors().items()}
        if self.remaining_gradient is not None:
            found["remaining_gradient"] = self.remaining_gradient
        if self.sensitivity is not None:
            found["sensitivity"] = self.sensitivity
        return {
            **found,
            "claims_labels": torch.tensor(self.claims_labels),
            "chances": torch.tensor(self.chances),
        }

    @classmethod
    def of(cls, tensors: Tensors) -> UnitOutcome:
        """What `tensors` made into names, read back."""

        def within(prefix: str) -> Tensors:
            return {n.removeprefix(prefix): values for n, values in tensors.items() if n.startswith(prefix)}

        return cls(
            main=Comparison(**within("main.")),
            control=Comparison(**within("control.")),
            remaining_gradient=tensors.get("remaining_gradient"),
            sensitivity=tensors.get("sensitivity"),
            diagnostics=within("diagnostics."),
            gallery=Gallery(**within("gallery.")) if "gallery.targets" in tensors else None,
            claims_labels=bool(tensors["claims_labels"]),
            chances=int(tensors["chances"]),
        )


def join(parts: Sequence[Tensors]) -> Tensors:
    """Consecutive units as if one had played all trials; the gallery is that of the first."""
    return {
        name: torch.cat([part[name] for part in parts])
        if values.ndim and not name.startswith("gallery.")
        else values
        for name, values in parts[0].items()
    }


@dataclass(frozen=True)
class Prepared:
    """An attack that has done all it can before the release, and the generator that it may go on to draw from."""

    reconstruct: Callable[[Release], Reconstruction]
    generator: torch.Generator
    state: Tensor  # of the generator, when the attack was prepared

    @classmethod
    def of(cls, attack: Attack, knowledge: Knowledge, seed: int, device: torch.device | str) -> Prepared:
        """Prepare an attack."""
        generator = stream(seed, "attack", device)
        return cls(attack.prepare(knowledge, generator), generator, generator.get_state())

    def for_unit(self, seed: int, unit: int) -> Callable[[Release], Reconstruction]:
        """The attack with draws that depend on the unit alone, not on what was played before."""
        if unit == 0:
            self.generator.set_state(self.state)
        else:
            self.generator.manual_seed(stream_seed(seed, "attack", unit))
        return self.reconstruct


@runtime_checkable
class AnyGame(Protocol):
    """A game as `play` and `audit` see it."""

    @property
    def mechanism(self) -> Mechanism[Release]:
        """The training that is audited."""
        ...

    @property
    def criterion(self) -> Criterion:
        """When a reconstruction counts."""
        ...

    @property
    def knowledge(self) -> Knowledge:
        """All that the adversary has before the release."""
        ...

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Ceilings that somebody has proven for this game."""
        ...

    @property
    def default_trials(self) -> int:
        """How many trials to play if nobody says."""
        ...

    def guess(self) -> Baseline:
        """What one guess without the release achieves."""
        ...

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data that went in."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The same game on another device."""
        ...

    def rounds(self, attack: Attack, *, trials: int, seed: int, device: torch.device | str) -> Rounds:
        """Let the attack play."""
        ...


@runtime_checkable
class InUnits(AnyGame, Protocol):
    """A game whose trials can be played in units, anywhere."""

    def work(
        self, attack: Attack, *, trials: int, seed: int, device: torch.device | str
    ) -> tuple[Plan, Callable[[], Do]]:
        """What the units are, and how to get ready for them."""
        ...


def stream(seed: int, name: str, device: torch.device | str, unit: int = 0) -> torch.Generator:
    """A generator of its own for each purpose and unit: no draw ever shifts those of another attack or unit."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, name, unit))


def stream_seed(seed: int, name: str, unit: int = 0) -> int:
    """The seed of a stream.

    >>> stream_seed(0, "training") == stream_seed(0, "training", 1)
    False
    """
    return unit_seed([seed, *name.encode()], unit)
