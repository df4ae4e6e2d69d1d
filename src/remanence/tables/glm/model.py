"""Generalised linear models, trained to their optimum: thousands of runs as one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release, Weights
from remanence.scale.progress import track
from remanence.tables.glm.families import Family, Logistic


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


_BYTES_AT_ONCE = 2**28
_ROWS_AT_ONCE = 2**14  # records whose gradients are added up at once


@final
@dataclass(frozen=True)
class GLM(Mechanism[Weights]):
    """The regularised optimum of a generalised linear model.

    Minimises Σ w_i ℓ(θ·x_i, y_i) + ½ penalty·‖coefficients‖² + ½ intercept_penalty·intercept²
    + l1_penalty·‖coefficients‖₁ over the training set. The penalty multiplies the *sum* of the
    losses. Trains by Newton's method until the gradient's norm is at most `tolerance`.

    An `l1_penalty` describes a model that was trained elsewhere.

    The release holds `coefficient` (trials, outputs, features) and `intercept` (trials, outputs), to both of
    which Gaussian noise of standard deviation `noise` is added (output perturbation).
    """

    family: Family = Logistic()
    penalty: float = 1.0
    fit_intercept: bool = True
    intercept_penalty: float = 0.0
    l1_penalty: float = 0.0
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    tolerance: float = 1e-10
    noise: float = 0.0
    name: ClassVar[str] = "generalised linear model"

    @property
    def releases(self) -> type[Release]:
        """Weights."""
        return Weights

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        weights = self.class_weights
        return {
            "family": self.family.name,
            "power": getattr(self.family, "power", None),
            "penalty": self.penalty,
            "fit_intercept": self.fit_intercept,
            "intercept_penalty": self.intercept_penalty,
            "l1_penalty": self.l1_penalty,
            "class_weights": None if weights is None else str(weights),
            "tolerance": self.tolerance,
            "noise": self.noise,
        }

    def gaussian_noise(self, feature_norm: float | None = None) -> tuple[float, float, int] | None:
        """Output perturbation of logistic regression, binary or multinomial, all of whose weights are penalised.

        One record moves the optimum of a λ-strongly convex sum by at most its gradient's norm over λ: its residual,
        of a norm of at most 1 or √2, times its features, and what the solver's tolerance leaves on either side.
        """
        residual = {"binary logistic": 1.0, "multinomial logistic": math.sqrt(2)}.get(self.family.name)
        held = min(self.penalty, self.intercept_penalty) if self.fit_intercept else self.penalty
        plain = self.class_weights is None and self.noise > 0 and held > 0
        if feature_norm is None or residual is None or not plain:
            return None
        longest = math.hypot(feature_norm, 1.0 if self.fit_intercept else 0.0)
        return self.noise * held / (residual * longest + 2 * self.tolerance), 1.0, 1

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Train once per trial on the known data and that trial's targets."""
        self._check(known_data, targets)
        numbers = self.family.outputs * (targets.flat.shape[-1] + self.fit_intercept)
        count = targets.batch_shape[1] + (0 if known_data is None else len(known_data))
        chunk = max(1, _BYTES_AT_ONCE // (8 * numbers * max(numbers, count)))
        starts = range(0, len(targets), chunk)
        # All trials share the known data, so the optimum of one is a good start for the others.
        start = self._fit(known_data, targets[:1], None)
        fitted = [
            self._fit(known_data, targets[first : first + chunk], start)
            for first in track(starts, total=len(starts), what="training")
        ]
        theta = torch.cat(fitted)
        tensors = {
            "coefficient": theta[..., 1 - self._first :],
            "intercept": theta[..., 0] if self.fit_intercept else torch.zeros_like(theta[..., 0]),
        }
        if self.noise:
            tensors = {
                name: tensor + self.noise * _normal(tensor, generator) for name, tensor in tensors.items()
            }
        return Weights(tensors)

    def remaining_gradient(
        self, known_data: Records | None, targets: Records, release: Release
    ) -> Tensor | None:
        """The norm of the summed loss's gradient at each release, features in standard units of the data."""
        if self.noise:
            return None  # the release is off the optimum by design
        parts = [targets] if known_data is None else [_shared(known_data), targets]
        gradient, class_weights = self.penalty_gradient(release), self.class_weights_of(parts)
        if known_data is not None:
            gradient = gradient + self.known_gradient(known_data, release, class_weights)
        weights = self.training_weights(targets, class_weights)
        gradient = gradient + self.record_gradients(targets, release, weights=weights).sum(1)
        units = standard_units(parts[0])
        standard = in_standard_units(gradient, *units)
        if not self.fit_intercept:
            standard = gradient[..., 1:] / units[1]  # the level is unconstrained
        return standard.flatten(1).norm(dim=1)

    def predictor(self, records: Records, release: Release) -> Tensor:
        """The linear predictors of records, `(trials, outputs, records)`."""
        return release["coefficient"] @ records.flat.double().mT + release["intercept"].unsqueeze(-1)

    def record_gradients(
        self, records: Records, release: Release, *, weights: Tensor | None = None
    ) -> Tensor:
        """Each record's own gradient in (intercept, coefficients).

        Records have batch `(1 or trials, records)`; the result is `(trials, records, outputs,
        1 + features)`. An entry for the intercept is there with or without one.
        """
        residual = self.family.residual(self.predictor(records, release), records.labels)
        if weights is not None:
            residual = residual * weights.unsqueeze(1)
        return residual.mT.unsqueeze(-1) * _with_ones(records.flat).unsqueeze(2)

    def known_gradient(self, known_data: Records, release: Release, class_weights: Tensor | None) -> Tensor:
        """The sum of the known records' gradients, `(trials, outputs, 1 + features)`, as few products."""
        total = torch.zeros(())
        for shared in map(_shared, known_data.split(_ROWS_AT_ONCE)):
            residual = self.family.residual(self.predictor(shared, release), shared.labels)
            weights = self.training_weights(shared, class_weights)
            if weights is not None:
                residual = residual * weights.unsqueeze(1)
            total = total + residual @ _with_ones(shared.flat)
        return total

    def penalty_gradient(self, release: Release) -> Tensor:
        """The penalty's gradient, `(trials, outputs, 1 + features)`."""
        coefficient, intercept = release["coefficient"], release["intercept"]
        slope = self.penalty * coefficient + self.l1_penalty * coefficient.sign()
        level = (self.intercept_penalty * intercept).unsqueeze(-1)
        return torch.cat([level, slope], dim=-1)

    def training_weights(self, records: Records, class_weights: Tensor | None) -> Tensor | None:
        """The weight of each record in the loss, `(1 or trials, records)`; None where all are 1."""
        if class_weights is None:
            return records.weights
        index = records.labels.long().expand(max(len(class_weights), len(records)), -1)
        weights = class_weights.expand(len(index), -1).gather(1, index)
        return weights if records.weights is None else weights * records.weights

    def fixed_class_weights(self, device: torch.device) -> Tensor | None:
        """The weights of the classes where they do not depend on the data, `(1, classes)`."""
        if self.class_weights is None:
            return None
        assert self.class_weights != "balanced"
        return torch.tensor([self.class_weights], dtype=torch.float64, device=device)

    def class_weights_of(self, parts: Sequence[Records]) -> Tensor | None:
        """The weights of the classes for these training sets, `(1 or trials, classes)`."""
        if self.class_weights != "balanced":
            return self.fixed_class_weights(parts[0].features.device)
        counts = [class_counts(part.labels, self.family.classes) for part in parts]
        return balanced_weights(sum(counts[1:], counts[0]))

    def check_weights(self, records: Records) -> None:
        """Refuse weights that are ambiguous together or meaningless."""
        weights = self.class_weights
        if weights == "balanced" and records.weights is not None:
            raise InputError(
                "Balanced class weights and record weights cannot be distinguished.",
                needs="one of the two: scikit-learn balances by the sum of the weights, the missing one included",
                got="class_weight='balanced' and sample weights",
                hint="class weights as a dict",
            )
        if isinstance(weights, tuple) and len(weights) != self.family.classes:
            raise InputError(
                "The class weights do not fit the classes.",
                needs=f"{self.family.classes} weights",
                got=f"{len(weights)} of them",
                hint="one weight per class, in their order",
            )
        if records.weights is not None and not (records.weights > 0).all():
            raise InputError(
                "A record without a positive weight leaves no trace.",
                needs="weights above 0",
                got=f"a smallest weight of {float(records.weights.min()):g}",
                hint="leave those records out",
            )

    def _check(self, known_data: Records | None, targets: Records) -> None:
        """Refuse a model without a unique optimum before training it."""
        count = targets.batch_shape[1] + (0 if known_data is None else len(known_data))
        numbers = targets.flat.shape[-1] + self.fit_intercept
        if self.l1_penalty:
            raise InputError(
                "A model with an L1 penalty is not trained here.",
                needs="an L2 penalty, or a model that is already trained",
                got=f"l1_penalty = {self.l1_penalty:g}",
                hint="remanence.tables.sklearn.leave_one_out(estimator, X, y)",
            )
        if self.penalty == 0 and numbers > count:
            raise InputError(
                "The model has no unique optimum.",
                needs="a penalty above 0, or at least as many records as parameters",
                got=f"{count} records, {numbers} parameters and no penalty",
                hint="a small penalty, for example 1e-3",
            )
        self.check_weights(targets)
        for name, records in (("known data", known_data), ("targets", targets)):
            if records is not None:
                records.require_finite(name)
        labels = [part.labels.flatten() for part in (known_data, targets) if part is not None]
        self.family.check(torch.cat(labels))

    def _fit(self, known_data: Records | None, targets: Records, start: Tensor | None) -> Tensor:
        """The optimum of each trial, `(trials, outputs, numbers)`."""
        parts = [targets] if known_data is None else [_shared(known_data), targets]
        class_weights = self.class_weights_of(parts)
        blocks = [
            Block(
                _with_ones(part.flat)[..., self._first :],
                part.labels.double(),
                self.training_weights(part, class_weights),
            )
            for part in parts
        ]
        penalties = torch.full((1 + targets.flat.shape[-1],), self.penalty, dtype=torch.float64)
        penalties[0] = self.intercept_penalty
        penalties = penalties[self._first :].to(targets.features.device)
        return newton(self.family, blocks, penalties, tolerance=self.tolerance, start=start)

    @property
    def _first(self) -> int:
        """Where the numbers to fit begin in (intercept, coefficients)."""
        return 0 if self.fit_intercept else 1


def _shared(known_data: Records) -> Records:
    return known_data[None]  # one set of records for every trial


def _with_ones(flat: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(flat[..., :1]), flat], dim=-1).double()


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return noise.to(like.device)
