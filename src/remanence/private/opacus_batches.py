"""Who is in the batch whose gradients are there? Followed from the loader to the model, one loader at a time.

Nothing but the loader that is recorded is touched: its class becomes a subclass of itself, and its sampler is wrapped,
until recording ends. Batches are told apart by their contents when the model is given them, so that loaders that run
ahead, workers and looks at the data in between do not confuse them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, final

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor
from torch.utils.data import DataLoader

from remanence.core.exceptions import InputError
from remanence.private.opacus_updates import checksum

_REMEMBERED = 64  # batches that the loop was given and has not used yet
_DIRECTIONS = 8  # random ones, along which records are compared
_NEAR = 1e-2  # of a standard deviation, along all of these


@final
class Batches:
    """Notes which records the loader hands to the loop, and which of these the model is given."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        if "_remanence_batches" in vars(loader):
            raise InputError(
                "This loader is being recorded already.",
                needs="one recording of a loader at a time",
                got="a second record(...) inside the first",
                hint="close the first recording, or make a loader of its own for the second",
            )
        self._loader, self._open = loader, True
        self._class, self.sampler = type(loader), loader.batch_sampler
        self._given: deque[tuple[set[Any], list[int]]] = deque(maxlen=_REMEMBERED)
        self._fed: list[list[int]] = []  # what the model was given since gradients were last clipped
        self._inputs: list[list[Tensor]] = []
        self.drawn: deque[list[int]] = deque()  # by others than the loader itself: a BatchMemoryManager, say
        self.marks = RecordMarks()
        vars(loader)["_remanence_batches"] = self
        vars(loader)["batch_sampler"] = _NotedSampler(
            self.sampler, self.drawn
        )  # a loader refuses to have it set
        loader.__class__ = _followed(self._class)

    def close(self) -> None:
        """Leave the loader as it was; iterators that are still running go on without being looked at."""
        self._open = False
        vars(self._loader).pop("_remanence_batches", None)
        vars(self._loader)["batch_sampler"] = self.sampler
        self._loader.__class__ = self._class

    def given(self, batch: Any, members: list[int]) -> None:
        """The loop was handed a batch."""
        if self._open:
            self._given.append(({checksum(tensor) for tensor in tensors_in(batch)}, members))

    def fed(self, inputs: Any) -> None:
        """The model was given these, in a forward pass that trains."""
        tensors = [tensor.detach() for tensor in tensors_in(inputs)]
        sums = {checksum(tensor) for tensor in tensors if tensor.numel()}
        self._inputs.append(tensors)
        for known, members in reversed(self._given):
            if known & sums:
                self._fed.append(members)
                return

    def take(self, rows: int) -> list[int] | None:
        """Who the gradients of so many records belong to; None where nobody can tell."""
        members = self._members(rows)
        if members is not None:
            self.marks.add(self._inputs, members)
        self._fed, self._inputs = [], []
        return members

    def _members(self, rows: int) -> list[int] | None:
        fed = [index for members in self._fed for index in members]
        if self._fed and len(fed) == rows:
            return fed
        while self.drawn:  # pieces of a drawn batch come in order, and nothing else comes in between
            batch = self.drawn[0]
            if rows < len(batch):
                self.drawn[0] = batch[rows:]
                return batch[:rows]
            self.drawn.popleft()
            if rows == len(batch):
                return batch
        last: list[int] = []
        while len(last) < rows and self._given:  # changed on the way to the model: the last ones, then
            last = self._given.pop()[1] + last
        self._given.clear()
        return last if len(last) == rows else None


@final
class RecordMarks:
    """A mark of every record that the model has seen, to find records that are in the data twice."""

    def __init__(self) -> None:
        self._marks: dict[int, int] = {}
        self._places: dict[int, np.ndarray] = {}

    @torch.no_grad()
    def add(self, inputs: list[list[Tensor]], members: list[int]) -> None:
        """Mark records that have not been seen before."""
        new = [place for place, index in enumerate(members) if index not in self._marks]
        if not new or not inputs or not inputs[0]:
            return
        parts = [part[0] for part in inputs if part]
        if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
            return  # sequences that were padded differently
        rows = torch.cat(parts).flatten(1)
        if len(rows) != len(members) or not rows.shape[1]:
            return
        rows = rows[new]
        values = rows.float()
        bits = values.contiguous().view(torch.int32).long()
        marks = (bits * _multipliers(rows.shape[1]).to(bits.device)).sum(1).tolist()
        places = (values @ _directions(rows.shape[1]).to(values.device)).cpu().numpy()
        for place, mark, where in zip(new, marks, places, strict=True):
            self._marks[members[place]], self._places[members[place]] = mark, where

    def duplicates(self) -> int:
        """How many records are equal to one that came before."""
        return len(self._marks) - len(set(self._marks.values()))

    def near_duplicates(self) -> int:
        """How many records are nearly equal to another one, and not equal."""
        first = {mark: index for index, mark in self._marks.items()}
        if len(first) < 2:
            return 0
        places = np.stack([self._places[index] for index in first.values()]).astype(np.float64)
        spread = places.std(0)
        if not np.isfinite(spread).all() or not (spread > 0).all():
            return 0
        away, _ = KDTree(places / spread).query(places / spread, k=2, distance_upper_bound=_NEAR)
        return int(np.isfinite(np.asarray(away)[:, 1]).sum())


@cache
def _multipliers(numbers: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2**62, (numbers,), generator=generator) | 1


@cache
def _directions(numbers: int) -> Tensor:
    return torch.randn(numbers, _DIRECTIONS, generator=torch.Generator().manual_seed(2)) / numbers**0.5


class _NotedSampler:
    """A sampler of batches that notes what it draws."""

    def __init__(self, sampler: Any, drawn: Any) -> None:
        self.sampler, self.drawn = sampler, drawn

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        for batch in self.sampler:
            self.drawn.append([int(index) for index in batch])
            yield batch

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


class _FollowedIterator:
    """The loader's own iterator, which tells when it hands something out."""

    def __init__(self, batches: Any, noted: Batches, drawn: list[list[int]] | None) -> None:
        self._batches, self._noted, self._drawn, self._place = batches, noted, drawn, 0

    def __iter__(self) -> _FollowedIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._drawn is not None:
            members = self._drawn[self._place]
            self._place += 1
            self._noted.given(batch, members)
        elif self._noted.drawn:
            self._noted.given(batch, self._noted.drawn.popleft())
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


@cache
def _followed(kind: type) -> type:
    """The same class of loaders, whose iterators are followed."""

    def follow(self: Any) -> Any:
        noted: Batches = vars(self)["_remanence_batches"]
        shared = vars(self)["batch_sampler"]
        vars(self)["batch_sampler"] = _NotedSampler(noted.sampler, [])
        try:
            batches = kind.__iter__(self)
        finally:
            vars(self)["batch_sampler"] = shared
        own = getattr(batches, "_index_sampler", None)  # persistent workers keep that of their first epoch
        return _FollowedIterator(iter(batches), noted, own.drawn if isinstance(own, _NotedSampler) else None)

    return type(kind.__name__, (kind,), {"__iter__": follow, "__module__": kind.__module__})


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor in a batch, however it is packed."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_in(value)
