"""The five-step choice of a private recipe."""

import pytest

from conftest import pictures
from remanence import InputError, Records, TransferHead
from remanence.bounds.calibration import noise_for_epsilon
from remanence_papers.private_recipe import private_recipe

POOL, TEST = pictures(300), pictures(150, seed=3)
RECIPE = TransferHead(3, 20, 0.05)


@pytest.fixture(scope="module")
def choice():
    return private_recipe(RECIPE, POOL, TEST, epsilon=20.0, per_class=2, heads=60)


def test_the_chosen_recipe_has_the_epsilon_that_was_asked_for(choice):
    head = choice.head
    assert head.sample_rate == 5 / 6
    assert head.steps == 20
    assert choice.delta == pytest.approx(6**-1.1)
    wanted = noise_for_epsilon(20.0, delta=6**-1.1, sample_rate=5 / 6, steps=20)
    assert head.noise_multiplier == wanted


def test_each_step_keeps_the_best_of_what_it_tried(choice):
    steps = {step: [one for one in choice.tried if one.step == step] for step in (2, 3, 5)}
    last = max(steps[5], key=lambda one: one.accuracy)
    assert choice.head == last.head
    assert choice.accuracy == pytest.approx(last.accuracy, abs=5 * 2**0.5 * last.error)  # on heads of its own
    best = max(one.accuracy for one in steps[2])
    norm = choice.head.max_grad_norm
    open_ = max(steps[2], key=lambda one: one.accuracy).head
    factors, decays = [0.25, 0.5, 1.0, 2.0, 4.0], [0.0, 1e-4, 1e-2]
    rates = [0.05 * factor for factor in factors for _ in decays]
    assert [one.head.learning_rate for one in steps[2]] == pytest.approx(rates)
    assert [one.head.weight_decay for one in steps[2]] == decays * 5
    assert [one.head.max_grad_norm for one in steps[3]] == [*factors, 8.0, 16.0]
    rates = [factor * open_.learning_rate for factor in factors]
    assert [one.head.learning_rate for one in steps[5]] == pytest.approx(rates)
    kept = {(one.head.max_grad_norm, one.head.weight_decay) for one in steps[5]}
    assert kept == {(norm, open_.weight_decay)}
    smaller = [one for one in steps[3] if one.head.max_grad_norm < norm]
    kept = next(one for one in steps[3] if one.head.max_grad_norm == norm)
    assert kept.accuracy >= best - 0.01 or kept.accuracy == max(one.accuracy for one in steps[3])
    assert all(one.accuracy < best - 0.01 for one in smaller)


def test_noise_costs_accuracy_and_much_noise_costs_more(choice):
    tight = private_recipe(RECIPE, POOL, TEST, epsilon=0.5, per_class=2, heads=60)
    best = max(one.accuracy for one in choice.tried if one.step == 2)
    # A mean over 60 heads has an error of 0.02 at most: half of 1 − chance is far outside.
    assert best > choice.accuracy > tight.accuracy


def test_what_has_no_private_recipe_is_refused():
    with pytest.raises(InputError, match="no private recipe"):
        private_recipe(TransferHead(3, 20, hidden=4), POOL, TEST, epsilon=1.0)


EMPTY = Records(POOL.features[:0], POOL.labels[:0], embedding=POOL.embedding[:0])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("pool", EMPTY), ("pool", None), ("validation", EMPTY), ("validation", "validation")),
        *(("epsilon", wrong) for wrong in (0.0, float("nan"), float("inf"), "8")),
        *(("delta", 0.0), ("delta", 1.0), ("per_class", (1, 1, "2")), ("per_class", 1.5), ("heads", 60.5)),
        *(("seed", "0"), ("recipe", "sgd")),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_what_cannot_be_used_is_named_before_a_head_is_trained(name, wrong, monkeypatch):
    monkeypatch.setattr(TransferHead, "release", lambda *_: pytest.fail("a head was trained"))
    arguments = {"recipe": RECIPE, "pool": POOL, "validation": TEST, "epsilon": 10.0, name: wrong}
    with pytest.raises(InputError, match=f"{name} cannot be used"):
        private_recipe(**arguments)
