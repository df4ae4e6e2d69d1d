import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from remanence import InputError, Roc
from remanence.core.rates import SuccessRate, clopper_pearson


def test_perfect_separation_and_none():
    perfect = Roc(np.zeros(100), np.ones(100))
    assert perfect.area() == 1
    assert perfect.tpr_at_fpr(0.01).rate == 1
    same = Roc(np.arange(100.0), np.arange(100.0))
    assert same.area() == pytest.approx(0.5, abs=0.01)
    assert same.tpr_at_fpr(0.1).rate == 0.1


def test_a_false_positive_rate_is_never_exceeded():
    generator = np.random.default_rng(0)
    roc = Roc(generator.normal(size=500), generator.normal(1, size=500))
    for fpr in (0.002, 0.01, 0.1):
        found = roc.tpr_at_fpr(fpr)
        assert (roc.controls < found.threshold).mean() <= fpr


def test_reconstructions_that_are_not_numbers_never_pass():
    roc = Roc(np.array([np.nan, 0.0]), np.array([1.0, 2.0]))
    assert roc.true_positive_rate(0.01) == 0.5
    assert roc.tpr_at_fpr(0.5).rate == 0.5


@pytest.mark.parametrize(
    ("trials", "entries", "fpr", "together"),
    [
        (100, 1, 0.01, 0.0),  # one control may pass
        (150, 1, 0.01, 0.9),  # an error and its control come from one reconstruction
        (500, 1, 0.01, 0.0),
        (50, 1, 0.3, 0.9),
        (150, 10, 0.05, 0.7),  # ten entries stand or fall together
        (400, 3, 0.02, 0.999),
    ],
)
def test_the_interval_covers_the_true_rate_at_least_as_often_as_it_says(trials, entries, fpr, together):
    # Errors N(−2, 1), strangers N(0, 1): the true positive rate is Φ(2 + Φ⁻¹(FPR)).
    generator, truth = np.random.default_rng(1), norm.cdf(2 + norm.ppf(fpr))
    misses = []
    for _ in range(400):
        shift = together**0.5 * generator.normal(size=(trials, 1))
        errors, controls = shift + (1 - together) ** 0.5 * generator.normal(size=(2, trials, entries))
        found = Roc(errors - 2, controls).tpr_at_fpr(fpr)
        assert found.lower <= found.rate <= found.upper
        misses.append((found.lower > truth, found.upper < truth))
    # Each end is wrong 1 time in 40 at most, 10 times in 400: 23 times or more has a probability of 2 in 10,000.
    assert (np.sum(misses, axis=0) <= 22).all()


def test_a_rate_with_steps_is_covered_too():
    # Whole numbers: a share of 5 % of the strangers cannot be met exactly; "below −3" passes 4.0 %, "below −2" 10.6 %.
    generator = np.random.default_rng(2)
    truth = norm.cdf(-3.5 / 2 + 2)
    misses = 0
    for _ in range(400):
        errors, controls = np.round(2 * (generator.normal(size=(2, 300)) - [[2], [0]]))
        found = Roc(errors, controls).tpr_at_fpr(0.05)
        misses += not found.lower <= truth <= found.upper
    assert misses <= 36  # 5 % of 400 is 20, and four deviations


def test_the_ends_are_those_of_the_binomial_ranks():
    # 0.8 · 0.025 of a binomial (500, 0.01): none passes with 0.0066, one or none with 0.040; 12 or more with 0.0053
    # and 11 or more with 0.0133, 10 or more with 0.031: the threshold lies between the first and the eleventh control.
    errors, controls = np.arange(500) / 10, np.arange(1.0, 501.0)
    found = Roc(errors, controls).tpr_at_fpr(0.01)
    below = [int((errors < edge).sum()) for edge in (1, 6, 11)]  # 10, 60, 110 errors
    assert found.rate == below[1] / 500
    assert found.lower == pytest.approx(clopper_pearson(below[0], 500, 0.2 * 0.025)[0])
    assert found.upper == pytest.approx(clopper_pearson(below[2], 500, 0.2 * 0.025)[1])


def test_fewer_controls_than_one_over_the_rate_cannot_tell():
    values = np.arange(99.0)
    assert Roc(values, values).tpr_at_fpr(0.01) is None
    assert Roc(values, values).tpr_of_each(0.01) is None
    more = np.arange(100.0)
    assert Roc(more, more).tpr_at_fpr(0.01).lower == 0.0  # none of a hundred passes one time in three
    assert Roc(more.reshape(50, 2), more.reshape(50, 2)).tpr_at_fpr(0.01) is not None


def test_too_little_to_draw_is_refused():
    with pytest.raises(InputError, match="at least two"):
        Roc(np.zeros(1), np.zeros(1))
    with pytest.raises(InputError, match="false positive rate"):
        Roc(np.zeros(3), np.zeros(3)).tpr_at_fpr(0)


def test_the_classes_share_a_threshold_that_is_uncertain_too():
    # Coverage of the rate of one class, whose threshold comes from the strangers of all.
    rng = np.random.default_rng(0)
    shifts = np.array([0.0, 1.0, 2.0])
    truth = norm.cdf(norm.ppf(0.01) + shifts)
    covered, widths, fixed = np.zeros(3), 0.0, 0.0
    for _ in range(300):
        errors, controls = rng.normal(size=(200, 3)) - shifts, rng.normal(size=(200, 3))
        rates = Roc(errors, controls).tpr_of_each(0.01)
        covered += [rate.lower <= true <= rate.upper for rate, true in zip(rates, truth, strict=True)]
        widths += rates[2].upper - rates[2].lower
        naive = SuccessRate(round(rates[2].rate * 200), 200)
        fixed += naive.upper - naive.lower
        assert rates[0].threshold == rates[2].threshold
    assert (covered >= 270).all()  # of 300: 95 % less four deviations
    assert widths > 1.2 * fixed


def test_the_rate_of_all_is_the_mean_of_each():
    rng = np.random.default_rng(1)
    roc = Roc(rng.normal(size=(300, 4)) - 1, rng.normal(size=(300, 4)))
    assert np.mean([rate.rate for rate in roc.tpr_of_each(0.05)]) == pytest.approx(roc.tpr_at_fpr(0.05).rate)


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 30), (7, 20), (199, 200), (50, 1000)])
def test_the_interval_is_scipys_exact_one(successes, trials):
    reference = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    rate = SuccessRate(successes, trials)
    assert (rate.lower, rate.upper) == pytest.approx((reference.low, reference.high), abs=1e-12)


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
