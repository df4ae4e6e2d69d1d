"""What surrounds the weak adversary's attack: what a head is audited with, and what a guess achieves."""

from dataclasses import replace

import pytest
import torch

from conftest import heads_game, pictures
from remanence import (
    HeadAudit,
    InputError,
    Oblivious,
    Reconstructor,
    Records,
    StratifiedPrior,
    TransferHead,
    head_game,
    play,
    public_errors,
    squared_and_absolute_error,
)
from remanence.core.errors import Reduction
from remanence.core.records import concatenate
from remanence.results.caveats import TARGETS_KNOWN

OWN = pictures(3, seed=5)


def test_a_reconstructor_that_asks_for_no_class_draws_one_picture_per_head():
    game = heads_game()
    game = replace(game, criterion=replace(game.criterion, reduction=Reduction.BEST))
    evidence = play(game, Reconstructor(steps=250, batch=64, width=48, conditional=False), trials=60)
    assert evidence.arrays["error"].shape == (60, 1)
    assert evidence.arrays["error"].mean() < evidence.arrays["control_error"].mean()
    assert evidence.main.lower > evidence.control.rate  # three pictures, any of which counts


def test_public_errors_are_quantiles_of_the_distances_within_the_class():
    pool = Records(torch.tensor([[0.0, 0.0], [2.0, 0.0], [50.0, 50.0]]), torch.tensor([0, 0, 1]))
    guesses = Records(torch.tensor([[[0.0, 0.0], [50.0, 52.0]]]), torch.tensor([[0, 1]]))
    found = public_errors(guesses, pool, share=1.0)
    torch.testing.assert_close(found, torch.tensor([[2.0, 2.0]], dtype=torch.float64))


def test_squared_and_absolute_error_is_their_mean_and_keeps_its_reach():
    generator = torch.Generator().manual_seed(0)
    a, b, g = (Records(torch.randn(200, 7, generator=generator), torch.zeros(200)) for _ in range(3))
    off = a.features.double() - g.features.double()
    expected = (off.square().mean(1) + off.abs().mean(1)) / 2
    torch.testing.assert_close(squared_and_absolute_error(a, g), expected)
    within = torch.maximum(squared_and_absolute_error(a, g), squared_and_absolute_error(b, g))
    assert (squared_and_absolute_error(a, b) <= squared_and_absolute_error.reach(within) + 1e-12).all()


def test_a_head_may_be_audited_by_another_error():
    given, public = (OWN.embedding, OWN.features, OWN.labels, TransferHead(3, 1)), pictures(120)
    game = head_game(*given, prior=public, settings=HeadAudit(error=squared_and_absolute_error))
    plain = head_game(*given, prior=public)
    assert game.criterion.error is squared_and_absolute_error
    assert game.criterion.threshold > plain.criterion.threshold  # absolute errors below 1 are the larger part


class Two(torch.nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backbone_or_features": lambda x: x}, "backbone cannot be used"),
        ({"backbone_or_features": Two()}, "backbone's answer"),
        ({"backbone_or_features": OWN.embedding.double()}, "features cannot be used"),
        ({"backbone_or_features": OWN.embedding.unflatten(1, (2, -1))}, "flatten"),
        ({"backbone_or_features": OWN.embedding[:2]}, "embeddings do not fit"),
        ({"backbone_or_features": OWN.embedding * torch.nan}, "targets cannot be used"),
        ({"recipe": {"classes": 3}}, "recipe cannot be used"),
        ({"prior": (pictures(60).features, pictures(60).labels)}, "prior cannot be used"),
        ({"prior": Records(pictures(60).features, pictures(60).labels)}, "no features that fit"),
        ({"prior": pictures(9, seed=8)}, "too few public pictures"),
        ({"prior": pictures(60, classes=2)}, "different classes"),
        ({"prior": concatenate([pictures(60), OWN])}, "among the public ones"),
        ({"labels": torch.tensor([0.0, 0.5, 2.0])}, "labels cannot be used"),
        ({"labels": 3}, "labels cannot be used"),
        ({"images": OWN.features.double()}, "float32"),
        ({"images": OWN.features[:0], "labels": OWN.labels[:0]}, "at least one picture"),
        ({"images": OWN.features.numpy()}, "a tensor"),
        ({"images": OWN.features[:2]}, "do not belong together"),
        ({"images": OWN.features[:, :2]}, "different shapes"),
        ({"images": OWN.features * torch.nan}, "finite numbers"),
        ({"settings": {"error": "mse"}}, "error cannot be used"),
        ({"settings": {"threshold": -1.0}}, "threshold cannot be used"),
    ],
)
def test_what_no_head_can_be_audited_with_is_refused_in_a_sentence(wrong, said):
    given = {"backbone_or_features": OWN.embedding, "images": OWN.features, "labels": OWN.labels}
    given |= {"recipe": TransferHead(3, 1), "prior": pictures(60), **wrong}
    with pytest.raises(InputError, match=said):
        head_game(**{**given, "settings": HeadAudit(**given.pop("settings", {}))})


def test_features_that_ask_for_a_gradient_are_as_good_as_others():
    asking = (OWN.embedding * torch.ones((), requires_grad=True)).clone()
    game = head_game(asking, OWN.features, OWN.labels, TransferHead(3, 1), prior=pictures(60))
    assert not game.heads.targets.records.embedding.requires_grad


def test_training_that_comes_to_nothing_is_no_finding():
    game = heads_game(learning_rate=1e6, weight_decay=1.0, epochs=200)
    for attack in (Reconstructor(steps=5, batch=8, width=8), Oblivious()):
        with pytest.raises(InputError, match="Training diverged"):
            play(game, attack, trials=10)


def test_records_that_the_adversary_holds_are_pointed_out():
    game = heads_game()
    some = replace(game.prior, records=concatenate([pictures(300), pictures(90, seed=1)[:1]]))
    for changes, known in (({}, False), ({"targets": game.prior}, True), ({"prior": some}, True)):
        caveats = play(replace(game, **changes), Oblivious(), trials=5).caveats
        assert (TARGETS_KNOWN in caveats) is known


def test_a_guess_is_about_sets_as_large_as_they_are_not_as_they_are_believed_to_be():
    game = heads_game()
    believed = replace(game, prior=replace(game.prior, counts=(5, 5, 5)))
    assert believed.baseline() == game.baseline()
    assert replace(game, targets=replace(game.targets, counts=5)).baseline().value > game.baseline().value
    some = StratifiedPrior(pictures(90, seed=1)[torch.arange(90) % 3 < 2], 10)  # two of the three classes
    kappas = game.prior.class_baselines(game.criterion, [0, 1])
    met = sum(1 - (1 - kappa.value) ** 10 for kappa in kappas) / 2
    assert replace(game, targets=some).baseline().value == pytest.approx(met)
    few = replace(game.prior, records=pictures(12))  # a belief with fewer records than a set has
    assert replace(game, prior=few, targets=replace(game.targets, counts=10)).baseline().value > 0.999


def test_a_picture_drawn_from_the_prior_is_an_attack_of_its_own():
    evidence = play(heads_game(per_class=2), Oblivious(), trials=100)
    assert evidence.arrays["error"].shape == (100, 3)
    own, strangers = (evidence.arrays[name] <= 0.3 for name in ("error", "control_error"))
    difference = own.double().mean(1) - strangers.double().mean(1)  # it has seen neither of both
    assert abs(evidence.main.rate - evidence.control.rate) == pytest.approx(float(difference.mean().abs()))
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / 10
