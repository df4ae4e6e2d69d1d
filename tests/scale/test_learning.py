"""Shadow models are units too, and what an attack learns outlives a kill."""

from dataclasses import replace

import pytest
import torch

from conftest import heads_game, network_game
from remanence import Reconstructor, play
from remanence.reconstructor.learning import Learner
from remanence.reconstructor.shadows import ShadowFarm, split
from remanence.scale.journal import Journal, read_status
from remanence.scale.processes import Processes
from remanence.scale.run import Run
from remanence.scale.seeds import stream

ATTACK = Reconstructor(steps=40, batch=16, shadows=60, width=16)


def farm(game):
    return ShadowFarm(split(game.knowledge)[0], stream(0, "attack", "cpu"))


def same(one, other):
    assert one.tensors.keys() == other.tensors.keys()
    return all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_shadows_are_the_same_wherever_they_are_trained(tmp_path, monkeypatch):
    game = network_game(initial_seed=None)  # training that draws
    monkeypatch.setattr(type(game.mechanism), "trials_at_once", lambda *_: 25)
    alone = farm(game).stored(60)
    with Run(Processes(2), Journal(tmp_path)) as run:
        assert same(farm(game).stored(60, run), alone)
    assert read_status(tmp_path).works[0].units == 3
    with Run(journal=Journal(tmp_path), resume=True) as run:
        assert same(farm(game).stored(60, run), alone)
        assert (run.reused, run.played) == (3, 0)
    first, second = (alone.tensors["parameters"][i : i + 25].std(0) for i in (0, 25))
    assert not torch.equal(first, second), "blocks that repeat each other are not independent"


def test_shadow_units_hold_no_records(tmp_path):
    game = network_game()
    with Run(journal=Journal(tmp_path)) as run:
        shadows = farm(game).stored(40, run)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "units").iterdir())
    for record in shadows.targets.features[:5]:
        assert record.numpy().tobytes() not in stored


STREAMED = Reconstructor(steps=40, batch=16, width=16)
learning = pytest.mark.parametrize(
    ("game", "attack"),
    [(network_game(), ATTACK), (heads_game(), STREAMED)],
    ids=["stored shadows", "streamed shadows"],
)


@learning
def test_learning_that_was_killed_ends_with_the_same_bits(tmp_path, monkeypatch, game, attack):
    whole = play(game, attack, trials=30)
    store, stored = Learner._store, []

    def killed(self, parts, state):
        store(self, parts, state)
        stored.append(state["step"])
        if len(stored) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "_store", killed)
    with pytest.raises(KeyboardInterrupt), Run(journal=Journal(tmp_path)) as run:
        play(game, attack, trials=30, run=run)
    assert stored == [2, 4, 6]
    assert len(list((tmp_path / "learning").iterdir())) == 1
    stored.append(0)
    with Run(journal=Journal(tmp_path)) as run:
        again = play(game, attack, trials=30, run=run)
    assert stored[4] == 8, "learning began anew"
    assert torch.equal(again.arrays["error"], whole.arrays["error"])


@learning
def test_a_finished_run_that_is_resumed_learns_nothing(tmp_path, monkeypatch, game, attack):
    with Run(journal=Journal(tmp_path)) as run:
        whole = play(game, attack, trials=30, run=run)
    kept = sorted((tmp_path / "learning").iterdir())
    assert len(kept) == 1
    monkeypatch.setattr(Learner, "_store", lambda *_: pytest.fail("it learns again"))
    with Run(journal=Journal(tmp_path), resume=True) as run:
        again = play(game, attack, trials=30, run=run)
        assert run.played == 0
    assert torch.equal(again.arrays["error"], whole.arrays["error"])
    assert sorted((tmp_path / "learning").iterdir()) == kept
    monkeypatch.undo()
    with Run(journal=Journal(tmp_path)) as run:  # anew: nothing of the finished one is used
        play(game, replace(attack, steps=30), trials=30, run=run)
    assert len(list((tmp_path / "learning").iterdir())) == 1
    assert not set((tmp_path / "learning").iterdir()) & set(kept)
