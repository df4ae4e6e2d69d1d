"""Companions of the bound: Rényi divergences, one record's own norms, Fano's inequality, and privacy on pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import xlog1py, xlogy

from remanence.bounds import dpsgd
from remanence.bounds.bound import Baselines, Bound, Values, numbers, read_baselines
from remanence.bounds.engine.bracket import ceiling
from remanence.bounds.engine.closed_forms import shift_of
from remanence.bounds.engine.cumulant import chernoff_success, moments
from remanence.bounds.engine.roots import root
from remanence.bounds.engine.schedule import Segment, normalise
from remanence.bounds.settings import DPSGD_ASSUMPTIONS, read_schedule
from remanence.core.checks import number, whole
from remanence.core.references import GUO_2022B, HAYES_2023, Reference

_ROUNDING = 1e-13  # of a sum of a few logarithms
_NORMS = 32  # norms are rounded up to this many levels if each needs a separate computation


def dpsgd_renyi(
    baseline: Values = None,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float = 1.0,
    steps: int = 1,
    schedule: Segment | Sequence[Segment] | None = None,
    log_baseline: Values = None,
) -> Bound:
    """The ceiling for DP-SGD from Rényi divergences alone: cheap, and looser.

    log γ ≤ min over α of ((α − 1)·log κ + Σ T·Λ(α)) / α, with Λ the cumulant of one step's loss;
    Equation 2 of Hayes et al. 2023 for any sampling rate.

    >>> round(dpsgd_renyi(0.1, noise_multiplier=10.0, steps=100).success, 4)
    0.5186
    """
    segments = read_schedule(noise_multiplier, sample_rate, steps, schedule)
    baselines = read_baselines(baseline, log_baseline)
    ends = [ceiling(chernoff_success(segments, log)) for log in baselines.logs]
    return baselines.bound("DP-SGD by Rényi", ends, DPSGD_ASSUMPTIONS, HAYES_2023.at("Equation 2"))


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
    Appendix K.1). The norms come from a completed run, so the number is about that record in that run:
    on another path, and for another record, gradients may be longer, so this is not a guarantee in advance of
    training. As the bound of a game it is valid only if, on every path that training can take, no candidate's
    gradients are longer than these.

    >>> half = individual(0.1, norms=[0.5] * 100, noise_multiplier=10.0)
    >>> round(half.success, 4) == round(dpsgd(0.1, noise_multiplier=20.0, steps=100).success, 4)
    True
    """
    norms = numbers("list of norms", norms, "norms=[0.3, 0.2], one for each step").ravel().tolist()
    max_grad_norm = number("max_grad_norm", max_grad_norm, above=0)
    noise_multiplier = number("noise_multiplier", noise_multiplier, above=0)
    number("smallest norm", min(norms), least=0, hint="norms=[0.3, 0.2]")
    most = max_grad_norm * (1 + 1e-4)  # single precision may exceed it slightly
    number("largest norm", max(norms), most=most, hint="norms after clipping")
    shares = [min(1.0, norm / max_grad_norm) for norm in norms]
    schedule = _levelled(shares, noise_multiplier, sample_rate)
    found = dpsgd(baseline, schedule=schedule, log_baseline=log_baseline)
    assumptions = (
        "individual: about a record whose clipped gradients are, step by step, no longer than those recorded",
        "conditional on the run in which they were recorded, and no guarantee before training",
        *DPSGD_ASSUMPTIONS,
    )
    reference = HAYES_2023.at("Appendix K.1")
    return replace(found, name="DP-SGD, one record", assumptions=assumptions, reference=reference)


def _levelled(shares: Sequence[float], noise_multiplier: float, sample_rate: float) -> list[Segment]:
    """Segments for these norms: at full batch only Σ n² matters; otherwise steps are grouped by rounded-up norm."""
    if sample_rate == 1:
        mean = max(sum(share**2 for share in shares) / len(shares), 1e-12)
        return [Segment(noise_multiplier / math.sqrt(mean), 1.0, len(shares))]
    levels = (max(1, math.ceil(share * _NORMS)) / _NORMS for share in shares)
    return [Segment(noise_multiplier / level, sample_rate) for level in levels]


