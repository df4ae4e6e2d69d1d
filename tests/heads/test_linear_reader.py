"""`linear-reader`: one ridge regression per class, the first attack on every head."""

from dataclasses import replace

import pytest
import torch

from conftest import heads_game, network_game, pictures
from remanence import (
    IncompatibleGameError,
    InputError,
    LinearReader,
    Reconstructor,
    Records,
    StratifiedPrior,
    play,
)
from remanence.heads.linear_reader import _ridge, _Sums, learn_reading
from remanence.reconstructor.shadows import ShadowFarm, split


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def reading(game, shadows=400):
    ours, aside = split(game.knowledge)
    farm, others = ShadowFarm(ours, generator()), ShadowFarm(aside, generator(1))
    return learn_reading(LinearReader().check(ours), farm.blocks(shadows), others.block(60))


def test_a_head_that_is_a_linear_function_of_its_pictures_gives_them_back_whole():
    # One small step from nothing, on the pictures themselves: row c is rate · (x_c − Σ x / 3) / 3. What all classes
    # share is lost, so the pictures of this game share no pixel.
    def apart(records):
        blocks = torch.zeros(len(records), 3, 9)
        blocks[torch.arange(len(records)), records.labels] = records.features.flatten(1)
        return Records(blocks.flatten(1), records.labels, embedding=blocks.flatten(1))

    game = heads_game(epochs=1, learning_rate=1e-3, initialisation=0.0)
    prior, targets = (StratifiedPrior(apart(pictures(300, seed=seed))) for seed in (0, 1))
    criterion = replace(game.criterion, threshold=1e-3)  # a thousandth of what the pictures vary by
    game = replace(game, prior=prior, targets=targets, criterion=criterion)
    evidence = play(game, LinearReader(400), trials=50)
    assert evidence.main.rate == 1.0
    assert evidence.control.rate < 0.1


def test_it_beats_its_control_on_ordinary_heads_and_on_those_of_other_kinds():
    deep, two_classes = {"hidden": 6, "initialisation": 0.1}, {"classes": 2, "task": (0, 1, 1)}
    for settings in ({}, {"optimizer": "adam"}, deep, two_classes):
        evidence = play(heads_game(**settings), LinearReader(400), trials=200)
        assert evidence.main.lower > evidence.control.upper, settings


def test_several_pictures_of_a_class_come_back_as_their_mean():
    game = heads_game(per_class=3)
    drawn = reading(game)
    targets = game.targets.sample(200, generator(2))
    seen = drawn.draw(game.mechanism.release(None, targets, generator(3)).tensors)
    means = targets.features[:, game.targets.places].mean(2)
    usual = game.prior.records.features[game.prior.records.labels == 0].mean(0)
    assert (seen[:, 0] - means[:, 0]).square().mean() < 0.5 * (usual - means[:, 0]).square().mean()


def test_sums_over_blocks_are_those_of_all_at_once():
    x, y = torch.randn(90, 2, 5, generator=generator()) + 3, torch.randn(90, 2, 4, generator=generator(1)) - 7
    sums = _Sums(2)
    for start in range(0, 90, 40):
        sums.add(x[start : start + 40], y[start : start + 40])
    both = torch.cat([x[:, 1], y[:, 1]], 1).T.cov(correction=0)
    own, cross = sums.of(1)
    torch.testing.assert_close(own, both[:5, :5], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cross, both[:5, 5:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums.mean_x, x.mean(0))
    torch.testing.assert_close(sums.mean_y, y.mean(0))


def test_the_penalty_is_the_one_that_comes_closest_to_pictures_that_were_held_out():
    from sklearn.linear_model import Ridge

    sizes = (60, 8), (260, 3), (8, 3), (200, 8)
    x, noise, truth, asked = (
        torch.randn(size, generator=generator(seed)).double() for seed, size in enumerate(sizes)
    )
    y = x @ truth + 2 * noise[:60]
    x, y = x - x.mean(0), y - y.mean(0)
    own = asked @ truth + 2 * noise[60:]
    found = _ridge(x.T @ x / 60, x.T @ y / 60, asked, own[:, None])
    unit = float((x.T @ x / 60).diagonal().mean())

    def solved(power):
        return torch.tensor(Ridge(60 * unit * 10.0**power, fit_intercept=False).fit(x, y).coef_.T)

    best = min(range(-6, 3), key=lambda power: float((asked @ solved(power) - own).square().mean()))
    assert -6 < best < 2
    torch.testing.assert_close(found.double(), solved(best), rtol=1e-4, atol=1e-5)


def test_the_network_starts_as_the_linear_reader_and_is_never_below_it():
    game, seen = heads_game(initialisation="pytorch", learning_rate=0.3), []
    attack = Reconstructor(
        steps=40, batch=32, width=16, separation=0.0, watch=lambda step, error, _: seen.append((step, error))
    )
    network = attack.prepare(game.knowledge, generator())
    assert [step for step, _ in seen][:2] == [0, 2]
    silent = replace(attack, steps=1, learning_rate=1e-12, watch=None).prepare(game.knowledge, generator())
    targets = game.targets.sample(300, generator(5))
    release = game.mechanism.release(None, targets, generator(6))
    errors = [
        float(game.criterion.compare(targets, draw(release).records).errors.mean())
        for draw in (silent, network)
    ]
    by_hand = reading(game, 4000).draw(release.tensors)
    linear = (by_hand - targets.features).square().flatten(2).mean()
    assert errors[0] == pytest.approx(float(linear), rel=0.1)  # other shadows, and nothing else
    assert errors[1] < errors[0] * 1.02  # chosen on held-out shadows, of which there are few


def test_with_several_records_of_a_class_the_network_starts_afresh_and_gives_way_where_it_learnt_too_little():
    game, seen = heads_game(initialisation="pytorch", learning_rate=0.3), []
    several = replace(game, prior=replace(game.prior, counts=2), targets=replace(game.targets, counts=2))
    watch = lambda step, *_: seen.append(step)  # noqa: E731
    attack = Reconstructor(steps=2, batch=8, width=16, separation=0.0, watch=watch)
    draw = attack.prepare(several.knowledge, generator())
    assert seen == [1, 2]  # nothing to look at before the first step
    targets = several.targets.sample(300, generator(5))
    release = several.mechanism.release(None, targets, generator(6))
    by_hand = reading(several, 4000).draw(release.tensors)
    drawn = draw(release).records.features
    spread = (by_hand - by_hand.mean(0)).square().mean()
    # Two steps teach nothing: the linear reader speaks.
    assert (drawn - by_hand).square().mean() < 0.1 * spread


def test_it_comes_before_the_network_in_every_audit_of_heads():
    names = [attack.info.name for attack in heads_game().attacks()]
    assert names[:2] == ["linear-reader", "reconstructor"]


def test_it_refuses_what_it_cannot_read():
    with pytest.raises(IncompatibleGameError, match="linear-reader cannot attack"):
        LinearReader().check(network_game().knowledge)
    with pytest.raises(InputError, match="shadows cannot be used"):
        LinearReader(shadows=1)
