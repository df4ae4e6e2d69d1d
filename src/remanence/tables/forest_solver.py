"""A forest's whole training set as an attack that knows no row at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import FERRY_2024
from remanence.core.releases import Release
from remanence.tables.fitted import FittedModel
from remanence.tables.forests import records_of_forest, splits_bits
from remanence.tables.trees import trees_of


@final
@dataclass(frozen=True)
class ForestSolver(Attack[Release]):
    """Solves for records of 0 and 1 that give every node of a forest its counts."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "forest-solver",
        "Solves for a whole training set of 0 and 1 that gives every node of a forest its counts.",
        "a forest or tree that classifies, on columns of 0 and 1; no row is known; OR-Tools",
        "the fitted object",
        FERRY_2024,
    )

    seconds: float = 110.0
    workers: int = 2

    def check(self, knowledge: Knowledge) -> FittedModel:
        """A forest on bits, and an adversary who knows no row."""
        mechanism = knowledge.mechanism
        alone = knowledge.known_data is None
        if alone and isinstance(mechanism, FittedModel) and is_solvable(mechanism.estimator):
            return mechanism
        hint = "remanence audit forest.skops --data train.csv --label outcome --known none"
        raise self.refusal(got=knowledge, hint=hint)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """The forest tells the number of records, and all the rest."""
        mechanism, public = self.check(knowledge), knowledge.prior.samples

        def reconstruct(_release: Release) -> Reconstruction:
            forest: Any = mechanism.estimator
            count = round(float(trees_of(forest)[0].tree_.weighted_n_node_samples[0]))
            found = records_of_forest(
                forest,
                count,
                seconds=self.seconds,
                workers=self.workers,
                public=None if public is None else _bits(mechanism, public),
            )
            codes = torch.from_numpy(mechanism.codes(np.asarray(found.labels)))
            features = torch.from_numpy(found.features.astype(np.float64))
            if not found.solved:
                features, codes = features * torch.nan, codes * torch.nan
            numbers = {"trees_given_again": torch.tensor([found.reproduced / len(trees_of(forest))])}
            if found.shared is not None:
                numbers["in_every_table_found"] = torch.tensor([found.shared / count])
            if found.proven is not None:
                numbers["proven"] = torch.from_numpy(found.proven)[None]
            return Reconstruction(Records(features[None], codes[None]), diagnostics=numbers)

        return reconstruct


def _bits(mechanism: FittedModel, public: Records) -> tuple[np.ndarray, np.ndarray]:
    """A public table's records that have a label and are of 0 and 1."""
    features, codes = public.flat.numpy(), public.labels.double().numpy()
    fits = np.isin(features, (0, 1)).all(1) & ~np.isnan(codes)
    return features[fits].astype(int), np.asarray(mechanism.classes)[codes[fits].astype(int)]


def is_solvable(forest: Any) -> bool:
    """Whether it is a forest or a tree that classifies, all of whose splits are of 0 and 1."""
    trees = trees_of(forest)
    weighted = (
        getattr(forest, "class_weight", None) is not None or getattr(forest, "max_samples", None) is not None
    )
    return (
        bool(trees)
        and hasattr(forest, "classes_")
        and not weighted
        and all(splits_bits(tree.tree_) for tree in trees)
    )
