"""The errors listed in docs/errata.md: each printed formula is shown to be wrong, and ours to be right."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf, erfinv, logsumexp, ndtr, ndtri
from scipy.stats import binom, norm

from remanence import SuccessRate, bounds
from remanence.bounds import Segment
from remanence.core.rates import clopper_pearson
from remanence_papers import baselines, companions

PAGE = Path(__file__).parents[2] / "docs" / "errata.md"


def events(size):
    """Every event of a finite space, as a 0-1 vector."""
    return (np.array(bits, dtype=float) for bits in itertools.product([0, 1], repeat=size))


def blow_up(baseline, absent, present):
    """sup{μ(E): ν(E) ≤ κ} by trying every event."""
    return max(present @ event for event in events(len(absent)) if absent @ event <= baseline + 1e-12)


def densities(noise, rate):
    """One step without and with the target, as masses on a fine grid."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    scale = (x[1] - x[0]) / noise / math.sqrt(2 * math.pi)
    absent = scale * np.exp(-0.5 * (x / noise) ** 2)
    shifted = scale * np.exp(-0.5 * ((x - 1) / noise) ** 2)
    return x, absent, (1 - rate) * absent + rate * shifted


def one_step(baseline, noise, rate):
    """γ of one step: the threshold test on the grid, no closed form."""
    _, absent, present = densities(noise, rate)
    tails = np.cumsum(absent[::-1])
    return float(np.interp(baseline, tails, np.cumsum(present[::-1])))


# Algorithm 1


