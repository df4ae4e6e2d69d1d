"""Balle et al. 2022: the error over the number of shadows (Figure 5), and what answers alone give away (§VI-C)."""

from __future__ import annotations

import time

from torch import Tensor

from remanence.networks.mechanism import Queried
from remanence.scale.progress import track
from remanence_papers.balle_games import (
    ORACLE,
    Study,
    asked,
    first,
    gallery,
    handwriting_split,
    level,
    means,
    recipe,
    spread,
)
from remanence_papers.reproduction import Cell, Curve, Outcome, Panel, Settings

PAPER_BLACK_BOX = 0.011
PAPER_CROSSING = 8000
_SHOWN = 10


def figure_5(settings: Settings) -> Outcome:
    """Mean error and mean KL over the number of shadows, and the two against each other."""
    study = _study(settings)
    training = study.data.training(initial_seed=settings.seed)
    counts = (
        (250, 1000, 3000) if settings.small else (100, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 59_000)
    )
    started = time.perf_counter()
    shadows = study.shadows(training, max(counts))
    seconds = time.perf_counter() - started
    targets = study.data.targets[:, None]
    rows: list[dict[str, Cell]] = []
    shown: dict[str, Tensor] = {"target": targets.features[:_SHOWN, 0]}
    divergences, errors = study.oracle, study.oracle
    for count in track(counts, total=len(counts), what="numbers of shadows"):
        found = study.attack(training, first(shadows, count))
        divergences = study.divergence(targets, found.guesses).flatten().cpu()
        row: dict[str, Cell] = {"shadows": count, **study.cells(found)}
        row |= {"mean KL": float(divergences.mean()), "± KL": spread(divergences)}
        row["seconds of learning"] = round(found.seconds, 1)
        above = "below its oracle" if count >= PAPER_CROSSING else "high fidelity" if count >= 1000 else None
        rows.append(row | ({} if settings.small else {"paper": above}))
        errors = found.errors
        shown[f"{count:,}"] = found.guesses.features[:_SHOWN, 0]
    oracle = float(study.oracle.mean())
    error = Panel(
        "Error over the number of shadows",
        "shadows",
        "mean squared error",
        [
            means("weights", rows, "shadows", "mean error", "± (two errors)"),
            level("nearest neighbour", oracle, counts),
            level("first percentile", study.first_percentile, counts),
        ],
        log_up=True,
    )
    divergence = Panel(
        "KL over the number of shadows",
        "shadows",
        "mean KL",
        [means("weights", rows, "shadows", "mean KL", "± KL")],
        log_up=True,
    )
    together = Panel(
        f"Error against KL, {counts[-1]:,} shadows",
        "KL",
        "mean squared error",
        [Curve("targets", *(each.clamp(min=1e-6).tolist() for each in (divergences, errors)))],
        dots=True,
        log_up=True,
    )
    return Outcome(
        study.data.name,
        rows,
        [error, divergence, together, gallery("Reconstructions", shown)],
        study.described(**recipe(training), **{"seconds for all shadows": round(seconds, 1)}),
        [
            ORACLE,
            "The first percentile, the mean error of the picture that is closer than all but 1 % of the "
            f"adversary's, is {study.first_percentile:.4f}. The paper: below its oracle from {PAPER_CROSSING:,} "
            "shadows.",
            "*KL*: between the answers of a 100-unit perceptron, trained on the known records, to target and "
            "reconstruction. LPIPS (Figure 5a) needs weights that are not at hand.",
        ],
    )


def black_box(settings: Settings) -> Outcome:
    """The same models seen through their weights, their logits, their probabilities, or what an API returns."""
    study = _study(settings)
    training = study.data.training(initial_seed=settings.seed)
    shadows = study.shadows(training, 3000 if settings.small else 59_000)
    probes = study.data.public[: 100 if settings.small else 200]
    views = {
        "weights": None,
        "logits": Queried(training, probes),
        "probabilities": Queried(training, probes, "probabilities"),
        "top 3, two decimals": Queried(training, probes, "top"),
    }
    rows: list[dict[str, Cell]] = []
    shown: dict[str, Tensor] = {"target": study.data.targets.features[:_SHOWN]}
    for label, view in track(views.items(), total=len(views), what="views of a model"):
        found = study.attack(view or training, shadows if view is None else asked(view, shadows))
        paper = PAPER_BLACK_BOX if label == "logits" and not settings.small else None
        rows.append({"what is seen": label, **study.cells(found), "paper": paper})
        shown[label] = found.guesses.features[:_SHOWN, 0]
    return Outcome(
        study.data.name,
        rows,
        [gallery("Reconstructions", shown)],
        study.described(**recipe(training), shadows=len(shadows), probes=len(probes)),
        [ORACLE, "The probes are pictures of the adversary's. The paper tries logits alone."],
    )


def _study(settings: Settings) -> Study:
    small = settings.small
    return Study(settings, handwriting_split(settings), 1000 if small else 6000, 128 if small else 256)
