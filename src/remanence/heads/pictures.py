"""Your pictures and the public ones, embedded: what the adversary has, and what is kept from them for the control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from remanence.core.distances import nearest_neighbour_errors
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.heads.embedding import embed, embedding_of
from remanence.heads.head import Head

if TYPE_CHECKING:
    from remanence.heads.head_game import HeadAudit

_CONTROLS = 4  # one in so many of the public pictures is kept from the adversary, for the control
_SAME = 1e-12  # of a picture's mean square: closer pictures are the same one


def prepared_pictures(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    prior: Records,
    settings: HeadAudit,
) -> tuple[Records, Records, Records]:
    """Yours, the adversary's and the control's, all embedded; refuses what no audit can use."""
    per_class, copies = settings.per_class, settings.copies
    check_pictures(images, labels, prior, copies)
    own, public = _embedded(backbone_or_features, images, labels, prior)
    classes, counts = torch.unique(labels, return_counts=True)
    if not torch.equal(classes, torch.unique(public.labels)):
        raise InputError(
            "Your pictures and the public ones have different classes.",
            needs=f"public pictures of the classes {classes.tolist()}",
            got=str(torch.unique(public.labels).tolist()),
            hint="the adversary knows the classes; give a few public pictures of each",
        )
    if not torch.equal(public.labels, public.labels[: len(public) // copies].repeat(copies)):
        raise InputError(
            "The public pictures are not that many copies.",
            needs=f"{copies} copies of the same pictures one after the other, as `augment` makes them",
            got=f"{len(public)} pictures whose labels do not repeat",
            hint="the same `copies` as in augment(...), or none",
        )
    check_enough(public, copies, counts.tolist() if per_class is None else [per_class] * len(classes))
    originals = public.labels[: len(public) // copies]
    apart = torch.zeros(len(originals), dtype=torch.bool, device=originals.device)
    for label in classes:  # no copy of a control's picture stays with the adversary
        apart[(originals == label).nonzero().squeeze(1)[::_CONTROLS]] = True
    same = nearest_neighbour_errors(own, public) <= _SAME * own.flat.double().square().mean()
    if same.any():
        raise InputError(
            "Some of your pictures are among the public ones.",
            needs="public pictures that the head was not trained on",
            got=f"{int(same.sum())} pictures that are in both",
            hint="take them out of `prior`: what is public needs no attack",
        )
    return own, public[~apart.repeat(copies)], public[: len(originals)][apart]


def _embedded(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    prior: Records,
) -> tuple[Records, Records]:
    """Yours and the public ones, with features that fit."""
    if isinstance(backbone_or_features, nn.Module):
        own = embed(Records(images, labels), backbone_or_features)
        public = embed(prior, backbone_or_features)
    else:
        features = backbone_or_features.detach()
        if features.dtype != torch.float32 or features.ndim != 2 or len(features) != len(labels):
            raise InputError(
                "The features cannot be used.",
                needs=f"float32 numbers of shape ({len(labels)}, numbers)",
                got=f"{features.dtype} of shape {tuple(features.shape)}",
                hint="features.float().flatten(1)",
            )
        own = Records(images, labels, embedding=features)
        public = prior
    numbers = embedding_of(own).shape[-1]
    if public.embedding is None or public.embedding.shape[-1] != numbers:
        raise InputError(
            "The public pictures have no features that fit.",
            needs=f"an embedding of {numbers} numbers for each",
            got="none" if public.embedding is None else f"{public.embedding.shape[-1]} numbers",
            hint="give the backbone, or prior=embed(records, backbone)",
        )
    return own, public


def check_kinds(backbone_or_features: object, recipe: object, prior: object) -> None:
    """Refuse what is not of the kind that it should be."""
    kinds = {
        "backbone": (
            backbone_or_features,
            nn.Module | Tensor,
            "a module, or a tensor of features",
            "nn.Sequential(...)",
        ),
        "recipe": (recipe, Head, "a TransferHead, or an OwnHead", "TransferHead(classes=10, epochs=30)"),
        "prior": (prior, Records, "Records of public pictures", "Records(pictures, labels)"),
    }
    for name, (value, kind, needs, hint) in kinds.items():
        if not isinstance(value, kind):
            raise InputError(f"The {name} cannot be used.", needs=needs, got=type(value).__name__, hint=hint)


def check_pictures(images: Tensor, labels: Tensor, prior: Records, copies: int) -> None:
    """Refuse what no head can be trained on, before any time is spent."""
    for name, value in {"labels": labels, "images": images}.items():
        if not isinstance(value, Tensor) or not value.ndim or not 0 < len(value) == len(labels):
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise InputError(
                f"The {name} cannot be used.",
                needs="tensors with one entry for each of your pictures, and at least one picture",
                got=f"{type(value).__name__}{shape}",
                hint="torch.as_tensor(array)",
            )
    if labels.ndim != 1 or not torch.equal(labels, labels.long()):
        raise InputError(
            "The labels cannot be used.",
            needs="one whole number for each picture",
            got=f"{labels.dtype} of shape {tuple(labels.shape)}",
            hint="the number of the class, from 0 up",
        )
    if images.dtype != torch.float32 or prior.features.dtype != torch.float32:
        raise InputError(
            "The pictures are not float32 numbers.",
            needs="float32, scaled as the backbone expects them",
            got=f"{images.dtype}, and {prior.features.dtype} in the prior",
            hint="images.float() / 255",
        )
    if images.shape[1:] != prior.features.shape[1:]:
        raise InputError(
            "Your pictures and the public ones have different shapes.",
            needs=f"public pictures of shape {tuple(images.shape[1:])}",
            got=str(tuple(prior.features.shape[1:])),
            hint="resize them as you did yours",
        )
    Records(images, labels).require_finite("images")
    prior.require_finite("prior")
    if copies < 1 or len(prior) % copies:
        raise InputError(
            "The public pictures are not that many copies.",
            needs="at least 1 copy, and as many pictures in each",
            got=f"{copies} copies in {len(prior)} pictures",
            hint="the same `copies` as in augment(...)",
        )


def check_enough(public: Records, copies: int, counts: list[int]) -> None:
    """Refuse fewer public pictures of a class than all parties need: controls, watching, and shadows."""
    found = (torch.unique(public.labels, return_counts=True)[1] // copies).tolist()
    short = [(have, 4 * count) for have, count in zip(found, counts, strict=True) if have < 4 * count]
    if short:
        raise InputError(
            "There are too few public pictures.",
            needs=f"at least {short[0][1]} of a class, four for each of yours (eleven are better)",
            got=f"{short[0][0]}",
            hint="more public pictures; or per_class=1 for heads on one of yours of each class",
        )
