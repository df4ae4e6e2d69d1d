"""Attribute inference: some of the record's features are known anyway (Balle et al. 2022, §II-C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release, Weights


@final
@dataclass(frozen=True)
class Disclosed(Mechanism[Release]):
    """Another mechanism's release, together with the given columns of the targets' features.

    Hold reconstructions against the others with `Criterion(on_columns(error, hidden), ...)`. Baseline and control do
    not know the given columns: what can be imputed from them counts as recovered. `Disclosed(None, columns)` trains
    nothing and shows the columns alone: the same attack on it imputes, which is the control of the game `Attributes`.
    """

    mechanism: Mechanism[Release] | None
    columns: tuple[int, ...]  # of the flattened features
    name: ClassVar[str] = "training, with some attributes of the record known"
    gives_attributes: ClassVar[bool] = True

    @property
    def releases(self) -> type[Release]:
        """What the training releases."""
        return Weights if self.mechanism is None else self.mechanism.releases

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        if self.mechanism is None:
            return {"training": "none", "known_attributes": len(self.columns)}
        training = {"training": self.mechanism.name, **self.mechanism.settings()}
        return {**training, "known_attributes": len(self.columns)}

    def trials_at_once(self, targets: Records) -> int:
        """As many as the training takes."""
        return (
            super().trials_at_once(targets)
            if self.mechanism is None
            else self.mechanism.trials_at_once(targets)
        )

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Release:
        """Train, and show the given columns."""
        width = targets.flat.shape[-1]
        if not self.columns or not all(0 <= column < width for column in self.columns):
            raise InputError(
                "There is no such attribute.",
                needs=f"columns from 0 to {width - 1}",
                got=str(self.columns)[:80],
                hint="count the columns of the flattened features",
            )
        given = targets.flat[..., list(self.columns)].float()
        if self.mechanism is None:
            return Weights({"given": given})
        release = self.mechanism.release(known_data, targets, generator)
        return type(release)({**release.tensors, "given": given})
