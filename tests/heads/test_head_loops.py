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
from remanence.heads.span import train_dual
from remanence.heads.transfer_head import kept_by_dropout, orders, starts, train_loop

BASE = TransferHead(3, 12, 0.05, initialisation="pytorch", loop=Loop())
RECIPES = {
    "sgd": BASE,
    "momentum and decay": replace(BASE, momentum=0.9, weight_decay=0.01),
    "nesterov": replace(BASE, momentum=0.9, loop=Loop(options=(("nesterov", True),))),
    "adam": replace(BASE, optimizer="adam", weight_decay=0.01),
    "adamw": replace(BASE, optimizer="adamw", weight_decay=0.1, loop=Loop(options=(("betas", (0.8, 0.95)),))),
    "rmsprop": replace(BASE, optimizer="rmsprop", momentum=0.5, learning_rate=0.01),
    "nadam": replace(BASE, optimizer="nadam"),
    "adamax": replace(BASE, optimizer="adamax"),
    "adagrad": replace(BASE, optimizer="adagrad"),
    "warm-up and decay": replace(
        BASE, loop=Loop(schedule=tuple(min(1.0, k / 4) * 0.9**k for k in range(12)))
    ),
    "a factor for every step": replace(
        BASE, batch_size=4, loop=Loop(schedule=tuple(0.95**k for k in range(36)))
    ),
    "label smoothing": replace(BASE, loop=Loop(label_smoothing=0.1)),
    "class weights and smoothing": replace(
        BASE, class_weights=(1.0, 2.0, 0.5), loop=Loop(label_smoothing=0.1)
    ),
    "no bias": replace(BASE, loop=Loop(bias=False)),
    "dropout": replace(BASE, loop=Loop(dropout=0.3)),
    "minibatches": replace(BASE, batch_size=4),
    "minibatches that drop the last": replace(BASE, batch_size=4, drop_last=True),
    "hidden units": replace(BASE, hidden=5, learning_rate=0.3),
    "hidden units without biases": replace(BASE, hidden=5, loop=Loop(bias=False)),
    "one output": replace(BASE, classes=2, class_weights=(1.0, 3.0)),
    "GELU between layers": replace(BASE, hidden=5, learning_rate=0.3, loop=Loop(activation="gelu")),
    "SiLU between layers": replace(BASE, hidden=5, learning_rate=0.3, loop=Loop(activation="silu")),
    "tanh between layers": replace(BASE, hidden=5, learning_rate=0.3, loop=Loop(activation="tanh")),
}
OWN = pictures(10, seed=5)


