"""The attack as Pan et al. 2022 print it, to compare with: ratios, the 2/3 rule, binary patterns, LSMR.

For one ReLU layer, as in the paper's Table 2; its Figure 7 goes deeper. Where it falls short: the fixed tolerance on
ratios splits samples in float32, and |g_y| = 2/3 stands in for 1 − p_y, about 0.9 in an untrained network with ten
classes, so that every input comes out 1.35 times too large. `remanence.updates.dense.peeling` needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.updates.dense.layers import DenseHead, Layers

_MOST_SAMPLES = 16  # of which all subsets are compared


@dataclass(frozen=True)
class PaperResult:
    """What the printed algorithm returns, and the quantities of its Theorem 1."""

    inputs: Tensor  # (samples, numbers)
    labels: Tensor  # (samples,)
    density: tuple[float, ...]  # β of each layer: the share of its gradient that is not zero
    residual: float  # of the linear system, relative: what LSMR leaves

    @property
    def batch_size(self) -> int:
        """The number of groups, which the paper takes for the batch size."""
        return len(self.labels)


def paper_attack(
    head: DenseHead, layers: Layers, *, tolerance: float = 1e-8, share: float = 2 / 3
) -> PaperResult:
    """Algorithms B.1 to B.3 and the linear solve, on one gradient (the first trial)."""
    if len(head.weights) != 2:
        raise InputError(
            "The printed algorithm is implemented for one ReLU layer.",
            needs="linear, ReLU, linear",
            got=f"{len(head.weights)} linear layers",
            hint="remanence.updates.dense.peeling.reconstruct takes any depth",
        )
    (rows, bias), (columns, _) = [(w[0], None if b is None else b[0]) for w, b in layers]
    ratios = columns[:, columns[0] != 0] / columns[0, columns[0] != 0]  # (classes, neurons)
    groups = _constant(ratios[1], tolerance)
    loss_vectors = (
        torch.stack([_loss_vector(ratios[:, group[0]], share) for group in groups]) if groups else None
    )
    density = tuple(float((weight[0] != 0).double().mean()) for weight, _ in layers)
    if loss_vectors is None:
        nothing = torch.zeros(0, dtype=torch.int64)
        return PaperResult(rows.new_zeros(0, rows.shape[1]), nothing, density, 1.0)
    samples = len(groups)
    if bias is not None and samples <= _MOST_SAMPLES:
        active = solve_patterns(loss_vectors, head.weights[1], bias)
    else:  # without a bias gradient the paper leaves the pattern open: take what the group is active on
        active = torch.ones(samples, rows.shape[0], dtype=torch.bool)
    deltas = (loss_vectors @ head.weights[1]) * active  # (samples, neurons)
    inputs, residual = _solve(deltas, samples * rows)
    return PaperResult(inputs, loss_vectors.argmin(1), density, residual)


def solve_patterns(loss_vectors: Tensor, weight: Tensor, bias_gradient: Tensor) -> Tensor:
    """Which samples activate each neuron, `(samples, neurons)`: Σ_m (W ᵀg_m)_j D_mj = M · gradient_j, D_mj in {0, 1}.

    (Pan et al. 2022, Algorithm B.3, last line.) All 2^M subsets are compared. It fails where loss vectors are only
    known up to a scale (then no subset fits), where two subsets have equal sums, and where rounding covers the
    difference.
    """
    samples = len(loss_vectors)
    parts = loss_vectors.double() @ weight.double()  # (samples, neurons)
    subsets = torch.arange(2**samples, device=parts.device)
    choices = ((subsets[:, None] >> torch.arange(samples, device=parts.device)) & 1).to(parts)
    wanted = samples * bias_gradient.double()
    best = [(choices @ parts[:, j] - wanted[j]).abs().argmin() for j in range(parts.shape[1])]
    return choices[torch.stack(best)].mT > 0


def _constant(values: Tensor, tolerance: float) -> list[list[int]]:
    """Groups of at least two positions whose values agree within a fixed tolerance."""
    order = values.argsort().tolist()
    groups: list[list[int]] = [[order[0]]] if order else []
    for before, after in pairwise(order):
        if abs(float(values[after] - values[before])) < tolerance:
            groups[-1].append(after)
        else:
            groups.append([after])
    return [group for group in groups if len(group) >= 2]


def _loss_vector(ratios: Tensor, share: float) -> Tensor:
    """g from g_c / g_1: the label is the only negative entry (else the first class), and |g_y| is set to 2/3."""
    negative = (ratios < 0).nonzero().flatten()
    label = int(negative[0]) if len(negative) == 1 else 0
    return -share * ratios / ratios[label]


class _System(LinearOperator):
    """X ↦ Δᵀ X on flattened matrices."""

    def __init__(self, deltas: np.ndarray, numbers: int) -> None:
        super().__init__(np.dtype(np.float64), (deltas.shape[1] * numbers, len(deltas) * numbers))
        self.deltas = deltas

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return (self.deltas.T @ x.reshape(len(self.deltas), -1)).ravel()

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return (self.deltas @ x.reshape(self.deltas.shape[1], -1)).ravel()


def _solve(deltas: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """Least squares Δᵀ X = target by LSMR, as one system over all entries of X."""
    right = target.numpy()
    found = lsmr(_System(deltas.numpy(), right.shape[1]), right.ravel(), atol=1e-12, btol=1e-12)
    return torch.from_numpy(found[0].reshape(len(deltas), -1)), float(found[3] / np.linalg.norm(right))
