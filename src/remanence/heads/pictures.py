"""Your pictures and the public ones, embedded: what heads read, the adversary has, and the control keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from remanence.core.checks import brief, instance
from remanence.core.distances import nearest_neighbour_errors
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.scale.progress import track

_CONTROLS = 4  # every fourth public picture of a class is kept from the adversary, for the control
_SAME = 1e-12  # of a picture's mean square: closer pictures are the same one


def embed(records: Records, backbone: nn.Module, *, batch: int = 1024) -> Records:
    """The records with what a frozen backbone makes of them, computed once.

    >>> embed(Records(torch.ones(3, 2, 2), torch.zeros(3)), nn.Flatten()).embedding.shape
    torch.Size([3, 4])
    """
    modes = {module: module.training for module in backbone.modules()}
    backbone.eval()
    starts, parts = range(0, len(records), batch), []
    try:
        for start in track(starts, total=len(starts), what="embedding"):
            pictures = records.features[start : start + batch].clone()  # a layer may write over its input
            with torch.no_grad():
                found = backbone(pictures)
            hint = "a module that returns the features alone"
            parts.append(instance("the backbone's answer", found, Tensor, "a tensor", hint).flatten(1))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise InputError(
            "The backbone cannot read the pictures.",
            needs="a module from a batch of pictures to a batch of features",
            got=f"pictures of shape {tuple(records.features.shape[1:])}: {brief(error)}",
            hint="pictures of the size and the channels that it takes (from files: --size, and --normalise "
            "with one number each for grey or three for colour); backbone(pictures[:1]) on its own first",
        ) from None
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Records(records.features, records.labels, records.weights, torch.cat(parts).float())


def embedding_of(records: Records) -> Tensor:
    """What the frozen backbone made of each record."""
    if records.embedding is None:
        raise InputError(
            "The records have no embeddings.",
            needs="the frozen backbone's output for each record",
            got="features only",
            hint="remanence.embed(records, backbone)",
        )
    return records.embedding


def without_pictures(records: Records) -> Records:
    """Embeddings alone: no head reads more."""
    return Records(records.labels[:, None], records.labels, embedding=records.embedding)


def prepared_pictures(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    prior: Records,
) -> tuple[Records, Records, Records]:
    """Yours, the adversary's and the control's, all embedded; refuses what no audit can use."""
    _check_pictures(images, labels, prior)
    classes = _check_classes(prior, labels)
    own, public = _embedded(backbone_or_features, images, labels, prior)
    apart = torch.zeros(len(public), dtype=torch.bool, device=public.labels.device)
    for label in classes:
        apart[(public.labels == label).nonzero().squeeze(1)[::_CONTROLS]] = True
    same = nearest_neighbour_errors(own, public) <= _SAME * own.flat.double().square().mean()
    if same.any():
        raise InputError(
            "Some of your pictures are among the public ones.",
            needs="public pictures that the head was not trained on",
            got=f"{int(same.sum())} pictures that are in both",
            hint="remove them from the public ones: public pictures need no attack",
        )
    return own, public[~apart], public[apart]


def _check_pictures(images: Tensor, labels: Tensor, prior: Records) -> None:
    """Refuse what no head can be trained on, before any time is spent."""
    for name, value in {"labels": labels, "images": images}.items():
        instance(name, value, Tensor, "a tensor", "torch.as_tensor(array)")
    if labels.ndim != 1 or not len(labels) or not torch.equal(labels, labels.long()):
        raise InputError(
            "The labels cannot be used.",
            needs="one whole number for each picture, and at least one picture",
            got=f"{labels.dtype} of shape {tuple(labels.shape)}",
            hint="the number of the class, from 0 up",
        )
    own = Records(images, labels)
    if images.dtype != torch.float32 or prior.features.dtype != torch.float32:
        raise InputError(
            "The pictures are not float32 numbers.",
            needs="float32, scaled as the backbone expects them",
            got=f"{images.dtype}, and {prior.features.dtype} in the prior",
            hint="images.float() / 255",
        )
    if own.example_shape != prior.example_shape:
        raise InputError(
            "Your pictures and the public ones have different shapes.",
            needs=f"public pictures of shape {own.example_shape}",
            got=str(prior.example_shape),
            hint="resize them as you did yours",
        )
    own.require_finite("images")
    prior.require_finite("prior")


def _check_classes(prior: Records, labels: Tensor) -> Tensor:
    """Your classes; refuse others, and fewer public pictures of one than controls, validation and shadows need."""
    classes, wanted = torch.unique(labels, return_counts=True)
    there, sizes = torch.unique(prior.labels, return_counts=True)
    if not torch.equal(classes, there):
        raise InputError(
            "Your pictures and the public ones have different classes.",
            needs=f"public pictures of the classes {classes.tolist()}",
            got=str(there.tolist()),
            hint="the adversary knows the classes; give a few public pictures of each",
        )
    short = [(n, 4 * k) for n, k in zip(sizes.tolist(), wanted.tolist(), strict=True) if n < 4 * k]
    if short:
        raise InputError(
            "There are too few public pictures.",
            needs=f"at least {short[0][1]} of a class, four for each of yours (eleven are better)",
            got=f"{short[0][0]}",
            hint="more public pictures of that class",
        )
    return classes


def _embedded(
    backbone_or_features: nn.Module | Tensor, images: Tensor, labels: Tensor, prior: Records
) -> tuple[Records, Records]:
    """Yours and the public ones, with features that fit."""
    if isinstance(backbone_or_features, nn.Module):
        return embed(Records(images, labels), backbone_or_features), embed(prior, backbone_or_features)
    features = backbone_or_features.detach()
    if features.dtype != torch.float32 or features.ndim != 2:
        raise InputError(
            "The features cannot be used.",
            needs="float32 numbers of shape (pictures, numbers)",
            got=f"{features.dtype} of shape {tuple(features.shape)}",
            hint="features.float().flatten(1)",
        )
    own = Records(images, labels, embedding=features)
    if prior.embedding is None or prior.embedding.shape[-1] != features.shape[1]:
        raise InputError(
            "The public pictures have no features that fit.",
            needs=f"an embedding of {features.shape[1]} numbers for each",
            got="none" if prior.embedding is None else f"{prior.embedding.shape[-1]} numbers",
            hint="give the backbone, or prior=embed(records, backbone)",
        )
    return own, prior
