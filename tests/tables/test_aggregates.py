"""Single values out of published sums, against values by hand and by enumeration."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from remanence.core.exceptions import InputError, MisfitError
from remanence.tables.aggregates import read_aggregates
from remanence.tables.published_sums import noisy_aggregates_bound


def test_two_groups_that_differ_in_one_person_tell_theirs():
    found = read_aggregates(np.array([[1, 1, 1, 1], [1, 1, 1, 0]]), np.array([250.0, 190.0]), high=100.0)
    assert found.determined.tolist() == [False, False, False, True]
    assert found.low[3] == pytest.approx(60)


@pytest.mark.parametrize("seed", range(5))
def test_bits_are_determined_exactly_where_all_solutions_agree(seed):
    draw = np.random.default_rng(seed)
    members, bits = draw.integers(0, 2, (5, 8)), draw.integers(0, 2, 8)
    sums = members @ bits
    solutions = np.array([each for each in product([0, 1], repeat=8) if (members @ each == sums).all()])
    found = read_aggregates(members, sums, whole=True)
    assert np.array_equal(found.low, solutions.min(0))
    assert np.array_equal(found.high, solutions.max(0))


def test_a_range_that_is_exhausted_determines_everybody():
    assert read_aggregates(np.ones((1, 6)), np.array([6.0])).determined.all()
    assert not read_aggregates(np.ones((1, 6)), np.array([3.0])).determined.any()


def test_enough_random_groups_determine_everybody():
    draw = np.random.default_rng(0)
    members, ages = draw.integers(0, 2, (40, 20)), draw.integers(18, 90, 20)
    found = read_aggregates(members, members @ ages, low=0, high=120)
    assert found.determined.all()
    assert np.allclose(found.low, ages, atol=1e-5)


def test_sums_that_nobody_can_have_are_refused():
    with pytest.raises(MisfitError, match="No values within the range"):
        read_aggregates(np.ones((1, 3)), np.array([7.0]))
    with pytest.raises(InputError, match="do not fit"):
        read_aggregates(np.ones((2, 3)), np.array([7.0]))


def test_noise_has_the_ceiling_of_one_gaussian_sum():
    members = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 1]])  # the first person is in four groups
    bound = noisy_aggregates_bound(members, 0.5, noise=4.0)
    assert bound.success == pytest.approx(norm.cdf(norm.ppf(0.5) + 2 / 4.0), rel=1e-6)
