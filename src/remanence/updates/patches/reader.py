"""Pictures behind an update of a network that reads patches: proven if the whole update can be recomputed from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.updates.caveats import PATCHES_OPEN
from remanence.updates.declared import LocalTraining
from remanence.updates.patches.fit import fit_patches
from remanence.updates.patches.model import PatchModel
from remanence.updates.rounding import Rounding, apart, coarsest, explained, rounded_again
from remanence.updates.shared_gradient import ProvenTogether, Reader, Sent, SharedGradient
from remanence.updates.span import ROUNDED

_NO_BETTER = 0.1  # a patch known only to a tenth does not count as recovered
_NOT_SOLVED = 0.01  # the same for single and double precision: a patch known no better is not solved for
_ENOUGH = 0.8  # unknown numbers for each number of the update, at most


@final
@dataclass(frozen=True, kw_only=True)
class Pictures(ProvenTogether):
    """The proof for the pictures proposed for one update."""

    error: float = torch.inf  # of the worst patch, relative; what the residual leaves room for


def verify_pictures(
    model: PatchModel,
    gradient: Mapping[str, Tensor],
    pictures: Tensor,
    labels: Tensor,
    *,
    rounding: Rounding,
    training: LocalTraining | None = None,
) -> Pictures:
    """Recompute the whole update from pictures and labels; a factor that all of it has is solved for."""
    training = training or LocalTraining()

    def update(shown: Tensor, start: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        return training.along(start or model.trained, lambda now: model.at(now).update(shown, labels))

    sent = {name: value.double() for name, value in gradient.items()}
    numbers = sum(value.numel() for value in sent.values())
    if not len(pictures) or pictures.numel() > _ENOUGH * numbers or not pictures.isfinite().all():
        return Pictures(named=len(pictures))
    made = update(pictures)
    own = {name: value.to(model.dtype) for name, value in model.trained.items()}
    moves = apart(made, update(pictures, rounded_again(own, torch.finfo(model.dtype).eps)))
    held = explained(sent, made, moves, rounding.times(training.steps))  # weights are rounded after each
    name = model.own("weight")
    left = (sent[name] - held.scale * made[name]).flatten(1)
    # Errors of single numbers are independent: of a matrix of them, no direction has more than this share.
    rounded = ROUNDED * sum(size**-0.5 for size in left.shape) * held.allowed[name]
    errors = _patch_errors(model, pictures, labels, held.scale)
    held = held.with_more(apart(made, update(_blurred(model, pictures, rounded * errors))))
    # Derivatives are off with the patches that they follow from, which errors take as known: four times is allowed.
    worst = 4 * float(((rounded + 2 * torch.linalg.matrix_norm(left, 2)) * errors).max())
    is_fine = not (rounding.is_coarse or rounding.absolute)
    found = Pictures(named=len(pictures), unexplained=held.left, similarity=held.similarity, error=worst)
    if not held.is_all or worst > (_NOT_SOLVED if is_fine else _NO_BETTER):
        return found
    is_ordered = model.places is not None or not any(
        all(held.scale * off <= held.allowed[name] for name, off in apart(made, update(other)).items())
        for other in _rearranged(model, pictures)
    )
    return replace(found, explains_all=True, is_ordered=is_ordered)


def _blurred(model: PatchModel, pictures: Tensor, errors: Tensor) -> Tensor:
    """Pictures whose patches are off by as much as they may be, at random."""
    patches, generator = model.patches(pictures), torch.Generator().manual_seed(0)
    noise = torch.randn(patches.shape, generator=generator, dtype=patches.dtype)
    sizes = patches.norm(dim=-1, keepdim=True) * errors.clamp(max=_NO_BETTER).view(*patches.shape[:2], 1)
    return model.pictures(patches + sizes * noise / noise.norm(dim=-1, keepdim=True))


def _rearranged(model: PatchModel, pictures: Tensor) -> Iterator[Tensor]:
    """The same pictures, one of which has its patches in another order: some networks cannot tell."""
    places = torch.arange(model.positions).view(model.grid)
    orders = [places.flip(0), places.flip(1), places.flip(0, 1), places.roll(1, 0), places.roll(1, 1)]
    orders += [places.mT] if places.shape[0] == places.shape[1] else []
    flat = [order.flatten() for order in orders]
    for place in range(model.positions - 1):
        swapped = places.flatten().clone()
        swapped[[place, place + 1]] = swapped[[place + 1, place]]
        flat.append(swapped)
    patches = model.patches(pictures)
    for index, order in itertools.product(range(len(pictures)), flat):
        if not torch.allclose(patches[index], patches[index][order]):
            moved = patches.clone()
            moved[index] = patches[index][order]
            yield model.pictures(moved)


def _patch_errors(model: PatchModel, pictures: Tensor, labels: Tensor, scale: float) -> Tensor:
    """How far each patch is off, relative, for what G is off: patches solve Σ δ xᵀ = G."""
    own = model.patches(pictures)
    made = zip(model.embedded(own), labels, strict=True)
    deltas = torch.cat([model.slopes(one, y, {})[0] for one, y in made])
    deltas = deltas * scale / len(pictures)
    inverse, failed = torch.linalg.inv_ex(deltas @ deltas.mT)
    sizes = own.flatten(0, 1).norm(dim=1).clamp(min=1e-300)
    if failed or not (inverse.diagonal() > 0).all():
        return torch.full_like(sizes, torch.inf)
    return inverse.diagonal().sqrt() / sizes


@final
@dataclass(frozen=True)
class PatchReader(Reader):
    """A network whose first layer reads patches that do not overlap: whole pictures are read."""

    model: PatchModel
    many: ClassVar[str] = "pictures"
    slots: ClassVar[int] = 16

    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterator[Caveat]:
        """Caveats about what the layer's gradient may leave open."""
        yield PATCHES_OPEN

    def check(self, training: LocalTraining, shape: tuple[int, ...]) -> None:
        """Steps of SGD, which adds gradients up."""
        if training.optimizer != "sgd":
            raise InputError(
                "Adam destroys the span of pictures in patches.",
                needs="an update of SGD, of one step or several",
                got=f"{training.steps} steps of {training.optimizer}",
                hint="audit the same batch with SGD",
            )

    def propose(
        self, one: Mapping[str, Tensor], mechanism: SharedGradient, *, seed: int, longest: int
    ) -> tuple[Records, dict[str, int]]:
        """Pictures with their labels, in the sign in which they are proven."""
        sent, first = mechanism.sent, None
        for sign in (1,) if sent.sign_is_known else (1, -1):
            gradient = {name: sign * value.double() for name, value in one.items()}
            pictures, labels, rank = fit_patches(
                self.model,
                gradient,
                precision=coarsest([gradient], sent.rounding),
                seed=seed,
                along=None if sent.training.is_plain else sent.training.along,
                is_difference=sent.is_difference,
            )
            found = Records(pictures, labels), {"independent_patches": rank, "sign": sign}
            first = first or found
            if sent.sign_is_known or self.prove(found[0], one, sent, sign).count:
                return found
        assert first is not None
        return first

    def prove(self, records: Records, one: Mapping[str, Tensor], sent: Sent, sign: int) -> Pictures:
        """By the whole update."""
        turned = {name: sign * value for name, value in one.items()}
        pictures, labels = records.features.double(), records.labels.long()
        return verify_pictures(
            self.model, turned, pictures, labels, rounding=sent.rounding, training=sent.training
        )
