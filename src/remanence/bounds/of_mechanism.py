"""The ceiling of a mechanism of ours, from the settings that it trains with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remanence.bounds.bound import Bound, Values
from remanence.bounds.settings import dpsgd, gaussian
from remanence.exceptions import InputError

if TYPE_CHECKING:
    from remanence.mechanisms.mechanism import Mechanism
    from remanence.releases import Release


def of(mechanism: Mechanism[Release], baseline: Values = None, *, log_baseline: Values = None) -> Bound:
    """The bound of the mechanism itself, so that no setting has to be told twice.

    >>> from remanence import NoisySum
    >>> round(of(NoisySum(noise_multiplier=2.0), 1 / 100).success, 4)
    0.0339
    """
    from remanence.mechanisms.dpsgd import DPSGD
    from remanence.mechanisms.noisy_sum import NoisySum

    if isinstance(mechanism, NoisySum):
        return gaussian(baseline, noise_multiplier=mechanism.noise_multiplier, log_baseline=log_baseline)
    if isinstance(mechanism, DPSGD):
        return dpsgd(
            baseline,
            noise_multiplier=mechanism.noise_multiplier,
            sample_rate=mechanism.sample_rate,
            steps=mechanism.steps,
            log_baseline=log_baseline,
        )
    raise InputError(
        f"There is no proven ceiling for {mechanism.name}.",
        needs="DPSGD or NoisySum",
        got=type(mechanism).__name__,
        hint="bounds.approximate_dp or another bound that you can prove for it",
    )
