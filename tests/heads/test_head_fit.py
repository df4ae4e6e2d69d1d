"""Does a head belong? One in twenty of the right recipe is rejected at 5 %, and every wrong one is."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from remanence import HeadAudit, Records, TransferHead, audit_head, head_game
from remanence.core.exceptions import MisfitError
from remanence.core.rates import SuccessRate
from remanence.core.releases import Weights
from remanence.heads.belonging import LEVEL, SIBLINGS, _distances, fit
from remanence.heads.linear_reader import LinearReader
from remanence.heads.pictures import embed
from remanence.results.verdict import exposing

RECIPES = {start: TransferHead(10, 30, 0.05, initialisation=start) for start in (0.002, "pytorch")}


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pictures, labels = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1, torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    records = embed(Records(pictures, labels), backbone)
    return records[:10], records[100:1000], records[1000:1010], backbone


def heads(recipe, own, count, seed):
    light = Records(own.labels[:, None], own.labels, embedding=own.embedding)
    places = torch.zeros(count, dtype=torch.int64)
    return recipe.release(None, light[None][places], torch.Generator().manual_seed(seed))


def in_pytorch(recipe, backbone, views, labels, seed):
    """A head by a plain loop, whose pictures may change from epoch to epoch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(96, 10)
        if recipe.initialisation != "pytorch":
            nn.init.normal_(head.weight, std=recipe.initialisation)
            nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(head.parameters(), lr=recipe.learning_rate)
        for epoch in range(recipe.epochs):
            features = backbone(views(epoch)).detach()
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(features), labels).backward()
            optimizer.step()
    return Weights({name: tensor.detach()[None] for name, tensor in head.state_dict().items()})


def p_value(head, recipe, own, public, seed):
    return fit(recipe, own, public, head, torch.Generator().manual_seed(seed), others=0).p_value


@pytest.mark.parametrize("start", RECIPES)
def test_heads_of_the_right_recipe_are_rejected_as_often_as_the_level_says(start, digits):
    own, public, _, _ = digits
    recipe = RECIPES[start]
    right = heads(recipe, own, 100, seed=1)
    found = [p_value(right.take(slice(k, k + 1)), recipe, own, public, 1000 + k) for k in range(100)]
    rejected = sum(p <= 0.05 for p in found)
    assert rejected <= 13  # of 100 at 5 %: more in one case of a thousand
    assert 34 <= sum(p <= 0.5 for p in found) <= 66  # the same, on either side


def test_a_head_that_a_plain_loop_made_belongs(digits):
    own, public, _, backbone = digits
    for start, recipe in RECIPES.items():
        head = in_pytorch(recipe, backbone, lambda _: own.features, own.labels, seed=3)
        assert p_value(head, recipe, own, public, 5) > 0.05, start


WRONG = {
    "150 epochs instead of 30": lambda r, o, x: heads(replace(r, epochs=150), o, 5, 2),
    "minibatches of 5": lambda r, o, x: heads(replace(r, batch_size=5), o, 5, 3),
    "Adam": lambda r, o, x: heads(replace(r, optimizer="adam", learning_rate=0.01), o, 5, 4),
    "permuted labels": lambda r, o, x: heads(r, replace(o, labels=o.labels.roll(1)), 5, 6),
    "other pictures": lambda r, o, x: heads(r, x, 5, 7),
    "no training at all": lambda r, o, x: heads(replace(r, learning_rate=1e-12), o, 5, 8),
    "weight decay": lambda r, o, x: heads(replace(r, weight_decay=0.1), o, 5, 9),
    "the other initialisation": lambda r, o, x: heads(
        replace(r, initialisation=0.002 if r.initialisation == "pytorch" else "pytorch"), o, 5, 9
    ),
}


@pytest.mark.parametrize("start", RECIPES)
@pytest.mark.parametrize("wrong", WRONG)
def test_heads_that_were_made_otherwise_are_rejected(wrong, start, digits):
    own, public, others, _ = digits
    recipe = RECIPES[start]
    made = WRONG[wrong](recipe, own, others)
    found = [p_value(made.take(slice(k, k + 1)), recipe, own, public, 20 + k) for k in range(len(made))]
    assert max(found) <= LEVEL, found


@pytest.mark.parametrize(("declared", "made"), [("pytorch", 0.002), (0.02, 0.05)])
def test_long_training_does_not_hide_where_it_started(declared, made, digits):
    """Trained weights outgrow initial ones, except in directions that no training picture has."""
    own, public, _, _ = digits
    own, public = (each[each.labels < 3] for each in (own, public))
    recipe = TransferHead(3, 2000, 0.5, momentum=0.9, initialisation=declared)
    otherwise = heads(replace(recipe, initialisation=made), own, 5, seed=2)
    found = [p_value(otherwise.take(slice(k, k + 1)), recipe, own, public, k) for k in range(5)]
    assert max(found) <= LEVEL, found


@pytest.mark.parametrize("start", RECIPES)
def test_heads_on_pictures_that_were_augmented_are_rejected(start, digits):
    own, public, _, backbone = digits
    recipe = RECIPES[start]

    def views(epoch):
        shift = torch.randint(-1, 2, (2,)).tolist()
        return torch.roll(own.features, tuple(shift), (1, 2))

    found = [
        p_value(in_pytorch(recipe, backbone, views, own.labels, seed), recipe, own, public, seed)
        for seed in range(5)
    ]
    assert max(found) <= LEVEL, found


