"""Your pictures and the public ones, embedded: what the adversary has, and what is kept from them for the control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from remanence.core.distances import nearest_neighbour_errors
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.heads.check_pictures import check_enough, check_pictures
from remanence.heads.embedding import embed, embedding_of

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
