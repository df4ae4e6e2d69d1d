"""Activation patterns of the last ReLU layer, from its bias gradient alone: a subset-sum problem per neuron."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remanence.core.exceptions import InputError

_MOST_SAMPLES = 20
_NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Patterns:
    """The pattern of each sample, and how far to trust each neuron's."""

    active: Tensor  # (samples, neurons)
    misfit: Tensor  # (neurons,): the distance of the best subset's sum from the gradient
    runner_up: (
        Tensor  # (neurons,): the same for the second best; where both are alike, the pattern is a guess
    )

    def certain(self, tolerance: float) -> Tensor:
        """Neurons that exactly one subset explains within the tolerance."""
        return (self.misfit <= tolerance) & (self.runner_up > tolerance)


def solve_patterns(loss_vectors: Tensor, weight: Tensor, bias_gradient: Tensor) -> Patterns:
    """Which samples activate each neuron: Σ_m (W ᵀg_m)_j D_mj = M · gradient_j, with D_mj in {0, 1}.

    (Pan et al. 2022, Algorithm B.3, last line.) All 2^M subsets are compared. It fails where loss vectors are
    only known up to a scale (then no subset fits), where two subsets have equal sums (a neuron without weight,
    two samples alike), and where rounding covers the difference: `runner_up` tells.
    """
    samples = len(loss_vectors)
    if samples > _MOST_SAMPLES:
        raise InputError(
            "The batch is too large to compare all subsets of it.",
            needs=f"at most {_MOST_SAMPLES} samples",
            got=str(samples),
            hint="patterns follow from recovered inputs too: (W x + b > 0)",
        )
    parts = loss_vectors.double() @ weight.double()  # (samples, neurons)
    wanted = samples * bias_gradient.double()
    subsets = torch.arange(2**samples, device=parts.device)
    active, misfit, runner_up = [], [], []
    step = max(1, _NUMBERS_AT_ONCE // 2**samples)
    choices = ((subsets[:, None] >> torch.arange(samples, device=parts.device)) & 1).to(
        parts
    )  # (subsets, samples)
    for start in range(0, parts.shape[1], step):
        distance = (choices @ parts[:, start : start + step] - wanted[start : start + step]).abs()
        best = distance.topk(2, dim=0, largest=False)
        active.append(choices[best.indices[0]].mT > 0)
        misfit.append(best.values[0])
        runner_up.append(best.values[1])
    return Patterns(torch.cat(active, 1), torch.cat(misfit), torch.cat(runner_up))
