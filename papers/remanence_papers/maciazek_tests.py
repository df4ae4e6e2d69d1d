"""Maciazek and Allison 2025, Appendix F: other tests of whether a picture was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.core.distances import public_errors
from remanence.core.errors import squared_and_absolute_error
from remanence.core.records import Records
from remanence.core.roc import Roc
from remanence.reconstructor.attack import Reconstructor
from remanence_papers.maciazek import (
    Setup,
    Trials,
    evaluate,
    handwriting_setup,
    prepare,
    rate_cell,
)
from remanence_papers.reproduction import Cell, Curve, Outcome, Panel, Settings

_DROPPED = 0.1  # share of the reconstructions that a membership test drops


def statistics(settings: Settings) -> Outcome:
    """The error, its variants and a filter, for one and for four pictures per class."""
    setup = handwriting_setup(settings)
    trials = settings.trials or 1000
    rows: list[dict[str, Cell]] = []
    panels: list[Panel] = []
    for per_class in (1, 4):
        game = setup.game(per_class)
        attack = Reconstructor(steps=500, batch=128 if settings.small else 1024, separation=0.3)
        reconstruct, _ = prepare(game, attack, settings)
        found = evaluate(game, reconstruct, settings, trials)
        curves = []
        for name, (own, stranger) in _statistics(found, setup).items():
            roc = Roc(own.numpy(), stranger.numpy())
            cells = {f"TPR at {100 * fpr:g} %": rate_cell(roc.tpr_at_fpr(fpr), own) for fpr in (0.01, 0.001)}
            rows.append({"N": per_class * setup.classes, "test": name, **cells, "area": roc.area()})
            fpr, tpr = roc.curve()
            curves.append(Curve(name, fpr[1:].tolist()[::20], tpr[1:].tolist()[::20]))
        panels.append(
            Panel(f"N = {per_class * setup.classes}", "false positive rate", "true positive rate", curves)
        )
    notes = [
        "All tests judge the same reconstructions of the same heads; false positives are real heads of other sets.",
        "*relative error* divides by the error within which a twentieth of the public pictures of the class lie. "
        "*in features* is the squared distance behind the backbone, in place of a perceptual loss.",
        "*membership first* drops the tenth of the reconstructions of each class that the head itself is least sure "
        "of (its probability for the class, a usual membership test), and then takes the error.",
    ]
    return Outcome(setup.name, rows, panels, setup.recipe(trials), notes)


def _statistics(found: Trials, setup: Setup) -> dict[str, tuple[Tensor, Tensor]]:
    """What each test compares with its threshold, for the heads' own sets and for others: `(trials, classes)` each."""
    device = setup.public.features.device
    public = public_errors(found.guesses.to(device), setup.public).cpu()
    embedded = _embedded(found.guesses, setup)  # (trials, classes, numbers)
    kept = _confidence(found, embedded)
    kept = kept >= kept.quantile(_DROPPED, dim=0)
    sets = found.targets, found.strangers

    def closest(measure) -> tuple[Tensor, Tensor]:
        errors = []
        for records in sets:
            alike = records.labels[:, :, None] == found.guesses.labels[:, None]  # (trials, set, classes)
            errors.append(measure(records).where(alike, torch.inf).amin(1))
        return errors[0], errors[1]

    def pixels(records: Records) -> Tensor:
        columns = range(found.guesses.batch_shape[1])
        guesses = (found.guesses[:, column : column + 1] for column in columns)
        return torch.stack([squared_and_absolute_error(records, guess) for guess in guesses], 2)

    def features(records: Records) -> Tensor:
        assert records.embedding is not None
        return torch.cdist(records.embedding.cpu(), embedded).square()

    return {
        "MSE": (found.own, found.stranger),
        "MSE + MAE": closest(pixels),
        "in features": closest(features),
        "relative error": (found.own / public, found.stranger / public),
        "membership first": (found.own.where(kept, torch.inf), found.stranger.where(kept, torch.inf)),
    }


@torch.no_grad()
def _embedded(guesses: Records, setup: Setup) -> Tensor:
    flat = guesses.features.flatten(0, 1).to(setup.public.features.device)
    assert setup.backbone is not None
    parts = [setup.backbone(part).flatten(1) for part in flat.split(1024)]
    return torch.cat(parts).cpu().unflatten(0, guesses.batch_shape)


def _confidence(found: Trials, embedded: Tensor) -> Tensor:
    """The head's log-probability that its reconstruction has the class that was asked for, `(trials, classes)`."""
    weight, bias = found.release["weight"].cpu(), found.release["bias"].cpu()
    logits = embedded @ weight.mT + bias.unsqueeze(1)
    return logits.log_softmax(2).diagonal(dim1=1, dim2=2)
