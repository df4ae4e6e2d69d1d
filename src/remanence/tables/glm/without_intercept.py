"""The scale of a record that a classifier without an intercept leaves open.

Without an intercept the left-over gradient −w r ⊗ x is known only as a product. For each label the
scale τ with −w r = τ u and x = v / τ must satisfy the family's own r = r(θ·x, y): one equation in
one unknown. Only the label's own entry of −w r is positive, so from three classes on the label is
known beforehand. For two classes (x, 1) and (−x, 0) explain the release equally well; and the
equation can have two solutions. Among those, one that completes the known records to the scaler's mean
is certain, or to a mean of zero without a scaler (data are often centred before training); otherwise
the one closest to the known records of its class is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from remanence.core.records import Records
from remanence.core.releases import Release
from remanence.tables.glm.model import GLM

GRID = 256  # scales that are tried for each record
_BISECTIONS = 60
_ROOTS = 3  # the equation has one or two in all cases seen
_ACCEPTED_MISFIT = 1e-3
_CENTRED = 1e-6  # per record, in standard units


@dataclass(frozen=True)
class Neighbourhood:
    """The known records as a place that the missing one must fit into, `(1 or trials, ...)`."""

    class_means: Tensor  # (., classes, features)
    scale: Tensor  # (., features)
    total: Tensor  # (., features)
    records: int

    def distance(self, features: Tensor, labels: Tensor, shift: Tensor) -> Tensor:
        """How far records are from their class; −1 where they complete the data to the mean `shift`, `(trials,)`."""
        means = self.class_means.expand(len(labels), -1, -1)
        own = means[torch.arange(len(labels), device=labels.device), labels]
        count = self.records + 1
        completes = ((self.total + features - count * shift) / self.scale).norm(dim=1) < _CENTRED * count
        return ((features - own) / self.scale).norm(dim=1).masked_fill(completes, -1.0)


def solve_without_intercept(
    mechanism: GLM,
    release: Release,
    left_over: Tensor,
    known: Neighbourhood,
    class_weights: Tensor | None,
    only_label: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Features `(trials, features)` and weighted residuals `(trials, outputs)` of the missing record.

    Last comes its distance from the known records of its class, infinite where nothing was found.
    `only_label` rules out the other labels.
    """
    trials, outputs, _ = left_over.shape
    shift = release.tensors.get("mean", left_over.new_zeros(1, left_over.shape[-1]))
    left, sizes, right = torch.linalg.svd(left_over, full_matrices=False)
    direction, mixing = right[:, 0] * sizes[:, :1], left[..., 0]
    if outputs > 1:
        # One entry of −w r is positive and the others are negative: turn `mixing` to look like that.
        flip = (mixing > 0).sum(1, keepdim=True) > 1
        direction, mixing = direction.where(~flip, -direction), mixing.where(~flip, -mixing)
        hypotheses = [(mixing.argmax(1), torch.ones_like(mixing[:, 0]))]
    else:
        signs = mixing[:, 0].sign()
        zeros = torch.zeros_like(signs, dtype=torch.int64)
        hypotheses = [(zeros, -signs), (zeros + 1, signs)]

    best_distance = left_over.new_full((trials,), torch.inf)
    best_tau = torch.ones_like(best_distance)
    for labels, sign in hypotheses:
        allowed = torch.ones_like(labels, dtype=torch.bool) if only_label is None else labels == only_label
        weight = torch.ones_like(sign)
        if class_weights is not None:
            weight = class_weights.expand(trials, -1).gather(1, labels[:, None])[:, 0]

        residual = partial(_residual, mechanism, release, direction, shift, labels, weight)
        gap = partial(_gap, residual, mixing)
        magnitudes = torch.logspace(-7, 0.2, GRID, dtype=torch.float64, device=left_over.device)
        grid = magnitudes * (sign * weight).unsqueeze(1)
        values = gap(grid)
        crossing = values[:, 1:].sign() != values[:, :-1].sign()
        rank = crossing.cumsum(1)
        for root in range(1, _ROOTS + 1):
            here = crossing & (rank == root)
            exists, column = here.any(1), here.int().argmax(1, keepdim=True)
            if not exists.any():
                break
            tau = _bisect(gap, *(t.gather(1, column) for t in (grid[:, :-1], grid[:, 1:], values)))
            found, wanted = residual(tau)[..., 0], -tau * mixing
            misfit = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
            distance = known.distance(direction / tau + shift, labels, shift)
            usable = allowed & exists & (misfit < _ACCEPTED_MISFIT) & (distance < best_distance)
            best_distance = distance.where(usable, best_distance)
            best_tau = tau[:, 0].where(usable, best_tau)
    return direction / best_tau.unsqueeze(1) + shift, -best_tau.unsqueeze(1) * mixing, best_distance


def _residual(
    mechanism: GLM,
    release: Release,
    direction: Tensor,
    shift: Tensor,
    labels: Tensor,
    weight: Tensor,
    tau: Tensor,
) -> Tensor:
    """What the records direction / τ + shift with these labels leave in the gradient, `(trials, outputs, points)`."""
    features = direction.unsqueeze(1) / tau.unsqueeze(-1) + shift.unsqueeze(1)
    guesses = Records(features, labels[:, None].expand_as(tau))
    own = mechanism.family.residual(mechanism.predictor(guesses, release), guesses.labels)
    return own * weight[:, None, None]


def _gap(residual: Callable[[Tensor], Tensor], mixing: Tensor, tau: Tensor) -> Tensor:
    """Zero where τ is consistent with the model, `(trials, points)`."""
    return torch.einsum("tk,tkp->tp", mixing, residual(tau)) + tau


def _bisect(gap: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, at_low: Tensor) -> Tensor:
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        same = gap(middle).sign() == at_low.sign()
        low, high = middle.where(same, low), high.where(same, middle)
    return (low + high) / 2