def plain_loop(recipe, features, labels, tensors, generator):
    """One head in an ordinary loop: nn.Linear, a loss, an optimizer, one batch after the other.

    Random choices come from the same stream as in the code under test.
    """
    loop = recipe.loop
    layers = [nn.Linear(*reversed(tensors[i].shape), bias=loop.bias) for i in range(0, len(tensors), 2)]
    for layer, i in zip(layers, range(0, len(tensors), 2), strict=True):
        layer.weight.data = tensors[i].clone()
        if loop.bias:
            layer.bias.data = tensors[i + 1].clone()
    between = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}[loop.activation]
    head = nn.Sequential(layers[0], *[part for layer in layers[1:] for part in (between(), layer)])
    kinds = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "nadam": "NAdam"}
    kinds |= {"adamax": "Adamax", "adagrad": "Adagrad"}
    options = dict(loop.options) | ({"momentum": recipe.momentum} if recipe.momentum else {})
    optimizer = getattr(torch.optim, kinds[recipe.optimizer])(
        head.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **options
    )
    weights = None if recipe.class_weights is None else torch.tensor(recipe.class_weights)
    step = 0
    for epoch in range(recipe.epochs):
        for batch in list(orders(recipe, labels[None], generator)):
            inputs, answers = features[batch[0]], labels[batch[0]]
            if loop.dropout:
                inputs = inputs * kept_by_dropout(loop, batch, features.shape[1], generator)[0]
            if loop.schedule:
                place = epoch if len(loop.schedule) == recipe.epochs else step
                optimizer.param_groups[0]["lr"] = recipe.learning_rate * loop.schedule[place]
            if recipe.outputs == 1:
                loss = nn.BCEWithLogitsLoss(weight=None if weights is None else weights[answers])(
                    head(inputs).squeeze(1), answers.float()
                )
            else:
                loss = nn.CrossEntropyLoss(weights, label_smoothing=loop.label_smoothing)(
                    head(inputs), answers
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return [
        None if part is None else part.detach() for layer in layers for part in (layer.weight, layer.bias)
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_what_a_plain_loop_gives_from_the_same_start(name):
    recipe = RECIPES[name]
    labels, features = OWN.labels % recipe.classes, OWN.embedding
    own = Records(OWN.features, labels, embedding=features)
    trained = recipe.release(None, own[None], torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    tensors = [tensor[0] for tensor in starts(recipe, 1, features.shape[1], generator)]
    by_hand = plain_loop(recipe, features, labels, tensors, generator)
    moved = 0.0
    for found, expected, start in zip(trained.tensors.values(), by_hand, tensors, strict=True):
        if expected is None:
            assert not found.any()
            continue
        # Largest difference: 3e-7 of numbers up to 2.
        torch.testing.assert_close(found[0], expected, rtol=5e-6, atol=5e-6)
        moved = max(moved, float((expected - start).abs().max()))
    assert moved > 1e-3


def test_many_heads_at_once_are_each_as_if_alone():
    recipe = replace(BASE, optimizer="adamw", weight_decay=0.1, batch_size=None)
    sets = torch.stack([pictures(9, seed=seed).embedding for seed in range(4)])
    labels = pictures(9).labels.expand(4, -1)
    together = train_loop(recipe, sets, labels, torch.Generator().manual_seed(0))
    tensors = starts(recipe, 4, sets.shape[2], torch.Generator().manual_seed(0))
    for k in range(4):
        alone = plain_loop(recipe, sets[k], labels[k], [each[k] for each in tensors], torch.Generator())
        torch.testing.assert_close(together["weight"][k], alone[0], rtol=5e-6, atol=5e-6)


def test_a_loop_without_anything_trains_what_the_span_trains():
    inputs, labels = OWN.embedding[None].expand(5, -1, -1), (OWN.labels % 3).expand(5, -1)
    recipe = replace(BASE, momentum=0.9, weight_decay=0.01)
    one = train_loop(recipe, inputs, labels, torch.Generator().manual_seed(1))
    other = train_dual(replace(recipe, loop=None), inputs, labels, torch.Generator().manual_seed(1))
    torch.testing.assert_close(one["weight"], other["weight"], rtol=1e-4, atol=1e-5)


def test_heads_of_such_recipes_are_attacked():
    for loop in (Loop(bias=False, label_smoothing=0.1), Loop(dropout=0.2)):
        game = heads_game(loop=loop, optimizer="adamw", learning_rate=0.02)
        evidence = play(game, LinearReader(400), trials=150)
        assert evidence.main.lower > evidence.control.upper, loop


def test_a_head_without_a_bias_is_read_from_its_weights_alone():
    layer = nn.Linear(24, 3, bias=False)
    found = read_head(layer, replace(BASE, loop=Loop(bias=False)), 24)
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
    sets = Records(OWN.features[None], OWN.labels[None] % 3, embedding=OWN.embedding[None])
    with pytest.raises(InputError, match="does not fit the training"):
        replace(BASE, loop=Loop(schedule=(1.0, 0.5))).release(None, sets, torch.Generator())
    with pytest.raises(InputError, match="refuses these settings"):
        replace(BASE, loop=Loop(options=(("betas", (0.9, 0.9)),))).release(None, sets, torch.Generator())
    with pytest.raises(InputError, match="cannot be trained by DP-SGD"):
        replace(BASE, noise_multiplier=1.0)