@pytest.mark.parametrize("candidates", [10, 100])
@pytest.mark.parametrize("noise", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_algorithm_1_would_fill_its_own_table_with_numbers_above_one(candidates, noise):
    _, absent, present = densities(noise, 1.0)
    order = np.arange(len(absent))[::-1]
    inside = order[np.cumsum(absent[order]) <= 1 / candidates]
    printed = (present[inside] / absent[inside]) @ absent[inside] / absent[inside].sum()
    exact = bounds.gaussian(1 / candidates, noise_multiplier=noise).success
    assert printed == pytest.approx(candidates * exact, rel=1e-3)
    assert 1.7 < printed < 37.3


# Lemma 12


FACTORS = np.exp(np.concatenate([np.linspace(0, 0.5, 201), np.linspace(0.5, 8, 400)]))


def total_variation(first, second):
    """TV_a of Definition 10 for every a."""
    return np.abs(first - FACTORS[:, None] * second).sum(1)


def lemma_12(baseline, first, second, *, direction):
    """The infimum over a ≥ 1 of the two terms, without the first entry of the minimum."""
    mirrored = total_variation(first, second)
    forward = mirrored if direction == "printed" else total_variation(second, first)
    direct = FACTORS * baseline + (forward + 1 - FACTORS) / 2
    return float(np.minimum(direct, (2 * baseline + mirrored + FACTORS - 1) / (2 * FACTORS)).min())


@pytest.mark.parametrize(
    ("noise", "rate", "baseline", "printed"),
    [(0.5, 0.1, 0.01, 0.0111), (0.7, 0.3, 0.1, 0.140), (1.0, 0.5, 0.3, None), (1.0, 1.0, 0.9, None)],
)
def test_lemma_12_has_its_distributions_the_wrong_way_round(noise, rate, baseline, printed):
    _, absent, present = (values[::400] for values in densities(noise, rate))
    absent, present = absent / absent.sum(), present / present.sum()
    exact = one_step(baseline, noise, rate)
    ours = bounds.dpsgd(baseline, noise_multiplier=noise, sample_rate=rate).success
    assert ours == pytest.approx(exact, abs=2e-5)
    assert lemma_12(baseline, absent, present, direction="right") == pytest.approx(exact, rel=2e-3)
    wrong = lemma_12(baseline, absent, present, direction="printed")
    if printed is None:
        assert wrong <= exact * (1 + 2e-3)
    else:
        assert wrong == pytest.approx(printed, rel=5e-3)
        assert wrong <= baseline / (1 - rate) * (1 + 3e-3)  # its first term at a = 1/(1 − q)
        assert wrong < 0.6 * exact


@pytest.mark.parametrize("seed", range(5))
def test_the_right_lemma_12_holds_for_every_event_and_a_minimum_with_zero_for_none(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.dirichlet(np.ones(8), size=2)
    for event in events(8):
        size, power = first @ event, second @ event
        right = lemma_12(size, first, second, direction="right")
        assert power <= min(1.0, right) + 1e-12
        assert power > min(0.0, right) or not event.any()


# Appendix G


def log_likelihoods(observed, gradients, noise, rate, *, printed):
    """s_z for every trial and candidate. observed: (trials, steps, d); gradients: (candidates, d)."""
    square = (observed**2).sum(-1)[..., None]
    distance = ((observed[..., None, :] - gradients) ** 2).sum(-1)  # (trials, steps, candidates)
    exponent = (-(distance + square) if printed else square - distance) / (2 * noise**2)
    return np.log1p(rate / (1 - rate) * np.exp(exponent)).sum(1)  # less T·log(1 − q), to keep all its digits


def hits(scores, targets, confidence=0.95):
    """How often the candidate with the highest score is the target."""
    return SuccessRate(int((scores.argmax(1) == targets).sum()), len(targets), confidence)


def subsampled_game(trials, candidates, steps, *, noise, rate, seed):
    rng = np.random.default_rng(seed)
    gradients = np.eye(candidates)
    targets = rng.integers(candidates, size=trials)
    taken = rng.random((trials, steps, 1)) < rate
    shape = (trials, steps, candidates)
    return gradients, targets, taken * gradients[targets][:, None] + noise * rng.standard_normal(shape)


def test_appendix_g_is_the_log_likelihood_only_with_a_minus_sign():
    gradients, _, observed = subsampled_game(3, 4, 5, noise=0.6, rate=0.3, seed=0)
    exact = np.zeros((3, 4))
    for trial, candidate in itertools.product(range(3), range(4)):
        terms = []
        for pattern in itertools.product([0, 1], repeat=5):
            means = np.array(pattern)[:, None] * gradients[candidate]
            log_chance = sum(math.log(0.3 if taken else 0.7) for taken in pattern)
            terms.append(log_chance - ((observed[trial] - means) ** 2).sum() / (2 * 0.6**2))
        exact[trial, candidate] = logsumexp(terms)
    right = log_likelihoods(observed, gradients, 0.6, 0.3, printed=False)
    assert np.allclose((right - exact) - (right - exact)[:, :1], 0, atol=1e-10)
    printed = log_likelihoods(observed, gradients, 0.6, 0.3, printed=True)
    assert np.abs((printed - exact) - (printed - exact)[:, :1]).max() > 0.5


def test_appendix_g_with_the_right_sign_wins_the_subsampled_game():
    trials, noise, rate = 2000, 0.6, 0.2
    gradients, targets, observed = subsampled_game(trials, 10, 30, noise=noise, rate=rate, seed=1)
    printed, right = (
        hits(log_likelihoods(observed, gradients, noise, rate, printed=printed), targets, 0.999)
        for printed in (True, False)
    )
    assert printed.upper < right.lower
    assert (printed.rate, right.rate) == pytest.approx((0.146, 0.749), abs=5e-4)  # as on the page
    ceiling = bounds.dpsgd(0.1, noise_multiplier=noise, sample_rate=rate, steps=30)
    assert right.lower <= ceiling.success == pytest.approx(0.814, abs=5e-4)


def test_a_log_score_times_a_probability_prefers_the_unlikely_candidate():
    prior = np.array([0.9, 0.1])
    scores = np.array([-2.0, -2.0])  # the release says nothing, so the prior must decide
    assert (scores * prior).argmax() == 1
    assert (scores + np.log(prior)).argmax() == 0
    rng = np.random.default_rng(2)
    trials, noise = 4000, 1.0
    targets = (rng.random(trials) < prior[1]).astype(int)
    observed = np.eye(2)[targets] + noise * rng.standard_normal((trials, 2))
    apart = ((observed[:, None] - np.eye(2)) ** 2).sum(-1) / (2 * noise**2)
    size = (observed**2).sum(-1, keepdims=True) / (2 * noise**2)
    printed, corrected = -(apart + size), size - apart  # q = 1: the logarithm is the exponent
    scored = printed * prior, corrected * prior, corrected + np.log(prior)
    as_printed, with_sign, posterior = (hits(scores, targets) for scores in scored)
    assert as_printed.upper < with_sign.lower
    assert with_sign.upper < 0.9 < posterior.lower  # 0.9: ignoring the release altogether
    rates = (as_printed.rate, with_sign.rate, posterior.rate)
    assert rates == pytest.approx((0.095, 0.7235, 0.910), abs=5e-4)  # as on the page


# Remark 3 and Section 3.2


def test_the_trade_off_function_of_remark_3_is_zero():
    absent, present = np.random.default_rng(3).dirichlet(np.ones(8), size=2)
    for baseline in (0.05, 0.2, 0.6):
        allowed = [event for event in events(8) if absent @ event <= baseline]
        assert min(present @ event for event in allowed) == 0  # the empty event
        missed = min(1 - present @ event for event in allowed)
        assert missed == pytest.approx(1 - blow_up(baseline, absent, present))


def test_the_inequality_of_section_3_2_does_not_bound_the_success():
    absent, present = np.array([0.01, 0.99]), np.array([0.5, 0.5])
    epsilon = math.log(1.98)
    for event in events(2):  # the printed direction holds for every event
        assert absent @ event <= math.exp(epsilon) * (present @ event) + 1e-12
    assert blow_up(0.01, absent, present) > 25 * 0.01 * math.exp(epsilon)
    for event in events(2):  # exchanged, it is the one that the conclusion needs
        assert absent @ event <= math.exp(math.log(50)) * (present @ event) + 1e-12
        assert present @ event <= math.exp(math.log(50)) * (absent @ event) + 1e-12
    assert blow_up(0.01, absent, present) <= 0.01 * 50 + 1e-12
    assert bounds.pure_dp(0.01, epsilon=math.log(50)).success >= 0.5


# Appendix I


def exact_log10_tail(dimension, needed):
    """log₁₀ P(Bin(d, ¼) ≥ needed), in whole numbers."""
    total = sum(math.comb(dimension, hits) * 3 ** (dimension - hits) for hits in range(needed, dimension + 1))
    return float(math.log10(total) - dimension * math.log10(4))


@pytest.mark.parametrize(
    ("dimension", "share", "right", "printed"),
    [
        (784, 0.6, -95.1, -283.2),
        (784, 0.9, -325.8, -424.8),
        (3072, 0.6, -367.6, -1109.7),
        (784, 1.0, -472.0, -472.0),
        (3072, 1.0, -1849.5, -1849.5),
    ],
)
def test_appendix_i_forgets_which_pixels_may_be_missed(dimension, share, right, printed):
    found = baselines.pixels(dimension, share=share, chance=0.25) / math.log(10)
    assert found == pytest.approx(exact_log10_tail(dimension, math.ceil(dimension * share)), abs=1e-6)
    assert found == pytest.approx(right, abs=0.05)
    assert dimension * share * math.log10(0.25) == pytest.approx(printed, abs=0.05)


def test_the_bin_of_appendix_i_is_neither_that_of_bytes_nor_that_of_real_numbers():
    hits = max(sum(abs(level - guess) < 32 for level in range(256)) for guess in range(256))
    assert hits == 63  # of 256, since the printed inequality is strict; real numbers in [0, 1] give 64 of 255
    assert 784 * math.log10(63 / 256) == pytest.approx(-477.4, abs=0.05)
    assert 784 * math.log10(64 / 256) == pytest.approx(-472.0, abs=0.05)
    assert baselines.cube(784, radius=32 / 255) / math.log(10) == pytest.approx(-470.7, abs=0.05)


# Proposition 5 and the estimation guarantees


@pytest.mark.parametrize("noise", [0.4, 0.5, 1.0, 2.0])
def test_the_second_moment_of_proposition_5_depends_on_the_noise(noise):
    x = np.linspace(-12 * noise, 2 + 12 * noise, 200_001)
    log_absent = -0.5 * (x / noise) ** 2 - math.log(noise * math.sqrt(2 * math.pi))
    second = np.exp(log_absent + (2 * x - 1) / noise**2).sum() * (x[1] - x[0])
    assert second == pytest.approx(math.exp(1 / noise**2), rel=1e-9)
    assert (second > math.e * (1 + 1e-6)) == (noise < 1)


def test_the_mixture_of_proposition_5_has_a_component_for_every_subset_of_steps():
    steps, noise, rate = 3, 0.7, 0.3
    patterns = np.array(list(itertools.product([0, 1], repeat=steps)))
    weights = np.prod(np.where(patterns, rate, 1 - rate), axis=1)
    assert len(patterns) == 2**steps != 2 * steps
    # E_ν[r_i r_j] = exp(⟨c_i, c_j⟩/σ²), so E_ν[r²] is a double sum over the components
    second = weights @ np.exp(patterns @ patterns.T / noise**2) @ weights
    assert second == pytest.approx((1 + rate**2 * math.expm1(1 / noise**2)) ** steps, rel=1e-12)
    by_jensen = weights @ np.exp((patterns**2).sum(1) / noise**2)
    assert second < by_jensen < math.exp(steps / noise**2)


def test_the_dkw_expression_is_a_probability_and_its_error_is_one_in_the_baseline():
    samples = 10**6
    error = math.sqrt(math.log(2 / 0.001) / (2 * samples))
    assert error == pytest.approx(0.00195, abs=5e-6)
    assert 2 * math.exp(-2 * samples * error**2) == pytest.approx(0.001)
    setting = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 100}
    low, middle, high = bounds.dpsgd([0.01 - error, 0.01, 0.01 + error], **setting).success
    assert (low, high) == pytest.approx((0.130, 0.161), abs=1e-3)
    assert high - middle > 0.01
    assert middle - low > 0.01


# Proposition 6


def test_centres_taken_from_the_sample_miss_the_best_ball():
    points = np.array([-1.0, 1.0])  # a prior on two points, success within a distance of 1

    def best(centres, radius, power):
        return max((np.abs(points - centre) ** power <= radius + 1e-12).mean() for centre in centres)

    everywhere = np.linspace(-2, 2, 401)
    assert best(everywhere, 1.0, 1) == 1
    assert best(points, 1.0, 1) == 0.5
    assert best(points, 2.0, 1) == 1
    assert best(everywhere, 1.0, 2) == 1  # squared errors: four times the threshold is twice the radius
    assert best(points, 2.0, 2) == 0.5
    assert best(points, 4.0, 2) == 1


@pytest.mark.parametrize("seed", range(5))
def test_doubled_balls_around_the_sample_hold_every_ball(seed):
    points = np.random.default_rng(seed).standard_normal((60, 2))
    centres = np.random.default_rng(seed + 100).standard_normal((3000, 2))
    squared = ((points[:, None] - centres) ** 2).sum(-1)
    among = ((points[:, None] - points) ** 2).sum(-1)
    threshold = 0.3
    assert (among <= 4 * threshold).mean(0).max() >= (squared <= threshold).mean(0).max()


def test_proposition_6_needs_the_number_that_it_bounds():
    samples, failure = 100, 0.05
    counts = np.arange(samples + 1)
    tau = np.sqrt(2 * math.log(1 / failure) / np.maximum(counts, 1e-9))  # κ̂ in the place of κ
    assert tau[5] > 1  # five hits in a hundred: no bound at all
    upper = np.array([clopper_pearson(int(count), samples, failure)[1] for count in counts])
    assert upper[5] == pytest.approx(0.102, abs=5e-4)
    usable = tau < 1
    assert (upper[usable] <= counts[usable] / samples / (1 - tau[usable])).all()
    for baseline in np.linspace(0.005, 0.5, 100):
        chances = binom.pmf(counts, samples, baseline)
        assert chances[upper < baseline].sum() <= failure + 1e-12


# Theorem 7 and Equation 2


def test_theorem_7_without_its_stars_allows_any_pair():
    channels = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]])  # the release's law for either candidate
    absent = np.array([0.25, 0.25, 0.5])
    best_attack = channels.max(0).sum() / 2
    assert best_attack == pytest.approx(0.85)
    unstarred = blow_up(0.5, absent, absent)  # the premise compares a pair with itself, so μ = ν will do
    assert best_attack > unstarred
    assert best_attack <= max(blow_up(0.5, absent, channel) for channel in channels) + 1e-12


