"""ρ, the error of a reconstruction, and the criterion that turns it into a success.

Errors, never similarities: 0 is exact, and smaller is closer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from remanence.core.checks import number
from remanence.core.exceptions import InputError
from remanence.core.records import Records

COMPARED = 2**24  # numbers of all (target, guess) pairs that are in memory at once


@dataclass(frozen=True)
class Error:
    """A way to measure how far a guess is from a target, elementwise over the batch.

    `reach` is the largest error between two targets that a single guess can meet within a
    threshold: 2η for a metric (triangle inequality), 4η for a squared one. A baseline needs it,
    because the best guess need not be a record. Without it the baseline is bounded by 1 only. A `squared`
    error is a squared euclidean distance up to a factor, for which a tighter count holds (`priors.py`). `parts` are the
    errors of single columns, for records in which recovering one column already matters.
    """

    name: str
    measure: Callable[[Records, Records], Tensor]
    reach: Callable[[float], float] | None = None
    squared: bool = False
    parts: tuple[Error, ...] = ()

    def __call__(self, targets: Records, guesses: Records) -> Tensor:
        """The error of each guess, of the common batch shape."""
        return self.measure(targets, guesses)


mean_squared_error = Error(
    "mean squared error",
    lambda targets, guesses: (targets.flat.double() - guesses.flat.double()).square().mean(-1),
    reach=lambda threshold: 4 * threshold,
    squared=True,
)

# The training loss of picture reconstructors (Maciazek and Allison 2025, Equation 3). If g meets both a and b,
# MSE(a, b) ≤ 2 MSE(a, g) + 2 MSE(b, g), and MAE is a metric, so that twice the sum of both errors is a reach.
squared_and_absolute_error = Error(
    "mean of squared and absolute error",
    lambda targets, guesses: _squared_and_absolute(targets.flat.double() - guesses.flat.double()),
    reach=lambda threshold: 4 * threshold,
)

mismatch = Error(
    "mismatch",
    lambda targets, guesses: (targets.flat != guesses.flat).any(-1).to(torch.float64),
    reach=lambda threshold: threshold,  # two records that one guess equals are equal
)


def _squared_and_absolute(off: Tensor) -> Tensor:
    return (off.square().mean(-1) + off.abs().mean(-1)) / 2


def relative_error(centre: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> Error:
    """The distance to the target divided by the target's norm, ‖ẑ − z‖ / ‖z‖.

    With a centre and a scale per feature both norms are taken in standard units, so that a
    feature measured in thousands does not dominate.

    >>> target = Records(torch.tensor([[3.0, 4.0]]), torch.tensor([0]))
    >>> guess = Records(torch.tensor([[3.0, 4.5]]), torch.tensor([0]))
    >>> relative_error()(target, guess)
    tensor([0.1000], dtype=torch.float64)
    """

    def measure(targets: Records, guesses: Records) -> Tensor:
        middle, unit = (torch.as_tensor(v, device=targets.features.device) for v in (centre, scale))
        target = targets.flat.double()  # differences of bytes would wrap around
        distance = ((guesses.flat.double() - target) / unit).norm(dim=-1)
        return (distance / ((target - middle) / unit).norm(dim=-1)).where(distance != 0, 0.0)

    plain = isinstance(centre, float) and isinstance(scale, float)
    name = "relative error" if plain else "relative error in standard units"
    # ‖a − b‖ ≤ η(‖a‖ + ‖b‖) and ‖b‖ ≤ ‖a‖ + ‖a − b‖ give ρ(a, b) ≤ 2η / (1 − η).
    return Error(name, measure, lambda eta: 2 * eta / (1 - eta) if eta < 1 else float("inf"))


def label_error(name: str, spread: float = 1.0) -> Error:
    """The error of a label in units of `spread`; for integer classes, 1 leaves no other class within reach."""

    def measure(targets: Records, guesses: Records) -> Tensor:
        off = (targets.labels.double() - guesses.labels.double()).abs() / spread
        return off.nan_to_num(nan=torch.inf)

    return Error(name, measure, lambda threshold: 2 * threshold)


class Reduction(StrEnum):
    """How a set of guesses is compared with a set of targets."""

    EACH = "each"  # the i-th guess is about the i-th record; every record counts
    BEST = "best"  # one success per trial, if any guess meets any record
    MATCHED = "matched"  # guesses are assigned to records at the least total error; every record counts
    CLASS = "class"  # a guess is compared with the closest record of its own label; every guess counts


@dataclass(frozen=True)
class Comparison:
    """The outcome of a criterion, one entry for each record that counts."""

    errors: Tensor  # (trials, counted)
    labels_agree: Tensor  # (trials, counted)
    succeeded: Tensor  # (trials, counted)


@dataclass(frozen=True)
class Criterion:
    """When a reconstruction counts: ρ(z, ẑ) ≤ η.

    With a `label_scale` the label must be right too, |ŷ − y| ≤ η · label_scale: 1 for classes,
    the labels' spread for a regression. None leaves labels out of the criterion.
    """

    error: Error = relative_error()
    threshold: float = 1e-2
    reduction: Reduction = Reduction.EACH
    label_scale: float | None = None

    def __post_init__(self) -> None:
        hint = "1e-2 is the default for continuous records"
        number("threshold", self.threshold, least=0, hint=hint)

    def compare(self, targets: Records, guesses: Records) -> Comparison:
        """Compare reconstructions `(trials, guesses)` with targets `(trials, set)`."""
        if self.reduction is Reduction.EACH:
            if targets.batch_shape != guesses.batch_shape:
                raise InputError(
                    "Reconstructions and targets do not line up.",
                    needs=f"one guess per record, batch {targets.batch_shape}",
                    got=f"guesses of batch {guesses.batch_shape}",
                    hint="Reduction.BEST or Reduction.MATCHED for attacks that return a set",
                )
            return self._judge(self.error(targets, guesses), self._agree(targets, guesses))
        each = targets.batch_shape[1] * guesses.batch_shape[1] * targets.flat.shape[-1]
        if len(targets) > (rows := max(1, COMPARED // each)):
            starts = range(0, len(targets), rows)
            parts = [self.compare(targets[s : s + rows], guesses[s : s + rows]) for s in starts]
            return Comparison(
                *(torch.cat(part) for part in zip(*(vars(p).values() for p in parts), strict=True))
            )
        pairs = targets[:, :, None], guesses[:, None, :]
        errors = self.error(*pairs).nan_to_num(nan=torch.inf, posinf=torch.inf)  # (trials, set, guesses)
        if self.reduction is Reduction.CLASS:
            agree = pairs[0].labels == pairs[1].labels
            best = errors.where(agree, torch.inf).min(1)  # over the records, (trials, guesses)
            return self._judge(best.values, agree.any(1))
        agree = self._agree(*pairs)
        if self.reduction is Reduction.BEST:
            ranked = errors if self.label_scale is None else errors.where(agree, torch.inf)
            best = ranked.flatten(1).argmin(1, keepdim=True)
            return self._judge(errors.flatten(1).gather(1, best), agree.flatten(1).gather(1, best))
        cost = errors if self.label_scale is None else errors.where(agree, torch.inf)
        chosen = _assigned(cost).to(errors.device)  # (trials, set)
        missing = chosen < 0
        index = chosen.clamp(min=0).unsqueeze(-1)
        return self._judge(
            errors.gather(2, index).squeeze(-1).masked_fill(missing, torch.inf),
            agree.gather(2, index).squeeze(-1) & ~missing,
        )

    def meets(self, targets: Records, guesses: Records) -> Tensor:
        """Which guess (column) would be right for which target (row), of batches `(targets,)` and `(guesses,)`."""
        pairs = targets[:, None], guesses[None, :]
        return self._judge(self.error(*pairs), self._agree(*pairs)).succeeded

    def chance_factor(self, records: int, guesses: int) -> int:
        """The factor by which several guesses or records can multiply the success of one guess (union bound)."""
        factors = {
            Reduction.EACH: 1,
            Reduction.BEST: records * guesses,
            Reduction.MATCHED: guesses,
            Reduction.CLASS: 1,  # a StratifiedPrior accounts for the number of records per label
        }
        return factors[self.reduction]

    def _agree(self, targets: Records, guesses: Records) -> Tensor:
        scale = 1.0 if self.label_scale is None else self.label_scale
        tolerance = max(self.threshold, 1e-9) * scale  # classes are integers held as floats
        return (targets.labels.double() - guesses.labels.double()).abs() <= tolerance

    def _judge(self, errors: Tensor, agree: Tensor) -> Comparison:
        succeeded = errors <= self.threshold  # False for NaN
        return Comparison(errors, agree, succeeded if self.label_scale is None else succeeded & agree)


def _assigned(errors: Tensor) -> Tensor:
    """The guess assigned to each record at the least total error, or −1 if there are too few guesses."""
    from scipy.optimize import linear_sum_assignment  # loaded here: most audits start faster without it

    if not errors.numel():
        return torch.full(errors.shape[:2], -1)
    finite = errors.detach().cpu().double()
    ceiling = finite.where(finite.isfinite(), 0.0).amax((1, 2), keepdim=True)
    costs = finite.minimum(2 * ceiling + 1).numpy()
    chosen = np.full(costs.shape[:2], -1)
    for own, cost in zip(chosen, costs, strict=True):
        rows, columns = linear_sum_assignment(cost)
        own[rows] = columns
    return torch.from_numpy(chosen)
