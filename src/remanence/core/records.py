"""Records: the labelled examples that make up targets, known data and reconstructions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remanence.core.checks import shaped
from remanence.core.exceptions import InputError

_ROWS_AT_ONCE = 2**14  # records processed at once, so that a large table is never copied


@dataclass(frozen=True)
class Records:
    """A batch of records: features, labels and, if training used them, weights and embeddings.

    The batch may have several dimensions. Known data is `(records,)`; targets and
    reconstructions are `(trials, set)`: one record for an informed adversary, N for a weak
    one, m canaries in one run, the batch behind a gradient. A label that an attack does not
    claim to know is NaN, and NaN matches nothing. An `embedding` is a frozen backbone's output for
    the features, computed once: training reads it in their place.

    >>> targets = Records(torch.zeros(5, 1, 8, 8), torch.zeros(5, 1))
    >>> targets.batch_shape, targets.example_shape
    ((5, 1), (8, 8))
    """

    features: Tensor  # (*batch, *example)
    labels: Tensor  # (*batch)
    weights: Tensor | None = None  # (*batch)
    embedding: Tensor | None = None  # (*batch, numbers)

    def __post_init__(self) -> None:
        leading = self.features.shape[: self.labels.ndim]
        if leading != self.labels.shape:
            raise InputError(
                "Features and labels do not belong together.",
                needs=f"features whose first dimensions are those of the labels, {tuple(self.labels.shape)}",
                got=f"features of shape {tuple(self.features.shape)}",
                hint="one label per record; a single label per record has no dimension of its own",
            )
        if self.weights is not None:
            shaped("record weights", self.weights, self.labels.shape, "one per record, or none at all")
        if self.embedding is not None:
            hint = "remanence.embed(records, backbone)"
            shaped("embeddings", self.embedding[..., 0], self.labels.shape, hint)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The batch dimensions, without the shape of one example."""
        return tuple(self.labels.shape)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example's features."""
        return tuple(self.features.shape[self.labels.ndim :])

    @property
    def flat(self) -> Tensor:
        """The features with each example flattened to a vector."""
        return self.features.flatten(self.labels.ndim)  # (*batch, numbers)

    def __len__(self) -> int:
        return self.labels.shape[0]

    def __getitem__(self, index: int | slice | Tensor | tuple[slice | Tensor | None, ...] | None) -> Records:
        weights, embedding = (None if t is None else t[index] for t in (self.weights, self.embedding))
        return Records(self.features[index], self.labels[index], weights, embedding)

    def take(self, places: Tensor) -> Records:
        """The records at these indices, in the shape of `places`: twice as fast as indexing."""

        def at(values: Tensor) -> Tensor:
            return values.index_select(0, places.flatten()).unflatten(0, places.shape)

        weights, embedding = (None if t is None else at(t) for t in (self.weights, self.embedding))
        return Records(at(self.features), at(self.labels), weights, embedding)

    def split(self, rows: int) -> Iterator[Records]:
        """The same records in parts of this size, without copies."""
        return (self[first : first + rows] for first in range(0, len(self), rows))

    def to(self, device: torch.device | str) -> Records:
        """The same records on another device."""
        weights, embedding = (None if t is None else t.to(device) for t in (self.weights, self.embedding))
        return Records(self.features.to(device), self.labels.to(device), weights, embedding)

    def copied(self) -> Records:
        """The same records in new tensors."""
        parts = self.weights, self.embedding
        return Records(
            self.features.clone(), self.labels.clone(), *(None if t is None else t.clone() for t in parts)
        )

    def apart(self) -> Records:
        """The same records in memory of their own, since a slice keeps its whole tensor alive."""

        def own(values: Tensor) -> Tensor:
            return values if values.untyped_storage().nbytes() == values.nbytes else values.clone()

        weights, embedding = (None if t is None else own(t) for t in (self.weights, self.embedding))
        return Records(own(self.features), own(self.labels), weights, embedding)

    def repeated(self) -> int:
        """How many records equal an earlier one, in features and label.

        >>> Records(torch.tensor([[1.0], [2.0], [1.0]]), torch.zeros(3)).repeated()
        1
        """
        rows = zip(self.flat.cpu().numpy(), self.labels.cpu().numpy(), strict=True)
        return len(self) - len({hash((row.tobytes(), label.tobytes())) for row, label in rows})

    def without(self, index: int) -> Records:
        """All records but one."""
        return concatenate([self[:index], self[index + 1 :]])

    def require_finite(self, name: str) -> None:
        """Refuse NaN or infinite features: every result computed from them would be meaningless."""
        parts = {"features": self.features, "labels": self.labels, "embeddings": self.embedding}
        for part, values in parts.items():
            if values is not None and not _all_finite(values):
                raise InputError(
                    f"The {name} cannot be used.",
                    needs="finite numbers",
                    got=f"NaN or infinite {part}",
                    hint="drop or impute those records first",
                )

    def sha256(self) -> str:
        """A fingerprint of the contents, so that a result can name its data without showing it."""
        digest = hashlib.sha256()
        for tensor in (self.features, self.labels, self.weights, self.embedding):
            if tensor is not None:
                values = tensor.detach()
                digest.update(
                    f"{torch.empty(0, dtype=values.dtype).numpy().dtype}{tuple(values.shape)}".encode()
                )
                for part in values.split(_ROWS_AT_ONCE) if values.ndim else [values]:
                    digest.update(part.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def _all_finite(values: Tensor) -> bool:
    parts = values.split(_ROWS_AT_ONCE) if values.ndim and values.is_floating_point() else []
    return all(bool(part.isfinite().all()) for part in parts)


def concatenate(parts: Sequence[Records]) -> Records:
    """Join records along their first dimension.

    >>> one = Records(torch.ones(1, 3), torch.tensor([7]))
    >>> len(concatenate([one, one, one]))
    3
    """
    weights = [part.weights for part in parts if part.weights is not None]
    if weights and len(weights) != len(parts):
        raise InputError(
            "Weighted and unweighted records cannot be joined.",
            needs="weights on all of them or on none",
            got=f"weights on {len(weights)} of {len(parts)} parts",
            hint="give the unweighted ones a weight of 1",
        )
    embeddings = [part.embedding for part in parts if part.embedding is not None]
    return Records(
        torch.cat([part.features for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat(weights) if weights else None,
        torch.cat(embeddings) if len(embeddings) == len(parts) else None,
    )
