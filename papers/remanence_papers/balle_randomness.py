"""Balle et al. 2022: what the adversary does not know of the randomness (Figures 6 and 7, Table II)."""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.core.priors import EmpiricalPrior
from remanence.core.rates import SuccessRate
from remanence.core.records import concatenate
from remanence.reconstructor.shadows import ShadowFarm, Shadows, split
from remanence.scale.progress import track
from remanence.training.sgd import SGD
from remanence_papers.balle_games import (
    ORACLE,
    Split,
    Study,
    gallery,
    handwriting_split,
    level,
    means,
    recipe,
)
from remanence_papers.reproduction import Cell, Curve, Outcome, Panel, Settings, interval

RATES = 0.01, 0.2
_LOST = (0.2, "unknown")  # where the paper's attack fails; with a known order it weakens with large batches
_SHOWN = 10


def figure_6(settings: Settings) -> Outcome:
    """The error over the batch size, with and without the order of the batches, at two learning rates."""
    small = settings.small
    data = handwriting_split(settings, known=5000)
    study = Study(settings, data, 400 if small else 3000, 128 if small else 256)
    # The last batch is trained on: 401 records in batches of 50 would end in a single one, which weighs as much.
    sizes = (51, 201, len(data.known) + 1) if small else (256, 1024, len(data.known) + 1)
    epochs, count = (30, 1000) if small else (50, 8000)
    rows: list[dict[str, Cell]] = []
    cases = [(rate, known, size) for rate in RATES for known in (True, False) for size in sizes]
    for rate, known, size in track(cases, total=len(cases), what="batch sizes"):
        full = size > len(data.known)
        if full and not known:  # there is no order
            continue
        training = _shuffled(data, settings, rate, None if full else size, known=known, epochs=epochs)
        found = study.attack(training, study.shadows(training, count))
        order = "none" if full else "known" if known else "unknown"
        row: dict[str, Cell] = {"learning rate": rate, "order": order, "batch size": size}
        rows.append(row | study.cells(found) | {"paper": "fails" if (rate, order) == _LOST else "works"})
    panels = []
    for rate in RATES:
        own = [row for row in rows if row["learning rate"] == rate]
        lines = [
            means(f"{order} order", chosen, "batch size", "mean error", "± (two errors)")
            for order in ("known", "unknown")
            if (chosen := [row for row in own if row["order"] in (order, "none")])
        ]
        oracle = level("nearest neighbour", float(study.oracle.mean()), sizes)
        panels.append(
            Panel(
                f"Learning rate {rate:g}", "batch size", "mean squared error", [*lines, oracle], log_up=True
            )
        )
    return Outcome(
        data.name,
        rows,
        panels,
        study.described(epochs=epochs, momentum=0, shadows=count),
        [
            ORACLE,
            "The paper: 10,000 known records and 100 epochs. *none*: every step sees all records.",
            "An incomplete last batch is trained on. Batch sizes leave it nearly full, because a last batch of one "
            "record would weigh that record as much as all records of another batch.",
        ],
    )