def fano(candidates: int, *, mutual_information: float, reference: Reference = GUO_2022B) -> Bound:
    """The ceiling on guessing one of n equally likely candidates, from the mutual information with the release.

    1 − γ is the smallest t with log n − I + t·log t + (1 − t)·log(1 − t) − t·log(n − 1) ≤ 0
    (Hayes et al. 2023, Equation 5, after Guo et al. 2022b).

    >>> round(fano(10, mutual_information=0.5).advantage, 3)  # σ = 1, one step
    0.439
    """
    whole("candidates", candidates, least=2)
    number("mutual_information", mutual_information, least=0, hint="mutual_information()")

    def left(miss: float) -> float:
        """Positive if so low a miss rate is impossible; decreasing up to 1 − 1/n."""
        told = math.log(candidates) - mutual_information - miss * math.log(candidates - 1)
        return told + float(xlogy(miss, miss) + xlog1py(1 - miss, -miss)) - _ROUNDING

    least, most = 0.0, 1 - 1 / candidates  # bracket of the smallest possible miss rate
    if left(0.0) > 0:
        least = root(left, 0.0, most, precision=1e-300) if left(most) < 0 else most
        while left(least) < 0:
            least *= 1 - 1e-13
    assumptions = (f"{candidates} equally likely candidates", "the mutual information is a valid upper limit")
    baselines = Baselines((-math.log(candidates),), single=True)
    return baselines.bound("Fano", [ceiling(math.log1p(-least))], assumptions, reference)


def mutual_information(
    schedule: Segment | Sequence[Segment], *, candidates: int, distance: float | None = None
) -> float:
    """An upper bound on the mutual information of a DP-SGD transcript and one of n equally likely candidates, in nats.

    The smallest of log n; Σ T·KL(μ‖ν), valid for every geometry of the gradients; and, for full
    batches whose clipped gradients are at most `distance` (in clipping norms) apart,
    −log(1/n + (1 − 1/n)·exp(−Δ²·Σ T/2σ²)) (Guo et al. 2022b). Orthogonal gradients have Δ = √2,
    which Table 2 of Hayes et al. 2023 uses implicitly; clipping alone only guarantees Δ ≤ 2.

    >>> round(mutual_information(Segment(1.0), candidates=10), 6)
    0.5
    """
    segments = normalise(schedule)
    whole("candidates", candidates, least=2)
    options = [math.log(candidates), max(0.0, moments(segments, 1.0).mean) * (1 + 1e-9)]
    if distance is not None:
        least = min(segment.sample_rate for segment in segments)
        number("sample_rate", least, least=1, hint="leave the distance out")
        number("distance", distance, least=0, most=2, hint="2 clipping norms")
        spread = math.exp(-(distance**2) * shift_of(segments) ** 2 / 2)
        options.append(-math.log(1 / candidates + (1 - 1 / candidates) * spread))
    return min(options)


def pair_success(epsilon: float, delta: float) -> float:
    """The best success on a pair of records with weights 1 : e^ε, given δ(ε).

    ∫ max(f₁, e^ε·f₀) / (1 + e^ε) = (e^ε + δ(ε)) / (1 + e^ε), where δ(ε) = ∫ (f₁ − e^ε·f₀)₊ is the privacy profile. So
    reconstruction robustness and differential privacy are equivalent (Balle et al. 2022, §VII-A).

    >>> round(pair_success(0.0, 0.3829249), 5)  # Gaussian noise, one standard deviation apart: Φ(1/2)
    0.69146
    """
    _check(epsilon, delta)
    return (
        math.exp(-math.log1p(math.exp(-epsilon))) + delta / (1 + math.exp(epsilon)) if epsilon < 700 else 1.0
    )


def delta_from_pair(success: float, *, epsilon: float) -> float:
    """The least δ(ε) of a mechanism, given the success of an attack on a pair with weights 1 : e^ε.

    The other direction: δ(ε) ≥ success·(1 + e^ε) − e^ε.

    >>> round(delta_from_pair(pair_success(1.5, 0.02), epsilon=1.5), 10)
    0.02
    """
    _check(epsilon, 0.0)
    number("success", success, least=0, most=1, hint="the lower end of the attack's interval")
    return max(0.0, success - (1 - success) * math.exp(min(epsilon, 700.0)))


def epsilon_from_pair(success: float, *, delta: float = 0.0) -> float:
    """The least ε of an (ε, δ)-DP mechanism, given the success of guessing between two equally likely records.

    success ≤ (e^ε + δ) / (1 + e^ε), so ε ≥ log((success − δ) / (1 − success)). Give the lower end of
    the attack's interval, not its rate.

    >>> round(epsilon_from_pair(0.9, delta=1e-5), 3)
    2.197
    """
    number("success", success, least=0, below=1, hint="the lower end of the attack's interval")
    _check(0.0, delta)
    if success <= (1 + delta) / 2:
        return 0.0
    return max(0.0, math.log((success - delta) / (1 - success)))


def _check(epsilon: float, delta: float) -> None:
    number("epsilon", epsilon, least=0, hint="epsilon=1")
    number("delta", delta, least=0, below=1, hint="delta=1e-5")
