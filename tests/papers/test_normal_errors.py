import numpy as np
import pytest
from scipy.stats import norm

from remanence import Roc
from remanence_papers.normal_errors import Gaussians


def test_the_likelihood_ratio_beats_a_threshold_unless_spreads_are_equal():
    unequal, equal = Gaussians(-3, 1.2, -1.8, 0.35), Gaussians(-1, 0.5, 0, 0.5)
    places = np.array([1e-6, 1e-3, *np.linspace(0.01, 0.99, 50)])
    better = unequal.neyman_pearson(places) - unequal.cumulative(places)
    assert better.min() > -1e-12
    assert better.max() > 0.03
    np.testing.assert_allclose(equal.neyman_pearson(places), equal.cumulative(places), rtol=1e-12)
    far = Gaussians(-8, 1.0, 0, 1.0)
    assert far.neyman_pearson(0.001) == pytest.approx(norm.cdf(8 + norm.ppf(0.001)), rel=1e-12)  # 0.9999995
    other_side = Gaussians(8, 1.0, 0, 1.0)
    assert other_side.neyman_pearson(0.001) == pytest.approx(far.neyman_pearson(0.001), rel=1e-9)


@pytest.mark.parametrize(
    "laws", [Gaussians(-3, 1.2, -1.8, 0.35), Gaussians(-1, 0.3, 0.5, 0.9)], ids=["wide", "narrow"]
)
def test_the_likelihood_ratio_test_is_the_one_that_can_be_integrated(laws):
    # Of all places, those with the largest ratio of densities, until the strangers' share is used up.
    places = np.linspace(-12, 12, 2_000_001)
    own = norm.pdf(places, laws.mean_0, laws.deviation_0)
    strangers = norm.pdf(places, laws.mean_1, laws.deviation_1)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.nan_to_num(own / strangers, nan=0.0), kind="stable")
    step = places[1] - places[0]
    false, true = np.cumsum(strangers[order]) * step, np.cumsum(own[order]) * step
    for fpr in (1e-4, 0.01, 0.06, 0.5, 0.9):
        assert laws.neyman_pearson(fpr) == pytest.approx(true[np.searchsorted(false, fpr)], abs=1e-4)
    assert laws.neyman_pearson([0.0, 1.0]).tolist() == [0.0, 1.0]


def test_nearly_equal_spreads_are_no_worse_than_equal_ones():
    fpr = [1e-3, 0.1, 0.7]
    equal = Gaussians(-1, 0.5, 0, 0.5).neyman_pearson(fpr)
    for nearly in (1 + 1e-10, 1 + 1e-8, 1 - 1e-6):
        np.testing.assert_allclose(Gaussians(-1, 0.5 * nearly, 0, 0.5).neyman_pearson(fpr), equal, rtol=1e-4)


def test_equation_6_is_the_curve_of_a_threshold_between_normal_laws():
    laws, fpr = Gaussians(-1.5, 0.8, 0.2, 0.4), np.array([0.001, 0.05, 0.5])
    threshold = norm.ppf(fpr, 0.2, 0.4)
    np.testing.assert_allclose(laws.cumulative(fpr), norm.cdf(threshold, -1.5, 0.8), rtol=1e-9)


def test_normal_laws_are_fitted_to_logits():
    generator = np.random.default_rng(2)
    logits = generator.normal([[-2.0], [-1.0]], [[0.5], [0.2]], size=(2, 20000))
    errors = 4 / (1 + np.exp(-logits))
    laws = Gaussians.of(Roc(errors[0], errors[1]), 4.0)
    assert laws.mean_0 == pytest.approx(-2, abs=0.02)  # five standard errors
    assert laws.deviation_1 == pytest.approx(0.2, abs=0.01)
