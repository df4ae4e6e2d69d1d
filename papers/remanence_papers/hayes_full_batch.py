"""Hayes et al. 2023: the prior-aware attack where every step sees the whole training set."""

from __future__ import annotations

import torch

from remanence.core.records import Records
from remanence.private.prior_aware import PriorAware
from remanence.scale.progress import track
from remanence.scale.seeds import stream
from remanence_papers.companions import individual
from remanence_papers.datasets import handwriting
from remanence_papers.hayes_games import (
    NORM,
    Shortlist,
    accuracy,
    measure,
    mechanism_of,
    over_epsilon,
    shortlist_game,
    table_1,
)
from remanence_papers.reproduction import Cell, Outcome, Panel, Settings, curve

EPSILONS = (1.0, 3.0, 10.0, 30.0, 100.0)
AWARE = {"attack": PriorAware()}
PAPER_NORMS = {(1.0, 1.0): 0.9, (40.0, 1.0): 0.5}  # Appendix K.1; at C = 0.1 all are clipped


def shortlist_of_ten(settings: Settings) -> Outcome:
    """The log-likelihood and Algorithm 2 beside γ and the best that any attack could do on these runs."""
    data, name = handwriting(settings)
    known, trials = (499, settings.trials or 400) if settings.small else (999, settings.trials or 10_000)
    rows = []
    for epsilon in track((1.0, 10.0, 100.0), total=3, what="values of ε"):
        mechanism = mechanism_of(data, epsilon=epsilon, settings=settings)
        game = shortlist_game(data, mechanism, candidates=10, known=known)
        cells = measure(
            game,
            {"attack": PriorAware(), "algorithm 2": PriorAware(score="sum")},
            settings,
            trials,
            data[known:],
        )
        best, error = optimum(game, settings, runs=60 if settings.small else 200)
        attack, ceiling = cells["attack"], cells["bound"]
        assert isinstance(attack, dict)
        assert isinstance(ceiling, float)
        share = (attack["rate"] - 0.1) / (ceiling - 0.1)
        rows.append(
            {
                "epsilon": epsilon,
                **cells,
                "optimum": best,
                "± (two errors)": 2 * error,
                "share of excess": share,
                "learning rate": mechanism.learning_rate,
                "accuracy": accuracy(
                    mechanism, data[: known + 1], data[-700 if settings.small else -2000 :], settings
                ),
                "paper's accuracy": "above 0.9" if epsilon >= 10 and not settings.small else None,
            }
        )
    lines = ("bound", "optimum", "attack", "algorithm 2", "guess")
    return Outcome(
        name,
        rows,
        [over_epsilon(rows, lines)],
        table_1(known, trials, candidates=10),
        [
            "*optimum*: an estimate of what the attack, which computes the posterior, can achieve. It takes the "
            "candidates' Gram matrices along some runs, as if later gradients did not react to earlier noise. They do, "
            "the more so the larger the learning rate, so the attack may fall short of it. *share of excess*: how much "
            "of γ's excess over a guess the attack realises; ten orthogonal candidates allow 0.86 at ε = 10.",
        ],
    )


def optimum(game: Shortlist, settings: Settings, *, runs: int, draws: int = 2000) -> tuple[float, float]:
    """An estimate of the likelihood's success in a full-batch run, from the candidates' Gram matrices along it.

    On a fixed path, the candidates' log-likelihoods are jointly normal with covariance S = Σ G_t / (σC)²
    and means S[:, z*] − diag(S) / 2; the likelihood attack picks the largest. Later gradients react to earlier noise,
    the more so the larger the learning rate, and then the estimate is off. Returns the mean and its standard error
    over runs.
    """
    game = game.to(settings.device)
    mechanism, prior = game.mechanism, game.prior
    targets = prior.sample(runs, stream(settings.seed, "optimum", settings.device))
    release = mechanism.release(game.known_data, targets, stream(settings.seed, "paths", settings.device))
    count = len(prior.candidates)
    gram = torch.zeros(runs, count, count, dtype=torch.float64)
    for step in range(mechanism.steps):
        gradients = torch.stack(
            [
                mechanism.network.clipped_sum(
                    release["parameters"][:, step],
                    prior.candidates[None, k : k + 1],
                    max_norm=mechanism.max_grad_norm,
                )
                for k in range(count)
            ],
            1,
        )
        gram += (gradients @ gradients.mT).double().cpu()
    covariance = gram / (mechanism.noise_multiplier * mechanism.max_grad_norm) ** 2
    spread = covariance.diagonal(dim1=1, dim2=2)
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(count) * spread.amax())
    generator = torch.Generator().manual_seed(settings.seed)
    star = torch.randint(count, (runs, draws), generator=generator)
    noise = torch.randn(runs, draws, count, generator=generator, dtype=torch.float64) @ factor.mT
    means = covariance.gather(1, star.unsqueeze(-1).expand(-1, -1, count))
    success = ((noise + means - spread.unsqueeze(1) / 2).argmax(-1) == star).double().mean(1)
    return float(success.mean()), float(success.std() / runs**0.5)


