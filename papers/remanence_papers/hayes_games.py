"""The games behind the figures of Hayes et al. 2023: their Table 1, and the stand-in for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from remanence import bounds
from remanence.bounds.calibration import noise_for_epsilon
from remanence.core.attack import Attack
from remanence.core.errors import Criterion, mismatch
from remanence.core.priors import FinitePrior
from remanence.core.records import Records
from remanence.game import Game, play
from remanence.training.dpsgd import DPSGD
from remanence.training.perceptron import Perceptron
from remanence_papers.reproduction import Cell, Panel, Row, Settings, curve, interval

DELTA = 1e-5
STEPS = 100
NORM = 0.1
EXACT = Criterion(mismatch, 0.5)
LINES = ("bound", "attack", "guess")


Shortlist = Game[DPSGD, FinitePrior]


def mechanism_of(
    data: Records,
    *,
    epsilon: float,
    width: int = 10,
    max_grad_norm: float = NORM,
    sample_rate: float = 1.0,
    steps: int = STEPS,
) -> DPSGD:
    """One hidden layer with ELU; noise for (ε, 1e-5). The rate moves the weights equally at every clipping norm."""
    return DPSGD(
        Perceptron((data.flat.shape[-1], width, 10)),
        _noise(epsilon, sample_rate, steps),
        steps,
        sample_rate=sample_rate,
        max_grad_norm=max_grad_norm,
        learning_rate=(0.9 if sample_rate == 1 else 0.1) / max_grad_norm,
    )


def shortlist_game(
    data: Records, mechanism: DPSGD, *, candidates: int, known: int, listed: Records | None = None
) -> Shortlist:
    """The first records are known and the next are the shortlist, unless another is given."""
    prior = FinitePrior(data[known : known + candidates] if listed is None else listed)
    ceiling = bounds.dpsgd(
        1 / candidates,
        noise_multiplier=mechanism.noise_multiplier,
        sample_rate=mechanism.sample_rate,
        steps=mechanism.steps,
    )
    return Game(mechanism, prior, data[:known], EXACT, bounds=(ceiling,))


def measure(game: Game, attacks: Mapping[str, Attack], settings: Settings, trials: int) -> dict[str, Cell]:
    """A guess, each attack, the first attack's control, and the bound: the cells of a row."""
    found = {
        name: play(game, attack, trials=trials, seed=settings.seed, device=settings.device)
        for name, attack in attacks.items()
    }
    first = next(iter(found.values()))
    return {
        "guess": first.baseline.value,
        **{name: interval(evidence.main) for name, evidence in found.items()},
        "control": interval(first.control),
        "bound": float(game.bounds[0].success),
    }


def over_epsilon(rows: Sequence[Row], lines: Sequence[str] = LINES, title: str = "") -> Panel:
    """Columns of the table over ε."""
    return Panel(title, "ε", "success", [curve(line, rows, "epsilon", line) for line in lines])


def table_1(known: int, trials: int, **others: Cell) -> dict[str, Cell]:
    """What a figure's page says about its settings."""
    return {
        "known records": known,
        "steps": STEPS,
        "clipping norm": NORM,
        "delta": DELTA,
        **others,
        "trials": trials,
    }


@cache
def _noise(epsilon: float, sample_rate: float, steps: int) -> float:
    return noise_for_epsilon(epsilon, delta=DELTA, sample_rate=sample_rate, steps=steps)
