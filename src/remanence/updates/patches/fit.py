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

from remanence.updates.declared import Parameters
from remanence.updates.dense.layers import mirrored
from remanence.updates.equations import Equations, Solution, solved
from remanence.updates.patches.model import PatchModel
from remanence.updates.span import Decomposed

_TOLD = 0.05  # what may be left of the embeddings of positions for them to tell which patches lie where
_AT_ONCE = 1024  # moves whose effect is computed at once


@final
@dataclass(frozen=True, kw_only=True)
class PatchEquations(Equations):
    """The equations of one gradient of a network that reads patches, and what tells their positions apart."""

    model: PatchModel  # at the weights at which the gradient was taken
    embedded: Tensor  # (rank, outputs), what the layer makes of each direction
    places: Tensor | None  # (positions, outputs), of the embeddings of positions
    others: Parameters  # gradients of single vectors and of the last layer, which distinguish pictures
    last: Tensor  # of the last bias

    @classmethod
    def of(
        cls, model: PatchModel, gradient: Mapping[str, Tensor], precision: float, *, even: bool = False
    ) -> PatchEquations | None:
        """None where patches span everything, or nothing tells their number, or the last layer is frozen.

        The precision is relative to each number or, if errors are `even`, to the largest.
        """
        whole, bias = gradient[model.own("weight")].flatten(1), gradient.get(model.own("bias"))
        whole = whole if bias is None else torch.cat([whole, bias[:, None]], 1)
        if not whole.any() or model.last not in gradient:
            return None
        part = Decomposed.of(whole, even=even).at(precision)
        rank, numbers = part.rank, model.weight.shape[1]
        if not 0 < rank < min(whole.shape):
            return None
        directions = part.directions
        rows, places = whole @ directions.mT, None
        if model.places is not None:
            places = gradient[model.places].reshape(-1, len(model.weight))[-model.positions :]
        known = directions[:, numbers:]
        values = known.new_ones(model.positions, known.shape[1])
        if places is not None:
            tells = torch.linalg.lstsq(rows, places.mT).solution
            left = (rows @ tells - places.mT).norm() / places.norm()
            # Identical patches at several positions have no such answer.
            if left < min(1e4 * precision, _TOLD):
                known, values = tells, torch.eye(model.positions, dtype=torch.float64)
        offset, free = solved(known, values)
        floor = 1e3 * precision * max(float(value.norm()) for value in gradient.values())
        others = {
            name: value
            for name, value in gradient.items()
            if (value.ndim == 1 or name == model.last.removesuffix("bias") + "weight")
            and name not in (model.own("bias"), model.places)
            and float(value.norm()) > floor
        }
        return cls(
            directions=directions,
            rows=rows,
            ones=directions[:, numbers] if directions.shape[1] > numbers else None,
            offset=offset,
            free=free,
            count=-(-rank // model.positions),
            model=model,
            embedded=model.embedded(directions[:, :numbers], directions[:, numbers:].sum(1, keepdim=True)),
            places=places,
            others=others,
            last=gradient[model.last],
        )

    def loosened(self) -> PatchEquations:
        """With all coordinates open: what is known about them was rounded, too."""
        rank = torch.eye(self.rank, dtype=self.directions.dtype)
        return replace(self, offset=torch.zeros_like(self.offset), free=rank)

    def pictures(self, points: Tensor) -> Tensor:
        """As numbers."""
        patches = (self.coordinates(points) @ self.directions)[..., : self.model.weight.shape[1]]
        return self.model.pictures(patches)

    def said(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the pictures, and the last bias's gradient."""
        logits = torch.stack([self.model.logits(one @ self.embedded) for one in self.coordinates(points)])
        is_one = len(self.last) < logits.shape[1]  # one output, of which the model makes two logits
        return logits, mirrored(self.last, 0) if is_one else self.last

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

    @cached_property
    def target(self) -> Tensor:
        """The gradient sent, in the same units."""
        return self._sized(self.rows, self.places, self.others)

    def made(self, points: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the mean over these pictures, in the same units."""
        return vmap(self.parts)(points, labels).sum(0)

    def products(self, points: Tensor, labels: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """JᵀJ, and Jᵀ times a vector, by the derivative of each picture's part in each of its open numbers."""
        open_ones = points[0].numel()
        moves = torch.eye(open_ones, dtype=torch.float64).view(open_ones, *points.shape[1:])

        def turned(one: Tensor, label: Tensor) -> Tensor:
            return vmap(lambda move: jvp(lambda at: self.parts(at, label), (one,), (move,))[1])(moves)

        with warnings.catch_warnings():  # torch's own, from its rules for derivatives of derivatives
            warnings.simplefilter("ignore", DeprecationWarning)
            slopes = vmap(turned, chunk_size=max(1, _AT_ONCE // open_ones))(points, labels).flatten(0, 1)
        return slopes @ slopes.mT, lambda values: slopes @ values


_ITERATIONS, _EARLY, _SLOW = 60, 12, 1e-3  # steps, and those after which a start that leaves more is given up
_RECOUNTS = 3  # how often labels are counted anew
_EXCHANGES, _TRIED, _NEAR = 6, 3, 1e-2  # rounds, exchanges followed in each, residuals above which none is


@final
@dataclass
class Work:
    """How many numbers may still be moved by a step, all steps together: so that a search ends, wherever it runs."""

    left: int = 150_000


def solve(equations: PatchEquations, generator: torch.Generator, fits: float, work: Work) -> Solution:
    """Pictures and labels from one random start.

    A solution that misses `fits` often has patches of two pictures in each other's place: they are exchanged.
    """
    points = equations.start(generator)
    found = descend_from(equations, points, equations.labels(points), work)
    for _ in range(_RECOUNTS):
        counted = equations.labels(found.points, found.labels)
        if torch.equal(counted, found.labels):
            break
        found = descend_from(equations, found.points, counted, work)
    for _ in range(_EXCHANGES if found.left < _NEAR else 0):
        if found.left < fits or work.left <= 0:
            break
        tried = [descend_from(equations, one, found.labels, work) for one in _exchanged(equations, found)]
        best = min(tried, key=lambda one: one.left, default=found)
        if best.left >= found.left * (1 - _SLOW):
            break
        found = best
    return found


def _exchanged(equations: PatchEquations, solution: Solution) -> list[Tensor]:
    """Points with two patches of one position exchanged: those that explain the gradient best."""
    found, points = [], solution.points
    for first, second in torch.combinations(torch.arange(equations.count)).tolist():
        for position in range(equations.model.positions):
            swapped = points.clone()
            swapped[[first, second], position] = points[[second, first], position]
            found.append((equations.descend(swapped, solution.labels, steps=0).left, swapped))
    return [swapped for _, swapped in sorted(found, key=lambda one: one[0])[:_TRIED]]


def descend_from(equations: PatchEquations, points: Tensor, labels: Tensor, work: Work) -> Solution:
    """Gauss–Newton steps, as far as the work allows."""

    def give_up(number: int, left: float) -> bool:
        work.left -= points.numel()
        return work.left <= 0 or (number >= _EARLY and left > _SLOW)

    steps = _ITERATIONS if points.numel() and work.left > 0 else 0
    return equations.descend(points, labels, steps=steps, give_up=give_up)


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
    # Nothing is open about the one picture, and equations at the first weights improve nothing.
    if along is not None:
        points = span.start(torch.Generator().manual_seed(seed))
        return span.pictures(points), span.labels(points), span.rank
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
    """The best of several starts, polished with all coordinates open."""
    generator, work = torch.Generator().manual_seed(seed), Work()
    span, found = span.best_of(
        starts, lambda one: solve(one, generator, fits, work), fits=fits, what="solving for patches"
    )
    coordinates = span.coordinates(found.points)
    if coordinates.numel() > _UNKNOWNS or found.left > _NEARLY:
        return span, found  # where the equations do not hold, as under dropout, they improve nothing
    loose, work = span.loosened(), Work(_POLISHING * coordinates.numel())
    polished = descend_from(loose, coordinates, found.labels, work)
    return (loose, polished) if polished.left < found.left else (span, found)
