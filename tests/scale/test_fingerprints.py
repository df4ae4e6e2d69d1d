"""Keys: the same in every process, and another one for every change that could change an outcome."""

import importlib
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from remanence.core.exceptions import InputError
from remanence.protocol import planned
from remanence.scale.fingerprints import changed, depends_on, fingerprint, parts
from remanence.scale.journal import Journal
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.scale.sources import sources, versions
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


@pytest.mark.parametrize("name", GAMES)
def test_the_same_game_made_twice_is_the_same(name):
    assert fingerprint(GAMES[name]()) == fingerprint(GAMES[name]())


def test_another_process_with_another_order_of_hashes_agrees():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_fingerprints import GAMES, fingerprint\n"
        "import remanence\n"
        "print(remanence.__file__, *(fingerprint(game()) for game in GAMES.values()))"
    )
    here = Path(__file__).parent
    found = {
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", code, str(here)],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here.parent), SOURCES])},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    here = [remanence.__file__, *(fingerprint(game()) for game in GAMES.values())]
    assert found == {" ".join(here) + "\n"}


def plus(number):
    return lambda x: x + number


def helper(x):
    return x + 1


def calls_helper(x):
    return helper(x)


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


def test_order_means_nothing_where_there_is_none():
    assert fingerprint({3, 1, 2}) == fingerprint({2, 3, 1})


def test_what_a_function_calls_counts_too(monkeypatch):
    before = fingerprint(calls_helper)
    monkeypatch.setattr(sys.modules[__name__], "helper", plus(7))
    assert fingerprint(calls_helper) != before


def test_what_changed_is_named():
    module = {"__name__": "somebodys_training"}
    exec("RATE, STEPS = 1, 2\ndef step(x): return x * RATE\ndef train(x): return step(x) + STEPS", module)  # noqa: S102
    before = parts(game=looped(module["train"]))
    module["RATE"] = 3
    assert changed(before, parts(game=looped(module["train"]))) == ["game.train.step.RATE"]


PLACES = {
    "a module on Python's path": "import mine_lib\ndef train(x): return mine_lib.step(x)",
    "a name from there": "from mine_lib import step\ndef train(x): return step(x)",
    "an import that happens later": "def train(x):\n    import mine_lib\n    return mine_lib.step(x)",
    "a name that is imported later": "def train(x):\n    from mine_lib import step\n    return step(x)",
}


@pytest.mark.parametrize("place", PLACES)
def test_code_that_lies_elsewhere_counts(place, tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "src")
    library, target = tmp_path / "src/mine_lib.py", tmp_path / "project/target.py"
    target.write_text(PLACES[place])
    found = []
    for rate in (1, 1, 2):
        library.write_text(f"def step(x): return x * {rate}")
        sys.modules.pop("mine_lib", None)
        importlib.invalidate_caches()
        module = {"__name__": "target", "__file__": str(target)}
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        exec(target.read_text(), module)  # noqa: S102
        sys.dont_write_bytecode = before
        found.append((fingerprint(module["train"]), sources(target)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert found[0][1] != found[2][1]
    sys.modules.pop("mine_lib", None)


def test_a_file_that_training_reads_counts_where_it_is_declared(tmp_path):
    def train(x):
        return x

    (tmp_path / "settings.csv").write_text("rate,1")
    declared = depends_on(tmp_path / "settings.csv")(train)
    before = parts(train=declared)
    (tmp_path / "settings.csv").write_text("rate,2")
    assert changed(before, parts(train=declared)) == ["train.file settings.csv"]
    (tmp_path / "settings.csv").unlink()
    with pytest.raises(InputError, match="depends_on names"):
        fingerprint(declared)


def test_what_cannot_be_read_is_refused_and_a_version_stands_for_it():
    lock = threading.Lock()

    def train(x):
        with lock:
            return x

    with pytest.raises(InputError, match=r"train\.lock: a _thread\.lock"):
        parts(train=train)
    one, two = (fingerprint(depends_on(version=version)(train)) for version in "12")
    assert one != two


def test_functions_that_call_each_other_end():
    module = {"__name__": "somebodys_training"}
    chain = "\n".join(f"def f{n}(x): return f{n + 1}(x) + f{n + 1}(x)" for n in range(40))
    exec(f"{chain}\ndef f40(x): return f0(x)", module)  # noqa: S102
    assert len(fingerprint(module["f0"])) == 64


def test_libraries_whose_arithmetic_counts_are_part_of_the_key():
    assert {"python", "remanence", "torch", "numpy", "scipy", "scikit-learn"} == versions().keys()


def test_where_an_attack_keeps_its_state_does_not_count(tmp_path):
    assert fingerprint(Reconstructor()) == fingerprint(Reconstructor(checkpoint=tmp_path / "a"))
    assert fingerprint(Reconstructor()) != fingerprint(Reconstructor(steps=7))


def test_a_value_within_itself_ends():
    loop = [1]
    loop.append(loop)
    assert len(fingerprint(loop)) == 64


def test_a_ceiling_has_no_part_in_a_key_and_data_have(tmp_path):
    from remanence import bounds

    proven = replace(game, bounds=(bounds.of(game.mechanism, 1 / 5),))
    moved = replace(game, known_data=Records(game.known_data.features + 1e-6, game.known_data.labels))
    run = Run(journal=Journal(tmp_path))
    plans = [planned(g, PriorAware(), 5, Draws(0), run) for g in (game, proven, moved)]
    assert plans[0].key(0) == plans[1].key(0) != plans[2].key(0)


class TestSources:
    """The hash of a target's file and of what it imports from its folder, now or later."""

    @pytest.mark.parametrize(
        ("target", "files"),
        [
            ("import recipe", {"recipe.py": ""}),
            ("def train():\n    from recipe import RATE", {"recipe.py": ""}),
            ("def train():\n    from recipe import *", {"recipe.py": ""}),
            ("try:\n    import os, recipe as mine\nfinally:\n    pass", {"recipe.py": ""}),
            ("import package.recipe", {"package/recipe.py": ""}),
            ("from package import recipe", {"package/recipe.py": ""}),
            ("import package", {"package/__init__.py": ""}),
            ("import package.inner", {"package/__init__.py": "", "package/inner.py": ""}),
            ("import first", {"recipe.py": "", "first.py": "def later():\n    import recipe"}),
            ("import first", {"recipe.py": "", "first.py": "'\\d'  # Python warns\nimport recipe"}),
            ("import p.a", {"p/b.py": "", "p/a.py": "from . import b"}),
            ("import p.a", {"p/b.py": "", "p/a.py": "from .b import x"}),
            ("import p.q.a", {"p/b.py": "", "p/q/a.py": "from ..b import x"}),
            ("import p", {"p/b.py": "", "p/__init__.py": "from .b import x"}),
            ("import a", {"a.py": "import b", "b.py": "import a"}),
        ],
        ids=str,
    )
    def test_a_change_of_what_is_imported_anywhere_changes_it(self, target, files, tmp_path):
        for name, text in {
            "target.py": target,
            **files,
            "stranger.py": "",
            "package/stranger.py": "",
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        before = sources(tmp_path / "target.py")
        first = tmp_path / next(iter(files))
        first.write_text(f"{first.read_text()}\nRATE = 1")
        assert sources(tmp_path / "target.py") != before
        first.write_text(next(iter(files.values())))
        (tmp_path / "stranger.py").write_text("RATE = 1")
        (tmp_path / "package/stranger.py").write_text("RATE = 1")
        assert sources(tmp_path / "target.py") == before

    @pytest.mark.parametrize(
        "broken", [b"def (", b"x = 1\0", b"x = '\xff'", b"-" * 3000 + b"1", b"-" * 100_000 + b"1"]
    )
    def test_what_is_no_python_counts_as_it_is(self, broken, tmp_path):
        target, helper = tmp_path / "target.py", tmp_path / "helper.py"
        target.write_text("import helper")
        found = []
        for text in (broken, broken + b" "):
            helper.write_bytes(text)
            found.append(sources(target))
        assert found[0] != found[1]

    @pytest.mark.parametrize(
        ("place", "prefix", "counts"),
        [
            ("lib", "env", True),
            ("env/lib", "env", False),
            ("other/lib/python3.11/site-packages", "env", False),
            ("lib", ".", True),  # a project in /usr, where the system's Python is
        ],
    )
    def test_what_python_finds_beneath_the_folder_counts_unless_it_is_installed(
        self, place, prefix, counts, tmp_path, monkeypatch
    ):
        target, helper = tmp_path / "target.py", tmp_path / place / "helper.py"
        target.write_text("def train():\n    import helper")
        helper.parent.mkdir(parents=True)
        helper.write_text("")
        monkeypatch.syspath_prepend(helper.parent)
        monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
        before = sources(target)
        helper.write_text("changed = True")
        assert (sources(target) != before) == counts

    def test_what_was_loaded_under_a_name_that_nobody_can_read_counts_too(self, tmp_path, monkeypatch):
        target, helper = tmp_path / "target.py", tmp_path / "loaded_by_name.py"
        target.write_text("import importlib\nimportlib.import_module('loaded_' + 'by_name')")
        helper.write_text("")
        monkeypatch.syspath_prepend(tmp_path)
        before = sources(target)
        monkeypatch.setitem(sys.modules, "loaded_by_name", importlib.import_module("loaded_by_name"))
        assert sources(target) != before
