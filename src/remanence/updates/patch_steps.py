"""Several local steps on pictures in patches: an update is the sum of gradients at weights that moved on the way.

Every step reads the same patches, so that the span of the update, and what the embeddings of positions tell, hold after
any number of steps: one picture follows from them as it does after one. Only the derivatives move along with the
weights. Where the weights ended is known: it is the update. So the mean gradient of all steps is first taken to be the
gradient in the middle of a straight way, and pictures are solved for there. From what that gives, all steps are made
anew; by as much as their mean is off the gradient in the middle, the update is corrected, and solved for again, until
nothing changes. SGD adds gradients up, with momentum and decay too: how much each counts follows from its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.updates.patch_equations import PatchEquations
from remanence.updates.patch_models import Parameters, PatchModel
from remanence.updates.patch_solver import Solution, Work, settle

Along = Callable[[Parameters, Callable[[Parameters], Parameters]], Parameters]

_ROUNDS, _BETTER = 30, 0.9  # of making all steps again, and what a round may leave of the square at most
_STEPS = 8  # of the solver in each round


@final
@dataclass(frozen=True)
class PatchSteps:
    """An update of several steps, as the mean of their gradients."""

    model: PatchModel
    sent: Parameters
    along: Along
    times: float  # how often a gradient counts in it
    still: Parameters  # what no gradient makes: the decay of the weights
    moved: tuple[float, ...]  # by how many mean gradients the weights have moved before each step

    @classmethod
    def of(cls, model: PatchModel, gradient: Mapping[str, Tensor], along: Along) -> PatchSteps:
        """How much each step counts, found by making them with gradients that are known."""
        one, none = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        moved: list[float] = []

        def noted(now: Parameters) -> Parameters:
            moved.append(float(now[""]))
            return {"": one}

        times = float(along({"": none}, noted)[""])
        still = along(model.trained, lambda now: {n: torch.zeros_like(value) for n, value in now.items()})
        sent = {name: (value - still[name]) / times for name, value in gradient.items()}
        return cls(model, sent, along, times, still, tuple(moved))

    @property
    def middle(self) -> Parameters:
        """Weights in the middle of a straight way to where they ended."""
        return self._moved(self.model.trained, self.sent)

    def settled(self, span: PatchEquations, found: Solution) -> tuple[PatchEquations, Solution, float]:
        """Make all steps again from what was found, and solve for what they miss, as long as that gets less.

        Also the share of the update that is left, as a square.
        """
        size = sum(float(value.square().sum()) for value in self.sent.values())
        best, before = (span, found), torch.inf
        for _ in range(_ROUNDS):
            pictures, labels = span.pictures(found.points), found.labels
            made, halfway = self._made(pictures, labels)
            rest = {name: value - made[name] for name, value in self.sent.items()}
            left = sum(float(value.square().sum()) for value in rest.values()) / size
            if not left < _BETTER * before:
                break
            best, before = (span, found), left
            # Where the way ended is known: half of what is missing there is missing in the middle.
            middle = self._moved(halfway, rest)
            there = self.model.at(middle).update(pictures, labels)
            span = span.towards({name: there[name] + value for name, value in rest.items()}).at(middle)
            found = settle(span, found.points, labels, Work(_STEPS * max(1, found.points.numel())))
        return *best, before

    @property
    def _halfway(self) -> int:
        """The step in the middle."""
        return len(self.moved) // 2

    def _moved(self, weights: Parameters, gradient: Parameters) -> Parameters:
        """Weights that have gone half of the way along a mean gradient."""
        return {name: value + self.moved[self._halfway] * gradient[name] for name, value in weights.items()}

    def _made(self, pictures: Tensor, labels: Tensor) -> tuple[Parameters, Parameters]:
        """The mean gradient of all steps on these pictures, and the weights in the middle."""
        way: list[Parameters] = []

        def slopes(now: Parameters) -> Parameters:
            way.append(now)
            return self.model.at(now).update(pictures, labels)

        made = self.along(self.model.trained, slopes)
        mean = {name: (value - self.still[name]) / self.times for name, value in made.items()}
        return mean, way[self._halfway]
