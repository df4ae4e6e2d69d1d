from dataclasses import replace

import pytest
import torch

from conftest import euclidean_error
from remanence import (
    Criterion,
    EmpiricalPrior,
    Error,
    FinitePrior,
    Game,
    InputError,
    Records,
    Reduction,
    StratifiedPrior,
    Uninformed,
    looped,
)
from remanence.core.errors import mean_squared_error, mismatch
from remanence.core.guess_coverage import most_met


def points(*values):
    features = torch.tensor(values, dtype=torch.float64).reshape(len(values), -1)
    return Records(features, torch.zeros(len(values)))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


WEIGHTED = FinitePrior(points(0, 1, 2), torch.tensor([1.0, 2.0, 5.0]))
EQUAL = Records(torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 1, 2]))
TEN = Records(torch.ones(10, 1, dtype=torch.float64), torch.arange(10))
ANONYMOUS = Error("anonymous", lambda a, b: (a.flat - b.flat).abs().sum(-1))


@pytest.mark.parametrize(
    ("prior", "criterion", "lower", "value", "note"),
    [
        (WEIGHTED, Criterion(mismatch, 0.5), 5 / 8, 5 / 8, "exact, over 3 weighted candidates"),
        # 0 and 1 are farther than 0.6 apart, but 0.5 is within 0.6 of both.
        (
            FinitePrior(points(0, 1, 9)), Criterion(euclidean_error, 0.6), 1 / 3, 2 / 3,
            "safe upper value; guessing a candidate alone gives 0.3333, over 3",
        ),
        # The middle of 0 and 1 has a squared error of 0.25 to both.
        (FinitePrior(points(0, 1)), Criterion(mean_squared_error, 0.25), 0.5, 1, "safe upper value"),
        (FinitePrior(points(0, 1)), Criterion(mean_squared_error, 0.24), 0.5, 0.5, "exact"),
        (FinitePrior(EQUAL), Criterion(mismatch, 0.01), 1, 1, "exact"),
        (FinitePrior(EQUAL), Criterion(mismatch, 0.01, label_scale=1.0), 0.5, 0.5, "exact"),
        # Guessing the label 0.5 meets the classes 0 and 1, and both neighbours of a class are counted with it.
        (FinitePrior(TEN), Criterion(mismatch, 0.5, label_scale=1.0), 0.1, 0.3, "safe upper value"),
        (FinitePrior(points(0, 5)), Criterion(ANONYMOUS, 0.1), 0.5, 1, "1: this error states no reach"),
        (Uninformed(), Criterion(), 0, 0, "0 by convention"),
    ],
)  # fmt: skip
def test_the_baseline_of_a_shortlist_is_the_largest_weight_that_a_guess_may_meet(
    prior, criterion, lower, value, note
):
    found = prior.baseline(criterion)
    assert (found.lower, found.value) == pytest.approx((lower, value))
    assert found.note.startswith(note)


def test_a_shortlist_says_how_likely_its_likeliest_candidate_is():
    whole = "a shortlist of 3 candidates, one of which is the record"
    assert FinitePrior(points(0, 1, 2)).describe() == whole
    assert WEIGHTED.describe() == f"{whole}, the likeliest 625 times in 1000"


def test_no_guess_on_a_fine_grid_beats_the_baseline():
    prior = FinitePrior(Records(torch.rand(30, 2, generator=generator()).double(), torch.zeros(30)))
    criterion = Criterion(euclidean_error, 0.15)
    axis = torch.linspace(0, 1, 101, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    guesses = Records(grid, torch.zeros(len(grid)))
    errors = criterion.error(prior.candidates[None], guesses[:, None])  # (grid, candidates)
    best = float((errors <= criterion.threshold).double().mean(1).max())
    baseline = prior.baseline(criterion)
    assert baseline.lower <= best <= baseline.value


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [float("nan"), 1.0, 1.0]])
def test_weights_that_are_no_distribution_are_refused(weights):
    with pytest.raises(InputError, match="weights"):
        FinitePrior(points(0, 1, 2), torch.tensor(weights))


def test_samples_are_drawn_by_weight():
    draws = FinitePrior(points(0, 1), torch.tensor([1.0, 3.0])).sample(10_000, generator()).features
    # 0.75 ± 5 standard deviations of 10,000 draws, each sqrt(.75·.25/10000) = 0.0043.
    assert float(draws.mean()) == pytest.approx(0.75, abs=0.022)
    assert draws.shape == (10_000, 1, 1)


def test_the_baseline_from_samples_covers_the_true_one():
    # Standard normal numbers, threshold 0.1: κ = P(|z| ≤ 0.1) = 0.07966, at centre 0.
    truth, missed = 0.0796557, 0
    for seed in range(200):
        sample = Records(torch.randn(60, 1, generator=generator(seed)).double(), torch.zeros(60))
        missed += EmpiricalPrior(sample).baseline(Criterion(euclidean_error, 0.1)).value < truth
    # At most 5 % may miss; P(more than 21 of 200) < 0.1 % at exactly 5 %.
    assert missed <= 21


