"""As if a head gave away all that it ever read: how far the backbone alone protects pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from remanence.core.mechanism import Mechanism, Setting
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.embedding import embedding_of
from remanence.reconstructor.readers import Reader, Tensors

if TYPE_CHECKING:
    from remanence.reconstructor.shadows import Shadows


@final
@dataclass(frozen=True)
class GivenEmbeddings(Mechanism[Weights]):
    """Hands over a true embedding for each class: of the picture at its `places` in a set, or the mean of several.

    No head shows more than the embeddings that it was trained on. So an attack's success over the success of the same
    attack on these says what is lost in the head; the rest is lost in the backbone.
    """

    places: tuple[tuple[int, ...], ...]
    name: ClassVar[str] = "true embeddings"

    @property
    def releases(self) -> type[Weights]:
        """One embedding for each class, `(trials, classes, numbers)`."""
        return Weights

    @property
    def streams(self) -> bool:
        """Nothing is trained."""
        return True

    def reader(
        self, shadows: Tensors, prior: EmpiricalPrior | StratifiedPrior, *, classes: int, strong: bool
    ) -> Reader | None:
        """The asked class's embedding."""
        from remanence.heads.readers import EmbeddingReader

        return EmbeddingReader(shadows) if classes else None

    def first_drawing(
        self, prior: StratifiedPrior, shadows: Iterable[Shadows], held_out: Shadows
    ) -> Callable[[Tensors], Tensor]:
        """What the linear reader draws."""
        from remanence.heads.linear_reader import learn_reading

        return learn_reading((self, prior), shadows, held_out).draw

    def settings(self) -> dict[str, Setting]:
        """Nothing is trained."""
        return {"classes": len(self.places), "pictures of a class": len(self.places[0])}

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """The embeddings, as they are."""
        seen = embedding_of(targets)
        rows = [seen[:, list(own)].mean(1) for own in self.places]
        return Weights({"embedding": torch.stack(rows, 1)})
