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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from remanence.scale.progress import track
from remanence.updates.decay import decay_of
from remanence.updates.patch_equations import PatchEquations
from remanence.updates.patch_models import Parameters, PatchModel
from remanence.updates.patch_solver import Solution, Work, descend, solve
from remanence.updates.text_spans import read_part

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
    """The best of several starts, every other one at a scale that nobody knows."""
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
    polished = descend(loose, coordinates, found.labels, work)
    return (loose, polished) if polished.left < found.left else best


def without_decay(
    model: PatchModel, gradient: Mapping[str, Tensor], precision: float, *, is_difference: bool = False
) -> tuple[dict[str, Tensor], float]:
    """The update without a decay of all weights, and that decay; as it is where its span tells, or never will."""
    plain = dict(gradient)
    name = model.own("weight")
    if not plain[name].any() or PatchEquations.of(model, plain, precision, even=is_difference) is not None:
        return plain, 0.0

    def taken(decay: float, some: Iterable[str]) -> dict[str, Tensor]:
        return {one: plain[one] - decay * model.parameters[one] for one in some}

    def rank(decay: float) -> int:
        rows = taken(decay, [name])[name].flatten(1)
        return read_part([rows], precision, even=is_difference).basis.shape[1]

    decay = decay_of(model.weight, plain[name].flatten(1), rank)
    found = None if decay is None else taken(decay, plain)
    tells = found is not None and PatchEquations.of(model, found, precision, even=is_difference) is not None
    return (found, decay) if found is not None and decay is not None and tells else (plain, 0.0)
