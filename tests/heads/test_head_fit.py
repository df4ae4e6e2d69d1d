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
from remanence.heads.pictures import embed, without_pictures
from remanence.results.verdict import exposing

PLAIN = TransferHead(10, 30, 0.05, initialisation="pytorch")
RECIPES = {start: replace(PLAIN, initialisation=start) for start in (0.002, "pytorch")}


def digits():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pictures, labels = torch.tensor(pixels).float().view(-1, 8, 8) / 8 - 1, torch.tensor(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
    records = embed(Records(pictures, labels), backbone)
    return records[:10], records[100:1000], records[1000:1010], backbone


OWN, PUBLIC, OTHERS, BACKBONE = digits()


def heads(recipe, count, seed, own=OWN):
    places = torch.zeros(count, dtype=torch.int64)
    return recipe.release(None, without_pictures(own)[None][places], torch.Generator().manual_seed(seed))


def in_pytorch(recipe, seed, views=lambda _: OWN.features):
    """A head by a plain loop, whose pictures may change from epoch to epoch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(96, 10)
        if recipe.initialisation != "pytorch":
            nn.init.normal_(head.weight, std=recipe.initialisation)
            nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(head.parameters(), lr=recipe.learning_rate)
        for epoch in range(recipe.epochs):
            features = BACKBONE(views(epoch)).detach()
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(features), OWN.labels).backward()
            optimizer.step()
    return Weights({name: tensor.detach()[None] for name, tensor in head.state_dict().items()})


def p_value(head, recipe, seed, own=OWN, public=PUBLIC):
    return fit(recipe, own, public, head, torch.Generator().manual_seed(seed), others=0).p_value


def p_values(made, recipe, seed, **pictures):
    """Of each of these heads."""
    return [p_value(made.take(slice(k, k + 1)), recipe, seed + k, **pictures) for k in range(len(made))]


def audited(recipe, released, **settings):
    asked = HeadAudit(trials=5, **settings)
    return audit_head(
        OWN.embedding, OWN.features, OWN.labels, recipe, prior=PUBLIC, released=released, settings=asked
    )


@pytest.mark.parametrize("start", RECIPES)
def test_heads_of_the_right_recipe_are_rejected_as_often_as_the_level_says(start):
    recipe = RECIPES[start]
    found = p_values(heads(recipe, 100, seed=1), recipe, 1000)
    assert sum(p <= 0.05 for p in found) <= 13  # of 100 at 5 %: more in one case of a thousand
    assert 34 <= sum(p <= 0.5 for p in found) <= 66  # the same, on either side


@pytest.mark.parametrize("start", RECIPES)
def test_a_head_that_a_plain_loop_made_belongs(start):
    assert p_value(in_pytorch(RECIPES[start], seed=3), RECIPES[start], 5) > 0.05


def shifted(_):
    return torch.roll(OWN.features, tuple(torch.randint(-1, 2, (2,)).tolist()), (1, 2))


WRONG = {
    "150 epochs instead of 30": lambda r: heads(replace(r, epochs=150), 5, 2),
    "minibatches of 5": lambda r: heads(replace(r, batch_size=5), 5, 3),
    "Adam": lambda r: heads(replace(r, optimizer="adam", learning_rate=0.01), 5, 4),
    "permuted labels": lambda r: heads(r, 5, 6, replace(OWN, labels=OWN.labels.roll(1))),
    "other pictures": lambda r: heads(r, 5, 7, OTHERS),
    "no training at all": lambda r: heads(replace(r, learning_rate=1e-12), 5, 8),
    "weight decay": lambda r: heads(replace(r, weight_decay=0.1), 5, 9),
    "the other initialisation": lambda r: heads(
        RECIPES[0.002 if r.initialisation == "pytorch" else "pytorch"], 5, 9
    ),
    "augmented pictures": lambda r: Weights.concatenate([in_pytorch(r, seed, shifted) for seed in range(5)]),
}


@pytest.mark.parametrize("start", RECIPES)
@pytest.mark.parametrize("wrong", WRONG)
def test_heads_that_were_made_otherwise_are_rejected(wrong, start):
    recipe = RECIPES[start]
    found = p_values(WRONG[wrong](recipe), recipe, 20)
    assert max(found) <= LEVEL, found


@pytest.mark.parametrize(("declared", "made"), [("pytorch", 0.002), (0.02, 0.05)])
def test_long_training_does_not_hide_where_it_started(declared, made):
    """Trained weights outgrow initial ones, except in directions that no training picture has."""
    own, public = (each[each.labels < 3] for each in (OWN, PUBLIC))
    recipe = TransferHead(3, 2000, 0.5, momentum=0.9, initialisation=declared)
    otherwise = heads(replace(recipe, initialisation=made), 5, 2, own)
    found = p_values(otherwise, recipe, 0, own=own, public=public)
    assert max(found) <= LEVEL, found


@pytest.mark.parametrize(
    ("epochs", "kind", "belongs"),
    [(30, torch.float32, True), (30, torch.bfloat16, True), (31, torch.float32, False)],
)
def test_where_nothing_is_random_rounding_is_no_other_recipe_and_one_epoch_is(epochs, kind, belongs):
    recipe = replace(PLAIN, initialisation=0.0)
    head = in_pytorch(replace(recipe, epochs=epochs), 0)
    rounded = Weights({name: values.to(kind) for name, values in head.tensors.items()})
    assert (p_value(rounded, recipe, 0) > LEVEL) is belongs


def test_the_p_value_is_a_rank_and_the_furthest_of_all_has_the_smallest():
    far = {name: values * 3 for name, values in heads(PLAIN, 1, 1).tensors.items()}
    assert p_value(Weights(far), PLAIN, 0) == 1 / (SIBLINGS + 1)


def test_heads_on_neighbouring_pictures_are_refused_and_the_power_says_so():
    found = fit(PLAIN, OWN, PUBLIC, heads(PLAIN, 1, 1), torch.Generator().manual_seed(0))
    assert found.belongs
    assert found.power.rate >= 0.95
    # Pictures that the test has never seen, though the power was measured on public ones.
    refused = [p <= LEVEL for p in p_values(heads(PLAIN, 20, 3, OTHERS), PLAIN, 0)]
    assert sum(refused) >= 18  # of 20: fewer in one case of a hundred at a power of 0.98


def test_where_a_head_has_hardly_learnt_anything_the_test_says_that_it_cannot_tell():
    recipe = replace(PLAIN, epochs=1, learning_rate=1e-4)
    head = heads(recipe, 1, 1)
    result = audited(
        recipe, {name: values[0] for name, values in head.tensors.items()}, attacks=[LinearReader(50)]
    )
    assert "similar-pictures" in [caveat.id for caveat in result.strongest.caveats]
    (head,) = result.strongest.findings
    assert head.power.rate < 0.2  # 0.01 of them are refused by chance
    (told,) = head.section().paragraphs
    assert "cannot tell whether these pictures or similar ones were used" in told
    assert "the verdict does not rest on those rates" in told
    # A rate that would be EXPOSED is not, as long as nobody can say that it is about this head.
    sure = replace(result.strongest, main=SuccessRate(100, 100), control=SuccessRate(0, 100))
    assert not exposing(sure, [sure], result.policy)
    known = replace(sure, findings=(replace(head, others=torch.tensor([36, 40])),))
    assert exposing(known, [known], result.policy)


def test_a_start_that_nn_linear_cannot_draw_gives_other_pictures_away():
    recipe = replace(PLAIN, epochs=10)
    strangers = heads(recipe, 20, 3, OTHERS)
    found = [
        fit(recipe, OWN, PUBLIC, strangers.take(slice(k, k + 1)), torch.Generator().manual_seed(k), others=0)
        for k in range(20)
    ]
    furthest = {each.furthest for each in found if not each.belongs}
    assert "the weights that it must have started from" in furthest


def test_distances_of_few_numbers_know_how_they_vary_together():
    generator = torch.Generator().manual_seed(0)
    common, noise = torch.randn(200, 1, generator=generator), torch.randn(200, 2, generator=generator)
    values = (common + 0.01 * noise).double()
    values[0] = torch.tensor([1.2, -1.2])  # within the range of each, and against how they go together
    assert _distances("some", values).argmax() == 0


def test_an_audit_of_a_head_that_does_not_belong_has_no_verdict_and_names_the_setting_that_was_mistaken():
    with pytest.raises(MisfitError, match="does not match the declared recipe") as caught:
        audited(PLAIN, nn.Linear(96, 10))
    assert "epochs 30" in caught.value.needs
    assert "p = 0.005" in caught.value.got
    longer = {name: values[0] for name, values in heads(replace(PLAIN, epochs=150), 1, 2).tensors.items()}
    with pytest.raises(MisfitError) as caught:
        audited(PLAIN, longer)
    assert "epochs 150" in caught.value.hint
    # Without a head there is nothing to refuse.
    head_game(OWN.embedding, OWN.features, OWN.labels, PLAIN, prior=PUBLIC).fits()
