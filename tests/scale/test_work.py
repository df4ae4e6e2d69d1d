"""Units: independent of each other, of who runs them and of when."""

import os
import re
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from conftest import Playing, dpsgd_game, shortlist_game, synthetic
from remanence import (
    GLM,
    InputError,
    LeaveOneOut,
    Logistic,
    Membership,
    Oblivious,
    Policy,
    PriorAware,
    Reconstruction,
    RetrainAndCompare,
    audit,
    play,
)
from remanence.core.records import concatenate
from remanence.protocol import Unit
from remanence.scale import processes
from remanence.scale.executors import InProcess
from remanence.scale.journal import Journal
from remanence.scale.processes import Processes
from remanence.scale.run import IN_PROCESS, Run
from remanence.scale.seeds import Draws


def mean_of_the_others(knowledge, generator):
    """Has no `expose`: every record is attacked on its own."""
    mean = knowledge.known_data.features.mean(0) + torch.randn(1, generator=generator)

    def reconstruct(release):
        records = replace(knowledge.known_data[:1], features=mean[None])
        return Reconstruction(concatenate([records[None]] * len(release)))

    return reconstruct


def blind(knowledge, generator):
    """Guesses a candidate at random, for every release anew."""
    candidates = knowledge.prior.candidates
    torch.rand(3, generator=generator)

    def reconstruct(release):
        drawn = torch.randint(len(candidates), (len(release), 1), generator=generator)
        return Reconstruction(candidates[drawn])

    return reconstruct


GAMES = {
    "prior-aware": (dpsgd_game(), PriorAware()),
    "retrained by workers": (shortlist_game(candidates=4), RetrainAndCompare()),
    "draws while it reconstructs": (shortlist_game(candidates=4), Playing(blind)),
    "membership": (Membership(dpsgd_game()), PriorAware()),
    "record by record": (LeaveOneOut(GLM(Logistic()), synthetic()), Playing(mean_of_the_others)),
}


def outcome(game, attack, run):
    """All that an audit says, but for where and when."""
    with run:
        result = audit(game, [attack], trials=30, policy=Policy(0.9), run=run)
    document, packed = result.sealed()
    return {**document, "environment": None}, packed


@pytest.mark.parametrize("name", GAMES)
def test_every_executor_gives_the_same_bytes(name, tmp_path):
    game, attack = GAMES[name]
    alone = outcome(game, attack, Run(unit_trials=7))
    assert outcome(game, attack, Run(Processes(2), unit_trials=7)) == alone
    assert outcome(game, attack, Run(Processes(2), Journal(tmp_path), unit_trials=7)) == alone
    with torch_threads(2):
        assert outcome(game, attack, Run(InProcess(), Journal(tmp_path), unit_trials=7)) == alone


@contextmanager
def torch_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def counting_threads(knowledge, generator):
    """Says with how many threads it was prepared and asked."""
    prepared = torch.get_num_threads()

    def reconstruct(release):
        threads = torch.full((len(release),), torch.get_num_threads())
        guess = Oblivious().prepare(knowledge, generator)(release)
        return replace(guess, diagnostics={"asked": threads, "prepared": torch.full_like(threads, prepared)})

    return reconstruct


@pytest.mark.parametrize("executor", [InProcess(), Processes(2)], ids=["here", "processes"])
def test_every_unit_and_every_preparation_has_one_thread(executor):
    with torch_threads(2), Run(executor, unit_trials=5) as run:
        arrays = play(shortlist_game(), Playing(counting_threads), trials=20, run=run).arrays
        assert torch.get_num_threads() == 2, "as it was"
    assert set(arrays["asked"].tolist()) == set(arrays["prepared"].tolist()) == {1}


def test_a_unit_does_not_depend_on_those_before_it():
    game, attack = GAMES["draws while it reconstructs"]
    draws = Draws(0)

    def unit(prepared, number):
        return game.trials(prepared, draws, Unit(number, 5)).tensors()

    in_order = [unit(prepared, n) for prepared in [game.prepare(attack, draws, IN_PROCESS)] for n in range(4)]
    prepared = game.prepare(attack, draws, IN_PROCESS)
    last_first = [unit(prepared, n) for n in (3, 2, 1, 0)]
    for one, other in zip(in_order, reversed(last_first), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_games_and_attacks_draw_anew_in_every_unit_and_the_same_when_played_again():
    drawn = []

    def drawing(knowledge, generator):
        def reconstruct(release):
            drawn.append(
                (*torch.rand(1, generator=generator).tolist(), tuple(release["sum"].flatten().tolist()))
            )
            return Reconstruction(knowledge.prior.candidates[torch.zeros(len(release), 1).long()])

        return reconstruct

    for _ in range(2):
        play(shortlist_game(), Playing(drawing), trials=16, run=Run(unit_trials=4))
    assert [len(set(each)) for each in zip(*drawn[:4], strict=True)] == [4, 4]
    assert drawn[4:] == drawn[:4]


def test_a_run_without_a_unit_is_refused():
    with pytest.raises(InputError, match="unit_trials cannot be used"):
        Run(unit_trials=0)
    with pytest.raises(InputError, match="a whole number from 1 to"):
        Processes(0)


def test_a_run_that_was_not_handed_over_says_so(tmp_path, capsys):
    with Run(journal=Journal(tmp_path)):
        play(shortlist_game(candidates=4), Oblivious(), trials=20)
    assert "run=run" in capsys.readouterr().err
    with Run() as run:
        play(shortlist_game(candidates=4), Oblivious(), trials=20, run=run)
    assert "run=run" not in capsys.readouterr().err


def test_a_worker_that_dies_is_replaced_and_its_unit_run_again(tmp_path, capfd):
    game, flag = shortlist_game(candidates=4), tmp_path / "flag"

    def dies_once(knowledge, generator):
        """Kills its own worker the first time that it reconstructs, as a machine short of memory would."""
        driver = os.getpid()

        def reconstruct(release):
            if os.getpid() != driver and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return Oblivious().prepare(knowledge, generator)(release)

        return reconstruct

    alone = outcome(game, Playing(dies_once), Run(unit_trials=6))
    journal = Journal(tmp_path / "run")
    again = outcome(game, Playing(dies_once), Run(Processes(2), journal, unit_trials=6))
    assert flag.exists(), "no worker died, and nothing was shown"
    assert again == alone
    assert re.search(r"a worker died; .* \(attempt 2 of 4\)", capfd.readouterr().err)


def test_a_unit_that_always_takes_its_worker_down_ends_with_a_sentence(monkeypatch):
    dies = Playing(lambda knowledge, generator: lambda release: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(processes, "ATTEMPTS", 1)  # starting workers again takes seconds
    with pytest.raises(InputError, match="Workers keep dying"):
        outcome(shortlist_game(), dies, Run(Processes(1), unit_trials=30))


def test_an_error_in_a_worker_arrives_whole():
    def refuses(release):
        raise InputError("Not this one.", needs="another", got="this", hint="that")

    with pytest.raises(InputError) as caught:
        outcome(shortlist_game(), Playing(lambda knowledge, generator: refuses), Run(Processes(1)))
    assert (caught.value.needs, caught.value.got, caught.value.hint) == ("another", "this", "that")
