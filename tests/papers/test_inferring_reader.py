"""An adversary who was not told the recipe infers it from the head."""

from dataclasses import replace

import torch

from conftest import heads_game
from remanence import LinearReader, Loop, TransferHead, play
from remanence_papers.inferring_reader import InferringReader, Judge, plausible

FEW = tuple(
    TransferHead(3, epochs, rate, optimizer=optimizer, initialisation=start)
    for start in (0.0, "pytorch")
    for epochs, rate, optimizer in ((10, 0.1, "sgd"), (100, 0.1, "sgd"), (30, 0.03, "adam"))
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_recipe_of_a_head_is_found_without_its_pictures():
    game = heads_game()
    judge = Judge.of(game.knowledge, FEW, generator())
    assert judge.recipes == FEW
    right, rejected = [], 0
    for place, recipe in enumerate(FEW):
        owners = game.targets.sample(50, generator(1))
        found, p_values = judge(recipe.release(None, owners, generator(2)))
        right.append(float((found == place).double().mean()))
        rejected += int((p_values <= 0.05).sum())
    assert min(right) > 0.9, right
    assert rejected <= 0.12 * 300  # one in twenty, and what another draw of pictures adds
    unlike = replace(FEW[0], learning_rate=1e-3, initialisation=0.5)
    heads = unlike.release(None, game.targets.sample(50, generator(1)), generator(2))
    assert float((judge(heads)[1] <= 0.01).double().mean()) > 0.9


def test_nothing_of_the_declared_recipe_is_used():
    game = heads_game(epochs=30, learning_rate=0.1, initialisation="pytorch")
    declared = [
        game.mechanism,
        replace(game.mechanism, epochs=3, learning_rate=0.7, optimizer="adam", initialisation=0.5),
        replace(game.mechanism, momentum=0.9, batch_size=2, class_weights=(1.0, 2.0, 3.0)),
    ]
    assert len({tuple(plausible(each)) for each in declared}) == 1
    release = game.mechanism.release(None, game.targets.sample(20, generator(1)), generator(2))
    attack = InferringReader(100, FEW)
    known = (replace(game.knowledge, mechanism=each) for each in declared)
    first, *rest = (attack.prepare(each, generator())(release).records.features for each in known)
    assert all(torch.equal(first, each) for each in rest)


def test_how_a_head_computes_is_read_off_it():
    loop = Loop(bias=False, activation="gelu", label_smoothing=0.1, schedule=(1.0,))
    for recipe in plausible(TransferHead(3, 1, loop=loop)):
        assert recipe.loop == Loop(bias=False, activation="gelu")


def test_inferring_the_recipe_beats_believing_a_wrong_one():
    game = heads_game(epochs=40, learning_rate=0.1, initialisation="pytorch")
    told, inferred, wrong = (
        play(game, attack, trials=150).main
        for attack in (LinearReader(400), InferringReader(400, FEW), InferringReader(400, FEW[:1]))
    )
    assert inferred.lower > wrong.upper
    assert abs(told.rate - inferred.rate) < 0.1
