"""Hayes et al. 2023: the prior-aware attacks where batches are sampled."""

from __future__ import annotations

from remanence.private.prior_aware import PriorAware
from remanence.scale.progress import track
from remanence_papers.datasets import handwriting
from remanence_papers.hayes_games import (
    DELTA,
    STEPS,
    measure,
    mechanism_of,
    over_epsilon,
    shortlist_game,
    table_1,
)
from remanence_papers.reproduction import Cell, Outcome, Panel, Settings, curve

_SHORTLISTS = 5  # of ten, where a run has a thousand steps
PAPER_FIGURE_5 = {0.01: (0.20, 0.15), 0.99: (0.35, 0.32)}  # bound and attack, read off by the authors (§4.3)


def figure_4(settings: Settings) -> Outcome:
    """q = 0.02 and T = 1000 with 500 records (q = 0.1, T = 200 and 100 records at the small scale)."""
    data, name = handwriting(settings)
    if settings.small:
        known, rate, steps, trials, epsilons = 99, 0.1, 200, settings.trials or 200, (4.0, 10.0, 20.0)
    else:
        known, rate, steps, trials = 499, 0.02, 1000, settings.trials or 1100
        epsilons = (4.0, 10.0, 20.0)
    attacks = {
        "likelihood": PriorAware(),
        "algorithm 3": PriorAware(score="top"),
        "algorithm 2": PriorAware(score="sum"),
    }
    rows = []
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        mechanism = mechanism_of(data, epsilon=epsilon, sample_rate=rate, steps=steps)
        game = shortlist_game(data, mechanism, candidates=10, known=known)
        pool = data[known : known + _SHORTLISTS * 10]
        rows.append({"epsilon": epsilon, **measure(game, attacks, settings, trials, pool)})
    used = {**table_1(known, trials, candidates=10), "sample rate": rate, "steps": steps}
    notes = [
        "*likelihood* is Appendix G with its sign corrected. It is the best attack on these runs, since all candidates "
        "are as likely: no other comes nearer to γ, which stands for the most different gradients that there can be, "
        "and "
        "ten pictures' are not.",
        "The paper: Algorithm 3 is fairly tight, and far above Algorithm 2; its text has no numbers. Its code runs "
        "another attack on another mechanism than Algorithm 3: batches without replacement, and of each epoch the step "
        "with the largest inner product.",
        "The adversary knows which of the known records were in each batch, and not whether the target was.",
    ]
    return Outcome(name, rows, [over_epsilon(rows, ("bound", *attacks, "guess"))], used, notes)


def figure_5(settings: Settings) -> Outcome:
    """The sampling rate from 0.01 to 0.99 at one ε, with the noise that it needs (ten candidates)."""
    return _over_rate(settings, epsilons=(4.0,), sizes=(10,))


def figure_14(settings: Settings) -> Outcome:
    """The same at several ε and sizes of the shortlist."""
    epsilons, sizes = ((1.0, 16.0), (2, 10)) if settings.small else ((1.0, 32.0), (2, 10, 100))
    return _over_rate(settings, epsilons=epsilons, sizes=sizes)


def _over_rate(settings: Settings, *, epsilons: tuple[float, ...], sizes: tuple[int, ...]) -> Outcome:
    data, name = handwriting(settings)
    few = 300 if len(epsilons) == 1 else 100
    known, trials = (99, settings.trials or few) if settings.small else (999, settings.trials or 3400)
    rates = (0.01, 0.1, 0.5, 0.99)
    cases = [(epsilon, size, rate) for epsilon in epsilons for size in sizes for rate in rates]
    rows: list[dict[str, Cell]] = []
    for epsilon, size, rate in track(cases, total=len(cases), what="settings"):
        mechanism = mechanism_of(data, epsilon=epsilon, sample_rate=rate, max_grad_norm=1.0)
        game = shortlist_game(data, mechanism, candidates=size, known=known)
        attacks = {"likelihood": PriorAware(), "algorithm 3": PriorAware(score="top")}
        row: dict[str, Cell] = {"epsilon": epsilon, "candidates": size, "sample rate": rate}
        row |= {
            "noise multiplier": mechanism.noise_multiplier,
            **measure(game, attacks, settings, trials, data[known:]),
        }
        if (epsilon, size) == (4.0, 10):
            row["paper's bound"], row["paper's attack"] = PAPER_FIGURE_5.get(rate, (None, None))
        rows.append(row)
    panels = []
    for epsilon in epsilons:
        for size in sizes:
            own = [row for row in rows if (row["epsilon"], row["candidates"]) == (epsilon, size)]
            lines = ("bound", "likelihood", "algorithm 3", "paper's bound", "paper's attack")
            curves = [curve(line, own, "sample rate", line) for line in lines if line in own[0]]
            panels.append(Panel(f"ε = {epsilon:g}, {size} candidates", "sample rate", "success", curves))
    used: dict[str, Cell] = {
        "known records": known,
        "steps": STEPS,
        "clipping norm": 1.0,
        "delta": DELTA,
        "trials": trials,
    }
    note = "The paper: bound and attack both grow with the sampling rate at a fixed ε."
    return Outcome(name, rows, panels, used, [note])
