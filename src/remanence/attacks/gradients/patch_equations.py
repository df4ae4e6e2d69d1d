"""The equations that pictures meet within the span of the gradient of a layer that reads patches; their solution."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor
from torch.func import jvp, vmap

from remanence.attacks.gradients.patch_models import Parameters, PatchModel
from remanence.attacks.gradients.span_equations import relabelled
from remanence.attacks.gradients.text_spans import read_part

_ITERATIONS, _EARLY, _SLOW = (
    60,
    12,
    1e-3,
)  # steps, and those after which a start that has come no further is given up
_DAMPING, _EASED, _RAISED, _LEAST_DAMPING, _HOPELESS = 1e-2, 1 / 5, 4.0, 1e-12, 1e8
_STARTING = 0.5  # the spread of the first points, relative to what the outputs' quotients have
_TOLD = 0.05  # what may be left of the embeddings of positions for them to tell which patches lie where
_POLISHING = 12  # steps with all coordinates open
_RECOUNTS = 3  # how often labels are counted anew
_EXCHANGES, _TRIED, _NEAR = (
    6,
    3,
    1e-2,
)  # rounds, exchanges that are followed in each, residuals above which none is


@final
@dataclass
class Work:
    """How many numbers may still be moved by a step, all steps together: so that a search ends, wherever it runs."""

    left: int = 50_000


@final
@dataclass(frozen=True)
class PatchEquations:
    """One gradient in coordinates of its span, and what is known about the coordinates of each position."""

    model: PatchModel
    directions: Tensor  # (rank, numbers and the bias's column, if there is one)
    rows: Tensor  # (outputs, rank)
    embedded: Tensor  # (rank, outputs), what the layer makes of each direction
    offset: Tensor  # (positions, rank): what is known of the coordinates of a patch
    free: Tensor  # (unknowns of a patch, rank): directions in which it is open
    places: Tensor | None  # (positions, outputs), of the embeddings of positions
    others: Parameters  # gradients of single vectors and of the last layer, which tell pictures apart
    last: Tensor  # of the last bias
    count: int  # pictures
    work: Work = field(default_factory=Work)

    @classmethod
    def of(cls, model: PatchModel, gradient: Mapping[str, Tensor], precision: float) -> PatchEquations | None:
        """None where patches span everything, or nothing tells their number."""
        prefix = f"{model.name}." if model.name else ""
        weight, bias = gradient[f"{prefix}weight"].flatten(1), gradient.get(f"{prefix}bias")
        whole = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
        if not whole.any():
            return None
        part = read_part([whole], precision)
        rank = part.basis.shape[1]
        if not 0 < rank < min(whole.shape):
            return None
        directions = torch.linalg.qr(part.basis / part.scales[:, None]).Q.mT
        rows, numbers = whole @ directions.mT, weight.shape[1]
        made = directions[:, :numbers] @ model.weight.mT
        own = model.layer.bias
        ones = None if own is None or bias is None else directions[:, numbers]
        if own is not None and ones is not None:
            made = made + ones[:, None] * own.detach()
        places = None
        known = directions.new_zeros(rank, 0) if ones is None else ones[:, None]
        values = known.new_ones(model.positions, known.shape[1])
        if model.places is not None:
            places = gradient[model.places].reshape(-1, rows.shape[0])[-model.positions :]
            tells = torch.linalg.lstsq(rows, places.mT).solution
            left = (rows @ tells - places.mT).norm() / places.norm()
            if left < min(
                1e4 * precision, _TOLD
            ):  # identical patches at several positions have no such answer
                known, values = tells, torch.eye(model.positions, dtype=torch.float64)
        offset = values @ torch.linalg.pinv(known)
        free = torch.linalg.svd(known.mT, full_matrices=True)[2][known.shape[1] :]
        floor = 1e3 * precision * max(float(value.norm()) for value in gradient.values())
        others = {
            name: value
            for name, value in gradient.items()
            if (value.ndim == 1 or name == model.last.removesuffix("bias") + "weight")
            and name not in (f"{prefix}bias", model.places)
            and float(value.norm()) > floor
        }
        count = -(-rank // model.positions)
        return cls(model, directions, rows, made, offset, free, places, others, gradient[model.last], count)

    @property
    def rank(self) -> int:
        """How many patches are independent."""
        return len(self.directions)

    @property
    def unknowns(self) -> int:
        """How many numbers are open."""
        return self.count * self.model.positions * len(self.free)

    def patches(self, coordinates: Tensor) -> Tensor:
        """As numbers, `(pictures, positions, numbers)`."""
        return (coordinates @ self.directions)[..., : self.model.weight.shape[1]]

    def coordinates(self, points: Tensor) -> Tensor:
        """Of what is open, `(..., positions, unknowns of a patch)`, in the span."""
        return self.offset + points @ self.free

    def solve(self, generator: torch.Generator, fits: float) -> tuple[float, Tensor, Tensor]:
        """The residual (a square), coordinates and their labels, from one random start.

        A solution that misses `fits` often has patches of two pictures in each other's place: they are exchanged.
        """
        points = self._start(generator)
        labels = self._labels(points, torch.full((self.count,), -1))
        points, value = self._descend(points, labels)
        for _ in range(_RECOUNTS):
            counted = self._labels(points, labels)
            if torch.equal(counted, labels):
                break
            labels = counted
            points, value = self._descend(points, labels)
        for _ in range(_EXCHANGES if value < _NEAR else 0):
            if value < fits or self.work.left <= 0:
                break
            tried = [self._descend(swapped, labels) for swapped in self._exchanged(points, labels)]
            best = min(tried, key=lambda one: one[1], default=(points, torch.inf))
            if best[1] >= value * (1 - _SLOW):
                break
            points, value = best
        return value, self.coordinates(points), labels

    def polished(self, value: float, coordinates: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        """The same with all coordinates open: what was known about them was rounded, too."""
        rank = self.rank
        loose = replace(
            self,
            offset=torch.zeros_like(self.offset),
            free=torch.eye(rank, dtype=self.directions.dtype),
            work=Work(_POLISHING * coordinates.numel()),
        )
        moved, after = loose._descend(coordinates, labels)
        return (after, moved) if after < value else (value, coordinates)

    def _exchanged(self, points: Tensor, labels: Tensor) -> list[Tensor]:
        """Points with two patches of one position exchanged: those that explain the gradient best."""
        found = []
        for first, second in torch.combinations(torch.arange(self.count)).tolist():
            for position in range(self.model.positions):
                swapped = points.clone()
                swapped[first, position], swapped[second, position] = (
                    points[second, position],
                    points[first, position],
                )
                found.append((float(self._rest(swapped, labels).square().sum()), swapped))
        return [swapped for _, swapped in sorted(found, key=lambda one: one[0])[:_TRIED]]

    def _start(self, generator: torch.Generator) -> Tensor:
        """Random points around the mean patch that the outputs agree on best."""
        shape = self.count, self.model.positions, len(self.free)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.directions.shape[1] == self.model.weight.shape[1]:
            return noise
        height = self.rows @ self.directions[:, -1]
        middle = (height @ self.rows) / height.square().sum()
        live = height.abs() > 1e-6 * height.abs().max()
        reach = (self.rows[live] / height[live, None] - middle).norm(dim=1).median()
        return (middle - self.offset) @ self.free.mT + _STARTING * reach / self.rank**0.5 * noise

    def _labels(self, points: Tensor, labels: Tensor) -> Tensor:
        """By counts: the last bias's gradient is the mean of predictions less the share of each class."""
        said = torch.stack([self.model.logits(one @ self.embedded) for one in self.coordinates(points)])
        return relabelled(labels, said.softmax(-1).sum(0) - self.count * self.last, said)

    def _parts(self, points: Tensor, label: Tensor, chosen: Parameters) -> Tensor:
        """What one picture adds to the gradient, every part of it relative to its size."""
        coordinates = self.coordinates(points)
        delta, slopes = self.model.slopes(coordinates @ self.embedded, label, chosen)
        parts = [delta.mT @ coordinates / self.rows.norm()]
        if self.places is not None:
            parts.append(delta / self.places.norm())
        weight = max(1, len(self.others)) ** -0.5
        parts += [weight * slopes[name] / value.norm() for name, value in self.others.items()]
        return torch.cat([part.flatten() for part in parts]) / self.count

    def _target(self) -> Tensor:
        parts = [self.rows / self.rows.norm()]
        if self.places is not None:
            parts.append(self.places / self.places.norm())
        weight = max(1, len(self.others)) ** -0.5
        parts += [weight * value / value.norm() for value in self.others.values()]
        return torch.cat([part.flatten() for part in parts])

    def _rest(self, points: Tensor, labels: Tensor) -> Tensor:
        """What is left of the gradient."""
        chosen = {name: self.model.parameters[name] for name in self.others}
        return self._target() - vmap(lambda one, label: self._parts(one, label, chosen))(points, labels).sum(
            0
        )

    def _descend(self, points: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """Damped Gauss–Newton steps."""
        chosen = {name: self.model.parameters[name] for name in self.others}
        open_ones = points[0].numel()
        moves = torch.eye(open_ones, dtype=torch.float64).view(open_ones, *points.shape[1:])

        def turned(one: Tensor, label: Tensor) -> Tensor:
            """How its part changes with each open number."""
            return vmap(lambda move: jvp(lambda at: self._parts(at, label, chosen), (one,), (move,))[1])(
                moves
            )

        def rest(at: Tensor) -> Tensor:
            return self._target() - vmap(lambda one, label: self._parts(one, label, chosen))(at, labels).sum(
                0
            )

        left = rest(points)
        value, damping = float(left.square().sum()), _DAMPING
        for step_number in range(_ITERATIONS if open_ones else 0):
            if self.work.left <= 0:
                break
            self.work.left -= points.numel()
            with warnings.catch_warnings():  # torch's own, from its rules for derivatives of derivatives
                warnings.simplefilter("ignore", DeprecationWarning)
                slopes = torch.cat([turned(one, label) for one, label in zip(points, labels, strict=True)])
            matrix, along = slopes @ slopes.mT, slopes @ left
            while damping < _HOPELESS:
                factor, failed = torch.linalg.cholesky_ex(
                    matrix + torch.diag(damping * (matrix.diagonal() + 1e-14))
                )
                moved = points + torch.cholesky_solve(along[:, None], factor).view_as(points)
                remains = self._rest(moved, labels)
                after = float(remains.square().sum())
                if not failed and after < value:
                    break
                damping *= _RAISED
            else:
                break
            settled = after > (1 - _SLOW) * value or after < 1e-24
            points, left, value, damping = moved, remains, after, max(damping * _EASED, _LEAST_DAMPING)
            if settled or (step_number >= _EARLY and value > _SLOW):
                break
        return points, value
