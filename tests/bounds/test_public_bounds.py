"""The bounds as people call them: definitions, mechanisms, companions, and what is refused."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from remanence import bounds
from remanence.bounds import Segment
from remanence.bounds.calibration import calibrate, noise_for_epsilon
from remanence.bounds.engine.closed_forms import gaussian_log_delta_ends
from remanence.bounds.engine.schedule import normalise, total_steps
from remanence.bounds.frontier import evenly, frontier
from remanence.core.exceptions import InputError
from remanence_papers import companions

KAPPAS = [1e-9, 1e-3, 0.05, 0.3, 0.5, 0.9]


def above(threshold, scale):
    """How often a number with Laplace noise is above a threshold."""
    small = mpmath.exp(-abs(threshold) / scale) / 2
    return small if threshold >= 0 else 1 - small


@pytest.mark.parametrize("scale", [0.05, 0.2, 0.7, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("baseline", [1e-200, 1e-6, 0.01, 0.3, 0.49, 0.6, 0.999])
def test_the_laplace_bound_is_the_power_of_the_best_test_rounded_outwards(scale, baseline):
    """Against 300 digits: the ceiling is not below the truth, and what is left is not above it."""
    with mpmath.workdps(300):
        width, kappa = mpmath.mpf(scale), mpmath.mpf(baseline)
        cut = width * mpmath.log(2 * (1 - kappa)) if kappa > 0.5 else -width * mpmath.log(2 * kappa)
        power = above(cut - 1, width)
        found = bounds.laplace(baseline, scale=scale)
        assert found.log_lower <= mpmath.log(power) <= found.log_success
        assert found.log_success - found.log_lower < 1e-10
        if cut < 1:
            left = mpmath.log(above(1 - cut, width))
            assert left - 1e-10 < found.log_complement <= left


@pytest.mark.parametrize("baseline", KAPPAS)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0])
def test_pure_dp_contains_the_laplace_mechanism_and_randomised_response(baseline, epsilon):
    ceiling = bounds.pure_dp(baseline, epsilon=epsilon).success
    assert ceiling >= baseline
    if epsilon:
        assert bounds.laplace(baseline, scale=1 / epsilon).success <= ceiling * (1 + 1e-12)
    # Randomised response is ε-DP: keep the truth with e^ε / (1 + e^ε). Its best test at size κ is
    # linear between (0, 0), (1 − p, p) and (1, 1).
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    power = np.interp(baseline, [0, 1 - keep, 1], [0, keep, 1])
    assert ceiling >= power * (1 - 1e-12)
    assert ceiling == pytest.approx(power, rel=1e-9)


@pytest.mark.parametrize("baseline", KAPPAS)
@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_every_point_of_the_profile_bounds_the_gaussian_mechanism_and_the_best_point_meets_it(
    baseline, noise, epsilon
):
    def delta_at(e: float) -> float:
        return math.exp(gaussian_log_delta_ends(e, shift=1 / noise)[1])

    exact = bounds.gaussian(baseline, noise_multiplier=noise).success
    one = bounds.approximate_dp(baseline, epsilon=epsilon, delta=delta_at(epsilon)).success
    whole = bounds.profile(baseline, delta_at=delta_at).success
    assert exact * (1 - 1e-12) <= whole <= one * (1 + 1e-12)
    assert whole == pytest.approx(exact, rel=2e-3)


def test_a_profile_may_be_an_accountants_object():
    names = "get_delta_for_epsilon", "get_delta"
    sources = [
        SimpleNamespace(**{name: lambda e: math.exp(gaussian_log_delta_ends(e, shift=1.0)[1])})
        for name in names
    ]
    values = [bounds.profile(0.1, delta_at=source).success for source in sources]
    assert values[0] == values[1] == pytest.approx(0.38914, abs=1e-3)


def test_the_information_of_a_sampled_step_is_its_divergence():
    noise, rate = 0.8, 0.3

    def integrand(x: float) -> float:
        with_target = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)
        return with_target * math.log(with_target / norm.pdf(x, 0, noise))

    divergence, _ = quad(integrand, -12, 12)
    assert companions.mutual_information(Segment(noise, rate, 7), candidates=10**6) == pytest.approx(
        7 * divergence, rel=1e-7
    )


@pytest.mark.parametrize("success", [0.5, 0.7, 0.99])
def test_reconstruction_and_differential_privacy_are_one(success):
    # Two records under Gaussian noise: the pair attack's success at weights 1 : e^ε gives δ(ε) back.
    shift = 1.3
    for epsilon in (0.0, 0.5, 2.0):
        delta = math.exp(gaussian_log_delta_ends(epsilon, shift=shift)[1])
        cut = epsilon / shift + shift / 2  # choose z₁ where f₁ > e^ε f₀
        weight = 1 / (1 + math.exp(epsilon))
        best = weight * norm.sf(cut - shift) + (1 - weight) * norm.cdf(cut)
        assert companions.pair_success(epsilon, delta) == pytest.approx(best, rel=1e-12)
        assert companions.delta_from_pair(best, epsilon=epsilon) == pytest.approx(delta, abs=1e-12)
    assert companions.delta_from_pair(0.9, epsilon=800.0) == 0
    epsilon = companions.epsilon_from_pair(success, delta=1e-3)
    assert companions.pair_success(epsilon, 1e-3) >= success - 1e-12


def test_several_baselines_give_arrays_that_agree_with_one_at_a_time():
    kappas, run = [1e-9, 1e-3, 0.1, 0.5, 0.99], [Segment(0.8, 0.02, 500), Segment(1.2, 0.02, 500)]
    many = bounds.dpsgd(kappas, schedule=run)
    assert many.converged.all()
    assert many.success.shape == (5,)
    for index, kappa in enumerate(kappas):
        one = bounds.dpsgd(kappa, schedule=run)
        assert isinstance(one.success, float)
        assert one.lower <= many.success[index] * (1 + 1e-12)
        assert many.lower[index] <= one.success * (1 + 1e-12)
    assert bounds.pure_dp(np.array(kappas), epsilon=1.0).advantage.shape == (5,)


def test_segments_compose():
    whole = bounds.dpsgd(0.1, noise_multiplier=1.2, sample_rate=0.1, steps=100)
    parts = bounds.dpsgd(0.1, schedule=[Segment(1.2, 0.1, 40), Segment(1.2, 0.1, 60)])
    assert parts.success == whole.success
    first, second = Segment(1.0, 0.1, 3), Segment(2.0, 0.1, 4)
    assert normalise([first, second, first]) == normalise([second, Segment(1.0, 0.1, 6)])
    assert total_steps(normalise([first, second, first])) == 10


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        *(((noise,), "noise_multiplier") for noise in (0.0, -1.0, math.nan, math.inf)),
        *(((1.0, rate), "sample_rate") for rate in (0.0, 1.5, math.nan)),
        *(((1.0, 0.5, steps), "steps") for steps in (0, 10**9 + 1, 2.0, True)),
    ],
)
def test_impossible_settings_are_refused_by_name_and_value(arguments, field):
    with pytest.raises(InputError, match=field) as refusal:
        Segment(*arguments)
    assert repr(arguments[-1]) in str(refusal.value)


REFUSED = [
    lambda: bounds.dpsgd(0.1),
    *(partial(bounds.dpsgd, bad, noise_multiplier=1.0) for bad in (1.0, 0.0, math.nan)),
    lambda: bounds.dpsgd(noise_multiplier=1.0),
    lambda: bounds.dpsgd(0.1, log_baseline=-1.0, noise_multiplier=1.0),
    lambda: bounds.dpsgd(0.1, schedule=[]),
    lambda: bounds.dpsgd(0.1, schedule=Segment(1.0, 0.1, 10, records=5)),  # was the ceiling of one record
    lambda: calibrate(0.3, 0.1),
    lambda: calibrate(0.3, 0.1, noise_multiplier=1.0, sample_rate=0.1, steps=10),
    lambda: calibrate(0.11, 0.1, noise_multiplier=0.1, sample_rate=1.0),
    *(partial(calibrate, limit, 0.1, sample_rate=0.1, steps=10) for limit in (0.05, 1.0)),
    *(partial(calibrate, 0.3, 0.1, sample_rate=rate, steps=10) for rate in (0.0, 2.0)),
    lambda: calibrate(0.3, 0.1, sample_rate=0.5, steps=10**12),
    lambda: noise_for_epsilon(-1.0, delta=1e-5),
    lambda: noise_for_epsilon(1.0, delta=0.0),
    lambda: noise_for_epsilon(1.0, delta=1e-5, guess=-1.0),
    lambda: evenly(1.0, 0.5, 5),
    lambda: evenly(0.1, 1, 1),
    lambda: bounds.correlated_noise(0.1, factor=np.zeros((3, 3)), noise_multiplier=1.0, separation=1),
    lambda: bounds.correlated_noise(0.1, factor=1e200 * np.eye(3), noise_multiplier=1.0, separation=1),
    lambda: bounds.profile(0.1, delta_at=lambda epsilon: "little"),
    lambda: frontier("noise", [1.0]),  # pyright: ignore[reportArgumentType]
    lambda: frontier("epsilon", ["a"]),
    lambda: bounds.dpsgd(0.1, noise_multiplier=2.0, schedule=[Segment(1.0)]),
    lambda: bounds.laplace(0.1, scale=0.0),
    lambda: bounds.pure_dp(0.1, epsilon=-1.0),
    lambda: bounds.approximate_dp(0.1, epsilon=1.0, delta=1.0),
    lambda: bounds.renyi(0.1, order=1.0, epsilon=1.0),
    lambda: bounds.profile(0.1, delta_at=3),
    lambda: bounds.profile(0.1, delta_at=lambda epsilon: 7.0),
    lambda: companions.fano(1, mutual_information=0.1),
    lambda: companions.mutual_information(Segment(1.0, 0.5), candidates=10, distance=2.0),
    lambda: companions.epsilon_from_pair(1.0),
    *(
        partial(companions.individual, 0.1, norms=norms, noise_multiplier=1.0)
        for norms in ([], [-0.1], [0.2, 1.3], [math.nan])
    ),
    *(partial(bounds.epsilon_upper, Segment(1.0), bad) for bad in (0.0, 1.0)),
    lambda: bounds.delta_upper(Segment(1.0), math.inf),
    lambda: bounds.any_of_class(bounds.gaussian(0.1, noise_multiplier=1.0).recipe or {}, [], []),
    lambda: bounds.any_of_class(bounds.gaussian(0.1, noise_multiplier=1.0).recipe or {}, [0.1], [1, 2]),
]


@pytest.mark.parametrize("attempt", REFUSED, ids=range(len(REFUSED)))
def test_what_has_no_meaning_is_refused_with_needs_got_try(attempt):
    with pytest.raises(InputError) as caught:
        attempt()
    assert caught.value.needs
    assert caught.value.got
    assert caught.value.hint


WRONG_VALUES = ("1.1", None, [1.0, 2.0], [], {}, math.nan, True, 1j, -1, object(), [[0.1], [0.1, 0.2]])


@pytest.mark.parametrize(
    "attempt",
    [
        lambda value: bounds.dpsgd(value, noise_multiplier=1.0),
        lambda value: bounds.dpsgd(0.1, noise_multiplier=value or "none"),
        lambda value: bounds.dpsgd(0.1, noise_multiplier=1.0, sample_rate=value),
        lambda value: bounds.dpsgd(0.1, noise_multiplier=1.0, steps=value),
        lambda value: bounds.dpsgd(0.1, noise_multiplier=1.0, rtol=value),
        lambda value: bounds.dpsgd(0.1, noise_multiplier=1.0, person=value or 3),
        lambda value: bounds.dpsgd(0.1, schedule=value),
        lambda value: bounds.approximate_dp(0.1, epsilon=value, delta=1e-5),
        lambda value: bounds.approximate_dp(0.1, epsilon=1.0, delta=value),
        lambda value: bounds.laplace(0.1, scale=value),
        lambda value: bounds.delta_upper(Segment(1.0), value),
        lambda value: bounds.epsilon_upper(Segment(1.0), value),
        lambda value: companions.fano(10, mutual_information=value),
        lambda value: companions.mutual_information(Segment(1.0), candidates=value),
        lambda value: companions.individual(0.1, norms=[0.5], noise_multiplier=value),
        lambda value: companions.pair_success(value, 0.1),
        lambda value: calibrate(value, 0.1, sample_rate=0.1, steps=10),
        lambda value: noise_for_epsilon(value, delta=1e-5),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_as_an_input(attempt):
    for value in WRONG_VALUES:
        with pytest.raises(InputError):
            attempt(value)


def test_the_ends_of_the_documented_range_neither_overflow_nor_pass():
    with pytest.raises(InputError, match="1e\\+12"):
        bounds.dpsgd(0.1, noise_multiplier=1e300)
    for noise, (rate, log_baseline) in itertools.product((1e12, 1e-6), ((0.5, -1e5), (1e-9, -1e-9))):
        found = bounds.dpsgd(log_baseline=log_baseline, noise_multiplier=noise, sample_rate=rate, steps=10**9)
        assert log_baseline <= found.log_success <= 0
        assert found.baseline == math.exp(log_baseline)
        assert found.success > 0  # rounded up, never down to a zero that would be wrong
    thrown, no_signal = bounds.Person(batches="balls-in-bins"), Segment(1e12, 0.01, 100)
    assert bounds.dpsgd(0.1, schedule=no_signal, person=thrown).success == pytest.approx(0.1)
    sampled = 1 - 0.5**10  # with no noise to speak of, the sampling is all that is hidden
    assert bounds.delta_upper(Segment(1e-6, 0.5, 10), 1.0) == pytest.approx(sampled)
    assert bounds.epsilon_upper(Segment(1e-6, 0.5, 10), 1e-5) < 1e13
    assert bounds.delta_lower(Segment(1e-6, 0.5, 10), 1.0) == 0
    assert calibrate(1 - 1e-16, 0.1, sample_rate=0.1, steps=10).noise_multiplier < 1


def test_an_infinite_order_is_pure_privacy_and_hides_no_other():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = bounds.renyi(0.1, order=[2, math.inf], epsilon=[0.1, 5.0]).success
        alone = bounds.renyi(0.1, order=2, epsilon=0.1).success
        pure = bounds.renyi(0.1, order=math.inf, epsilon=0.5).success
    assert both == alone == pytest.approx(0.33244, abs=1e-5)
    assert pure == pytest.approx(0.1 * math.exp(0.5), rel=1e-12)