def figure_3(settings: Settings) -> Outcome:
    """Prior sizes from 2 to 2,048 (512 at the small scale) at several ε."""
    data, name = handwriting(settings)
    known, trials = (499, settings.trials or 150) if settings.small else (999, settings.trials or 4000)
    sizes = [2**power for power in ((1, 3, 5, 7, 9) if settings.small else (1, 3, 5, 7, 9, 11))]
    epsilons = (1.0, 10.0, 30.0)
    cases = [(epsilon, size) for epsilon in epsilons for size in sizes]
    rows = []
    for epsilon, size in track(cases, total=len(cases), what="shortlists"):
        game = shortlist_game(
            data, mechanism_of(data, epsilon=epsilon, settings=settings), candidates=size, known=known
        )
        rows.append(
            {"epsilon": epsilon, "candidates": size, **measure(game, AWARE, settings, trials, data[known:])}
        )
    panels = []
    for epsilon in epsilons:
        own = [row for row in rows if row["epsilon"] == epsilon]
        curves = [curve(line, own, "candidates", line) for line in ("bound", "attack", "guess")]
        panels.append(Panel(f"ε = {epsilon:g}", "candidates", "success", curves, log_up=True))
    note = (
        "The paper: both fall with the size, and the gap widens with ε and the size; its text has no numbers."
    )
    return Outcome(name, rows, panels, table_1(known, trials), [note])


def figure_7(settings: Settings) -> Outcome:
    """Hidden layers of width 10, 100 and 1000 (10, 30 and 100 at the small scale)."""
    data, name = handwriting(settings)
    known, trials = (499, settings.trials or 100) if settings.small else (999, settings.trials or 400)
    widths = (10, 30, 100) if settings.small else (10, 100, 1000)
    rows: list[dict[str, Cell]] = []
    for epsilon in track((1.0, 10.0, 100.0), total=3, what="values of ε"):
        cells: dict[str, Cell] = {}
        for width in widths:
            mechanism = mechanism_of(data, epsilon=epsilon, width=width, settings=settings)
            game = shortlist_game(data, mechanism, candidates=10, known=known)
            measured = measure(game, {f"width {width}": PriorAware()}, settings, trials, data[known:])
            cells |= {name: cell for name, cell in measured.items() if name not in cells}
        rows.append({"epsilon": epsilon, **cells})
    lines = ("bound", *(f"width {width}" for width in widths), "guess")
    note = "The paper: almost no difference between the widths."
    return Outcome(name, rows, [over_epsilon(rows, lines)], table_1(known, trials, candidates=10), [note])


def figure_9(settings: Settings) -> Outcome:
    """A shortlist of pictures, and one of uniform noise with the same mean distance between candidates."""
    data, name = handwriting(settings)
    known, trials = (499, settings.trials or 200) if settings.small else (999, settings.trials or 4000)
    pictures = data[known : known + 10]
    noise = torch.rand(pictures.features.shape, generator=torch.Generator().manual_seed(settings.seed))
    apart = [float(torch.pdist(features).mean()) for features in (pictures.features, noise)]
    noise = Records(noise * apart[0] / apart[1], pictures.labels)
    rows = []
    for epsilon in track(EPSILONS, total=len(EPSILONS), what="values of ε"):
        mechanism = mechanism_of(data, epsilon=epsilon, settings=settings)
        cells: dict[str, Cell] = {}
        for kind, listed in (("pictures", pictures), ("noise", noise)):
            game = shortlist_game(data, mechanism, candidates=10, known=known, listed=listed)
            measured = measure(game, {kind: PriorAware()}, settings, trials)
            cells |= {name: cell for name, cell in measured.items() if name not in cells}
        rows.append({"epsilon": epsilon, **cells})
    panel = over_epsilon(rows, ("bound", "pictures", "noise", "guess"))
    return Outcome(
        name,
        rows,
        [panel],
        table_1(known, trials, candidates=10),
        ["The paper: little difference; both close to γ."],
    )


