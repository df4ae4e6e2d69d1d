"""Your pictures and the public ones, embedded: what heads read, the adversary has, and the control keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from remanence.core.distances import nearest_neighbour_errors
from remanence.core.exceptions import InputError
from remanence.core.records import Records, concatenate
from remanence.scale.progress import track

if TYPE_CHECKING:
    from remanence.heads.game import HeadAudit


def augment(
    records: Records,
    backbone: nn.Module,
    change: Callable[[Tensor, torch.Generator], Tensor],
    copies: int,
    generator: torch.Generator,
) -> Records:
    """So many copies of the records, embedded: the first as they are, the others changed. A small pool goes further."""
    views = [embed(records, backbone)]
    for _ in range(copies - 1):
        starts = range(0, len(records), 4096)
        changed = torch.cat([change(records.features[s : s + 4096], generator) for s in starts])
        views.append(embed(Records(changed, records.labels, records.weights), backbone))
    return concatenate(views)


def embedding_of(records: Records) -> Tensor:
    """What the frozen backbone made of each record."""
    if records.embedding is None:
        raise InputError(
            "The records have no embeddings.",
            needs="what the frozen backbone makes of each record",
            got="features only",
            hint="remanence.embed(records, backbone)",
        )
    return records.embedding


def _flat(features: object) -> Tensor:
    if not isinstance(features, Tensor):
        raise InputError(
            "The backbone's answer cannot be used.",
            needs="a tensor of features",
            got=type(features).__name__,
            hint="a module that returns the features alone",
        )
    return features.flatten(1)


def embed(records: Records, backbone: nn.Module, *, batch: int = 1024) -> Records:
    """The records with what a frozen backbone makes of them, computed once.

    >>> embed(Records(torch.ones(3, 2, 2), torch.zeros(3)), nn.Flatten()).embedding.shape
    torch.Size([3, 4])
    """
    modes = {module: module.training for module in backbone.modules()}
    backbone.eval()
    starts = range(0, len(records), batch)
    try:
        with torch.no_grad():
            parts = [
                _flat(
                    backbone(records.features[start : start + batch].clone())
                )  # a layer may write over its input
                for start in track(starts, total=len(starts), what="embedding")
            ]
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(
            "The backbone cannot read the pictures.",
            needs="a module from a batch of pictures to a batch of features",
            got=f"pictures of shape {tuple(records.features.shape[1:])}: {str(error).splitlines()[0][:160]}",
            hint="pictures of the size and the channels that it takes (from files: --size, and --mean and --deviation "
            "with one number for grey or three for colour); backbone(pictures[:1]) on its own first",
        ) from None
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Records(records.features, records.labels, records.weights, torch.cat(parts).float())


def without_pictures(records: Records) -> Records:
    """Embeddings alone: no head reads more."""
    return Records(records.labels[:, None], records.labels, embedding=records.embedding)


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
