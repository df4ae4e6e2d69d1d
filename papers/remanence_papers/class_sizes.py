"""How many pictures of each class a head was trained on, read off the head: what a weak adversary need not be told.

Maciazek and Allison 2025 leave it to "an auxiliary property inference attack". A head's biases follow the shares of
the classes, and a row scatters around its class's usual one the less, the more pictures it is an average of. Shadow
heads on sets of known sizes teach a regression from these numbers to the size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Release
from remanence.core.stratified import StratifiedPrior
from remanence.heads.head import Head
from remanence.scale.progress import track

_DESIGNS = 60  # different sizes of classes among the shadows
_EACH = 40  # shadows of one design


def infer_class_sizes(
    release: Release, head: Head, pool: Records, generator: torch.Generator, *, largest: int = 8
) -> Tensor:
    """The number of records of each class, for heads of one linear layer: whole numbers, `(trials, classes)`.

    `pool` is what the adversary trains shadows on. Sizes above `largest` come out as `largest`.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    found_labels = torch.unique(pool.labels).long().tolist()
    classes = len(found_labels)
    if not head.rows_are_classes or found_labels != list(range(head.classes)):
        raise InputError(
            "The class sizes cannot be read off this head.",
            needs=f"one linear layer with a row for each of the labels 0 to {head.classes - 1}",
            got=f"hidden {head.hidden}, task {head.task}, {head.classes} classes, labels {found_labels}",
            hint="a head of one linear layer, and pictures of each of its classes",
        )
    sizes = torch.randint(1, largest + 1, (_DESIGNS, classes), generator=generator, device=generator.device)
    sizes[::2] = sizes[::2, :1]  # every other design is balanced, as most sets are
    heads = [
        head.release(None, StratifiedPrior(pool, tuple(design)).sample(_EACH, generator), generator)
        for design in track(sizes.tolist(), total=_DESIGNS, what="heads of known class sizes")
    ]
    shadows = type(release).concatenate(heads)
    usual = shadows["weight"].mean(0)
    known = sizes.repeat_interleave(_EACH, 0).flatten().cpu().numpy()
    regression = HistGradientBoostingRegressor(random_state=0).fit(_signs(shadows, usual), known)
    found = torch.from_numpy(regression.predict(_signs(release, usual))).view(len(release), classes)
    return found.round().clamp(1, largest).long()


def _signs(heads: Release, usual: Tensor):
    """What a head says about the size of each class, `(trials · classes, numbers)`."""
    weight, bias = heads["weight"], heads["bias"]
    scatter = (weight - usual).square().mean(2).log()
    own = torch.stack([bias, scatter, weight.square().mean(2).log()], 2)  # (trials, classes, 3)
    everybody = torch.cat([own.mean(1), own.std(1)], 1).unsqueeze(1).expand(-1, own.shape[1], -1)
    return torch.cat([own, everybody], 2).flatten(0, 1).cpu().numpy()
