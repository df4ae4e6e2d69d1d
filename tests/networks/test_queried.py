"""What an API returns, and what it keeps back."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import heads_game, network_game, pictures, synthetic
from remanence import (
    DPSGD,
    SGD,
    AnyModule,
    Criterion,
    FinitePrior,
    Game,
    InputError,
    Perceptron,
    Queried,
    Reconstructor,
    Records,
    RetrainAndCompare,
    looped,
    mismatch,
    play,
)
from remanence.networks.mechanism import ANSWERS
from remanence.testing import check_mechanism

PROBE = Records(torch.zeros(1, 1), torch.zeros(1))
# Beside the first class, the others' probabilities round to 0: 0.00005 and 0.00002.
SECOND, THIRD = [10.0, 0.0, -1.0], [10.0, -1.0, 0.0]


def says(*logits: list[float], answers: str, **settings) -> Game:
    """A model whose answer to one probe is the target's own features."""
    people = Records(torch.tensor(logits), torch.zeros(len(logits)))
    training = looped(
        lambda records, seed: {"last": records.features[-1]}, ask=lambda told, _: told["last"][None]
    )
    game = Game(training, FinitePrior(people), people, Criterion(mismatch, 0.5))
    return replace(game, mechanism=Queried(training, PROBE, answers, **settings))


def released(game: Game) -> dict[str, list]:
    targets = game.prior.candidates[:, None]
    release = game.mechanism.release(game.known_data, targets, torch.Generator())
    return {name: tensor[:, 0].tolist() for name, tensor in release.tensors.items()}


def test_a_class_of_a_top_answer_is_seen_although_its_probability_is_rounded_to_nothing():
    game = says(SECOND, THIRD, answers="top", top=2)
    assert released(game) == {
        "answers": [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        "returned": [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]],
    }
    assert play(game, RetrainAndCompare(), trials=30).main.rate == 1


@pytest.mark.parametrize(
    ("answers", "settings", "expected"),
    [
        ("logits", {}, [1.26, 0.04, -0.5]),
        ("logits", {"decimals": 1}, [1.3, 0.0, -0.5]),
        ("probabilities", {}, torch.tensor([1.26, 0.04, -0.5]).softmax(0).tolist()),
        ("probabilities", {"decimals": 1}, [0.7, 0.2, 0.1]),
        ("top", {"top": 2}, [0.68, 0.2, 0.0]),
        ("top", {"top": 2, "decimals": 0}, [1.0, 0.0, 0.0]),
        ("label", {}, [1.0, 0.0, 0.0]),  # which class comes first, and no more
    ],
)
def test_every_kind_of_answer_is_rounded_where_that_is_asked_for(answers, settings, expected):
    game = says([1.26, 0.04, -0.5], answers=answers, **settings)
    assert released(game)["answers"][0] == pytest.approx(expected, abs=1e-6)
    assert game.mechanism.settings().get("decimals") == settings.get(
        "decimals", 2 if answers == "top" else None
    )


def test_a_single_output_is_the_second_of_two_classes():
    assert released(says([-2.0], [0.5], answers="label"))["answers"] == [[1.0, 0.0], [0.0, 1.0]]
    shares = torch.tensor(released(says([-2.0], [0.5], answers="probabilities"))["answers"])
    torch.testing.assert_close(shares[:, 1], torch.tensor([-2.0, 0.5]).sigmoid())
    assert released(says([-2.0], answers="logits"))["answers"] == [[-2.0]]


def test_an_attack_plays_on_labels_that_never_change():
    game = network_game(epochs=1, learning_rate=1e-9)
    queried = replace(game, mechanism=Queried(game.mechanism, game.known_data[:4], "label"))
    evidence = play(queried, Reconstructor(steps=5, shadows=100), trials=20)
    assert evidence.main.trials == 20
    assert evidence.arrays["error"].isfinite().all()


@pytest.mark.parametrize("answers", ANSWERS)
def test_every_kind_of_answer_keeps_the_contract_of_a_mechanism(answers):
    game = network_game()
    mechanism = Queried(game.mechanism, game.known_data[:4], answers, top=2)
    check_mechanism(mechanism, game.known_data, game.targets.sample(3, torch.Generator()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answers": "whispers"}, "answers cannot be used"),
        ({"answers": "top", "top": 0}, "top cannot be used"),
        ({"decimals": -1}, "decimals cannot be used"),
        ({"decimals": 400}, "decimals cannot be used"),
        ({"probes": synthetic(5)[:0]}, "no probes"),
        ({"probes": synthetic(5)[None]}, "no probes"),
        ({"probes": Records(torch.full((2, 4), torch.nan), torch.zeros(2))}, "NaN or infinite"),
    ],
)
def test_questions_that_nobody_can_answer_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Queried(**{"mechanism": SGD(Perceptron((4, 2)), 1, 0.1), "probes": synthetic(5), **settings})


def test_a_top_answer_with_more_classes_than_there_are_is_refused():
    with pytest.raises(InputError, match="a whole number from 1 to 3"):
        released(says(SECOND, answers="top", top=4))
    assert released(says(SECOND, answers="top", top=3))["returned"] == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    "training",
    [
        SGD(Perceptron((9, 3)), 1, 0.1),
        SGD(AnyModule(nn.Sequential(nn.Conv1d(3, 1, 3), nn.Flatten())), 1, 0.1),
        DPSGD(Perceptron((9, 3)), 1.0, 1, final_only=True),
    ],
    ids=["SGD", "any module", "DP-SGD"],
)
def test_probes_that_the_network_cannot_read_are_refused_before_training(training):
    Queried(training, pictures(4))
    with pytest.raises(InputError, match="cannot read the records"):
        Queried(training, synthetic(4))


def test_probes_whose_embeddings_do_not_fit_the_head_are_refused():
    game = heads_game()
    targets, good = game.targets.sample(2, torch.Generator()), pictures(4)
    answers = Queried(game.mechanism, good).release(None, targets, torch.Generator())["answers"]
    assert answers.shape == (2, 4, 3)
    for bad in (replace(good, embedding=good.flat), replace(good, embedding=None)):
        with pytest.raises(InputError, match="embeddings of 24 numbers"):
            Queried(game.mechanism, bad).release(None, targets, torch.Generator())


def test_nobody_needs_to_know_the_labels_of_probes():
    game = network_game()
    unknown = replace(game.known_data, labels=torch.full((30,), torch.nan))
    targets = game.targets.sample(2, torch.Generator())
    found = [
        Queried(game.mechanism, probes).release(game.known_data, targets, torch.Generator())["answers"]
        for probes in (game.known_data, unknown)
    ]
    assert torch.equal(*found)
