import pytest
import torch

from remanence import (
    Criterion,
    EmpiricalPrior,
    Error,
    FinitePrior,
    Game,
    InputError,
    Records,
    Uninformed,
    looped,
)
from remanence.errors import euclidean_error, mean_squared_error, mismatch


def points(*values):
    features = torch.tensor(values, dtype=torch.float64).reshape(len(values), -1)
    return Records(features, torch.zeros(len(values)))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_baseline_of_a_weighted_shortlist_is_its_largest_weight():
    prior = FinitePrior(points(0, 1, 2), torch.tensor([1.0, 2.0, 5.0]))
    baseline = prior.baseline(Criterion(mismatch, 0.5))
    assert baseline.value == baseline.lower == pytest.approx(5 / 8)
    assert baseline.note.startswith("exact")


def test_a_guess_between_two_candidates_counts_for_both():
    # 0 and 1 are farther than 0.6 apart, but 0.5 is within 0.6 of both.
    baseline = FinitePrior(points(0, 1, 9)).baseline(Criterion(euclidean_error, 0.6))
    assert baseline.lower == pytest.approx(1 / 3)
    assert baseline.value == pytest.approx(2 / 3)


def test_for_a_squared_error_the_safe_radius_is_four_thresholds():
    # The middle of 0 and 1 has a squared error of 0.25 to both.
    assert FinitePrior(points(0, 1)).baseline(Criterion(mean_squared_error, 0.25)).value == 1
    assert FinitePrior(points(0, 1)).baseline(Criterion(mean_squared_error, 0.24)).value == 0.5


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


def test_labels_that_count_split_candidates_with_equal_features():
    same = Records(torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 1, 2]))
    assert FinitePrior(same).baseline(Criterion(mismatch, 0.01)).value == 1
    assert FinitePrior(same).baseline(Criterion(mismatch, 0.01, label_scale=1.0)).value == 0.5


def test_a_label_between_two_classes_counts_for_both():
    ten = Records(torch.ones(10, 1, dtype=torch.float64), torch.arange(10))
    baseline = FinitePrior(ten).baseline(Criterion(mismatch, 0.5, label_scale=1.0))
    assert baseline.lower == pytest.approx(0.1)
    assert baseline.value + 1e-12 >= 0.2  # guessing the label 0.5 meets two


def test_an_error_without_a_stated_reach_gives_the_trivial_baseline():
    anonymous = Error("anonymous", lambda a, b: (a.flat - b.flat).abs().sum(-1))
    assert FinitePrior(points(0, 5)).baseline(Criterion(anonymous, 0.1)).value == 1


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
    "prior", [Uninformed(), EmpiricalPrior(points(0, 1))], ids=["uninformed", "empirical"]
)
def test_a_game_must_say_where_targets_come_from_that_the_adversary_does_not_hold(prior):
    with pytest.raises(InputError, match="targets"):
        Game(looped(dict), prior, points(0, 1))


def test_an_uninformed_baseline_is_zero_and_says_so():
    baseline = Uninformed().baseline(Criterion())
    assert baseline.value == 0
    assert "convention" in baseline.note
