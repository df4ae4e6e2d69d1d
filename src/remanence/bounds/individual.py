"""A ceiling for one record whose gradients stay below the clipping norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from remanence.bounds.bound import Bound, Values, numbers
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.recipes import recomputable
from remanence.bounds.settings import DPSGD_ASSUMPTIONS, dpsgd
from remanence.core.checks import number
from remanence.core.references import HAYES_2023

_LEVELS = 32  # norms are rounded up to so many levels where each would need a computation of its own


@recomputable
def individual(
    baseline: Values = None,
    *,
    norms: Sequence[float],
    noise_multiplier: float,
    max_grad_norm: float = 1.0,
    sample_rate: float = 1.0,
    log_baseline: Values = None,
) -> Bound:
    """The ceiling for a record whose clipped gradient had these norms, one for each step of a run.

    A step that moves the sum by n ≤ C under noise σC is a step of noise multiplier σC/n (Hayes et al. 2023,
    Appendix K.1). The norms come from a run that has happened, so the number is about that record in that run:
    on another path, and for another record, gradients may be longer, and nothing here is a guarantee before
    training. As the bound of a game it is right only if, on every path that training can take, no candidate's
    gradients are longer than these.

    >>> half = individual(0.1, norms=[0.5] * 100, noise_multiplier=10.0)
    >>> round(half.success, 4) == round(dpsgd(0.1, noise_multiplier=20.0, steps=100).success, 4)
    True
    """
    norms = numbers("list of norms", norms, "norms=[0.3, 0.2], one for each step").ravel().tolist()
    max_grad_norm = number("max_grad_norm", max_grad_norm, above=0)
    noise_multiplier = number("noise_multiplier", noise_multiplier, above=0)
    number("smallest norm", min(norms), least=0, hint="norms=[0.3, 0.2]")
    most = max_grad_norm * (1 + 1e-4)  # single precision may end a little above
    number("largest norm", max(norms), most=most, hint="norms after clipping")
    shares = [min(1.0, norm / max_grad_norm) for norm in norms]
    schedule = _schedule(shares, noise_multiplier, sample_rate)
    found = dpsgd(baseline, schedule=schedule, log_baseline=log_baseline)
    assumptions = (
        "individual: about a record whose clipped gradients are, step by step, no longer than those recorded",
        "conditional on the run in which they were recorded, and no guarantee before training",
        *DPSGD_ASSUMPTIONS,
    )
    reference = HAYES_2023.at("Appendix K.1")
    return replace(found, name="DP-SGD, one record", assumptions=assumptions, reference=reference)


def _schedule(shares: Sequence[float], noise_multiplier: float, sample_rate: float) -> list[Segment]:
    """At full batch only Σ n² counts; elsewhere steps of equal norm, rounded up, go together."""
    if sample_rate == 1:
        mean = max(sum(share**2 for share in shares) / len(shares), 1e-12)
        return [Segment(noise_multiplier / math.sqrt(mean), 1.0, len(shares))]
    levels = (max(1, math.ceil(share * _LEVELS)) / _LEVELS for share in shares)
    return [Segment(noise_multiplier / level, sample_rate) for level in levels]