def figure_10(settings: Settings) -> Outcome:
    """With and without taking the known records' gradients off, for 4, 128 and 999 (499) of them."""
    data, name = handwriting(settings)
    trials = settings.trials or (200 if settings.small else 4000)
    sizes = (4, 128, 499) if settings.small else (4, 128, 999)
    rows = []
    for epsilon in track((1.0, 10.0, 100.0), total=3, what="values of ε"):
        for known in sizes:
            game = shortlist_game(
                data, mechanism_of(data, epsilon=epsilon, settings=settings), candidates=10, known=known
            )
            attacks = {"attack": PriorAware(), "not subtracted": PriorAware(score="sum", subtract="nothing")}
            rows.append(
                {
                    "epsilon": epsilon,
                    "known records": known,
                    **measure(game, attacks, settings, trials, data[known:]),
                }
            )
    panels = [
        over_epsilon(
            [row for row in rows if row["known records"] == known],
            ("bound", "attack", "not subtracted", "guess"),
            f"{known} known records",
        )
        for known in sizes
    ]
    settings_of = {**table_1(0, trials, candidates=10), "known records": "see the table"}
    note = "The paper: without subtraction somewhat weaker at 4 known records, a guess at 128 and 999."
    return Outcome(name, rows, panels, settings_of, [note])


def figure_13(settings: Settings) -> Outcome:
    """Clipping norms 0.1 and 1, the mean gradient norms, and the bound for a record with such gradients."""
    data, name = handwriting(settings)
    known, trials = (499, settings.trials or 200) if settings.small else (999, settings.trials or 4000)
    rows = []
    epsilons = (1.0, 4.0, 10.0, 20.0, 40.0)
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        for norm in (NORM, 1.0):
            mechanism = mechanism_of(data, epsilon=epsilon, max_grad_norm=norm, settings=settings)
            game = shortlist_game(data, mechanism, candidates=10, known=known)
            everybody, own = gradient_norms(game, settings)
            ceilings = [
                individual(
                    0.1, norms=norms, noise_multiplier=mechanism.noise_multiplier, max_grad_norm=norm
                ).success
                for norms in own.tolist()
            ]
            rows.append(
                {
                    "epsilon": epsilon,
                    "clipping norm": norm,
                    "mean gradient norm": everybody,
                    **measure(game, AWARE, settings, trials, data[known:]),
                    "individual bound": sum(ceilings) / len(ceilings),
                    "learning rate": mechanism.learning_rate,
                    "paper's mean norm": None
                    if settings.small
                    else NORM
                    if norm == NORM
                    else PAPER_NORMS.get((epsilon, norm)),
                }
            )
    panels = [
        over_epsilon(
            [row for row in rows if row["clipping norm"] == norm],
            ("bound", "individual bound", "attack", "guess"),
            f"C = {norm:g}",
        )
        for norm in (NORM, 1.0)
    ]
    notes = [
        "*mean gradient norm*: after clipping, over all known records and steps of 20 runs.",
        "*individual bound*: γ for the target of each of those runs, from the norms that its gradients had in that "
        "run; the mean over runs. It is conditional on the run and no guarantee before training.",
    ]
    return Outcome(
        name, rows, panels, {**table_1(known, trials, candidates=10), "clipping norm": "0.1 and 1"}, notes
    )


def gradient_norms(game: Shortlist, settings: Settings, runs: int = 20) -> tuple[float, torch.Tensor]:
    """The known records' mean clipped norm, and the norms of each run's own target, `(runs, steps)`."""
    game = game.to(settings.device)
    mechanism, known = game.mechanism, game.known_data
    assert known is not None
    targets = game.prior.sample(runs, stream(settings.seed, "targets", settings.device))
    release = mechanism.release(known, targets, stream(settings.seed, "norms", settings.device))
    everybody, own = [], []
    for step in range(mechanism.steps):
        parameters = release["parameters"][:, step]
        for records, into in ((known[None], everybody), (targets, own)):
            nothing = torch.zeros_like(parameters)
            into.append(
                mechanism.network.projections(parameters, nothing, records, max_norm=mechanism.max_grad_norm)[
                    1
                ]
            )
    return float(torch.stack(everybody).mean()), torch.cat(own, 1).cpu()
