import numpy as np
import pytest
from scipy.stats import binom, binomtest

from remanence.core.rates import SuccessRate, clopper_pearson


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 30), (7, 20), (199, 200), (50, 1000)])
def test_the_interval_is_scipys_exact_one(successes, trials):
    reference = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    rate = SuccessRate(successes, trials)
    assert (rate.lower, rate.upper) == pytest.approx((reference.low, reference.high), abs=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.97])
def test_the_interval_covers_the_truth_at_least_as_often_as_it_says(share):
    trials = 60
    missed = sum(
        binom.pmf(k, trials, share)
        for k in range(trials + 1)
        if not SuccessRate(k, trials).lower <= share <= SuccessRate(k, trials).upper
    )
    assert missed <= 0.05


def test_records_that_stand_or_fall_together_get_a_wider_interval_that_still_covers():
    # Ten records per run that all succeed or all fail: a binomial interval over the records would
    # miss the truth in most runs; the clustered one must not miss it in more than 5 %.
    share, runs, together = 0.3, 40, 10
    missed = naive = 0.0
    for k in range(runs + 1):
        clustered = SuccessRate(k * together, runs * together, clusters=runs)
        alone = SuccessRate(k * together, runs * together)
        missed += binom.pmf(k, runs, share) * (not clustered.lower <= share <= clustered.upper)
        naive += binom.pmf(k, runs, share) * (not alone.lower <= share <= alone.upper)
    assert missed <= 0.05 < naive
    all_of_them, none = SuccessRate(40, 40, clusters=8), SuccessRate(0, 40, clusters=8)
    assert (none.lower, all_of_them.upper) == (0, 1)
    assert all_of_them.lower == pytest.approx(0.025 ** (1 / 8))  # 8·log(1/p) = log 40
    assert none.upper == pytest.approx(1 - 0.025 ** (1 / 8))


def test_the_ends_of_the_interval_are_monotone_in_the_count():
    ends = np.array([clopper_pearson(k, 25, 0.025) for k in range(26)])
    assert (np.diff(ends, axis=0) >= 0).all()
    assert ends[0, 0] == 0
    assert ends[-1, 1] == 1
