"""Releases: what the adversary sees. The type of a release encodes the threat model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from torch import Tensor

_AT_ONCE = 2**24  # numbers processed at once, so that no large tensor is copied


def is_finite(values: Tensor) -> bool:
    """Whether no number is NaN or infinite. Checking the sum suffices, unless it overflows."""
    if not (values.is_floating_point() or values.is_complex()):
        return True
    parts = values.detach().reshape(-1).split(_AT_ONCE)
    return all(bool(part.sum().isfinite() or part.isfinite().all()) for part in parts)


@dataclass(frozen=True)
class Release:
    """Named tensors, one entry per trial along the first dimension of each."""

    tensors: Mapping[str, Tensor]
    sees: ClassVar[str]

    def __len__(self) -> int:
        return next(iter(self.tensors.values())).shape[0]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def take(self, index: slice | Tensor) -> Self:
        """The releases of some of the trials."""
        return type(self)({name: tensor[index] for name, tensor in self.tensors.items()})

    def to(self, device: torch.device | str) -> Self:
        """The same releases on another device."""
        return type(self)({name: tensor.to(device) for name, tensor in self.tensors.items()})

    def flat(self) -> Tensor:
        """The whole release, as one vector per trial."""
        parts = [tensor.reshape(len(tensor), -1).double() for tensor in self.tensors.values()]
        return torch.cat(parts, dim=1)  # (trials, numbers)

    def sha256(self) -> str:
        """The hash of every number in it."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def not_finite(self) -> Tensor:
        """Which trials have a NaN or infinite number, `(trials,)`: their training diverged.

        A few operations for any number of trials: a loop over trials made the GPU 12 times slower.
        """
        diverged = torch.zeros(len(self), dtype=torch.bool)
        for tensor in self.tensors.values():
            if tensor.is_floating_point() or tensor.is_complex():
                at_once = _AT_ONCE // max(1, tensor[:1].numel())  # so that no large tensor is copied
                if not at_once:
                    diverged |= torch.tensor([not is_finite(one) for one in tensor])
                    continue
                parts = [
                    ~part.isfinite().reshape(len(part), -1).all(1) for part in tensor.detach().split(at_once)
                ]
                diverged |= torch.cat(parts).cpu()
        return diverged

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join the trials of several releases."""
        return cls({name: torch.cat([part[name] for part in parts]) for name in parts[0].tensors})


@final
@dataclass(frozen=True)
class Weights(Release):
    """The trained parameters: the adversary downloads the model."""

    sees: ClassVar[str] = "the final weights"


@final
@dataclass(frozen=True)
class Transcript(Release):
    """Every step of a training run: `parameters` and privatised `gradients`, `(trials, steps, numbers)` each.

    `gradients` are sums before division by the expected batch size. `known` is the contribution
    that the adversary can compute from the known records and their batches. The batches that
    contained the target are not part of the release.
    """

    sees: ClassVar[str] = "every privatised gradient"


@final
@dataclass(frozen=True)
class Logits(Release):
    """Outputs on fixed queries: the adversary only queries the model."""

    sees: ClassVar[str] = "the model's answers to fixed queries"


@final
@dataclass(frozen=True)
class Gradient(Release):
    """One update as a participant of collaborative training shares it."""

    sees: ClassVar[str] = "one gradient"


@final
@dataclass(frozen=True)
class FittedObject(Release):
    """All the numbers in a fitted object: the adversary downloads the file."""

    sees: ClassVar[str] = "the fitted object, as it is stored"