@pytest.mark.parametrize(("baseline", "noise", "steps"), [(0.1, 10.0, 100), (0.01, 1.0, 1), (1e-6, 5.0, 100)])
def test_equation_2_is_right(baseline, noise, steps):
    rho, level = steps / (2 * noise**2), math.log(1 / baseline)
    orders = 1 + np.exp(np.linspace(-12, 12, 1_000_001))
    best = ((orders - 1) / orders * (orders * rho - level)).min()
    printed = math.exp(-(max(0.0, math.sqrt(level) - math.sqrt(rho)) ** 2))
    assert math.exp(best) == pytest.approx(printed, rel=1e-6)
    found = companions.dpsgd_renyi(baseline, noise_multiplier=noise, steps=steps).success
    assert printed <= found * (1 + 1e-12) <= printed * (1 + 1e-4)  # its search for α stops a little early
    assert printed >= bounds.gaussian(baseline, noise_multiplier=noise, steps=steps).success


# Table 2

NOISES = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
FANO_ROW = {10: [0.976, 0.593, 0.380, 0.274, 0.213, 0.174], 100: [0.861, 0.346, 0.195, 0.131, 0.097, 0.076]}
OUR_ROW = {10: [0.737, 0.322, 0.189, 0.128, 0.099, 0.080], 100: [0.362, 0.077, 0.035, 0.024, 0.018, 0.012]}


