"""Recipes as people write them: each against a plain PyTorch loop from the same start, in the same order."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import remove_parametrizations

from conftest import heads_game, pictures
from remanence import InputError, LinearReader, Loop, Records, TransferHead, play
from remanence.heads.reading import read_head
from remanence.heads.transfer_head import kept_by_dropout, orders, starts

BASE = TransferHead(3, 12, 0.05, initialisation="pytorch", loop=Loop())


def loop(recipe=BASE, /, **settings):
    return replace(recipe, loop=Loop(**settings))


DEEP = replace(BASE, hidden=5, learning_rate=0.3)
BATCHES = replace(BASE, batch_size=4)
RECIPES = {
    "sgd": BASE,
    "momentum and decay": replace(BASE, momentum=0.9, weight_decay=0.01),
    "nesterov": loop(replace(BASE, momentum=0.9), options=(("nesterov", True),)),
    "adam": replace(BASE, optimizer="adam", weight_decay=0.01),
    "adamw": loop(replace(BASE, optimizer="adamw", weight_decay=0.1), options=(("betas", (0.8, 0.95)),)),
    "rmsprop": replace(BASE, optimizer="rmsprop", momentum=0.5, learning_rate=0.01),
    **{name: replace(BASE, optimizer=name) for name in ("nadam", "adamax", "adagrad")},
    "warm-up and decay": loop(schedule=tuple(min(1.0, k / 4) * 0.9**k for k in range(12))),
    "a factor for every step": loop(BATCHES, schedule=tuple(0.95**k for k in range(36))),
    "label smoothing": loop(label_smoothing=0.1),
    "class weights and smoothing": loop(replace(BASE, class_weights=(1.0, 2.0, 0.5)), label_smoothing=0.1),
    "no bias": loop(bias=False),
    "dropout": loop(dropout=0.3),
    "minibatches": BATCHES,
    "minibatches that drop the last": replace(BATCHES, drop_last=True),
    "hidden units": DEEP,
    "hidden units without biases": loop(DEEP, bias=False),
    "one output": replace(BASE, classes=2, class_weights=(1.0, 3.0)),
    **{f"{name} between layers": loop(DEEP, activation=name) for name in ("gelu", "silu", "tanh")},
}
SPAN = replace(BASE, loop=None, epochs=20, learning_rate=0.1, initialisation=0.002)
TWO = replace(SPAN, classes=2, task=(0, 1, 0))
RECIPES |= {  # without a loop: in the span of the records, or as a small network
    "span": SPAN,
    "span, nn.Linear's start": replace(SPAN, initialisation="pytorch"),
    "span, momentum and decay": replace(SPAN, momentum=0.5, weight_decay=0.05),
    "span, class weights": replace(SPAN, class_weights=(1.0, 3.0, 0.5)),
    "span, one output": replace(TWO, class_weights=(1.0, 10.0), momentum=0.9),
    "span, two outputs": replace(TWO, class_weights=(1.0, 10.0), two_outputs=True),
    "span, more records than are unrolled": replace(SPAN, epochs=5),
    "network, adam": replace(SPAN, optimizer="adam", weight_decay=0.1, class_weights=(1.0, 3.0, 0.5)),
    "network, hidden units": replace(SPAN, hidden=4, initialisation="he"),
    "network, one output": replace(TWO, hidden=4, initialisation="he", class_weights=(1.0, 2.0)),
}
OWN = pictures(10, seed=5)


def plain_loop(recipe, sets, trial, generator):
    """One head of several in an ordinary loop: nn.Linear, a loss, an optimizer, one batch after the other.

    The start, and the random choices, come from the same stream as in the code under test.
    """
    settings, features, labels = recipe.loop or Loop(), sets.embedding[trial], recipe.classes_of(sets)
    tensors = [each[trial] for each in starts(recipe, len(sets), features.shape[1], generator)]
    layers = [nn.Linear(*reversed(tensors[i].shape), bias=settings.bias) for i in range(0, len(tensors), 2)]
    for layer, i in zip(layers, range(0, len(tensors), 2), strict=True):
        layer.weight.data = tensors[i].clone()
        if settings.bias:
            layer.bias.data = tensors[i + 1].clone()
    between = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}[settings.activation]
    head = nn.Sequential(layers[0], *[part for layer in layers[1:] for part in (between(), layer)])
    kinds = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "nadam": "NAdam"}
    kinds |= {"adamax": "Adamax", "adagrad": "Adagrad"}
    options = dict(settings.options) | ({"momentum": recipe.momentum} if recipe.momentum else {})
    optimizer = getattr(torch.optim, kinds[recipe.optimizer])(
        head.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **options
    )
    weights = None if recipe.class_weights is None else torch.tensor(recipe.class_weights)
    step = 0
    for epoch in range(recipe.epochs):
        for batch in list(orders(recipe, labels, generator)):
            inputs, answers = features[batch[trial]], labels[trial, batch[trial]]
            if settings.dropout:
                inputs = inputs * kept_by_dropout(settings, batch, features.shape[1], generator)[trial]
            if settings.schedule:
                place = epoch if len(settings.schedule) == recipe.epochs else step
                optimizer.param_groups[0]["lr"] = recipe.learning_rate * settings.schedule[place]
            if recipe.outputs == 1:
                loss = nn.BCEWithLogitsLoss(weight=None if weights is None else weights[answers])
                mean = loss(head(inputs).squeeze(1), answers.float())
            else:
                loss = nn.CrossEntropyLoss(weights, label_smoothing=settings.label_smoothing)
                mean = loss(head(inputs), answers)
            optimizer.zero_grad()
            mean.backward()
            optimizer.step()
            step += 1
    return layers, tensors, head(features)


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# In single precision, training multiplies the rounding of one step by hundreds: tanh differs by 6e-6. In double
# precision the largest difference is 3e-9, where class weights are single; all others are below 3e-14.
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_what_a_plain_loop_gives_from_the_same_start(name):
    recipe, count = RECIPES[name], 70 if "unrolled" in name else 10
    sets = [pictures(count, seed=seed) for seed in (5, 6, 7)]
    labels = sets[0].labels if recipe.task else sets[0].labels % recipe.classes
    pixels, embedding = (
        torch.stack([getattr(one, kind) for one in sets]).double() for kind in ("features", "embedding")
    )
    sets = Records(pixels, labels.expand(3, -1), embedding=embedding)
    trained = recipe.release(None, sets, torch.Generator().manual_seed(3))
    right = recipe.accuracy(trained, sets[0])
    for trial in range(3):
        layers, tensors, answers = plain_loop(recipe, sets, trial, torch.Generator().manual_seed(3))
        by_hand = [part for layer in layers for part in (layer.weight, layer.bias)]
        moved = 0.0
        for found, expected, start in zip(trained.tensors.values(), by_hand, tensors, strict=True):
            if expected is None:
                assert not found.any()
                continue
            torch.testing.assert_close(found[trial], expected.detach(), rtol=1e-7, atol=1e-7)
            moved = max(moved, float((expected.detach() - start).abs().max()))
        assert moved > 1e-3
        if trial == 0:
            said = answers.argmax(1) if recipe.outputs > 1 else (answers[:, 0] > 0).long()
            assert right[0] == (said == recipe.classes_of(sets[0])).float().mean()


def test_heads_of_such_recipes_are_attacked():
    for settings in (Loop(bias=False, label_smoothing=0.1), Loop(dropout=0.2)):
        game = heads_game(loop=settings, optimizer="adamw", learning_rate=0.02)
        evidence = play(game, LinearReader(400), trials=150)
        assert evidence.main.lower > evidence.control.upper, settings


def test_a_head_without_a_bias_is_read_from_its_weights_alone():
    layer = nn.Linear(24, 3, bias=False)
    found = read_head(layer, loop(bias=False), 24)
    torch.testing.assert_close(found["weight"][0], layer.weight.data)
    assert not found["bias"].any()
    with pytest.raises(InputError, match="weights do not fit") as caught:
        read_head(layer, BASE, 24)
    assert "bias=False" in caught.value.hint


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_weights_that_are_computed_from_others_are_refused_by_their_names(norm):
    layer = norm(nn.Linear(24, 3)).eval()  # in training, each look at a spectral norm makes it more precise
    with pytest.raises(InputError, match="computes its weights from other numbers") as caught:
        read_head(layer, BASE, 24)
    assert "parametrizations.weight.original" in caught.value.got
    answered = layer.weight.detach().clone()
    remove_parametrizations(layer, "weight")
    torch.testing.assert_close(read_head(layer, BASE, 24)["weight"][0], answered)


def test_loops_that_nobody_can_run_are_refused():
    for wrong in ({"dropout": 1.0}, {"label_smoothing": -0.1}, {"schedule": (-1.0,)}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} cannot be used"):
            Loop(**wrong)
    for wrong, says in (
        ({"schedule": (1.0, 0.5)}, "does not fit the training"),
        ({"options": (("betas", (0.9, 0.9)),)}, "refuses these settings"),
    ):
        with pytest.raises(InputError, match=says):
            loop(**wrong).release(None, OWN[None], torch.Generator())
    with pytest.raises(InputError, match="cannot be trained by DP-SGD"):
        replace(BASE, noise_multiplier=1.0)
