import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import euclidean_error
from remanence import Criterion, InputError, Records, Reduction, mean_squared_error, mismatch, relative_error


def records(values, labels=None):
    features = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    return Records(features, torch.zeros(features.shape[:-1]) if labels is None else torch.tensor(labels))


def test_each_guess_is_held_against_its_own_record():
    found = Criterion(mean_squared_error, 0.01).compare(records([[0.0, 1.0]]), records([[1.0, 1.0]]))
    assert found.succeeded.tolist() == [[False, True]]


def test_the_best_match_makes_one_success_per_trial():
    criterion = Criterion(mean_squared_error, 0.01, Reduction.BEST)
    found = criterion.compare(records([[0.0, 5.0], [7.0, 8.0]]), records([[9.0, 5.0, 2.0], [1.0, 2.0, 3.0]]))
    assert found.succeeded.tolist() == [[True], [False]]


def test_matching_finds_the_assignment_of_least_total_error():
    criterion = Criterion(mean_squared_error, 0.01, Reduction.MATCHED)
    found = criterion.compare(records([[0.0, 1.0, 2.0]]), records([[2.0, 0.0, 1.05]]))
    assert found.succeeded.all()
    # A greedy match would give 1.0 to the first record and leave 2.0 for nothing better than 0.
    assert found.errors[0].tolist() == pytest.approx([0.0, 0.0025, 0.0])


def test_matching_heeds_labels_where_they_count():
    criterion = Criterion(mean_squared_error, 0.01, Reduction.MATCHED, label_scale=1.0)
    found = criterion.compare(records([[1.0, 1.0]], [[0, 1]]), records([[1.0, 1.0]], [[1, 0]]))
    assert found.succeeded.all()


def test_bytes_do_not_wrap_around():
    target = Records(torch.tensor([[1, 200, 3]], dtype=torch.uint8), torch.zeros(1))
    guess = Records(torch.tensor([[0, 201, 3]], dtype=torch.uint8), torch.zeros(1))
    assert float(relative_error()(target, guess)) == pytest.approx(2**0.5 / (1 + 200**2 + 9) ** 0.5)


def test_an_exact_guess_of_a_record_of_zeros_is_exact():
    zero = records([[0.0]])
    assert Criterion().compare(zero, zero).succeeded.all()


def test_a_guess_about_a_class_is_held_against_the_closest_record_of_that_class_alone():
    criterion = Criterion(mean_squared_error, 2.0, Reduction.CLASS)
    targets = records([[0.0, 1.0, 5.0]], [[0, 1, 1]])
    found = criterion.compare(targets, records([[1.0, 4.0, 0.0]], [[0, 1, 2]]))
    assert found.errors.tolist() == [[1.0, 1.0, torch.inf]]  # nobody of class 2 was trained on
    assert found.succeeded.tolist() == [[True, True, False]]


def test_matching_leaves_records_without_a_guess_unrecovered():
    criterion = Criterion(mean_squared_error, 0.01, Reduction.MATCHED)
    found = criterion.compare(records([[0.0, 1.0, 2.0]]), records([[1.0]]))
    assert found.succeeded.tolist() == [[False, True, False]]
    assert found.errors[0, 0] == torch.inf


@pytest.mark.parametrize("reduction", [Reduction.EACH, Reduction.BEST, Reduction.MATCHED])
def test_a_wrong_label_spoils_a_recovered_record_only_where_labels_count(reduction):
    target, guess = records([[1.0]], [[1]]), records([[1.0]], [[0]])
    assert Criterion(mean_squared_error, 0.01, reduction).compare(target, guess).succeeded.all()
    counted = Criterion(mean_squared_error, 0.01, reduction, label_scale=1.0).compare(target, guess)
    assert not counted.succeeded.any()
    assert not counted.labels_agree.any()


def test_an_unclaimed_label_matches_nothing():
    guess = records([[1.0]], [[float("nan")]])
    found = Criterion(mean_squared_error, 0.01, label_scale=1.0).compare(records([[1.0]], [[1]]), guess)
    assert not found.succeeded.any()


def test_a_guess_that_is_not_a_number_is_not_a_success():
    found = Criterion(mean_squared_error, 0.01, Reduction.BEST).compare(
        records([[1.0]]), records([[float("nan")]])
    )
    assert not found.succeeded.any()


numbers = st.floats(-5, 5, allow_subnormal=False)


ERRORS = [mean_squared_error, euclidean_error, relative_error(), mismatch]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name)
@given(points=st.lists(st.tuples(numbers, numbers), min_size=3, max_size=3), threshold=st.floats(0.001, 0.9))
def test_two_targets_that_one_guess_meets_are_within_reach_of_each_other(error, points, threshold):
    one, two, guess = (Records(torch.tensor([p], dtype=torch.float64), torch.zeros(1)) for p in points)
    if error(one, guess) <= threshold and error(two, guess) <= threshold:
        assert error(one, two) <= error.reach(threshold) * (1 + 1e-9) + 1e-12


def test_guesses_that_do_not_line_up_are_refused_with_a_way_out():
    with pytest.raises(InputError, match=r"Reduction\.BEST"):
        Criterion().compare(records([[1.0]]), records([[1.0, 2.0]]))


@pytest.mark.parametrize("threshold", [-1.0, float("nan")])
def test_a_threshold_must_be_a_number_of_at_least_zero(threshold):
    with pytest.raises(InputError, match="at least 0"):
        Criterion(threshold=threshold)


@pytest.mark.parametrize("reduction", [Reduction.CLASS, Reduction.BEST, Reduction.MATCHED])
def test_trials_that_are_compared_a_few_at_a_time_give_the_same(reduction, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 1]).expand(7, -1)
    targets = Records(torch.randn(7, 3, 4, generator=generator), labels)
    guesses = Records(torch.randn(7, 2, 4, generator=generator), torch.tensor([0, 1]).expand(7, -1))
    criterion = Criterion(mean_squared_error, 1.0, reduction)
    whole = criterion.compare(targets, guesses)
    monkeypatch.setattr("remanence.core.errors.COMPARED", 50)  # two trials of 3 · 2 · 4 numbers
    parts = criterion.compare(targets, guesses)
    for name in ("errors", "labels_agree", "succeeded"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))
