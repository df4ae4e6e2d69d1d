"""Built-in networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remanence.core.examples import example

if TYPE_CHECKING:
    from remanence.core.records import Records
    from remanence.game import Game


def digits_mlp() -> Game:
    """A small network on 400 pictures; the adversary knows all but one, the recipe and the initial weights."""
    from remanence.core.distances import nearest_neighbour_errors
    from remanence.core.errors import Criterion, mean_squared_error
    from remanence.core.priors import EmpiricalPrior
    from remanence.game import Game
    from remanence.training.perceptron import Perceptron
    from remanence.training.sgd import SGD

    known, public, private = digits_split()
    threshold = float(nearest_neighbour_errors(private, public).mean())
    mechanism = SGD(Perceptron((64, 10, 10)), 50, 0.2, 0.9, initial_seed=0)
    criterion = Criterion(mean_squared_error, threshold)
    return Game(mechanism, EmpiricalPrior(public), known, criterion, targets=EmpiricalPrior(private))


def digits_split() -> tuple[Records, Records, Records]:
    """Pictures with pixels in [0, 1]: known training records, the adversary's own, and the targets."""
    import torch

    from remanence.core.records import Records

    digits = example("digits", scale=16.0)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    data = Records(digits.features.float().unflatten(1, (8, 8)), digits.labels)[order]
    return data[:400], data[400:1500], data[1500:]
