"""Batches made insecure: the least change of the inputs that gives every sample neurons of its own."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment, nnls
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.updates.dense.layers import DenseHead


def make_insecure(head: DenseHead, x: Tensor, *, neurons: int = 2, margin: float = 1e-2) -> Tensor:
    """Inputs `(samples, numbers)` moved as little as possible so that each has `neurons` exclusive ones.

    Neurons are assigned where the samples' activations come closest to it already. The signs wanted of them
    are linear inequalities in each input; the least-norm change that meets them is a least-distance problem
    (Lawson and Hanson 1974, ch. 23), solved by non-negative least squares in the span of the rows.
    """
    samples, width = len(x), head.widths[0]
    if samples * neurons > width:
        raise InputError(
            "The layer is too narrow to give every sample neurons of its own.",
            needs=f"at least {samples * neurons} neurons",
            got=str(width),
            hint="a smaller batch",
        )
    weight, bias = head.weights[0], head.biases[0]
    before = x.double() @ weight.mT + (0 if bias is None else bias)  # (samples, neurons)
    lead = before.clone()
    for sample in range(samples):
        others = torch.cat([before[:sample], before[sample + 1 :]])
        lead[sample] = before[sample] - (others.amax(0) if len(others) else 0)
    rows, columns = linear_sum_assignment(-lead.repeat(neurons, 1).numpy())
    chosen = torch.from_numpy(columns)
    wanted = -torch.ones(samples, len(chosen), dtype=torch.float64)
    wanted[torch.from_numpy(rows) % samples, torch.arange(len(chosen))] = 1
    basis, triangle = np.linalg.qr(weight[chosen].mT.numpy())  # weight[chosen]ᵀ = basis · triangle
    moved = x.double().clone()
    for sample in range(samples):
        signs = wanted[sample].numpy()
        needed = margin - signs * before[sample, chosen].numpy()
        change = _least_distance(signs[:, None] * triangle.T, needed)
        moved[sample] += torch.from_numpy(basis @ change)
    return moved


def _least_distance(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The shortest vector v with left · v ≥ right."""
    if (right <= 0).all():
        return np.zeros(left.shape[1])
    stacked = np.vstack([left.T, right])
    goal = np.zeros(len(stacked))
    goal[-1] = 1.0
    solution, _ = nnls(stacked, goal, maxiter=50 * len(right))
    rest = stacked @ solution - goal
    if abs(rest[-1]) < 1e-12:
        raise InputError(
            "No input has the signs that are wanted.",
            needs="fewer neurons in question than the inputs have numbers",
            got=f"{len(right)} neurons, {left.shape[1]} independent directions",
            hint="a smaller batch",
        )
    return -rest[:-1] / rest[-1]
