"""The oracle of Maciazek and Allison's tables: a network that is handed true embeddings instead of a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.core.mechanism import Mechanism, Setting
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game
from remanence.heads.head import GivenEmbeddings
from remanence.heads.linear_reader import learn_reading
from remanence.reconstructor.readers import Reader, Tensors
from remanence.reconstructor.shadows import Shadows


@final
@dataclass(frozen=True)
class GivenToNetworks(Mechanism[Weights]):
    """True embeddings, in a form that a reconstructor network reads."""

    given: GivenEmbeddings
    name: ClassVar[str] = GivenEmbeddings.name

    @property
    def releases(self) -> type[Weights]:
        """Embeddings in the place of weights."""
        return self.given.releases

    @property
    def streams(self) -> bool:
        """Nothing is trained."""
        return True

    def settings(self) -> dict[str, Setting]:
        """Nothing is trained."""
        return self.given.settings()

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """The embeddings as they are."""
        return self.given.release(known_data, targets, generator)

    def reader(
        self, shadows: Tensors, prior: EmpiricalPrior | StratifiedPrior, *, classes: int, strong: bool
    ) -> Reader | None:
        """The asked class's embedding."""
        return EmbeddingReader(shadows) if classes else None

    def first_drawing(
        self, prior: StratifiedPrior, shadows: Iterable[Shadows], held_out: Shadows
    ) -> Callable[[Tensors], Tensor]:
        """What the linear reader draws."""
        return learn_reading((self.given, prior), shadows, held_out).draw


class EmbeddingReader(Reader):
    """The asked class's embedding, which is there to be read, in standard units of the class."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, shadows: Tensors) -> None:
        super().__init__()
        seen = shadows["embedding"]
        self.register_buffer("mean", seen.mean(0))  # (classes, numbers)
        self.register_buffer("deviation", seen.std(0).clamp(min=1e-8))
        self.classes = seen.shape[1]
        self.size = seen.shape[2] + self.classes

    def forward(self, tensors: Tensors, asked: Tensor | None) -> Tensor:
        """Standardise and append the class."""
        assert asked is not None
        rows = torch.arange(len(asked), device=asked.device)
        values = (tensors["embedding"][rows, asked] - self.mean[asked]) / self.deviation[asked]
        return torch.cat([values, one_hot(asked, self.classes).to(values)], 1)


def with_embeddings_given(game: Game, *, mixed: bool = False) -> Game:
    """The game of an adversary who is handed the true embedding of the first picture of each class in a set.

    What an attack achieves there is what the backbone leaves of the pictures. `mixed`, they are handed the mean of the
    class's embeddings instead, which is about what a row of a linear head shows.
    """
    prior = game.prior
    assert isinstance(prior, StratifiedPrior)
    if isinstance(game.targets, StratifiedPrior):  # given the embeddings, the adversary knows their number
        prior = replace(prior, counts=game.targets.counts)
    rows = prior.places if mixed else prior.places[:, :1]
    places = tuple(tuple(dict.fromkeys(row)) for row in rows.tolist())
    return replace(game, mechanism=GivenToNetworks(GivenEmbeddings(places)), prior=prior, bounds=())
