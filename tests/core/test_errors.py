import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import euclidean_error
from remanence import Criterion, InputError, Records, Reduction, mean_squared_error, mismatch, relative_error


def records(values, labels=None):
    features = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    return Records(features, torch.zeros(features.shape[:-1]) if labels is None else torch.tensor(labels))


EACH, BEST, MATCHED, CLASS = Reduction.EACH, Reduction.BEST, Reduction.MATCHED, Reduction.CLASS
NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("reduction", "targets", "guesses", "errors"),
    [
        (EACH, [[0.0, 1.0]], [[1.0, 1.0]], [[1.0, 0.0]]),  # each guess is compared with its own record
        (BEST, [[0.0, 5.0], [7.0, 8.0]], [[9.0, 5.0, 2.0], [1.0, 2.0, 3.0]], [[0.0], [16.0]]),
        (BEST, [[1.0]], [[NAN]], [[INFINITE]]),
        # A greedy match would give 1.0 to the first record and leave 2.0 for nothing better than 0.
        (MATCHED, [[0.0, 1.0, 2.0]], [[2.0, 0.0, 1.05]], [[0.0, 0.0025, 0.0]]),
        (MATCHED, [[0.0, 1.0, 2.0]], [[1.0]], [[INFINITE, 0.0, INFINITE]]),  # too few guesses
    ],
)
def test_guesses_are_compared_as_the_reduction_says(reduction, targets, guesses, errors):
    found = Criterion(mean_squared_error, 0.01, reduction).compare(records(targets), records(guesses))
    assert found.errors.tolist() == [pytest.approx(row) for row in errors]
    assert found.succeeded.tolist() == [[error <= 0.01 for error in row] for row in errors]
    # Labels are all equal here, and a record without a guess has none that agrees.
    assert reduction is not MATCHED or torch.equal(found.labels_agree, found.errors.isfinite())


@pytest.mark.parametrize(
    ("reduction", "labels", "claimed", "met"),
    [
        *((reduction, [[1]], [[0]], False) for reduction in (EACH, BEST, MATCHED)),
        (EACH, [[1]], [[NAN]], False),  # an unclaimed label matches nothing
        (MATCHED, [[0, 1]], [[1, 0]], True),
    ],
)
def test_a_wrong_label_spoils_a_recovered_record_only_where_labels_count(reduction, labels, claimed, met):
    targets, guesses = (records([[1.0] * len(each[0])], each) for each in (labels, claimed))
    assert Criterion(mean_squared_error, 0.01, reduction).compare(targets, guesses).succeeded.all()
    counted = Criterion(mean_squared_error, 0.01, reduction, label_scale=1.0).compare(targets, guesses)
    assert counted.succeeded.all() == counted.labels_agree.all() == met


def test_bytes_do_not_wrap_around():
    target = Records(torch.tensor([[1, 200, 3]], dtype=torch.uint8), torch.zeros(1))
    guess = Records(torch.tensor([[0, 201, 3]], dtype=torch.uint8), torch.zeros(1))
    assert float(relative_error()(target, guess)) == pytest.approx(2**0.5 / (1 + 200**2 + 9) ** 0.5)


def test_an_exact_guess_of_a_record_of_zeros_is_exact():
    zero = records([[0.0]])
    assert Criterion().compare(zero, zero).succeeded.all()


def test_a_guess_about_a_class_is_compared_with_the_closest_record_of_that_class_alone():
    targets, guesses = records([[0.0, 1.0, 5.0]], [[0, 1, 1]]), records([[1.0, 4.0, 0.0]], [[0, 1, 2]])
    found = Criterion(mean_squared_error, 2.0, CLASS).compare(targets, guesses)
    assert found.errors.tolist() == [[1.0, 1.0, INFINITE]]  # no record of class 2 was trained on
    assert found.succeeded.tolist() == [[True, True, False]]


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


@pytest.mark.parametrize("threshold", [-1.0, NAN])
def test_a_threshold_must_be_a_number_of_at_least_zero(threshold):
    with pytest.raises(InputError, match="at least 0"):
        Criterion(threshold=threshold)


@pytest.mark.parametrize("reduction", [CLASS, BEST, MATCHED])
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
