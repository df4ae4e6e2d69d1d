"""Hayes et al. 2023: the figures in which every step sees the whole training set."""

from __future__ import annotations

from remanence import bounds
from remanence.attacks.prior_aware import PriorAware
from remanence.calibration import noise_for_epsilon
from remanence.errors import Criterion, mismatch
from remanence.game import Game, play
from remanence.mechanisms.dpsgd import DPSGD
from remanence.mechanisms.networks import Perceptron
from remanence.priors import FinitePrior
from remanence.progress import track
from remanence.records import Records
from remanence.reproductions.datasets import handwriting
from remanence.reproductions.reproduction import Outcome, Panel, Settings, curve, interval

DELTA = 1e-5
STEPS = 100


def full_batch_game(
    data: Records,
    *,
    epsilon: float,
    candidates: int,
    known: int,
    width: int = 10,
    max_grad_norm: float = 0.1,
) -> Game:
    """Table 1's default: T = 100 full batches, one hidden layer with ELU, a uniform shortlist."""
    noise = noise_for_epsilon(epsilon, delta=DELTA, steps=STEPS)
    network = Perceptron((data.flat.shape[-1], width, 10))
    mechanism = DPSGD(network, noise, STEPS, max_grad_norm=max_grad_norm, learning_rate=0.9 / max_grad_norm)
    ceiling = bounds.dpsgd(1 / candidates, noise_multiplier=noise, steps=STEPS)
    prior = FinitePrior(data[known : known + candidates])
    return Game(mechanism, prior, data[:known], Criterion(mismatch, 0.5), bounds=(ceiling,))


def figure_3(settings: Settings) -> Outcome:
    """Prior sizes from 2 to 2,048 (512 at the small scale) at several ε."""
    data, name = handwriting(settings)
    known, trials = (499, 400) if settings.small else (999, 10_000)
    trials = settings.trials or trials
    sizes = [2**power for power in (range(1, 10, 2) if settings.small else range(1, 12))]
    epsilons = (1.0, 10.0, 30.0)
    cases = [(epsilon, size) for epsilon in epsilons for size in sizes]
    rows = []
    for epsilon, size in track(cases, total=len(cases), what="figure 3"):
        game = full_batch_game(data, epsilon=epsilon, candidates=size, known=known)
        found = play(game, PriorAware(), trials=trials, seed=settings.seed, device=settings.device)
        rows.append(
            {
                "epsilon": epsilon,
                "candidates": size,
                "guess": found.baseline.value,
                "attack": interval(found.main),
                "control": interval(found.control),
                "bound": float(game.bounds[0].success),
            }
        )
    panels = [
        Panel(
            f"ε = {epsilon:g}",
            "candidates",
            "success",
            [
                curve(column, [row for row in rows if row["epsilon"] == epsilon], "candidates", column)
                for column in ("bound", "attack", "guess")
            ],
            log_up=True,
        )
        for epsilon in epsilons
    ]
    return Outcome(
        name,
        rows,
        panels,
        {"known_records": known, "steps": STEPS, "clipping norm": 0.1, "delta": DELTA, "trials": trials},
    )
