"""Newton's method on the losses of many generalised linear models at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remanence.tables.glm.families import Family

_STEPS = 100
_SHORTEST_STEP = 2.0**-40


@dataclass(frozen=True)
class Block:
    """Records that enter the loss together: shared by all trials (first dimension 1) or one set each."""

    design: Tensor  # (1 or trials, records, numbers)
    labels: Tensor  # (1 or trials, records)
    weights: Tensor | None  # (1 or trials, records)


def newton(
    family: Family, blocks: Sequence[Block], penalties: Tensor, *, tolerance: float, start: Tensor | None
) -> Tensor:
    """Minimise Σ w ℓ(θ·x, y) + ½ Σ penalties·θ² for every trial, `(trials, outputs, numbers)`.

    Each step is halved where it does not descend. Ends when every gradient's norm is at most the
    tolerance, or when no trial can descend further in double precision.
    """
    trials = max(len(block.labels) for block in blocks)
    theta = penalties.new_zeros(trials, family.outputs, len(penalties))
    if start is not None:
        theta += start
    objective, gradient = _evaluate(family, blocks, penalties, theta)
    for _ in range(_STEPS):
        norm = gradient.flatten(1).norm(dim=1)
        if (norm <= tolerance).all():
            break
        curvature = _hessian(family, blocks, penalties, theta)
        step = torch.linalg.solve(curvature, gradient.flatten(1)).view_as(theta)
        slope = (gradient * step).sum((1, 2))
        length = torch.ones_like(slope)
        while True:
            moved = theta - length[:, None, None] * step
            new_objective, new_gradient = _evaluate(family, blocks, penalties, moved)
            # Near the optimum the objective no longer resolves a step, but the gradient does.
            descends = (new_objective <= objective - 1e-4 * length * slope) | (
                new_gradient.flatten(1).norm(dim=1) < 0.5 * norm
            )
            if descends.all() or length.min() < _SHORTEST_STEP:
                break
            length = length.where(descends, length / 2)
        if not descends.any():
            break
        theta = moved.where(descends[:, None, None], theta)
        objective = new_objective.where(descends, objective)
        gradient = new_gradient.where(descends[:, None, None], gradient)
    return theta


def _evaluate(
    family: Family, blocks: Sequence[Block], penalties: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor]:
    objective = 0.5 * (penalties * theta.square()).sum((1, 2))
    gradient = penalties * theta
    for block in blocks:
        predictor = theta @ block.design.mT
        loss, residual = family.loss(predictor, block.labels), family.residual(predictor, block.labels)
        if block.weights is not None:
            loss, residual = loss * block.weights, residual * block.weights.unsqueeze(1)
        objective = objective + loss.sum(1)
        gradient = gradient + residual @ block.design
    return objective, gradient


def _hessian(family: Family, blocks: Sequence[Block], penalties: Tensor, theta: Tensor) -> Tensor:
    trials, outputs, numbers = theta.shape
    matrix = theta.new_zeros(trials, outputs, numbers, outputs, numbers)
    for block in blocks:
        curvature = family.curvature(theta @ block.design.mT, block.labels)
        if block.weights is not None:
            curvature = curvature * block.weights[:, None, None]
        for k in range(outputs):
            for other in range(k + 1):
                part = (block.design.mT * curvature[:, k, other].unsqueeze(1)) @ block.design
                matrix[:, k, :, other] += part
                if other != k:
                    matrix[:, other, :, k] += part
    matrix = matrix.view(trials, outputs * numbers, outputs * numbers)
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    diagonal += penalties.repeat(outputs)
    # A softmax is blind to a common shift of its intercepts; this only bounds that direction.
    diagonal += 1e-12 * diagonal.amax(1, keepdim=True)
    return matrix
