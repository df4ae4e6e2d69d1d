from __future__ import annotations

import math

import pytest
from bounds_by_hand import gaussian_log_success, two_steps

from remanence.bounds.engine.closed_forms import gaussian_success
from remanence.bounds.engine.contour import estimate_log_delta, estimate_success
from remanence.bounds.engine.schedule import Segment

LOG_TEN = math.log(10)


@pytest.mark.parametrize("steps", [2, 100, 100_000])
@pytest.mark.parametrize("log_baseline", [math.log(0.9), math.log(0.5), math.log(0.1), -20.0, -300 * LOG_TEN])
@pytest.mark.parametrize("shift", [0.1, 1.0, 5.0, 30.0])
def test_full_batch_runs_through_the_general_code_match_the_closed_form(steps, log_baseline, shift):
    found = estimate_success((Segment(math.sqrt(steps) / shift, 1.0, steps),), log_baseline)
    log_success, complement = gaussian_success(log_baseline, shift=shift)
    assert found.converged
    assert found.log_success == pytest.approx(float(log_success), abs=1e-8, rel=1e-8)
    assert found.log_complement == pytest.approx(float(complement), abs=1e-8)
    assert float(log_success) == pytest.approx(float(gaussian_log_success(log_baseline, shift)), abs=1e-12)


@pytest.mark.parametrize("baseline", [0.4, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.5), (0.7, 0.3), (2.0, 0.1), (1.0, 0.9)])
def test_two_steps_match_nested_quadrature_wherever_it_claims_to_have_converged(noise, rate, baseline):
    found = estimate_success((Segment(noise, rate, 2),), math.log(baseline))
    if found.converged:
        assert math.exp(found.log_success) == pytest.approx(
            two_steps(baseline, (noise, rate), (noise, rate)), rel=1e-7
        )
    else:
        assert rate <= 0.5  # nearly an atom: (1−q)² of the mass without any signal


@pytest.mark.parametrize(
    ("settings", "log10_success"),
    [
        ((0.6, 0.02, 1000), [-3.59162, -9.70919, -28.0254, -314.0693, -1296.079]),
        ((0.5, 0.1, 100), [-1.58187, -5.21613, -17.6529, -250.3906, -1235.175]),
        ((1.0, 0.5, 100), [-0.594514, -3.80386, -17.9603, -320.5600, -1500.732]),
        ((0.6, 0.001, 100_000), [-5.73213, -13.9637, -36.9037, -368.5603, -1468.010]),
    ],
)
def test_tiny_baselines_match_the_measured_anchors(settings, log10_success):
    tiny = [-784 * math.log(4), -3072 * math.log(4)]  # κ = 9.66e-473 and 2.96e-1850
    log_baselines = [-9 * LOG_TEN, -20 * LOG_TEN, -50 * LOG_TEN, *tiny]
    for log_baseline, expected in zip(log_baselines, log10_success, strict=True):
        found = estimate_success((Segment(*settings),), log_baseline)
        assert found.converged
        assert found.log_success / LOG_TEN == pytest.approx(expected, rel=4e-6)


@pytest.mark.parametrize(
    ("settings", "baseline"),
    [((0.2, 0.01, 100), 0.1), ((0.2, 0.01, 100), 0.5), ((0.3, 0.001, 100), 0.9), ((1.8, 3e-4, 145), 3e-5)],
)
def test_it_admits_not_converging_where_the_loss_is_nearly_an_atom(settings, baseline):
    assert not estimate_success((Segment(*settings),), math.log(baseline)).converged


def test_a_dip_of_the_characteristic_function_is_not_taken_for_its_end():
    # |Φ| falls to e^-35 and climbs back to e^-7; cutting it off at the dip cost 1.5e-4.
    run = Segment(0.1048687071890924, 0.0021570728585809072, 27)
    assert not estimate_success((run,), -611.0527073047926).converged


@pytest.mark.parametrize(
    ("settings", "epsilon"),
    [
        ((4.55375, 0.02, 1000), 0.5),
        ((0.987386, 0.02, 1000), 4.0),
        ((0.426057, 0.02, 1000), 40.0),
        ((0.317605, 0.02, 1000), 100.0),
        ((0.6789000, 0.001, 100_000), 4.0),
        ((10.7054141, 0.99, 100), 4.0),
    ],
)
def test_delta_is_the_one_the_anchors_were_calibrated_to(settings, epsilon):
    log_delta, trusted = estimate_log_delta((Segment(*settings),), epsilon)
    assert trusted
    assert math.exp(log_delta) == pytest.approx(1e-5, rel=2e-4)
