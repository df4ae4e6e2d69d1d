"""The equations that pictures meet within the span of the gradient of a layer that reads patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.func import vmap

from remanence.updates.one_logit import mirrored
from remanence.updates.patch_models import Parameters, PatchModel
from remanence.updates.span_equations import relabelled
from remanence.updates.text_spans import read_part

_STARTING = 0.5  # the spread of the first points, relative to what the outputs' quotients have
_TOLD = 0.05  # what may be left of the embeddings of positions for them to tell which patches lie where


@final
@dataclass(frozen=True)
class PatchEquations:
    """One gradient in coordinates of its span, and what is known about the coordinates of each position."""

    model: PatchModel  # at the weights at which the gradient was taken
    directions: Tensor  # (rank, numbers and the bias's column, if there is one)
    rows: Tensor  # (outputs, rank)
    embedded: Tensor  # (rank, outputs), what the layer makes of each direction
    offset: Tensor  # (positions, rank): what is known of the coordinates of a patch
    free: Tensor  # (unknowns of a patch, rank): directions in which it is open
    places: Tensor | None  # (positions, outputs), of the embeddings of positions
    others: Parameters  # gradients of single vectors and of the last layer, which tell pictures apart
    last: Tensor  # of the last bias
    count: int  # pictures
    scale_is_known: bool = True  # the gradient is that of a mean, and not this times some factor

    @classmethod
    def of(
        cls, model: PatchModel, gradient: Mapping[str, Tensor], precision: float, *, even: bool = False
    ) -> PatchEquations | None:
        """None where patches span everything, or nothing tells their number, or the last layer is frozen.

        The precision is relative to each number or, if errors are `even`, to the largest.
        """
        whole = _whole(model, gradient)
        if not whole.any() or model.last not in gradient:
            return None
        part = read_part([whole], precision, even=even)
        rank = part.basis.shape[1]
        if not 0 < rank < min(whole.shape):
            return None
        directions = torch.linalg.qr(part.basis / part.scales[:, None]).Q.mT
        rows, places = whole @ directions.mT, _places(model, gradient)
        has_ones = directions.shape[1] > model.weight.shape[1]
        known = directions[:, -1:] if has_ones else directions.new_zeros(rank, 0)
        values = known.new_ones(model.positions, known.shape[1])
        if places is not None:
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
            and name not in (model.own("bias"), model.places)
            and float(value.norm()) > floor
        }
        count = -(-rank // model.positions)
        embedded = _embedded(model, directions)
        return cls(
            model, directions, rows, embedded, offset, free, places, others, gradient[model.last], count
        )

    def loosened(self) -> PatchEquations:
        """With all coordinates open: what is known about them was rounded, too."""
        rank = torch.eye(self.rank, dtype=self.directions.dtype)
        return replace(self, offset=torch.zeros_like(self.offset), free=rank)

    @property
    def rank(self) -> int:
        """How many patches are independent."""
        return len(self.directions)

    @property
    def unknowns(self) -> int:
        """How many numbers are open."""
        return self.count * self.model.positions * len(self.free)

    def pictures(self, points: Tensor) -> Tensor:
        """As numbers."""
        patches = (self.coordinates(points) @ self.directions)[..., : self.model.weight.shape[1]]
        return self.model.pictures(patches)

    def coordinates(self, points: Tensor) -> Tensor:
        """Of what is open, `(..., positions, unknowns of a patch)`, in the span."""
        return self.offset + points @ self.free

    def start(self, generator: torch.Generator) -> Tensor:
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

    def labels(self, points: Tensor, labels: Tensor) -> Tensor:
        """By counts: the last bias's gradient is the mean of predictions less the share of each class."""
        said = torch.stack([self.model.logits(one @ self.embedded) for one in self.coordinates(points)])
        expected, last = said.softmax(-1).sum(0), self.last
        if len(last) < len(expected):  # one output, of which the model makes two logits
            last = mirrored(last, 0)
        if (labels >= 0).all():
            share = self.scale(self.made(points, labels)) / self.count
        else:  # at a scale that nobody knows, there is a class that nobody has
            share = 1 / self.count if self.scale_is_known else float((last / expected).max())
        return relabelled(labels, expected - last / max(share, 1e-300), said)

    def parts(self, points: Tensor, label: Tensor) -> Tensor:
        """What one picture adds to the gradient, every part of it relative to its size."""
        coordinates = self.coordinates(points)
        chosen = {name: self.model.parameters[name] for name in self.others}
        delta, slopes = self.model.slopes(coordinates @ self.embedded, label, chosen)
        return self._sized(delta.mT @ coordinates, delta, slopes) / self.count

    def _sized(self, rows: Tensor, places: Tensor | None, others: Parameters) -> Tensor:
        """Numbers of a gradient in one row, every tensor relative to its size in what was sent."""
        found = [rows / self.rows.norm()]
        if self.places is not None and places is not None:
            found.append(places / self.places.norm())
        weight = max(1, len(self.others)) ** -0.5
        found += [weight * others[name] / value.norm() for name, value in self.others.items()]
        return torch.cat([part.flatten() for part in found])

    def made(self, points: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the mean over these pictures, in the same units."""
        return vmap(self.parts)(points, labels).sum(0)

    @cached_property
    def target(self) -> Tensor:
        """What was sent, in the same units."""
        return self._sized(self.rows, self.places, self.others)

    def scale(self, made: Tensor) -> float:
        """What the gradient of a mean was multiplied by: what explains most."""
        if self.scale_is_known:
            return 1.0
        return float(self.target @ made / made.square().sum().clamp(min=1e-300))

    def rest(self, made: Tensor) -> Tensor:
        """What is left of the gradient."""
        return self.target - self.scale(made) * made


def _whole(model: PatchModel, gradient: Mapping[str, Tensor]) -> Tensor:
    """Of the layer's weight, its bias's beside it."""
    weight, bias = gradient[model.own("weight")].flatten(1), gradient.get(model.own("bias"))
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def _embedded(model: PatchModel, directions: Tensor) -> Tensor:
    """What the layer makes of each direction."""
    made = directions[:, : model.weight.shape[1]] @ model.weight.mT
    if model.bias is not None and directions.shape[1] > model.weight.shape[1]:
        made = made + directions[:, -1:] * model.bias
    return made


def _places(model: PatchModel, gradient: Mapping[str, Tensor]) -> Tensor | None:
    """Of the embeddings of positions, where there are any."""
    if model.places is None:
        return None
    return gradient[model.places].reshape(-1, len(model.weight))[-model.positions :]