def fano_by_grid(candidates, information):
    """Equation 5 on a fine grid of t, sharing nothing with the library."""
    t = np.linspace(1e-9, 1 - 1 / candidates, 100_001)
    left = math.log(candidates) - information + t * np.log(t) + (1 - t) * np.log1p(-t)
    left -= t * math.log(candidates - 1)
    miss = t[np.argmax(left <= 1e-12)] if (left <= 1e-12).any() else t[-1]
    return (1 - miss - 1 / candidates) / (1 - 1 / candidates)


@pytest.mark.parametrize("candidates", [10, 100])
def test_the_fano_row_of_table_2_assumes_orthogonal_gradients(candidates):
    def row(square, noise):
        together = math.exp(-square / (2 * noise**2))
        return fano_by_grid(candidates, -math.log(1 / candidates + (1 - 1 / candidates) * together))

    for noise, printed in zip(NOISES, FANO_ROW[candidates], strict=True):
        assert row(2, noise) == pytest.approx(printed, abs=6e-4)
        assert row(1, noise) < printed - 0.02 < row(4, noise) - 0.02
        apart, anywhere = (
            companions.mutual_information(Segment(noise), candidates=candidates, distance=distance)
            for distance in (math.sqrt(2), None)
        )
        assert apart <= anywhere
        any_geometry = companions.fano(candidates, mutual_information=anywhere)
        assert any_geometry.advantage < printed
        assert any_geometry.success >= bounds.gaussian(1 / candidates, noise_multiplier=noise).success


