"""Gradients, parameters and class weights in the units that each is compared in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.core.records import Records
from remanence.core.releases import Release


def raw_parameters(release: Release) -> tuple[Tensor, Tensor]:
    """Coefficients and intercepts as they act on features in raw units."""
    coefficient, intercept = release["coefficient"], release["intercept"]
    if "scale" not in release.tensors:
        return coefficient, intercept
    coefficient = coefficient / release["scale"].unsqueeze(1)
    return coefficient, intercept - (coefficient * release["mean"].unsqueeze(1)).sum(-1)


def slopes_alone(gradient: Tensor, release: Release) -> Tensor:
    """The coefficients' part of a gradient in raw units for a model without an intercept.

    Such a model is stationary in Σ r (x − mean), the mean being the scaler's; Σ r itself is free.
    """
    slopes = gradient[..., 1:]
    if "mean" not in release.tensors:
        return slopes
    return slopes - release["mean"].unsqueeze(1) * gradient[..., :1]


def standard_units(records: Records) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each feature; constant features keep the scale 1."""
    flat = records.flat.double().flatten(0, -2)
    deviation = flat.std(0, correction=0)
    return flat.mean(0), deviation.where(deviation > 0, 1.0)


def in_standard_units(gradient: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """A gradient Σ r (1, x) in raw units, as Σ r (1, (x − mean) / scale)."""
    level = gradient[..., :1]
    return torch.cat([level, (gradient[..., 1:] - mean * level) / scale], dim=-1)


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """How many records of each class there are along the last dimension, `(..., classes)`."""
    return one_hot(labels.long(), classes).sum(-2)


def balanced_weights(counts: Tensor) -> Tensor:
    """scikit-learn's balanced class weights, n / (classes · count)."""
    return counts.sum(-1, keepdim=True).double() / (counts.shape[-1] * counts)


def mean_and_scale(parts: Sequence[Records]) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each trial's training set, `(trials, features)`; 1 for a constant."""
    count, trials = sum(part.batch_shape[1] for part in parts), parts[-1].flat[:, 0]
    total, square = (torch.zeros_like(trials, dtype=torch.float64) for _ in range(2))
    for part in parts:
        total = total + part.flat.double().sum(1)
    mean = total / count
    for part in parts:
        square = square + (part.flat.double() - mean.unsqueeze(1)).square().sum(1)
    deviation = (square / count).sqrt()
    return mean, deviation.where(deviation > 0, 1.0)
