"""The games behind the figures of Hayes et al. 2023: their Table 1, and the stand-in for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch

from remanence import bounds
from remanence.bounds.calibration import noise_for_epsilon
from remanence.core.attack import Attack
from remanence.core.errors import Criterion, mismatch
from remanence.core.priors import FinitePrior
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.game import Game, play
from remanence.scale.seeds import stream
from remanence.training.dpsgd import DPSGD
from remanence.training.perceptron import Perceptron
from remanence_papers.reproduction import Cell, Panel, Row, Settings, curve, interval

DELTA = 1e-5
STEPS = 100
NORM = 0.1
EXACT = Criterion(mismatch, 0.5)
LINES = ("bound", "attack", "guess")
RATES = (0.1, 0.3, 0.9, 3.0, 10.0)  # learning rates times the clipping norm; the authors' notebook has 0.9
_HELD_OUT = 2000
_SHORTLISTS, _TRIALS_EACH = 20, 20  # at most, and at least
_TUNED: dict[tuple[Settings, float, tuple[int, ...], float], float] = {}


Shortlist = Game[DPSGD, FinitePrior]


def mechanism_of(
    data: Records,
    *,
    epsilon: float,
    width: int = 10,
    max_grad_norm: float = NORM,
    sample_rate: float = 1.0,
    steps: int = STEPS,
    settings: Settings | None = None,
) -> DPSGD:
    """One hidden layer with ELU; noise for (ε, 1e-5). The rate moves the weights equally at every clipping norm.

    At the paper's scale, given `settings`, the rate of a full-batch run is the one with the best accuracy, as the paper
    chose it.
    """
    plain = DPSGD(
        Perceptron((data.flat.shape[-1], width, 10)),
        _noise(epsilon, sample_rate, steps),
        steps,
        sample_rate=sample_rate,
        max_grad_norm=max_grad_norm,
        learning_rate=(0.9 if sample_rate == 1 else 0.1) / max_grad_norm,
    )
    if settings is None or settings.small or sample_rate < 1:
        return plain
    key = replace(settings, trials=None), epsilon, (data.flat.shape[-1], width), max_grad_norm
    if key not in _TUNED:
        tried = [replace(plain, learning_rate=rate / max_grad_norm) for rate in RATES]
        train, test = data[:1000], data[-_HELD_OUT:]
        _TUNED[key] = max(tried, key=lambda each: accuracy(each, train, test, settings)).learning_rate
    return replace(plain, learning_rate=_TUNED[key])


def accuracy(mechanism: DPSGD, train: Records, test: Records, settings: Settings, models: int = 8) -> float:
    """The mean test accuracy of some models."""
    final = replace(mechanism, final_only=True)
    targets = train[-1:][None].to(settings.device)[torch.zeros(models, dtype=torch.int64)]
    release = final.release(
        train[:-1].to(settings.device), targets, stream(settings.seed, "accuracy", settings.device)
    )
    logits = mechanism.network.classify(release["parameters"], test[None].to(settings.device))
    return float((logits.argmax(-1).cpu() == test.labels).double().mean())


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


def measure(
    game: Shortlist,
    attacks: Mapping[str, Attack],
    settings: Settings,
    trials: int,
    pool: Records | None = None,
) -> dict[str, Cell]:
    """A guess, each attack, the first attack's control, and the bound: the cells of a row.

    At the paper's scale the trials are shared among shortlists that are drawn from the pool.
    """
    fresh = min(_SHORTLISTS, trials // _TRIALS_EACH)
    games = [game] if pool is None or settings.small or not fresh else _others(game, pool, fresh, settings)
    own = -(-trials // len(games))
    found = {
        name: [play(each, attack, trials=own, seed=settings.seed, device=settings.device) for each in games]
        for name, attack in attacks.items()
    }
    first = next(iter(found.values()))
    return {
        "guess": first[0].baseline.value,
        **{name: interval(_together([each.main for each in every])) for name, every in found.items()},
        "control": interval(_together([each.control for each in first])),
        "bound": float(game.bounds[0].success),
    }


def _others(game: Shortlist, pool: Records, count: int, settings: Settings) -> list[Shortlist]:
    size = len(game.prior.candidates)
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(settings.seed))
    listed = order[: count * size].split(size)
    return [replace(game, prior=FinitePrior(pool[each])) for each in listed if len(each) == size]


def _together(rates: Sequence[SuccessRate]) -> SuccessRate:
    return SuccessRate(sum(rate.successes for rate in rates), sum(rate.trials for rate in rates))


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