def figure_7(settings: Settings) -> Outcome:
    """The released models' weights in two dimensions, coloured by the label of the record that they hide."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    small = settings.small
    data = handwriting_split(settings, known=5000)
    labels, epochs, size = data.targets.labels.cpu(), 30 if small else 50, 201 if small else 1024
    rows: list[dict[str, Cell]] = []
    panels = []
    cases = [(rate, known) for rate in RATES for known in (True, False)]
    study = Study(settings, data, 1)
    for rate, known in track(cases, total=len(cases), what="trainings"):
        training = _shuffled(data, settings, rate, size, known=known, epochs=epochs)
        weights = training.release(data.known, data.targets[:, None], study.generator(0))["parameters"]
        flat = ((weights - weights.mean(0)) / weights.std(0).clamp(min=1e-12)).double().cpu()
        agree = _neighbours_agree(flat, labels)
        shares = torch.bincount(labels, minlength=10).double() / len(labels)
        name = f"{'known' if known else 'unknown'} order, learning rate {rate:g}"
        rows.append(
            {
                "learning rate": rate,
                "order": "known" if known else "unknown",
                "nearest neighbour has the label": interval(SuccessRate(int(agree.sum()), len(agree))),
                "by chance": float(shares.square().sum()),
                "paper": "not grouped" if not known and rate == RATES[1] else "grouped",
            }
        )
        reduced = PCA(min(30, len(flat) - 1), random_state=0).fit_transform(flat.numpy())
        places = torch.from_numpy(TSNE(init="pca", random_state=0).fit_transform(reduced))
        curves = [
            Curve(str(digit), *places[labels == digit].double().numpy().round(2).T.tolist())
            for digit in range(10)
        ]
        panels.append(Panel(name, curves=curves, dots=True, log_across=False))
    return Outcome(
        data.name,
        rows,
        panels,
        {"known records": len(data.known), "models": len(labels), "epochs": epochs, "batch size": size},
        [
            "The figures are t-SNE of 30 principal components of the standardised weights. *nearest neighbour "
            "has the label*: the share of models whose closest other model, in all weights, hides a record with "
            "the same label.",
            "The paper: labels are grouped except with an unknown order at the larger rate.",
        ],
    )


def initialisation(settings: Settings) -> Outcome:
    """Unknown initial weights, with one shadow for each target or with many."""
    small = settings.small
    data = handwriting_split(settings, known=1000)
    study = Study(settings, data, 600 if small else 4000, 128 if small else 256)
    known = data.training(initial_seed=settings.seed)
    unknown = data.training(initial_seed=None)
    count = 900 if small else 50_000
    cases: dict[str, tuple[SGD, int, int]] = {
        "known": (known, count, 1),
        "unknown": (unknown, count, 1),
        "unknown, many shadows for each target": (unknown, 900 if small else 10_000, 4 if small else 20),
    }
    rows: list[dict[str, Cell]] = []
    shown: dict[str, Tensor] = {"target": data.targets.features[:_SHOWN]}
    for label, (training, targets, each) in track(cases.items(), total=len(cases), what="initialisations"):
        found = study.attack(training, _repeated(study, training, targets, each))
        row: dict[str, Cell] = {"initial weights": label, "shadow targets": targets, "shadows each": each}
        rows.append(row | study.cells(found) | {"paper": "works" if label == "known" else "fails"})
        shown[label] = found.guesses.features[:_SHOWN, 0]
    return Outcome(
        data.name,
        rows,
        [gallery("Reconstructions", shown)],
        study.described(**recipe(known)),
        [
            ORACLE,
            "The paper: no attempt succeeds without the initial weights, 10,000 targets with 500 shadows each "
            "included.",
        ],
    )


def _shuffled(
    data: Split, settings: Settings, rate: float, size: int | None, *, known: bool, epochs: int
) -> SGD:
    return data.training(
        learning_rate=rate,
        momentum=0.0,
        batch_size=size,
        epochs=epochs,
        initial_seed=settings.seed,
        order_seed=settings.seed if known else None,
    )


def _repeated(study: Study, mechanism: SGD, targets: int, each: int) -> Shadows:
    """So many models for each of the targets."""
    farm = ShadowFarm(split(study.knowledge(mechanism))[0], study.generator(0))
    assert isinstance(farm.knowledge.prior, EmpiricalPrior)
    own = farm.knowledge.prior.records[:targets]
    order = torch.arange(len(own), device=own.labels.device).repeat(each)
    blocks = order.split(farm.at_once)
    parts = [
        farm.block(targets=own[index[:, None]])
        for index in track(blocks, total=len(blocks), what="training shadows")
    ]
    tensors = {name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors}
    return Shadows(tensors, concatenate([part.targets for part in parts]))


def _neighbours_agree(weights: Tensor, labels: Tensor) -> Tensor:
    """Whether the closest other model hides a record with the same label."""
    distances = torch.cdist(weights, weights).fill_diagonal_(torch.inf)
    return labels[distances.argmin(1)] == labels
