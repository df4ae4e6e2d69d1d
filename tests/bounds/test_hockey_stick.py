from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from remanence.bounds.engine.closed_forms import gaussian_log_delta_ends
from remanence.bounds.engine.dpsgd import delta_upper, epsilon_upper
from remanence.bounds.engine.hockey_stick import chernoff_log_delta, log_delta_ends, log_delta_near
from remanence.bounds.engine.schedule import Segment


def log_delta_upper(run, epsilon, *, removing):
    """Within 1e-4 of the truth in one direction."""
    found = log_delta_ends(run, epsilon)[1]
    return found if removing else log_delta_near(run, epsilon, -math.inf, removing=False, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "epsilon"),
    [
        ((4.55375, 0.02, 1000), 0.5),
        ((0.987386, 0.02, 1000), 4.0),
        ((0.426057, 0.02, 1000), 40.0),
        ((0.317605, 0.02, 1000), 100.0),
        ((0.590502, 0.01, 100), 4.0),
        ((10.705414, 0.99, 100), 4.0),
    ],
)
def test_the_anchors_are_certified_from_the_safe_side(settings, epsilon):
    run = Segment(*settings)
    assert delta_upper(run, epsilon) == pytest.approx(1e-5, rel=5e-4)
    assert log_delta_ends((run,), epsilon)[0] <= math.log(delta_upper(run, epsilon))
    assert epsilon_upper(run, 1e-5) == pytest.approx(epsilon, rel=2e-4)
    assert delta_upper(run, epsilon_upper(run, 1e-5)) <= 1e-5 * (1 + 2e-4)


@pytest.mark.parametrize("removing", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0, 10.0])
def test_nearly_full_batches_match_the_gaussian_closed_form_both_ways(epsilon, removing):
    bound = log_delta_upper((Segment(10.0, 1 - 1e-12, 100),), epsilon, removing=removing)
    exact = gaussian_log_delta_ends(epsilon, shift=1.0)[1]
    assert exact - 1e-9 <= bound <= exact + 3e-4


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_single_step_matches_quadrature_in_both_directions(epsilon):
    noise, rate = 0.8, 0.4
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    absent = np.exp(-0.5 * (x / noise) ** 2) / noise / math.sqrt(2 * math.pi)
    present = absent * (1 - rate + rate * np.exp((x - 0.5) / noise**2))
    for removing, first, second in ((True, present, absent), (False, absent, present)):
        exact = np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), x)
        bound = math.exp(log_delta_upper((Segment(noise, rate),), epsilon, removing=removing))
        assert exact * (1 - 1e-6) - 1e-9 <= bound <= exact * (1 + 1e-3) + 1e-9


def test_adding_cannot_leak_more_than_the_chance_of_absence_allows():
    run = Segment(0.5, 0.1, 10)
    assert log_delta_upper((run,), -10 * math.log1p(-0.1) + 1e-9, removing=False) == -math.inf


@pytest.mark.parametrize("removing", [True, False])
def test_the_chernoff_fallback_is_never_below_the_lattice(removing):
    for epsilon in (0.5, 2.0, 4.0):
        run = (Segment(1.0, 0.1, 200),)
        assert log_delta_upper(run, epsilon, removing=removing) <= chernoff_log_delta(
            run, epsilon, removing=removing
        )


def test_epsilon_falls_with_delta_and_delta_with_epsilon():
    run = [Segment(1.0, 0.02, 500), Segment(1.5, 0.05, 300)]
    epsilons = [epsilon_upper(run, delta) for delta in (1e-12, 1e-8, 1e-5, 1e-2)]
    assert all(before > after for before, after in itertools.pairwise(epsilons))
    deltas = [delta_upper(run, epsilon) for epsilon in (0.1, 1.0, 3.0, 6.0)]
    assert all(before > after for before, after in itertools.pairwise(deltas))


def test_a_generous_delta_needs_no_epsilon():
    assert epsilon_upper(Segment(20.0, 0.01, 10), 0.5) == 0


def test_full_batch_epsilon_is_the_papers():
    # papers.md §1.2: T = 100, q = 1, δ = 1e-5: σ = 5 gives ε = 9.997
    assert epsilon_upper(Segment(5.0, 1.0, 100), 1e-5) == pytest.approx(9.997, abs=1e-3)
    assert delta_upper(Segment(5.0, 1.0, 100), 9.997) == pytest.approx(1e-5, rel=1e-3)
