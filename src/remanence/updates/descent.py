"""Many small problems minimised at once, each with an optimiser state of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from remanence.scale.progress import track

Unknowns = dict[str, Tensor]  # one problem per row; "x" is the input
Objective = Callable[[Unknowns], Tensor]


@dataclass(frozen=True)
class Matching:
    """How to search.

    `labels`: "optimise" them as probabilities along with the inputs, or "infer" them from the last layer's bias.
    `value_range` keeps inputs inside (L-BFGS: at the end only); `tolerance` ends the search once every gradient
    is met, relatively.
    """

    distance: Literal["euclidean", "cosine"] = "cosine"
    optimiser: Literal["l-bfgs", "signed-adam"] = "signed-adam"
    labels: Literal["optimise", "infer"] = "infer"
    steps: int = 4800
    restarts: int = 1
    learning_rate: float = 0.1
    total_variation: float = 0.0
    value_range: tuple[float, float] | None = None
    tolerance: float = 1e-6


def _slopes(objective: Objective, unknowns: Unknowns) -> tuple[Tensor, Unknowns]:
    """The value of each problem, and the gradient in its own unknowns."""
    leaves = {name: value.detach().requires_grad_() for name, value in unknowns.items()}
    values = objective(leaves)
    slopes = torch.autograd.grad(values.sum(), list(leaves.values()))
    return values.detach(), dict(zip(leaves, slopes, strict=True))


def signed_adam(objective: Objective, unknowns: Unknowns, settings: Matching) -> tuple[Unknowns, Tensor]:
    """Adam on the signs of the gradient, the rate cut to a tenth after 3/8, 5/8 and 7/8 (Geiping et al. 2020)."""
    unknowns = {name: value.clone() for name, value in unknowns.items()}
    adam = torch.optim.Adam(list(unknowns.values()), lr=settings.learning_rate)
    drops = [settings.steps * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, [drop - 1 for drop in drops if drop > 1])
    best, lowest = dict(unknowns), torch.full((len(unknowns["x"]),), torch.inf, device=unknowns["x"].device)
    for _ in track(range(settings.steps), total=settings.steps, what="matching the gradient"):
        values, slopes = _slopes(objective, unknowns)
        best, lowest = _keep(best, lowest, unknowns, values)
        if (values < settings.tolerance**2).all():
            break
        for name, slope in slopes.items():
            unknowns[name].grad = slope.sign()
        adam.step()
        schedule.step()
        if settings.value_range is not None:
            unknowns["x"].clamp_(*settings.value_range)
    with torch.no_grad():
        return _keep(best, lowest, unknowns, objective(unknowns))


def lbfgs(
    objective: Objective, unknowns: Unknowns, settings: Matching, memory: int = 10
) -> tuple[Unknowns, Tensor]:
    """L-BFGS with a history of its own for each problem; a step that does not descend is halved next time."""
    sizes = {name: value.shape for name, value in unknowns.items()}

    def flat(parts: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([part.flatten(1) for part in parts.values()], 1)

    def unflat(point: Tensor) -> dict[str, Tensor]:
        parts = point.split([shape.numel() // shape[0] for shape in sizes.values()], 1)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, sizes.items(), strict=True)}

    point = flat(unknowns)
    values, slopes = _slopes(objective, unknowns)
    slope = flat(slopes)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    shrink = torch.ones_like(values)
    for _ in track(range(settings.steps), total=settings.steps, what="matching the gradient"):
        direction = -_two_loops(slope, steps)
        if not steps:
            direction = direction / slope.abs().sum(1, keepdim=True).clamp(min=1)
        moved = point + (shrink * settings.learning_rate)[:, None] * direction
        new_values, new_slopes = _slopes(objective, unflat(moved))
        better = new_values < values
        shrink = torch.where(better, 1.0, shrink / 2)
        new_slope = flat(new_slopes)
        step, change = moved - point, new_slope - slope
        curved = (step * change).sum(1)
        usable = better & (curved > 1e-10 * change.square().sum(1))
        weight = torch.where(usable, 1 / curved, 0.0)  # a weight of 0 leaves the pair out for this problem
        steps = [*steps, (step, change, weight)][-memory:]
        point = torch.where(better[:, None], moved, point)
        slope = torch.where(better[:, None], new_slope, slope)
        values = torch.where(better, new_values, values)
        if (values < settings.tolerance**2).all() or (shrink < 1e-12).all():
            break
    return unflat(point), values


def _two_loops(slope: Tensor, steps: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The inverse Hessian times the slope, one problem per row (Nocedal 1980)."""
    q, weights = slope, []
    for step, change, weight in reversed(steps):
        weights.append(weight * (step * q).sum(1))
        q = q - weights[-1][:, None] * change
    scale = torch.ones_like(slope[:, 0])
    for _, change, weight in steps:
        scale = torch.where(weight > 0, 1 / (weight * change.square().sum(1)), scale)
    q = q * scale[:, None]
    for (step, change, weight), back in zip(steps, reversed(weights), strict=True):
        q = q + (back - weight * (change * q).sum(1))[:, None] * step
    return q


def _keep(
    best: dict[str, Tensor], lowest: Tensor, unknowns: dict[str, Tensor], values: Tensor
) -> tuple[Unknowns, Tensor]:
    """The best point of each problem so far."""
    better = values < lowest
    chosen = {
        name: torch.where(better.view(-1, *[1] * (value.ndim - 1)), value.detach(), best[name])
        for name, value in unknowns.items()
    }
    return chosen, torch.where(better, values, lowest)
