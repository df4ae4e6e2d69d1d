"""What a frozen backbone makes of pictures: computed once, and all that a head ever reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.core.records import Records, concatenate
from remanence.scale.progress import track


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
