"""What every kind of game has in common: rounds to play and an outcome for each trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from remanence.adversary import Knowledge
from remanence.attacks.attack import Attack
from remanence.bounds.bound import Bound
from remanence.caveats import Caveat
from remanence.errors import Comparison, Criterion
from remanence.mechanisms.mechanism import Mechanism
from remanence.priors import Baseline
from remanence.releases import Release


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


def stream(seed: int, name: str, device: torch.device | str) -> torch.Generator:
    """A generator of its own for each purpose, so that one attack's draws never shift another's targets."""
    words = np.random.SeedSequence([seed, *name.encode()]).generate_state(2, np.uint32)
    return torch.Generator(device=device).manual_seed((int(words[0]) << 32) | int(words[1]))
