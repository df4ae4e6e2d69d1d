"""What no attack on a private head can exceed, from its recipe and from what a guess achieves."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from remanence.bounds.bound import Bound
from remanence.bounds.of_mechanism import of_classes
from remanence.errors import Criterion, all_errors
from remanence.mechanisms.heads import TransferHead
from remanence.priors import StratifiedPrior
from remanence.records import concatenate
from remanence.statistics import CONFIDENCE


def head_ceiling(
    recipe: TransferHead, own: StratifiedPrior, public: StratifiedPrior, criterion: Criterion
) -> Bound | None:
    """The proven success of one guess per class against heads with DP-SGD; None without noise.

    What a guess achieves is estimated from the public pictures. A proof for a class with several pictures takes
    them for independent draws of that kind; where two of them are too close for that, there is none, and the bound
    is 1 and says so.
    """
    if not recipe.noise_multiplier:
        return None
    classes = public.class_baselines(criterion)
    bound = of_classes(recipe, [guess.value for guess, _ in classes], [count for _, count in own.present])
    confidence = f"what a guess achieves is at most what {CONFIDENCE:.0%} confidence allows"
    alike = _too_close(own, public, criterion)
    if alike is None:
        return replace(bound, assumptions=(*bound.assumptions, confidence))
    return replace(bound, log_success=0.0, assumptions=(*bound.assumptions, f"NOT MET: {alike}"))


def _too_close(own: StratifiedPrior, public: StratifiedPrior, criterion: Criterion) -> str | None:
    """Whether two pictures of a class resemble each other too much for independent draws, in a sentence.

    Of n + m independent draws every pair is as likely as any other to be the closest: that it is one of the first n
    has probability C(n, 2) / C(n + m, 2), exactly.
    """
    originals = public.records[: len(public.records) // public.copies]
    for label, count in own.present:
        mine, others = own.records[own.records.labels == label], originals[originals.labels == label]
        if count < 2 or len(mine) < 2:
            continue
        together = concatenate([mine, others])
        errors = all_errors(criterion.error, together, together)
        errors.fill_diagonal_(torch.inf)
        first, second = divmod(int(errors.argmin()), len(together))
        chance = math.comb(len(mine), 2) / math.comb(len(together), 2)
        duplicates = float(errors.min()) <= 1e-12
        if max(first, second) < len(mine) and (duplicates or chance <= (1 - CONFIDENCE) / len(own.present)):
            return (
                f"pictures {min(first, second)} and {max(first, second)} of your {len(mine)} of class {label:g} are "
                f"closer to each other than any other two of {len(together)}: no independent draws"
            )
    return None
