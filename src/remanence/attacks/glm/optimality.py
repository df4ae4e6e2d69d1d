"""The optimality condition of a generalised linear model, solved for the one record missing from it.

At the optimum the gradients of all records and of the penalty sum to zero, so what the known
records leave over is the target's own gradient:

    Σ_known w_i r_i (1, x_i) + penalty = −w r (1, x),   r = ∂ℓ/∂η.

With an intercept its entry is −w r, and x is the rest divided by it; r then gives the label.
(Balle et al. 2022, Theorem 1. The label formula printed there is garbled, and for links that are
not canonical the residual is not μ − y: see `Family.label`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.attacks.attack import Reconstruction
from remanence.attacks.glm.without_intercept import Neighbourhood, solve_without_intercept
from remanence.data.records import Records
from remanence.data.releases import Release
from remanence.mechanisms.glm.model import (
    GLM,
    balanced_weights,
    class_counts,
    in_standard_units,
    slopes_alone,
)

GradientOfKnown = Callable[[Tensor | None], Tensor]  # class weights → (trials, outputs, 1 + features)


@dataclass(frozen=True)
class KnownRecords:
    """What the solution needs of the known records beyond their gradients, `(1 or trials, ...)`."""

    mean: Tensor  # (., features)
    scale: Tensor  # (., features)
    total: Tensor  # (., features)
    records: int
    counts: Tensor | None  # (., classes)
    class_means: Tensor | None  # (., classes, features)

    @property
    def neighbourhood(self) -> Neighbourhood:
        """What tells a record from its mirror image."""
        assert self.class_means is not None
        return Neighbourhood(self.class_means, self.scale, self.total, self.records)

    @classmethod
    def all_of(cls, known: Records, mechanism: GLM) -> KnownRecords:
        """The same known records in every trial."""
        return cls._from_sums(known, mechanism, left_out=None)

    @classmethod
    def all_but_one(cls, data: Records, mechanism: GLM) -> KnownRecords:
        """In trial i all records but the i-th."""
        return cls._from_sums(data, mechanism, left_out=data)

    @classmethod
    def _from_sums(cls, data: Records, mechanism: GLM, left_out: Records | None) -> KnownRecords:
        flat = data.flat.double()
        centre = flat.median(0).values  # any fixed point near the data; keeps the squares small
        offsets = flat - centre
        count, total, squares = len(data), offsets.sum(0)[None], offsets.square().sum(0)[None]
        if left_out is not None:
            count, total, squares = count - 1, total - offsets, squares - offsets.square()
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        scale = variance.sqrt().where(variance > 1e-24 * centre.square(), 1.0)
        whole = total + count * centre
        if not mechanism.family.classes:
            return cls(mean + centre, scale, whole, count, None, None)
        labels = data.labels.long()
        counts = class_counts(labels, mechanism.family.classes)[None]
        sums = flat.new_zeros(counts.shape[-1], flat.shape[-1]).index_add(0, labels, flat)[None]
        if left_out is not None:
            own = one_hot(labels, counts.shape[-1])
            counts = counts - own
            sums = sums - own.unsqueeze(-1) * flat.unsqueeze(1)
        return cls(mean + centre, scale, whole, count, counts, sums / counts.clamp(min=1).unsqueeze(-1))


def gradient_of_others(mechanism: GLM, data: Records, release: Release) -> GradientOfKnown:
    """For each record the sum of the others' gradients: the sum over all, less the record's own term."""
    own = mechanism.record_gradients(data[None], release, weights=data[None].weights)[0]
    labels = data.labels.long()

    def of_others(class_weights: Tensor | None) -> Tensor:
        if class_weights is None:
            return own.sum(0) - own
        by_class = own.new_zeros(class_weights.shape[-1], *own.shape[1:]).index_add(0, labels, own)
        weights = class_weights.expand(len(data), -1)  # of each trial's training set
        mine = weights.gather(1, labels[:, None])[..., None] * own
        return torch.einsum("tc,cko->tko", weights, by_class) - mine

    return of_others


def solve(
    mechanism: GLM,
    release: Release,
    known: KnownRecords,
    gradient_of_known: GradientOfKnown,
    *,
    features: Tensor | None = None,
) -> Reconstruction:
    """Solve for the record, or for its label alone where the `features` (trials, features) are given.

    Balanced class weights depend on the missing label, so each label is tried in turn and the one
    that explains its own gradient best is kept.
    """
    if mechanism.class_weights != "balanced":
        weights = mechanism.fixed_class_weights(release["coefficient"].device)
        gradient = gradient_of_known(weights)
        return _solve_at(mechanism, release, known, gradient, weights, features).reconstruction
    assert known.counts is not None
    attempts: list[_Attempt] = []
    for label in range(mechanism.family.classes):
        counts = known.counts.clone()
        counts[..., label] += 1
        impossible = (counts == 0).any(-1)  # all classes were there when the model was trained
        weights = balanced_weights(counts.clamp(min=1))
        attempt = _solve_at(mechanism, release, known, gradient_of_known(weights), weights, features, label)
        # A solution that contradicts the label it was solved for is no solution.
        wrong = (attempt.reconstruction.records.labels[:, 0] != label) | impossible
        attempts.append(_Attempt(attempt.reconstruction, attempt.doubt.masked_fill(wrong, torch.inf)))
    best = torch.stack([attempt.doubt for attempt in attempts]).argmin(0)
    return _choose([attempt.reconstruction for attempt in attempts], best)


@dataclass(frozen=True)
class _Attempt:
    reconstruction: Reconstruction
    doubt: Tensor  # (trials,), the smaller, the likelier that the label was tried rightly


def _solve_at(
    mechanism: GLM,
    release: Release,
    known: KnownRecords,
    gradient: Tensor,
    class_weights: Tensor | None,
    features: Tensor | None,
    only_label: int | None = None,
) -> _Attempt:
    left_over = gradient + mechanism.penalty_gradient(release)  # −w r (1, x): (trials, outputs, 1 + features)
    features_given, strength, distance = features is not None, torch.empty(0), None
    if features is not None:
        residual = _residual_along(features, left_over, known, mechanism, release)
    elif mechanism.fit_intercept:
        # Every output has its own −w r_k (1, x). Their best common x under equal noise is the leading
        # right singular vector; the leading left one says how to add them up.
        standard = in_standard_units(left_over, known.mean.unsqueeze(1), known.scale.unsqueeze(1))
        mixing = torch.linalg.eigh(standard @ standard.mT).eigenvectors[..., -1]  # (trials, outputs)
        mixed = torch.einsum("tk,tko->to", mixing, left_over)
        features, strength = mixed[:, 1:] / mixed[:, :1], mixed[:, 0].abs()
        residual = -left_over[..., 0]
    else:
        slopes = slopes_alone(left_over, release)  # −w r (x − mean)
        features, residual, distance = solve_without_intercept(
            mechanism, release, slopes, known.neighbourhood, class_weights, only_label
        )
        strength = residual.norm(dim=1)
    guess = Records(features.unsqueeze(1), torch.zeros_like(features[:, :1]))
    predictor = mechanism.predictor(guess, release)  # (trials, outputs, 1)

    def explained_by(labels: Tensor) -> Tensor:
        own = mechanism.family.residual(predictor, labels)[..., 0]
        if class_weights is None:
            return own
        return own * class_weights.expand(len(labels), -1).gather(1, labels.long())

    if features_given and mechanism.family.classes:
        # With x at hand each label predicts the whole residual; the best fit beats the sign of a small one.
        options = [torch.full_like(guess.labels, label) for label in range(mechanism.family.classes)]
        misfits = torch.stack([(explained_by(option) - residual).norm(dim=1) for option in options])
        labels = misfits.argmin(0).unsqueeze(1).to(features.dtype)
    else:
        labels = mechanism.family.label(predictor, residual.unsqueeze(-1))
    misfit = (explained_by(labels) - residual).norm(dim=1)
    sensitivity = None
    if not features_given:
        size = ((features - known.mean) / known.scale).norm(dim=1)
        sensitivity = (1 + size.square()).sqrt() / (strength * size)
    diagnostics = {"residual": residual.norm(dim=1), "misfit": misfit}
    records = Records(guess.features, labels)
    # Without an intercept every label has a solution that fits; only the known records tell them apart.
    return _Attempt(
        Reconstruction(records, sensitivity, diagnostics), misfit if distance is None else distance
    )


def _residual_along(
    features: Tensor, left_over: Tensor, known: KnownRecords, mechanism: GLM, release: Release
) -> Tensor:
    """The residual by least squares in standard units, given x."""
    if mechanism.fit_intercept:
        left_over = in_standard_units(left_over, known.mean.unsqueeze(1), known.scale.unsqueeze(1))
        standard = (features - known.mean) / known.scale
        along = torch.cat([torch.ones_like(features[:, :1]), standard], dim=1)
    else:
        left_over = slopes_alone(left_over, release) / known.scale.unsqueeze(1)
        along = (features - release.tensors.get("mean", torch.zeros_like(features))) / known.scale
    return -torch.einsum("tko,to->tk", left_over, along) / along.square().sum(1, keepdim=True)


def _choose(options: list[Reconstruction], best: Tensor) -> Reconstruction:
    """Trial by trial, the option of the given index."""
    rows = torch.arange(len(best), device=best.device)

    def pick(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors)[best, rows]

    records = [option.records for option in options]
    sensitivities = [option.sensitivity for option in options if option.sensitivity is not None]
    return Reconstruction(
        Records(pick([part.features for part in records]), pick([part.labels for part in records])),
        pick(sensitivities) if sensitivities else None,
        {name: pick([option.diagnostics[name] for option in options]) for name in options[0].diagnostics},
    )
