"""What no attack on a private head can exceed, from its recipe and from what a guess achieves."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.bounds.of_mechanism import of_classes
from remanence.core.distances import all_errors
from remanence.core.errors import Criterion
from remanence.core.rates import CONFIDENCE
from remanence.core.records import concatenate
from remanence.core.stratified import StratifiedPrior
from remanence.heads.head import Head

_AT_ONCE = 2**24  # numbers
_SOME = 200  # of your pictures of a class that are looked at
_REDRAWN = 999  # sets that yours are compared with, at least


ASSERTED = "asserted by you: the pictures of a class are independent of each other"


def head_ceiling(
    recipe: Head,
    own: StratifiedPrior,
    public: StratifiedPrior,
    criterion: Criterion,
    *,
    independent: bool,
) -> Bound | None:
    """The proven success of one guess per class against heads with DP-SGD; None without noise.

    What a guess achieves is estimated from the public pictures. Whether the pictures of a class are `independent`
    draws of that kind is for you to say, and the bound says that you did; where they are visibly not, or you did
    not say so, it is that of as many records which depend on each other. A test that finds no dependence proves
    nothing.
    """
    if not recipe.noise_multiplier:
        return None
    classes = own.present
    guesses = public.class_baselines(criterion, [label for label, _ in classes])
    dependent = _dependent(own, public, criterion) if independent else None
    asserted = independent and dependent is None
    shares, counts = [guess.value for guess in guesses], [count for _, count in classes]
    longest = max(float(recipe.inputs_of(each.records).norm(dim=-1).max()) for each in (own, public))
    bound = of_classes(recipe, shares, counts, independent=asserted, feature_norm=longest)
    confidence = f"what a guess achieves is at most what {CONFIDENCE:.0%} confidence allows"
    said = (ASSERTED,) if asserted else (f"not taken for independent: {dependent}",) if dependent else ()
    return replace(bound, assumptions=(*bound.assumptions, confidence, *said))


def _dependent(own: StratifiedPrior, public: StratifiedPrior, criterion: Criterion) -> str | None:
    """Where the pictures of a class are visibly no independent draws of the public kind, in a sentence.

    A permutation test: if they are, any as many of yours and the public ones together would lie as far from each
    other. That it does not reject proves nothing; with too few public pictures it never does.
    """
    originals = public.records[: len(public.records) // public.copies]
    several = [label for label, count in own.present if count > 1]
    for label in several:
        mine, others = own.records[own.records.labels == label], originals[originals.labels == label]
        mine, others = mine[:_SOME], others[: 5 * _SOME]
        count, level = len(mine), (1 - CONFIDENCE) / len(several)
        if math.comb(count + len(others), count) * level < 2:
            continue
        together = concatenate([mine, others])
        errors = all_errors(criterion.error, together, together)
        errors.fill_diagonal_(torch.inf)
        spread = _spread(errors, torch.arange(count, device=errors.device)[None])
        redrawn, rows = max(_REDRAWN, math.ceil(2 / level)), max(1, _AT_ONCE // (count**2 + len(together)))
        generator, closer = torch.Generator().manual_seed(0), 0
        for start in range(0, redrawn, rows):
            keys = torch.rand(min(rows, redrawn - start), len(together), generator=generator)
            closer += int((_spread(errors, keys.topk(count).indices.to(errors.device)) <= spread).sum())
        if (closer + 1) / (redrawn + 1) <= level:
            return f"your pictures of class {label:g} are closer to each other than as many public ones are"
    return None


def _spread(errors: Tensor, chosen: Tensor) -> Tensor:
    """The mean logarithm of the distance to the nearest other of some records, `(sets,)`."""
    within = errors[chosen[:, :, None], chosen[:, None, :]]  # (sets, chosen, chosen)
    tiny = errors[errors.isfinite()].mean() * 1e-12  # equal records are as close as can be
    return within.amin(2).clamp(min=tiny).log().mean(1)
