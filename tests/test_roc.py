import numpy as np
import pytest
from scipy.stats import norm

from remanence import InputError, Roc, SuccessRate
from remanence.scoring.roc import Gaussians


def test_perfect_separation_and_none():
    perfect = Roc(np.zeros(50), np.ones(50))
    assert perfect.area() == 1
    assert perfect.tpr_at_fpr(0.01).rate == 1
    same = Roc(np.arange(100.0), np.arange(100.0))
    assert same.area() == pytest.approx(0.5, abs=0.01)
    assert same.tpr_at_fpr(0.1).rate == 0.1


def test_a_false_positive_rate_is_never_exceeded():
    generator = np.random.default_rng(0)
    roc = Roc(generator.normal(size=500), generator.normal(1, size=500))
    for fpr in (0.001, 0.01, 0.1):
        found = roc.tpr_at_fpr(fpr)
        assert (roc.controls < found.threshold).mean() <= fpr


def test_reconstructions_that_are_not_numbers_never_pass():
    roc = Roc(np.array([np.nan, 0.0]), np.array([1.0, 2.0]))
    assert roc.tpr_at_fpr(0.01).rate == 0.5


def test_the_interval_covers_the_true_rate_as_often_as_it_says():
    # True positives N(−1, 1), strangers N(1, 1): at an FPR of 5 % the TPR is Φ(2 − 1.645). Ten entries share a trial's
    # shift, so that counting them as independent would give intervals that are too short.
    generator = np.random.default_rng(1)
    truth = norm.cdf(2 + norm.ppf(0.05))
    covered = 0
    for _ in range(40):
        shifts = generator.normal(0, 0.7**0.5, size=(2, 150, 1))
        errors, controls = shifts + generator.normal(0, 0.3**0.5, size=(2, 150, 10))
        found = Roc(errors - 1, controls + 1).tpr_at_fpr(0.05)
        covered += found.lower <= truth <= found.upper
    assert covered >= 33  # 95 % of 40 is 38; 32 or fewer has a probability below 1e-3


def test_the_likelihood_ratio_beats_a_threshold_unless_spreads_are_equal():
    unequal, equal = Gaussians(-3, 1.2, -1.8, 0.35), Gaussians(-1, 0.5, 0, 0.5)
    places = np.linspace(0.01, 0.99, 50)
    better = np.interp(places, *unequal.neyman_pearson()) - unequal.cumulative(places)
    assert better.min() > -1e-3
    assert better.max() > 0.03
    np.testing.assert_allclose(
        np.interp(places, *equal.neyman_pearson()), equal.cumulative(places), atol=1e-3
    )


def test_equation_6_is_the_curve_of_a_threshold_between_normal_laws():
    laws, fpr = Gaussians(-1.5, 0.8, 0.2, 0.4), np.array([0.001, 0.05, 0.5])
    threshold = norm.ppf(fpr, 0.2, 0.4)
    np.testing.assert_allclose(laws.cumulative(fpr), norm.cdf(threshold, -1.5, 0.8), rtol=1e-9)


def test_normal_laws_are_fitted_to_logits():
    generator = np.random.default_rng(2)
    logits = generator.normal([[-2.0], [-1.0]], [[0.5], [0.2]], size=(2, 20000))
    errors = 4 / (1 + np.exp(-logits))
    laws = Roc(errors[0], errors[1]).gaussians(4.0)
    assert laws.mean_0 == pytest.approx(-2, abs=0.02)  # five standard errors
    assert laws.deviation_1 == pytest.approx(0.2, abs=0.01)


def test_too_little_to_draw_is_refused():
    with pytest.raises(InputError, match="at least two"):
        Roc(np.zeros(1), np.zeros(1))
    with pytest.raises(InputError, match="false positive rate"):
        Roc(np.zeros(3), np.zeros(3)).tpr_at_fpr(0)


def test_the_classes_share_a_threshold_that_is_uncertain_too():
    # Coverage of the rate of one class, whose threshold comes from the strangers of all: by hand, 60 times.
    rng = np.random.default_rng(0)
    shifts = np.array([0.0, 1.0, 2.0])
    truth = norm.cdf(norm.ppf(0.01) + shifts)
    covered, widths, fixed = np.zeros(3), 0.0, 0.0
    for _ in range(60):
        errors, controls = rng.normal(size=(200, 3)) - shifts, rng.normal(size=(200, 3))
        rates = Roc(errors, controls).tpr_of_each(0.01)
        covered += [rate.lower <= true <= rate.upper for rate, true in zip(rates, truth, strict=True)]
        widths += rates[2].upper - rates[2].lower
        naive = SuccessRate(round(rates[2].rate * 200), 200)
        fixed += naive.upper - naive.lower
        assert rates[0].threshold == rates[2].threshold
    assert (
        covered >= 51
    ).all()  # of 60: at 95 % fewer happen 7 times in 10,000, at 80 % in three cases of four
    assert widths > 1.2 * fixed


def test_the_rate_of_all_is_the_mean_of_each():
    rng = np.random.default_rng(1)
    roc = Roc(rng.normal(size=(300, 4)) - 1, rng.normal(size=(300, 4)))
    assert np.mean([rate.rate for rate in roc.tpr_of_each(0.05)]) == pytest.approx(roc.tpr_at_fpr(0.05).rate)
