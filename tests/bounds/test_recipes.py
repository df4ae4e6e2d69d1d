from __future__ import annotations

import json

import numpy as np
import pytest

from remanence import NoisySum, bounds
from remanence.bounds import Person, Segment
from remanence.core.exceptions import InputError

SETTINGS = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 100}

BOUNDS = {
    "dpsgd": lambda: bounds.dpsgd(0.01, **SETTINGS),
    "several baselines": lambda: bounds.dpsgd(np.array([0.01, 0.1]), **SETTINGS),
    "schedule": lambda: bounds.dpsgd(
        log_baseline=-3000.0, schedule=[Segment(1.0, 0.1, 5), Segment(2.0, 0.2, 3)]
    ),
    "person": lambda: bounds.dpsgd(0.01, **SETTINGS, person=Person(5, "shuffled", replaced=True)),
    "gaussian": lambda: bounds.gaussian(0.1, noise_multiplier=2.0, steps=3),
    "renyi": lambda: bounds.renyi(0.1, order=[2, 4], epsilon=[0.1, 0.2]),
    "(ε, δ)": lambda: bounds.approximate_dp(0.1, epsilon=1.0, delta=1e-5),
    "in or out": lambda: bounds.in_or_out(Segment(1.1, 0.01, 100)),
    "final weights": lambda: bounds.final_weights(
        0.1, noise_multiplier=9.0, steps=9, learning_rate=0.5, strong_convexity=0.1, smoothness=1.0
    ),
    "factor": lambda: bounds.correlated_noise(0.1, factor=np.eye(4), noise_multiplier=3.0, separation=2),
    "mechanism": lambda: bounds.of(NoisySum(noise_multiplier=2.0), 0.01),
    "classes": lambda: bounds.of_classes(NoisySum(noise_multiplier=2.0), [0.01, 0.02], [1, 2]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_stored_ceiling_is_computed_again_to_the_digit(name):
    bound = BOUNDS[name]()
    again = bounds.recompute(json.loads(json.dumps(bound.recipe)))
    assert np.array_equal(again.log_success, bound.log_success)
    assert (again.name, again.whose, again.on_average) == (bound.name, bound.whose, bound.on_average)
    assert set(again.assumptions) <= set(bound.assumptions)
    assert again.recipe == bound.recipe


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"function": "recompute", "arguments": {}},
        {"function": "dpsgd", "arguments": {"baseline": 0.1, "noise": 1.0}},
        {"function": "dpsgd", "arguments": {"baseline": "a tenth", "noise_multiplier": 1.0}},
        {"function": "dpsgd", "arguments": {"baseline": 0.1, "schedule": [{"noise_multiplier": 0}]}},
        {"function": "dpsgd", "arguments": {"baseline": 0.1, "noise_multiplier": 1.0, "person": 3}},
    ],
)
def test_a_recipe_from_a_file_is_not_trusted(recipe):
    with pytest.raises(InputError):
        bounds.recompute(recipe)


def test_what_no_file_can_hold_has_no_recipe():
    assert bounds.profile(0.1, delta_at=lambda epsilon: 0.5).recipe is None
    wide = bounds.correlated_noise(0.1, factor=np.eye(101), noise_multiplier=3.0, separation=101)
    assert wide.recipe is None
