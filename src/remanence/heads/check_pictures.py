"""What no head can be trained on or attacked with is refused before any time is spent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.heads.head import Head


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
