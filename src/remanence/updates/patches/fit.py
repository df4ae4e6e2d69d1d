"""Whole pictures from the gradient of a layer that reads patches: vision transformers, and convolutions like them.

The gradient of such a layer, its bias gradient beside it, is G = s Σ δ_ip (x_ip, 1)ᵀ over pictures i and positions
p. Its rank r is the number of patches, so every (x_ip, 1) is a combination c_ip of r known directions: G = D C, where C
has the rows c_ip. The gradient of the embedding of position p is S_p = s Σ_i δ_ip = D 1_p, so that w_p = G⁺ S_p, in
coordinates, meets c_iq · w_p = 1 for q = p and 0 for all other positions. It tells exactly which patches lie where. For
one picture nothing is left open, and its patches follow by linear algebra. For more, what is left of c_ip is solved for
by damped Gauss–Newton: δ follows from the picture and its label by one pass through the network. Whether what was found
is the batch, recomputation of the whole update tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.func import jvp, vmap

from remanence.scale.progress import track
from remanence.updates.dense.layers import mirrored
from remanence.updates.dense.span_fit import relabelled
from remanence.updates.descent import descend
from remanence.updates.patches.model import Parameters, PatchModel
from remanence.updates.span import Decomposed

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
    others: Parameters  # gradients of single vectors and of the last layer, which distinguish pictures
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
        part = Decomposed.of(whole, even=even).at(precision)
        rank = part.basis.shape[1]
        if not 0 < rank < min(whole.shape):
            return None
        directions = part.directions
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
        else:  # at an unknown scale, some class is assumed to be absent
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
        """The gradient sent, in the same units."""
        return self._sized(self.rows, self.places, self.others)

    def scale(self, made: Tensor) -> float:
        """The best-fitting factor of the gradient of a mean."""
        if self.scale_is_known:
            return 1.0
        return float(self.target @ made / made.square().sum().clamp(min=1e-300))

    def rest(self, made: Tensor) -> Tensor:
        """The residual of the gradient."""
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


_ITERATIONS, _EARLY, _SLOW = (
    60,
    12,
    1e-3,
)  # steps, and those after which a start that has come no further is given up
_AT_ONCE = 1024  # moves whose effect is computed at once
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

    left: int = 150_000


@final
@dataclass(frozen=True)
class Solution:
    """What is open about each patch, solved for; labels; and the square of what is left of the gradient."""

    points: Tensor  # (pictures, positions, unknowns of a patch)
    labels: Tensor
    left: float


def solve(equations: PatchEquations, generator: torch.Generator, fits: float, work: Work) -> Solution:
    """Pictures and labels from one random start.

    A solution that misses `fits` often has patches of two pictures in each other's place: they are exchanged.
    """
    points = equations.start(generator)
    labels = equations.labels(points, torch.full((equations.count,), -1))
    found = settle(equations, points, labels, work)
    for _ in range(_EXCHANGES if found.left < _NEAR else 0):
        if found.left < fits or work.left <= 0:
            break
        tried = [descend_from(equations, one, found.labels, work) for one in _exchanged(equations, found)]
        best = min(tried, key=lambda one: one.left, default=found)
        if best.left >= found.left * (1 - _SLOW):
            break
        found = best
    return found


def settle(equations: PatchEquations, points: Tensor, labels: Tensor, work: Work) -> Solution:
    """Descend; count labels anew until they agree with what was found."""
    found = descend_from(equations, points, labels, work)
    for _ in range(_RECOUNTS):
        counted = equations.labels(found.points, found.labels)
        if torch.equal(counted, found.labels):
            break
        found = descend_from(equations, found.points, counted, work)
    return found


def _exchanged(equations: PatchEquations, solution: Solution) -> list[Tensor]:
    """Points with two patches of one position exchanged: those that explain the gradient best."""
    found, points = [], solution.points
    for first, second in torch.combinations(torch.arange(equations.count)).tolist():
        for position in range(equations.model.positions):
            swapped = points.clone()
            swapped[first, position], swapped[second, position] = (
                points[second, position],
                points[first, position],
            )
            left = equations.rest(equations.made(swapped, solution.labels)).square().sum()
            found.append((float(left), swapped))
    return [swapped for _, swapped in sorted(found, key=lambda one: one[0])[:_TRIED]]


def descend_from(equations: PatchEquations, points: Tensor, labels: Tensor, work: Work) -> Solution:
    """Gauss–Newton steps; a scale that is open follows the points."""
    open_ones = points[0].numel()
    moves = torch.eye(open_ones, dtype=torch.float64).view(open_ones, *points.shape[1:])

    def turned(one: Tensor, label: Tensor) -> Tensor:
        """How its part changes with each open number."""
        return vmap(lambda move: jvp(lambda at: equations.parts(at, label), (one,), (move,))[1])(moves)

    def value(at: Tensor) -> float:
        return float(equations.rest(equations.made(at.view_as(points), labels)).square().sum())

    def normal(at: Tensor) -> tuple[Tensor, Tensor]:
        now, work.left = at.view_as(points), work.left - at.numel()
        made = equations.made(now, labels)
        with warnings.catch_warnings():  # torch's own, from its rules for derivatives of derivatives
            warnings.simplefilter("ignore", DeprecationWarning)
            slopes = vmap(turned, chunk_size=max(1, _AT_ONCE // open_ones))(now, labels).flatten(0, 1)
        slopes = equations.scale(made) * slopes
        if not equations.scale_is_known:  # what a change of the scale makes up for tells nothing
            slopes = slopes - (slopes @ made)[:, None] * (made / made.square().sum())
        return slopes @ slopes.mT, -(slopes @ equations.rest(made))

    at, left = descend(
        points.flatten(),
        value,
        normal,
        steps=_ITERATIONS if open_ones and work.left > 0 else 0,
        give_up=lambda number, left: work.left <= 0 or (number >= _EARLY and left > _SLOW),
    )
    return Solution(at.view_as(points), labels, left)


Along = Callable[[Parameters, Callable[[Parameters], Parameters]], Parameters]

_UNKNOWNS = 1100  # numbers that are solved for at most
_NEARLY = 1e-2  # what a solution leaves at most, as a square
_POLISHING = 12  # steps with all coordinates open
_FITS = 1e-4  # of the update: what a good start leaves at most, whatever sums of many numbers were rounded by


def fit_patches(
    model: PatchModel,
    gradient: Mapping[str, Tensor],
    *,
    precision: float,
    seed: int = 0,
    starts: int = 6,
    along: Along | None = None,
    is_difference: bool = False,
) -> tuple[Tensor, Tensor, int]:
    """Pictures, their labels, and how many independent patches there are (0 where they span everything).

    `along` makes all steps of an update that has several. Every step reads the same patches, so that one picture
    follows from the mean of their gradients by linear algebra; for several nothing is solved.
    """
    nothing = torch.zeros(0, *model.shape, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    sent = gradient if along is None else _mean_gradient(model, gradient, along)
    span = PatchEquations.of(model, sent, precision, even=is_difference)
    if span is None:
        return *nothing, 0
    if span.unknowns > (_UNKNOWNS if along is None else 0):
        return *nothing, span.rank
    if (
        along is not None
    ):  # nothing is open about the one picture, and equations at the first weights improve nothing
        points = span.start(torch.Generator().manual_seed(seed))
        return span.pictures(points), span.labels(points, torch.full((span.count,), -1)), span.rank
    fits = max(4 * precision, min(1e3 * precision, _FITS)) ** 2
    span, found = _searched(span, fits, seed, starts)
    return span.pictures(found.points), found.labels, span.rank


def _mean_gradient(model: PatchModel, update: Mapping[str, Tensor], along: Along) -> Parameters:
    """The mean gradient of all steps: an update less what the decay of the weights makes, over how often one counts."""
    one = torch.ones((), dtype=torch.float64)
    times = float(along({"": torch.zeros_like(one)}, lambda _: {"": one})[""])
    still = along(model.trained, lambda now: {name: torch.zeros_like(value) for name, value in now.items()})
    return {name: (value - still[name]) / times for name, value in update.items()}


def _searched(span: PatchEquations, fits: float, seed: int, starts: int) -> tuple[PatchEquations, Solution]:
    """The best of several starts, every other one at an unknown scale."""
    generator, work = torch.Generator().manual_seed(seed), Work()
    best: tuple[PatchEquations, Solution] | None = None
    for attempt in track(range(starts), total=starts, what="solving for patches"):
        tried = replace(span, scale_is_known=not attempt % 2)
        found = solve(tried, generator, fits, work)
        best = (tried, found) if best is None or found.left < best[1].left else best
        if best[1].left < fits or (attempt and not span.unknowns) or work.left <= 0:
            break
    assert best is not None
    span, found = best
    coordinates = span.coordinates(found.points)
    if coordinates.numel() > _UNKNOWNS or found.left > _NEARLY:
        return best  # where the equations do not hold, as under dropout, they improve nothing
    loose, work = span.loosened(), Work(_POLISHING * coordinates.numel())
    polished = descend_from(loose, coordinates, found.labels, work)
    return (loose, polished) if polished.left < found.left else best
