"""The Gaussian mechanism: a sum of clipped records, with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release, Weights


@final
@dataclass(frozen=True)
class NoisySum(Mechanism[Weights]):
    """Σ clip(x) + N(0, (noise_multiplier · max_norm)² I): a private statistic, and one step of DP-SGD in miniature.

    Each record is scaled down to a euclidean norm of at most `max_norm`, so no record moves the
    sum further than that.
    """

    noise_multiplier: float
    max_norm: float = 1.0
    name: ClassVar[str] = "noisy sum"

    @property
    def releases(self) -> type[Release]:
        """Weights: the sum is all there is."""
        return Weights

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Sum once per trial."""
        total = self._clipped(targets.flat).sum(1)  # (trials, numbers)
        if known_data is not None:
            total = total + self._clipped(known_data.flat).sum(0)
        noise = torch.randn(total.shape, generator=generator, device=generator.device, dtype=total.dtype)
        return Weights({"sum": total + self.noise_multiplier * self.max_norm * noise.to(total.device)})

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the mechanism."""
        return {"noise_multiplier": self.noise_multiplier, "max_norm": self.max_norm}

    def gaussian_noise(self, feature_norm: float | None = None) -> tuple[float, float, int] | None:
        """One full batch."""
        return self.noise_multiplier, 1.0, 1

    def _clipped(self, flat: Tensor) -> Tensor:
        norms = flat.norm(dim=-1, keepdim=True)
        return flat * (self.max_norm / norms.clamp(min=self.max_norm))
