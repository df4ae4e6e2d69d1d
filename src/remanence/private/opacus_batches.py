"""Which records are in a step? The sampler's own draw, replayed from its generator's state.

Nothing but the sampler of the loader that is recorded is touched: it is wrapped until recording ends. Batches come in
the order in which they are drawn, also from loaders that run ahead and from workers. A step that used other records
than the next drawn batch is not replayed: their gradients have another sum.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, final

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import Tensor
from torch.utils.data import DataLoader

from remanence.core.exceptions import InputError
from remanence.private.own_pass import quiet_randomness, tensors_in
from remanence.private.seeds import Stream


@final
class Batches:
    """Notes which records the sampler draws; passes that train use them in that order."""

    def __init__(self, loader: DataLoader[Any], stream: Stream) -> None:
        if isinstance(loader.batch_sampler, _NotedSampler):
            raise InputError(
                "This loader is being recorded already.",
                needs="one recording of a loader at a time",
                got="a second record(...) inside the first",
                hint="close the first recording, or give the second its own loader",
            )
        self._loader, self._open = loader, True
        self.sampler: Any = loader.batch_sampler
        self._stream, self._records = stream, len(loader.dataset)  # pyright: ignore[reportArgumentType]
        self.rate = rate_of(self.sampler)
        # Draws of which no step has been seen, each with the reason why it could not be drawn again.
        self._unused: deque[tuple[list[int], str]] = deque()
        self._left: deque[int] = deque()  # the records of this epoch's draws that no pass has used
        self._marks: RecordMarks | None = None
        vars(loader)["batch_sampler"] = _NotedSampler(self)  # a loader refuses to have it set

    def close(self) -> None:
        """Leave the loader as it was; iterators that are still running go on without being looked at."""
        self._open = False
        vars(self._loader)["batch_sampler"] = self.sampler

    def drawn(self) -> Iterator[list[int]]:
        """The sampler's batches, each noted when it is drawn. Loops inside each other have draws of their own."""
        batches, left = iter(self.sampler), deque[int]()
        while True:
            foreseen = self._foreseen() if self._open else None
            batch = next(batches, None)
            if batch is None:
                return
            if self._open:
                members = [int(index) for index in batch]
                why = "" if members == foreseen else "the sampler's generator gives another batch"
                self._unused.append((members, self._stream.why if foreseen is None else why))
                self._stream.taken()
                left.extend(members)
                self._left = left
            yield batch

    def _foreseen(self) -> list[int] | None:
        """What the sampler must draw next: each record by a coin of its own, from the generator's state."""

        def coins(generator: torch.Generator) -> Tensor:
            return torch.empty(self._records).uniform_(generator=generator) < self.rate

        found = self._stream.next(getattr(self.sampler, "generator", None), coins)
        return None if found is None else found.nonzero().flatten().tolist()

    def take(self, rows: int) -> list[int] | None:
        """The records that this many gradients belong to, the next of those that were drawn; None if too few were."""
        if len(self._left) < rows:
            self._left.clear()
            return None
        return [self._left.popleft() for _ in range(rows)]

    def settle(self, members: list[int]) -> str:
        """Which draw this step used; why it is not the sampler's next one, if it is not."""
        place = next((n for n, (drawn, _) in enumerate(self._unused) if drawn == members), None)
        if place is None:
            return "the step's records are not those of one drawn batch"
        for _ in range(place):
            self._unused.popleft()
        _, why = self._unused.popleft()
        return f"{place} drawn batches were not trained on" if place else why

    def fetch(self, members: list[int]) -> tuple[Any, str]:
        """The records of a batch, read anew from the data set; why they are not each record's own, if they are not."""
        self.mark()
        assert self._marks is not None
        with quiet_randomness():
            batch = self._read(members)
            return batch, self._marks.check(batch, members)

    def mark(self) -> None:
        """Mark every record as it is in the first pass. Not earlier: worker processes have begun by now."""
        if self._marks is None:
            with quiet_randomness():
                self._marks = RecordMarks(self._records, lambda index: self._read([index]))

    def _read(self, members: list[int]) -> Any:
        data: Any = self._loader.dataset
        collate: Any = self._loader.collate_fn
        return collate([data[index] for index in members])

    def duplicates(self) -> int:
        """How many records are equal to one that came before."""
        return 0 if self._marks is None else self._marks.duplicates()


def rate_of(sampler: Any) -> float:
    """The rate at which a sampler draws records; that of the logical batches, if they are split."""
    sampler = sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler
    return float(getattr(sampler, "sample_rate", 1 / max(1, len(sampler))))


@final
class RecordMarks:
    """A mark of every record as it is when training begins: it must not change, in a batch or alone."""

    def __init__(self, records: int, alone: Callable[[int], Any]) -> None:
        self._marks = [_marks(alone(index), 1) for index in range(records)]

    @torch.no_grad()
    def check(self, batch: Any, members: list[int]) -> str:
        """Why the rows of a batch are not these records, if they are not."""
        marks = _marks(batch, len(members))
        if marks is None:
            return "the rows of a batch are not its records"
        changed = [index for mark, index in zip(marks, members, strict=True) if self._marks[index] != [mark]]
        return (
            f"record {changed[0]} differs from what was read, alone, when training began" if changed else ""
        )

    def duplicates(self) -> int:
        """How many records are equal to one that came before."""
        return len(self._marks) - len({mark[0] for mark in self._marks if mark})


def _marks(batch: Any, rows: int) -> list[int] | None:
    """A number for every row of a batch; zeros at the end of a row, as padding puts there, do not change it."""
    total = torch.zeros(rows, dtype=torch.int64)
    for place, tensor in enumerate(tensors_in(batch)):
        if not tensor.ndim or len(tensor) != rows:
            return None
        numbers = _bytes(tensor).view(_WHOLE[min(8, tensor.element_size())]).reshape(rows, -1).long()
        total += (numbers * _multipliers(place, numbers.shape[1])).sum(1)
    return total.tolist()


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


@cache
def _multipliers(place: int, numbers: int) -> Tensor:
    k = torch.arange(1, numbers + 1) + (place << 40)
    return (k * k * 6364136223846793005 + k * 1442695040888963407) | 1


class _NotedSampler:
    """A sampler of batches that notes what it draws; a copy of it is the plain sampler."""

    def __init__(self, noted: Batches) -> None:
        vars(self)["_noted"] = noted

    def __iter__(self) -> Iterator[list[int]]:
        return self._noted.drawn()

    def __len__(self) -> int:
        return len(self._noted.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noted.sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._noted.sampler, name, value)

    def __reduce__(self) -> Any:
        return _plain, (self._noted.sampler,)


def _plain(sampler: Any) -> Any:
    return sampler


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8).cpu()


@torch.no_grad()
def checksum(tensor: Tensor) -> tuple[Any, ...]:
    """Changes with any bit of the tensor and with their order, in all likelihood, and needs no copy of it."""
    return tuple(tensor.shape), zlib.crc32(_bytes(tensor).numpy().data)
