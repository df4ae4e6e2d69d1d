"""Which reader and which decoder suit a game: a reconstructor's network before it has learnt anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remanence.core.knowledge import Knowledge
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.stratified import StratifiedPrior
from remanence.reconstructor.decoders import convolutional, draws_pictures, perceptron
from remanence.reconstructor.network import ReconstructorNetwork
from remanence.reconstructor.readers import FlatReader, Readable, Tensors
from remanence.reconstructor.shadows import Shadows

if TYPE_CHECKING:
    from remanence.reconstructor.attack import Reconstructor


def build_network(
    attack: Reconstructor,
    knowledge: Knowledge,
    sample: Shadows,
    start: Callable[[Tensors], Tensor] | None = None,
) -> ReconstructorNetwork:
    """An untrained network whose reader takes its units from some shadows; with a `start` it draws that at first."""
    prior, mechanism = knowledge.prior, knowledge.mechanism
    assert isinstance(prior, EmpiricalPrior | StratifiedPrior)
    places = None
    if attack.conditional and isinstance(prior, StratifiedPrior):
        places = prior.places.to(prior.records.labels.device)
    reader, strong = None, attack.mode == "strong"
    classes = 0 if places is None else len(places)
    if isinstance(mechanism, Readable):
        reader = mechanism.reader(sample.tensors, prior, classes=classes, strong=strong)
    if reader is None:
        reader = FlatReader(sample.tensors, classes)
    pool = prior.records
    size = reader.size + (attack.guesses if attack.guesses > 1 else 0)
    rate = 1e-3 if strong else 2e-4
    # Balle et al. 2022 draw MNIST with a perceptron, and coloured pictures with convolutions.
    grey = isinstance(prior, EmpiricalPrior) and len(pool.example_shape) < 3
    if grey or not draws_pictures(pool.example_shape):
        small = not draws_pictures(pool.example_shape)
        rate = 3e-3 if strong and small else rate
        hidden = attack.width or (256 if small else 1000)
        decoder = perceptron(size, (hidden, hidden), pool, strong=strong)
    elif strong:
        decoder = convolutional(size, attack.width or 64, pool, trunk=1024)
    else:
        decoder = convolutional(size, attack.width or 256, pool)
    directions = None
    if places is not None and attack.guesses > 1 and isinstance(prior, StratifiedPrior):
        directions = _directions(pool, prior.classes)
    if start is not None:
        decoder.silence()
    return ReconstructorNetwork(reader, decoder, places, rate, attack.guesses, directions, start)


def _directions(pool: Records, classes: Tensor) -> Tensor:
    """The direction in which the records of each class vary most, `(classes, numbers)`."""
    found = []
    for label in classes:
        own = pool.flat[pool.labels == label].float()
        found.append(torch.linalg.svd(own - own.mean(0), full_matrices=False).Vh[0])
    return torch.stack(found)