def test_sets_are_drawn_without_replacement():
    sets = EmpiricalPrior(points(*range(6)), set_size=6).sample(50, generator()).features
    assert sets.shape == (50, 6, 1)
    assert (sets.sort(1).values[..., 0] == torch.arange(6)).all()


@pytest.mark.parametrize(
    ("prior", "shares"),
    [
        (EmpiricalPrior(points(0, 1, 2)), True),
        (EmpiricalPrior(points(0, 1)), False),
        (EmpiricalPrior(points(2, 2, 1)), False),  # equal ones are ordinary there
        (FinitePrior(points(0, 1, 2)), False),  # the adversary knows them all
        (Uninformed(), False),
    ],
)
def test_targets_that_the_adversary_holds_are_known_from_records_that_occur_once(prior, shares):
    assert prior.shares_records_with(points(2, 3)) is shares


@pytest.mark.parametrize(
    "prior", [Uninformed(), EmpiricalPrior(points(0, 1))], ids=["uninformed", "empirical"]
)
def test_a_game_must_say_where_targets_come_from_that_the_adversary_does_not_hold(prior):
    with pytest.raises(InputError, match="targets"):
        Game(looped(dict), prior, points(0, 1))


def test_no_guess_meets_more_than_is_counted_and_the_count_is_below_the_reach_alone():
    generator = torch.Generator().manual_seed(0)
    cloud = Records(torch.randn(150, 5, generator=generator), torch.zeros(150))
    criterion = Criterion(mean_squared_error, 0.2)
    counted = most_met(cloud, criterion)
    guesses = torch.cat([cloud.features, torch.randn(3000, 5, generator=generator) / 2, torch.zeros(1, 5)])
    met = (torch.cdist(guesses, cloud.features).square() / 5 <= 0.2).sum(1).max()
    plain = most_met(cloud, Criterion(replace(mean_squared_error, squared=False), 0.2))
    assert int(met) <= counted < plain


def test_stratified_sets_have_the_classes_they_promise_and_no_record_twice():
    pool = Records(torch.arange(30.0)[:, None], torch.arange(30) % 3)
    prior = StratifiedPrior(pool, (1, 0, 4))
    sets = prior.sample(200, torch.Generator().manual_seed(0))
    assert sets.labels[0].tolist() == [0, 2, 2, 2, 2]
    assert prior.set_size == 5
    assert prior.classes.tolist() == [0, 2]
    assert prior.places.tolist() == [[0, 0, 0, 0], [1, 2, 3, 4]]
    assert all(len(set(row)) == 5 for row in sets.flat[..., 0].tolist())
    assert len(torch.unique(sets.features)) == 20  # every record of the two classes comes up


def test_strangers_share_no_record_with_their_targets():
    pool = Records(torch.arange(30.0)[:, None], torch.arange(30) % 3)
    generators = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    for prior in (StratifiedPrior(pool, 3), EmpiricalPrior(pool, 4), EmpiricalPrior(pool)):
        targets, strangers = (part.flat[..., 0] for part in prior.sample_pair(300, *generators))
        assert not (targets[:, :, None] == strangers[:, None, :]).any()
        assert len(torch.unique(strangers)) == 30


def test_a_guess_per_class_is_bounded_class_by_class():
    # Class 0 is one point, met by one guess always; class 1 is far apart, and a guess meets one record of fifty.
    features = torch.cat([torch.zeros(50, 1), 100.0 * torch.arange(50)[:, None]])
    prior = StratifiedPrior(Records(features, torch.arange(100) // 50))
    baseline = prior.baseline(Criterion(mean_squared_error, 1.0, Reduction.CLASS))
    assert 0.5 < baseline.value < 0.57  # (1 + Clopper–Pearson's 0.1 for 1 of 50) / 2
    assert 0.4 < baseline.lower < 0.5


def test_sets_that_cannot_be_drawn_are_refused():
    pool = Records(torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]))
    with pytest.raises(InputError, match="cannot be drawn"):
        StratifiedPrior(pool, 2)


def test_a_guess_that_may_depend_on_the_class_is_not_bounded_by_the_mixture():
    # Two classes, each one point: whoever knows the class of the i-th record guesses it always.
    pool = Records(torch.arange(2.0).repeat(40)[:, None], torch.arange(80) % 2)
    for reduction in (Reduction.EACH, Reduction.MATCHED, Reduction.BEST):
        assert StratifiedPrior(pool).baseline(Criterion(mean_squared_error, 0.01, reduction)).value == 1


def test_the_order_of_a_large_pool_does_not_decide_the_baseline():
    spread, same = 100.0 * torch.arange(2000.0), torch.zeros(6000)
    pool = Records(torch.cat([spread, same])[:, None], torch.zeros(8000))
    assert EmpiricalPrior(pool).baseline(Criterion(mean_squared_error, 0.01)).value > 0.7


def test_copies_are_no_further_samples():
    features = 100.0 * torch.arange(20.0)
    once = StratifiedPrior(Records(features[:, None], torch.zeros(20)))
    often = StratifiedPrior(Records(features.repeat(5)[:, None], torch.zeros(100)), copies=5)
    criterion = Criterion(mean_squared_error, 0.01, Reduction.CLASS)
    assert often.baseline(criterion).value == once.baseline(criterion).value
