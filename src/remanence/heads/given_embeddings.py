"""As if a head gave away all that it ever read: how far the backbone alone protects pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.heads.embedding import embedding_of


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

    def settings(self) -> dict[str, Setting]:
        """Nothing is trained."""
        return {"classes": len(self.places), "pictures of a class": len(self.places[0])}

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """The embeddings, as they are."""
        seen = embedding_of(targets)
        rows = [seen[:, list(own)].mean(1) for own in self.places]
        return Weights({"embedding": torch.stack(rows, 1)})