@pytest.mark.parametrize(("epochs", "belongs"), [(30, True), (31, False)])
def test_where_nothing_is_random_rounding_is_no_other_recipe_and_one_epoch_is(epochs, belongs, digits):
    own, public, _, backbone = digits
    recipe = replace(RECIPES[0.002], initialisation=0.0)
    head = in_pytorch(replace(recipe, epochs=epochs), backbone, lambda _: own.features, own.labels, 0)
    assert (p_value(head, recipe, own, public, 0) > LEVEL) is belongs


def test_a_head_that_was_rounded_is_compared_with_heads_that_are(digits):
    own, public, _, _ = digits
    recipe = RECIPES["pytorch"]
    head = Weights(
        {name: values.to(torch.bfloat16) for name, values in heads(recipe, own, 1, 1).tensors.items()}
    )
    assert p_value(head, recipe, own, public, 0) > 0.05


def test_the_p_value_is_a_rank_and_the_furthest_of_all_has_the_smallest(digits):
    own, public, _, _ = digits
    recipe = RECIPES["pytorch"]
    far = {name: values * 3 for name, values in heads(recipe, own, 1, 1).tensors.items()}
    assert p_value(Weights(far), recipe, own, public, 0) == 1 / (SIBLINGS + 1)


def test_heads_on_neighbouring_pictures_are_refused_and_the_power_says_so(digits):
    own, public, others, _ = digits
    recipe = RECIPES["pytorch"]
    found = fit(recipe, own, public, heads(recipe, own, 1, 1), torch.Generator().manual_seed(0))
    assert found.belongs
    assert found.power.rate >= 0.95
    # Pictures that the test has never seen, though the power was measured on public ones.
    strangers = heads(recipe, others, 20, 3)
    refused = [p_value(strangers.take(slice(k, k + 1)), recipe, own, public, k) <= LEVEL for k in range(20)]
    assert sum(refused) >= 18  # of 20: fewer in one case of a hundred at a power of 0.98


def test_where_a_head_has_hardly_learnt_anything_the_test_says_that_it_cannot_tell(digits):
    own, public, _, _ = digits
    recipe = replace(RECIPES["pytorch"], epochs=1, learning_rate=1e-4)
    head = heads(recipe, own, 1, 1)
    found = fit(recipe, own, public, head, torch.Generator().manual_seed(0))
    assert found.belongs
    assert found.power.rate < 0.2  # 0.01 of them are refused by chance
    state = {name: values[0] for name, values in head.tensors.items()}
    result = audit_head(
        own.embedding,
        own.features,
        own.labels,
        recipe,
        prior=public,
        released=state,
        settings=HeadAudit(trials=5, attacks=[LinearReader(50)]),
    )
    assert "similar-pictures" in [caveat.id for caveat in result.strongest.caveats]
    (head,) = result.strongest.findings
    (told,) = head.section().paragraphs
    assert "cannot tell whether these pictures or similar ones were used" in told
    assert "the verdict does not rest on those rates" in told
    # A rate that would be EXPOSED is not, as long as nobody can say that it is about this head.
    sure = replace(result.strongest, main=SuccessRate(100, 100), control=SuccessRate(0, 100))
    assert not exposing(sure, [sure], result.policy)
    known = replace(sure, findings=(replace(head, others=torch.tensor([36, 40])),))
    assert exposing(known, [known], result.policy)


def test_a_start_that_nn_linear_cannot_draw_gives_other_pictures_away(digits):
    own, public, others, _ = digits
    recipe = replace(RECIPES["pytorch"], epochs=10, learning_rate=0.05)
    strangers = heads(recipe, others, 20, 3)
    found = [
        fit(recipe, own, public, strangers.take(slice(k, k + 1)), torch.Generator().manual_seed(k), others=0)
        for k in range(20)
    ]
    furthest = {each.furthest for each in found if not each.belongs}
    assert "the weights that it must have started from" in furthest


def test_a_recipe_that_was_mistaken_in_one_setting_is_named(digits):
    own, public, _, _ = digits
    declared = RECIPES["pytorch"]
    made = heads(replace(declared, epochs=150), own, 1, seed=2)
    state = {name: values[0] for name, values in made.tensors.items()}
    with pytest.raises(MisfitError) as caught:
        head_game(own.embedding, own.features, own.labels, declared, prior=public, released=state).fits()
    assert "epochs 150" in caught.value.hint


def test_distances_of_few_numbers_know_how_they_vary_together():
    generator = torch.Generator().manual_seed(0)
    common, noise = torch.randn(200, 1, generator=generator), torch.randn(200, 2, generator=generator)
    values = (common + 0.01 * noise).double()
    values[0] = torch.tensor([1.2, -1.2])  # within the range of each, and against how they go together
    assert _distances("some", values).argmax() == 0


def test_an_audit_of_a_head_that_does_not_belong_has_no_verdict(digits):
    own, public, _, _ = digits
    recipe = RECIPES["pytorch"]
    untrained = nn.Linear(96, 10)
    with pytest.raises(MisfitError, match="does not match the declared recipe") as caught:
        audit_head(
            own.embedding,
            own.features,
            own.labels,
            recipe,
            prior=public,
            released=untrained,
            settings=HeadAudit(trials=5),
        )
    assert "epochs 30" in caught.value.needs
    assert "p = 0.005" in caught.value.got
    game = head_game(own.embedding, own.features, own.labels, recipe, prior=public)
    game.fits()  # without a head there is nothing to refuse