def test_seven_of_twelve_upper_bounds_in_table_2_are_below_the_exact_value():
    below, beyond_rounding, worst = 0, 0, 0.0
    for candidates, row in OUR_ROW.items():
        for noise, printed in zip(NOISES, row, strict=True):
            baseline = 1 / candidates
            success = ndtr(ndtri(baseline) + 1 / noise)
            exact = (success - baseline) / (1 - baseline)
            assert bounds.dpsgd(baseline, noise_multiplier=noise).advantage == pytest.approx(exact, rel=1e-9)
            below += printed < exact
            beyond_rounding += printed < round(exact, 3)
            worst = min(worst, printed / exact - 1)
    assert (below, beyond_rounding) == (7, 6)
    assert worst == pytest.approx(-0.10, abs=0.005)


# Balle et al. 2022


def test_the_ceilings_of_balle_need_a_cap_at_one():
    assert 0.1 * math.exp(3) > 2
    assert bounds.pure_dp(0.1, epsilon=3.0).success <= 1
    assert bounds.renyi(0.1, order=2, epsilon=5.0).success == 1


def test_the_baseline_must_be_conditional_on_what_the_adversary_knows():
    # The target is one of four, a known record gives its parity away, the release says nothing (ε = 0).
    guessed = np.mean([target % 2 == target for target in range(4)])  # says 0 or 1, by the parity
    assert guessed == 0.5 > bounds.pure_dp(1 / 4, epsilon=0.0).success
    assert guessed <= bounds.pure_dp(1 / 2, epsilon=0.0).success


