"""Small games with known answers, shared by the tests."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import click
import pytest
import torch
import typer
from hypothesis import HealthCheck, settings

import remanence
from remanence import (
    DPSGD,
    GLM,
    SGD,
    Attack,
    AttackInfo,
    Criterion,
    Error,
    Game,
    Knowledge,
    LeaveOneOut,
    Logistic,
    Oblivious,
    Perceptron,
    Records,
    Reduction,
    SharedGradient,
    StratifiedPrior,
    TransferHead,
    Weights,
    looped,
    mean_squared_error,
    mismatch,
)
from remanence.cli.main import app, main
from remanence.cli.settings_file import arguments_from
from remanence.core.priors import EmpiricalPrior, FinitePrior, Uninformed

torch.set_num_threads(1)
# The same examples every time, and no test fails for the time that it takes.
same = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", **same)
settings.load_profile("same")

ROOT = Path(__file__).parent.parent
SOURCES = os.pathsep.join(str(ROOT / folder) for folder in ("src", "papers"))
if not Path(remanence.__file__).is_relative_to(ROOT):
    pytest.exit(f"These tests would be about {remanence.__file__}; run them with PYTHONPATH={SOURCES}", 4)
os.environ["PYTHONPATH"] = SOURCES  # for the processes that tests start


@dataclass(frozen=True)
class Playing(Attack):
    """An attack on any game, made of a function from what it knows and a generator to what reconstructs."""

    made: Callable[[Knowledge, torch.Generator], Callable] = field(repr=False)
    info: ClassVar[AttackInfo] = replace(Oblivious.info, name="playing")

    def check(self, knowledge):
        pass

    def prepare(self, knowledge, generator):
        return self.made(knowledge, generator)


# A metric: two targets that one guess meets are within twice the threshold of each other.
euclidean_error = Error(
    "euclidean distance",
    lambda targets, guesses: (targets.flat.double() - guesses.flat.double()).norm(dim=-1),
    reach=lambda threshold: 2 * threshold,
)


def synthetic(count: int = 40, features: int = 4, classes: int = 2, seed: int = 0) -> Records:
    """Gaussian features; classes that depend on them with noise, so that no classifier separates them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64) * 2 + 1
    scores = x[:, :classes] + 3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return Records(x, scores.argmax(1))


def noisy_sum(records: Records, seed: int) -> dict[str, torch.Tensor]:
    """The sum of all features plus standard normal noise: the Gaussian mechanism."""
    generator = torch.Generator().manual_seed(seed)
    total = records.features.sum(0)
    return {"sum": total + torch.randn(total.shape, generator=generator, dtype=total.dtype)}


def shortlist_game(distance: float = 1.0, candidates: int = 2) -> Game:
    """Orthogonal candidates at equal distances, released through `noisy_sum`."""
    corners = torch.eye(candidates, dtype=torch.float64) * distance / 2**0.5
    prior = FinitePrior(Records(corners, torch.zeros(candidates)))
    known = Records(torch.ones(3, candidates, dtype=torch.float64), torch.zeros(3))
    criterion = Criterion(mean_squared_error, threshold=1e-9)
    return Game(looped(noisy_sum, releases=Weights), prior, known, criterion)


def dpsgd_game(**settings) -> Game:
    """Five candidates and a small perceptron."""
    data = synthetic(25, classes=3)
    data = Records(data.features.float(), data.labels)
    mechanism = DPSGD(Perceptron((4, 5, 3)), **{"noise_multiplier": 1.0, "steps": 6, **settings})
    return Game(mechanism, FinitePrior(data[:5]), data[5:], Criterion(mismatch, 0.5))


def pictures(count: int, classes: int = 3, seed: int = 0) -> Records:
    """Smooth 3 × 3 pictures around a mean of their class, and what a random ReLU layer makes of them."""
    generator = torch.Generator().manual_seed(99)
    means = torch.rand(classes, 9, generator=generator)
    factors, backbone = torch.randn(3, 9, generator=generator), torch.randn(9, 24, generator=generator)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count).remainder(classes)
    features = means[labels] + 0.5 * torch.randn(count, 3, generator=generator) @ factors
    return Records(features.unflatten(1, (3, 3)), labels, embedding=(features @ backbone).relu())


def heads_game(per_class: int = 1, **settings) -> Game:
    """Linear heads on three classes of pictures; a weak adversary."""
    head = TransferHead(**{"classes": 3, "epochs": 15, "learning_rate": 0.05, **settings})
    criterion = Criterion(mean_squared_error, 0.3, Reduction.CLASS)
    private = StratifiedPrior(pictures(90, seed=1), per_class)
    return Game(head, StratifiedPrior(pictures(300), per_class), None, criterion, targets=private)


def network_game(**settings) -> Game:
    """A small network trained on thirty known pictures and one more; an informed adversary."""
    data = pictures(530, seed=2)
    data = Records(data.features, data.labels)
    recipe = {"epochs": 20, "learning_rate": 0.5, "initial_seed": 0, **settings}
    criterion, own = Criterion(mean_squared_error, 0.3), EmpiricalPrior(data[430:])
    return Game(SGD(Perceptron((9, 4, 3)), **recipe), EmpiricalPrior(data[30:430]), data[:30], criterion, own)


def relu_network(*sizes: int, bias: bool = True, dtype=torch.float64, seed: int = 0) -> torch.nn.Sequential:
    """Linear layers with ReLU between them, drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layer = torch.nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
        for parameter in layer.parameters():
            torch.nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=generator)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def gradient_game(hidden: int = 1, bias: bool = True, **settings) -> Game:
    """Batches of four behind the gradient of a small ReLU network."""
    data = synthetic(60, features=6, classes=4)
    network = relu_network(6, *[64] * hidden, 4, bias=bias)
    criterion = Criterion(reduction=Reduction.MATCHED, label_scale=1.0)
    mechanism = SharedGradient(network, (6,), **settings)
    return Game(mechanism, Uninformed(), None, criterion, targets=EmpiricalPrior(data, set_size=4))


def settings_arguments(path: Path) -> list[str]:
    """The arguments that an audit.toml stands for."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    return arguments_from(path, group, click.Context(group))[0]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder as the console script does, and return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["remanence", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return invoke


@pytest.fixture
def glm_game() -> LeaveOneOut:
    return LeaveOneOut(GLM(Logistic(), penalty=1.0), synthetic(), Criterion(label_scale=1.0))


@pytest.fixture(scope="session")
def chromium():
    from watched import launched  # what it imports comes with `make test-browser`

    with launched() as browser:
        yield browser


@pytest.fixture
def watch(chromium):
    from watched import watching

    with watching(chromium) as opened:
        yield opened
