"""Other batches with the same gradient: when they exist, and how different they can be.

A change Δ of the inputs leaves the gradient as it is if every hidden value stays (W₀ Δ_m = 0 for each sample m) and
the first layer's gradient does too (Σ_m α_m Δ_mᵀ = 0, with α_m = dL/d(W₀ x_m)). These are linear conditions:
Δ = N_A C N_Wᵀ with the null spaces of A = (α_1 … α_M) and of W₀, so other batches exist as soon as M > rank A and
there are more inputs than neurons. Pan et al. 2022, Theorem 2, ask for one pattern shared by all samples besides;
the argument above does not need it. A sample with an exclusive neuron has no part in the null space of A: it
cannot change, which is why it can be read off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron, vstack
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.exceptions import InputError


@dataclass(frozen=True)
class ArtifactSpace:
    """All changes Δ `(samples, numbers)` of a batch that leave its gradient as it is: A Δ = 0 and Δ W₀ᵀ = 0."""

    alphas: Tensor  # A, (neurons, samples)
    weight: Tensor  # W₀, (neurons, numbers)

    @property
    def ambiguous(self) -> Tensor:
        """Samples that can change, `(samples,)`: no attack can single them out without a prior."""
        has_room = len(_null_space(self.weight)) > 0
        return (_null_space(self.alphas).square().sum(0) > 1e-9) & has_room


def artifact_space(model: nn.Module, inputs: Tensor, labels: Tensor) -> ArtifactSpace:
    """The space for a batch on a network whose first layer is dense, with or without a ReLU behind it."""
    layer, alphas = _first_layer(model, inputs, labels)
    return ArtifactSpace(alphas.mT, layer.weight.detach().double())


def largest_change(
    space: ArtifactSpace, x: Tensor, *, value_range: tuple[float, float], climbs: int = 4, seed: int = 0
) -> Tensor:
    """A large change in the space that keeps all inputs in their range; x is `(samples, numbers)`.

    The largest is a maximum of a convex function over a polytope, which is hard. This climbs ‖Δ‖² by linear
    programs, each of which moves as far as possible along the last change, and stops at a corner that is
    feasible: a lower bound on what is possible. The paper's Equation 9 is not one, since it ignores the range.
    """
    samples, numbers = x.shape
    low, high = value_range
    alphas, weight = (matrix.cpu().numpy() for matrix in (space.alphas, space.weight))
    # Rows of unit size, so that the solver's tolerance means the same for all of them.
    conditions = vstack(
        [
            kron(_unit_rows(alphas), eye_array(numbers)),
            kron(eye_array(samples), _unit_rows(weight)),
        ]
    ).tocsr()
    flat = x.double().cpu().numpy().ravel()
    box = np.stack([low - flat, high - flat], 1)
    goal = np.random.default_rng(seed).standard_normal(flat.size)
    change, nothing = np.zeros_like(flat), np.zeros(len(alphas) * numbers + samples * len(weight))
    for _ in range(climbs):
        found = linprog(-goal, A_eq=conditions, b_eq=nothing, bounds=box, method="highs")
        if found.x is None or found.x @ found.x <= change @ change * (1 + 1e-9):
            break
        change = goal = found.x
    return torch.from_numpy(change.reshape(samples, numbers).copy())


def equation_9(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """The paper's figure for ‖Δ‖², with T read as a basis of W₀'s null space and the last η as η_M.

    Σ ‖η_m‖² − tr(A⁺A YᵀY), η_m = |T P₀ x_m|, Y = (η_1 … η_M).
    """
    layer, alphas = _first_layer(model, inputs, labels)
    return printed_bound(alphas.mT, layer.weight.detach().double(), inputs.flatten(1).double())


def printed_bound(alphas: Tensor, weight: Tensor, x: Tensor) -> float:
    """Equation 9 from A `(neurons, samples)`, W₀ and the inputs `(samples, numbers)`."""
    eta = (x @ _null_space(weight).mT).abs()  # (samples, null dimensions)
    onto_rows = torch.linalg.pinv(alphas) @ alphas
    return float(eta.square().sum() - torch.trace(onto_rows @ eta @ eta.mT))


def _first_layer(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[nn.Linear, Tensor]:
    """The dense layer that reads the inputs, and the loss's derivative in what it puts out, `(samples, neurons)`."""
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((layer, given[0], output))

    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_hook(note) for module in linear]
    try:
        loss = cross_entropy(model(inputs), labels, reduction="sum")
    finally:
        for handle in handles:
            handle.remove()
    if (
        not seen
        or seen[0][1].numel() != inputs.numel()
        or not torch.equal(seen[0][1].flatten(), inputs.flatten())
    ):
        raise InputError(
            "The first layer does not read the inputs themselves.",
            needs="a fully connected layer in front of all others",
            got=type(model).__name__,
            hint="for convolutional networks, look at the features that enter the dense layers",
        )
    layer, _, output = seen[0]
    assert isinstance(layer, nn.Linear)
    return layer, torch.autograd.grad(loss, output)[0].double()


def _null_space(matrix: Tensor) -> Tensor:
    """An orthonormal basis, as rows, of the vectors that the matrix sends to 0."""
    _, sizes, right = torch.linalg.svd(matrix, full_matrices=True)
    rank = int((sizes > 1e-12 * sizes.max()).sum()) if len(sizes) and sizes.max() > 0 else 0
    return right[rank:]


def _unit_rows(matrix: np.ndarray) -> np.ndarray:
    """Rows divided by their length; a row of zeros stays."""
    sizes = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.where(sizes > 0, sizes, 1.0)