def ridge_of_twenty(seed, penalty):
    """Twenty records, the weights of a ridge regression on them, and the pull of all records but the first."""
    rng = np.random.default_rng(seed)
    features, labels = np.column_stack([np.ones(20), rng.standard_normal((20, 3))]), rng.standard_normal(20)
    theta = np.linalg.solve(features.T @ features + penalty * np.eye(4), features.T @ labels)
    return features, labels, theta, features[1:].T @ (features[1:] @ theta - labels[1:])


def test_theorem_1_of_balle_gives_the_label_only_as_rederived():
    penalty = 0.7
    features, labels, theta, pull = ridge_of_twenty(4, penalty)
    left_over = pull + penalty * theta
    record = left_over / left_over[0]
    assert record == pytest.approx(features[0], rel=1e-9)
    assert record @ theta + left_over[0] == pytest.approx(labels[0], rel=1e-9)
    as_extracted = record @ theta + penalty * pull[0] * theta[0]
    assert (labels[0], as_extracted) == pytest.approx((0.847, 1.156), abs=5e-4)


def test_theorem_1_of_balle_takes_the_penalty_of_the_summed_loss():
    of_the_mean = 0.5
    features, _, theta, pull = ridge_of_twenty(5, 20 * of_the_mean)  # mean loss + λ = summed loss + nλ
    right, wrong = (pull + scale * of_the_mean * theta for scale in (20, 1))
    assert right / right[0] == pytest.approx(features[0], rel=1e-9)
    off = np.linalg.norm(wrong / wrong[0] - features[0]) / np.linalg.norm(features[0])
    assert off == pytest.approx(0.30, abs=5e-3)


def test_theorem_1_of_maciazek_holds_for_equal_spreads_only():
    def both(mean_0, spread_0, mean_1, spread_1, fpr):
        """The printed rate, and that of the places with the largest ratio of densities, counted on a grid."""
        printed = 0.5 - 0.5 * erf(
            (mean_0 - mean_1) / (2**0.5 * spread_0) + spread_1 / spread_0 * erfinv(1 - 2 * fpr)
        )
        places = np.linspace(-12, 12, 1_000_001)
        own, strangers = norm.logpdf(places, mean_0, spread_0), norm.logpdf(places, mean_1, spread_1)
        order, step = np.argsort(strangers - own), places[1] - places[0]
        within = np.cumsum(np.exp(strangers[order])) * step <= fpr
        return printed, float(np.exp(own[order])[within].sum() * step)

    assert both(-3.0, 1.2, -1.8, 0.35, 0.06) == pytest.approx((0.708, 0.745), abs=5e-4)
    assert both(-3.0, 0.7, -1.8, 0.7, 0.06)[0] == pytest.approx(both(-3.0, 0.7, -1.8, 0.7, 0.06)[1], abs=1e-4)


def test_the_page_names_every_test_here_and_no_other():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    here = {name for name in globals() if name.startswith("test_")}
    assert here - named == {"test_the_page_names_every_test_here_and_no_other"}
    assert named <= here
