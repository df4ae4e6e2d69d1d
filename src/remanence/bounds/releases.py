"""Ceilings beyond plain DP-SGD: correlated noise, and final weights only."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from remanence.bounds.bound import Bound, Values, numbers
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.person import Person, read_person
from remanence.bounds.recipes import recomputable
from remanence.bounds.settings import dpsgd, gaussian
from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.core.references import BOK_2024, CHOQUETTE_CHOO_2023

_ROUNDING = 1 + 1e-12  # of a norm, upwards
_LARGEST_ENTRY = 1e100  # of a factor, whose squares a float can still take


@recomputable
def correlated_noise(
    baseline: Values = None,
    *,
    factor: npt.ArrayLike,
    noise_multiplier: float,
    separation: int,
    sample_rate: float = 1.0,
    at_least: bool = False,
    log_baseline: Values = None,
) -> Bound:
    """The ceiling for training with correlated noise (DP-FTRL, banded matrix factorisation).

    The release is C·G + σ·Z (and functions of it), with G one clipped gradient sum per step and C lower triangular and
    square. A record takes part in steps that are `separation` = b apart.

    With a sampling rate below 1 (cyclic Poisson: the data are cut into b parts, and step t samples from part t mod b)
    C must have at most b bands. A participation then moves b rows that no other participation of the record moves,
    by the column of C times a gradient that was chosen before the first of these rows was released: one Gaussian
    mechanism of noise σ/‖column‖, sampled once. Everything in between is a function of earlier releases. So the
    run is ⌈n/b⌉ Poisson sampled steps.

    With a rate of 1 the record takes part in every b-th step from a known one on. Its contribution Σ_t C_t ⊗ g_t
    has a squared length of at most Σ_{s,t} |C_s·C_t| over these steps, for gradients of at most 1: one Gaussian
    mechanism of μ = √(the largest such sum)/σ. For adaptive gradients this is the theorem of Denisov et al. 2022.

    With `at_least` the steps of a record are any that are `separation` or more apart (b-min-separation), and C must
    have at most b bands. Participations then move different rows, and at most ⌈n/b⌉ fit: μ² ≤ ⌈n/b⌉·max‖column‖²/σ².

    >>> independent = np.eye(100)  # plain DP-SGD, every record in every step
    >>> round(correlated_noise(0.1, factor=independent, noise_multiplier=10.0, separation=1).success, 4)
    0.3891
    """
    matrix = numbers("factor", factor, "the C of the factorisation A = B·C")
    noise_multiplier = number("noise_multiplier", noise_multiplier, above=0)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and len(matrix) > 0
    size = float(np.abs(matrix).max())
    if not square or not 0 < size < _LARGEST_ENTRY or np.triu(matrix, 1).any():
        raise InputError(
            "The factor cannot be used.",
            needs="a square, lower triangular matrix, not all 0, one row and column per step",
            got=f"shape {matrix.shape}",
            hint="the C of the factorisation A = B·C",
        )
    steps, apart = len(matrix), whole("separation", separation)
    rate = number("sample_rate", sample_rate, above=0, most=1)
    if (rate < 1 or at_least) and np.tril(matrix, -apart).any():
        raise InputError(
            "Sampling and minimum separations are proven for banded factors only.",
            needs=f"a factor with at most {apart} bands, the separation",
            got="more bands",
            hint="sample_rate=1 and at_least=False, for a ceiling without amplification",
        )
    longest = float(np.linalg.norm(matrix, axis=0).max()) * _ROUNDING
    if at_least and rate < 1:
        raise InputError(
            "Sampling and minimum separations cannot be combined.",
            needs="sample_rate=1: a record takes part where the adversary chooses",
            got=f"sample_rate={rate:g}",
            hint="leave the rate out, which claims no amplification",
        )
    if at_least:
        run = Segment(noise_multiplier / longest, 1.0, math.ceil(steps / apart))
        how = f"each record takes part in any steps that are at least {apart} apart"
    elif rate < 1:
        run = Segment(noise_multiplier / longest, rate, math.ceil(steps / apart))
        how = f"cyclic Poisson sampling: each record belongs to one of {apart} parts, which take turns"
    else:
        products = np.abs(matrix.T @ matrix)
        sums = [float(products[start::apart, start::apart].sum()) for start in range(min(apart, steps))]
        run = Segment(noise_multiplier / (math.sqrt(max(sums)) * _ROUNDING))
        how = f"each record takes part in every step that is a multiple of {apart} after its first, and in no other"
    bound = dpsgd(baseline, schedule=[run], log_baseline=log_baseline)
    assumptions = (
        how,
        "what is released is the factor times the clipped gradient sums plus Gaussian noise, and what follows from it",
        *bound.assumptions[2:],
    )
    return replace(bound, name="correlated noise", assumptions=assumptions, reference=CHOQUETTE_CHOO_2023)


@recomputable
def final_weights(
    baseline: Values = None,
    *,
    noise_multiplier: float,
    steps: int,
    learning_rate: float,
    strong_convexity: float,
    smoothness: float,
    log_baseline: Values = None,
    person: Person | None = None,
) -> Bound:
    """The ceiling if only the final weights of noisy gradient descent are released, for strongly convex, smooth F.

    x ← x − η·(∇F(x) + noise), full batches, F the mean objective with the regulariser, m-strongly convex and
    M-smooth with the target and without it, after clipping. This holds if no gradient is longer than the clipping
    norm C, or if a record's loss is ℓ(u) with one predictor u = x·w, ℓ convex and L-smooth (logistic regression, one
    output): its gradient ℓ′(u)·x is clipped to x times ℓ′ truncated at ±C/|x|, which still increases, at most at rate
    L. So the clipped gradient is that of a convex and L·|x|²-smooth loss, and ridge terms outside the clipping are
    unaffected. With several outputs clipping may turn a contraction into an expansion, and we refuse.

    A step contracts by c = max(|1 − ηm|, |1 − ηM|) < 1. Interpolate between the two trainings: let z_t, the remaining
    distance after t steps, follow z_t = c·z_(t−1) + s − a_t with z_0 = z_T = 0, where s is the target's effect on a
    step and a_t is the shift absorbed by the noise of step t, of standard deviation σ·s. That costs
    μ² = Σ a_t²/(σ·s)² (Bok, Su and Altschuler 2024), minimal for a_t ∝ c^(T−t):

        μ = (1/σ)·√((1 − c^T)·(1 + c) / ((1 + c^T)·(1 − c))),    γ = Φ(Φ⁻¹(κ) + μ).

    It stays below (1/σ)·√((1+c)/(1−c)) however long training takes, and is never above √T/σ; for quadratic
    objectives it is exact. A person with k records moves a step by k·s, and replacing a person by twice that.

    >>> settings = {"learning_rate": 0.5, "strong_convexity": 0.1, "smoothness": 1.0, "noise_multiplier": 10.0}
    >>> round(final_weights(0.1, steps=1000, **settings).success, 4)
    0.2556
    >>> round(gaussian(0.1, noise_multiplier=10.0, steps=1000).success, 4)  # seen at every step
    0.97
    """
    eta = number("learning_rate", learning_rate, above=0)
    least = number(
        "strong_convexity", strong_convexity, above=0, hint="the weight decay is a lower limit of it"
    )
    most = number("smoothness", smoothness, least=least, hint="at least the strong convexity")
    count = whole("steps", steps)
    contraction = max(abs(1 - eta * least), abs(1 - eta * most))
    number("contraction", contraction, below=1, hint=f"a learning rate below 2 / smoothness = {2 / most:g}")
    noise_multiplier = number("noise_multiplier", noise_multiplier, above=0)
    shrunk = contraction**count
    share = (1 - shrunk) / (1 + shrunk) * (1 + contraction) / (1 - contraction)
    person = read_person(person)
    moved = (1 if person.batches == "people" else person.records) * (2 if person.replaced else 1)
    bound = gaussian(
        baseline,
        noise_multiplier=noise_multiplier / (moved * math.sqrt(share) * _ROUNDING),
        log_baseline=log_baseline,
    )
    assumptions = (
        "only the final weights are seen, and the adversary knows all other records",
        "full batches; each step adds Gaussian noise to the sum of gradients, divided by a number that does not "
        "depend on the data",
        f"the objective is {least:g}-strongly convex and {most:g}-smooth, with the target and without it",
        "clipping changes nothing, because no gradient is longer than the clipping norm; or the loss of a record is a "
        "convex function of one linear predictor, of which a clipped gradient is one again",
        *person.assumptions[3:],
    )
    return replace(
        bound,
        name="final weights",
        assumptions=assumptions,
        reference=BOK_2024,
        log_lower=None,
        whose=person.whose,
    )
