"""Keys: the same in every process, and another one for every change that could change an outcome."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import remanence
from conftest import SOURCES, dpsgd_game, gradient_game, heads_game, network_game, shortlist_game, synthetic
from remanence import (
    GLM,
    Criterion,
    FinitePrior,
    LeaveOneOut,
    Logistic,
    Membership,
    PriorAware,
    Reconstructor,
    Records,
    looped,
)
from remanence.protocol import planned
from remanence.scale.fingerprints import arithmetic, fingerprint, sources, versions
from remanence.scale.journal import Journal
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.targets import TARGETS

GAMES = {
    "shortlist": shortlist_game,
    "dpsgd": dpsgd_game,
    "heads": heads_game,
    "network": network_game,
    "gradient": gradient_game,
    "leave one out": lambda: LeaveOneOut(GLM(Logistic()), synthetic()),
    "fitted by scikit-learn": TARGETS["wine-pipeline"],
}


def test_another_process_with_another_order_of_hashes_agrees():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_fingerprints import GAMES, fingerprint\n"
        "import remanence\n"
        "print(remanence.__file__, *(fingerprint(game()) for game in GAMES.values()))"
    )
    here = Path(__file__).parent
    found = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(here)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(here.parent), SOURCES])},
    ).stdout  # fmt: skip
    here = [remanence.__file__, *(fingerprint(game()) for game in GAMES.values())]
    assert found == " ".join(here) + "\n"


def plus(number):
    return lambda x: x + number


class Counter:
    def __init__(self, start):
        self.start = start

    def count(self, x):
        return x + self.start


game = dpsgd_game()
module = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (game, replace(game, known_data=game.known_data[1:])),
        (game, replace(game, mechanism=replace(game.mechanism, noise_multiplier=1.001))),
        (game, replace(game, criterion=Criterion(game.criterion.error, 0.51))),
        (game, replace(game, prior=FinitePrior(game.prior.candidates, torch.tensor([1.0, 1, 1, 1, 2])))),
        (game, Membership(game)),
        (PriorAware(), PriorAware(score="sum")),
        (Reconstructor(), Reconstructor(steps=7)),
        (threading.Lock(), threading.RLock()),
        (looped(plus(1)), looped(plus(2))),
        (looped(lambda r, s: r), looped(lambda r, s: s)),
        (looped(lambda r, s: 1e-3), looped(lambda r, s: 2e-3)),
        (Counter(1).count, Counter(2).count),
        (partial(plus, 1), partial(plus, 2)),
        (module, nn.Linear(2, 2)),
        (torch.zeros(4), torch.zeros(4).double()),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(4), np.zeros(4, dtype=np.float32)),
        ((1, (2, 3)), ((1, 2), 3)),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (["ab", "c"], ["a", "bc"]),
        (1, 1.0),
        (1, True),
        (torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_change_changes_it(one, other):
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)


LOOP = [1]
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({3, 1, 2}, {2, 3, 1}),  # which have no order
        (threading.Lock(), threading.Lock()),  # a value that cannot be copied counts by its type
        (Reconstructor(), Reconstructor(watch=print)),  # where an attack keeps its state does not count
        (LOOP, LOOP),  # a value within itself ends
    ],
    ids=["sets", "locks", "state", "loops"],
)
def test_what_cannot_change_an_outcome_does_not_change_it(one, same):
    assert fingerprint(one) == fingerprint(same)


def test_libraries_whose_arithmetic_counts_are_part_of_the_key():
    assert {"python", "remanence", "torch", "numpy", "scipy", "scikit-learn"} == versions().keys()


def test_a_ceiling_has_no_part_in_a_key_and_data_have(tmp_path):
    from remanence import bounds

    proven = replace(game, bounds=(bounds.of(game.mechanism, 1 / 5),))
    moved = replace(game, known_data=Records(game.known_data.features + 1e-6, game.known_data.labels))
    run = Run(journal=Journal(tmp_path))
    plans = [planned(g, PriorAware(), 5, Draws(0), run) for g in (game, proven, moved)]
    assert plans[0].key(0) == plans[1].key(0) != plans[2].key(0)


def test_the_users_file_counts_and_what_is_loaded_beside_it_unless_it_is_installed(tmp_path, monkeypatch):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    names = ["target.py", "recipe.py", "package/inner.py", "env/site-packages/installed.py", "stranger.py"]
    for name in names:
        write(name, "RATE = 1")
        if name not in ("target.py", "stranger.py"):
            module = ModuleType(Path(name).stem)
            module.__file__ = str(tmp_path / name)
            monkeypatch.setitem(sys.modules, module.__name__, module)
    before = sources(tmp_path / "target.py")
    assert [*before] == ["package/inner.py", "recipe.py", "target.py"]
    for name in names:
        write(name, "RATE = 22")
        assert (sources(tmp_path / "target.py") != before) == (name in before)
        write(name, "RATE = 1")


def test_how_torch_computes_is_part_of_the_key():
    before = arithmetic()
    try:
        torch.set_default_dtype(torch.float64)
        assert arithmetic() != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert arithmetic() == before
