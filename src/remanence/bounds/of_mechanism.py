"""The ceiling of a mechanism of ours, from the settings that it trains with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from remanence.bounds.bound import Bound, Values
from remanence.bounds.settings import dpsgd, gaussian
from remanence.exceptions import InputError

if TYPE_CHECKING:
    from remanence.data.releases import Release
    from remanence.mechanisms.mechanism import Mechanism

_ROUNDING = 1 + 1e-12


def of(mechanism: Mechanism[Release], baseline: Values = None, *, log_baseline: Values = None) -> Bound:
    """The bound of the mechanism itself, so that no setting has to be told twice.

    >>> from remanence import NoisySum
    >>> round(of(NoisySum(noise_multiplier=2.0), 1 / 100).success, 4)
    0.0339
    """
    from remanence.mechanisms.heads.transfer_head import TransferHead
    from remanence.mechanisms.networks.dpsgd import DPSGD
    from remanence.mechanisms.noisy_sum import NoisySum

    if isinstance(mechanism, NoisySum):
        return gaussian(baseline, noise_multiplier=mechanism.noise_multiplier, log_baseline=log_baseline)
    if isinstance(mechanism, DPSGD) or (isinstance(mechanism, TransferHead) and mechanism.noise_multiplier):
        return dpsgd(
            baseline,
            noise_multiplier=mechanism.noise_multiplier,
            sample_rate=mechanism.sample_rate,
            steps=mechanism.steps,
            log_baseline=log_baseline,
        )
    raise InputError(
        f"There is no proven ceiling for {mechanism.name}.",
        needs="DPSGD, NoisySum, or a TransferHead with a noise_multiplier",
        got=type(mechanism).__name__,
        hint="bounds.approximate_dp or another bound that you can prove for it",
    )


def of_classes(mechanism: Mechanism[Release], baselines: Sequence[float], counts: Sequence[int]) -> Bound:
    """The bound for one guess per class, held against the closest of the class's records in the training set.

    A guess that meets one of n records meets the first, or the second, …: at most n·γ(κ_c) for independent records,
    averaged over the classes. Tight for one record per class; for many of them no proof of this kind says anything.

    >>> from remanence import NoisySum
    >>> round(of_classes(NoisySum(noise_multiplier=2.0), [1 / 100, 1 / 100], [1, 2]).success, 4)
    0.0508
    """
    usable = [(baseline, count) for baseline, count in zip(baselines, counts, strict=True) if baseline < 1]
    each = of(mechanism, [baseline for baseline, _ in usable] or 0.5)
    ceilings = np.atleast_1d(each.success)[: len(usable)]
    met = np.minimum(1.0, ceilings * np.array([count for _, count in usable]))
    share = min(1.0, (float(met.sum()) + len(baselines) - len(usable)) / len(baselines) * _ROUNDING)
    return Bound(
        f"{each.name}, any record of a class",
        math.log(share),
        (
            *each.assumptions,
            "on average over records: those of a class are independent draws of the kind that the baseline was "
            "estimated from",
            "as many guesses of every class",
        ),
        each.reference,
        on_average=True,
    )
