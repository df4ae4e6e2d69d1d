"""Pictures that meet the equations of patches: damped Gauss–Newton from random starts, and exchanges of patches."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.func import jvp, vmap

from remanence.updates.patch_equations import PatchEquations

_ITERATIONS, _EARLY, _SLOW = (
    60,
    12,
    1e-3,
)  # steps, and those after which a start that has come no further is given up
_DAMPING, _EASED, _RAISED, _LEAST_DAMPING, _HOPELESS = 1e-2, 1 / 5, 4.0, 1e-12, 1e8
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
        tried = [descend(equations, one, found.labels, work) for one in _exchanged(equations, found)]
        best = min(tried, key=lambda one: one.left, default=found)
        if best.left >= found.left * (1 - _SLOW):
            break
        found = best
    return found


def settle(equations: PatchEquations, points: Tensor, labels: Tensor, work: Work) -> Solution:
    """Descend; count labels anew until they agree with what was found."""
    found = descend(equations, points, labels, work)
    for _ in range(_RECOUNTS):
        counted = equations.labels(found.points, found.labels)
        if torch.equal(counted, found.labels):
            break
        found = descend(equations, found.points, counted, work)
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


def descend(equations: PatchEquations, points: Tensor, labels: Tensor, work: Work) -> Solution:
    """Damped Gauss–Newton steps; a scale that is open follows the points."""
    open_ones = points[0].numel()
    moves = torch.eye(open_ones, dtype=torch.float64).view(open_ones, *points.shape[1:])

    def turned(one: Tensor, label: Tensor) -> Tensor:
        """How its part changes with each open number."""
        return vmap(lambda move: jvp(lambda at: equations.parts(at, label), (one,), (move,))[1])(moves)

    made = equations.made(points, labels)
    left = equations.rest(made)
    value, damping = float(left.square().sum()), _DAMPING
    for step_number in range(_ITERATIONS if open_ones else 0):
        if work.left <= 0:
            break
        work.left -= points.numel()
        with warnings.catch_warnings():  # torch's own, from its rules for derivatives of derivatives
            warnings.simplefilter("ignore", DeprecationWarning)
            slopes = vmap(turned, chunk_size=max(1, _AT_ONCE // open_ones))(points, labels).flatten(0, 1)
        slopes = equations.scale(made) * slopes
        if not equations.scale_is_known:  # what a change of the scale makes up for tells nothing
            slopes = slopes - (slopes @ made)[:, None] * (made / made.square().sum())
        matrix, along = slopes @ slopes.mT, slopes @ left
        while damping < _HOPELESS:
            factor, failed = torch.linalg.cholesky_ex(
                matrix + torch.diag(damping * (matrix.diagonal() + 1e-14))
            )
            moved = points + torch.cholesky_solve(along[:, None], factor).view_as(points)
            anew = equations.made(moved, labels)
            remains = equations.rest(anew)
            after = float(remains.square().sum())
            if not failed and after < value:
                break
            damping *= _RAISED
        else:
            break
        settled = after > (1 - _SLOW) * value or after < 1e-24
        points, made, left, value = moved, anew, remains, after
        damping = max(damping * _EASED, _LEAST_DAMPING)
        if settled or (step_number >= _EARLY and value > _SLOW):
            break
    return Solution(points, labels, value)
