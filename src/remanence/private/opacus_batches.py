"""Which records are in a step? The sampler's own draw, replayed from its generator's state and followed to the model.

Nothing but the loader that is recorded is touched: its class becomes a subclass of itself, and its sampler is wrapped,
until recording ends. Batches are told apart by their contents when the model is given them, so that loaders that run
ahead, workers and looks at the data in between do not confuse them.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import Tensor
from torch.utils.data import DataLoader

from remanence.core.exceptions import InputError
from remanence.private.own_pass import quiet_randomness, tensors_in
from remanence.private.seeds import Stream

_REMEMBERED = 64  # batches that the loop was given and has not used yet


@final
@dataclass
class Draw:
    """One batch that the sampler drew; `why` it could not be drawn again, if it could not."""

    members: list[int]
    why: str
    handed_out: bool = True  # workers draw batches ahead, which may never be used


@final
class Batches:
    """Notes which records the sampler draws, which the loop is handed, and which of these the model is given."""

    def __init__(self, loader: DataLoader[Any], stream: Stream) -> None:
        if "_remanence_batches" in vars(loader):
            raise InputError(
                "This loader is being recorded already.",
                needs="one recording of a loader at a time",
                got="a second record(...) inside the first",
                hint="close the first recording, or give the second its own loader",
            )
        self._loader, self._open = loader, True
        self._class = type(loader)
        self.sampler: Any = loader.batch_sampler
        self._stream, self._records = stream, len(loader.dataset)  # pyright: ignore[reportArgumentType]
        self.rate = rate_of(self.sampler)
        self._unused: deque[Draw] = deque()  # draws of which no step has been seen
        self._given: deque[tuple[set[Any], list[int]]] = deque(maxlen=_REMEMBERED)
        self._fed: list[list[int]] = []  # what the model was given since gradients were last clipped
        self.drawn: deque[Draw] = deque()  # by others than the loader itself: a BatchMemoryManager, say
        self._marks: RecordMarks | None = None
        vars(loader)["_remanence_batches"] = self
        vars(loader)["batch_sampler"] = _NotedSampler(self, self.drawn)  # a loader refuses to have it set
        loader.__class__ = _followed(self._class)

    def close(self) -> None:
        """Leave the loader as it was; iterators that are still running go on without being looked at."""
        self._open = False
        vars(self._loader).pop("_remanence_batches", None)
        vars(self._loader)["batch_sampler"] = self.sampler
        self._loader.__class__ = self._class

    def foreseen(self) -> list[int] | None:
        """What the sampler must draw next: each record by a coin of its own, from the generator's state."""
        if not self._open:
            return None

        def coins(generator: torch.Generator) -> Tensor:
            return torch.empty(self._records).uniform_(generator=generator) < self.rate

        found = self._stream.next(getattr(self.sampler, "generator", None), coins)
        return None if found is None else found.nonzero().flatten().tolist()

    def drew(self, members: list[int], foreseen: list[int] | None) -> Draw:
        """The sampler drew a batch."""
        why = "" if members == foreseen else "the sampler's generator gives another batch"
        draw = Draw(members, self._stream.why if foreseen is None else why)
        self._stream.taken()
        if self._open:
            self._unused.append(draw)
        return draw

    def given(self, batch: Any, draw: Draw) -> None:
        """The loop was handed a batch."""
        draw.handed_out = True
        if self._open:
            self._given.append(({checksum(tensor) for tensor in tensors_in(batch)}, draw.members))

    def fed(self, inputs: Any) -> None:
        """The model was given these, in a forward pass that trains."""
        sums = {checksum(tensor) for tensor in tensors_in(inputs) if tensor.numel()}
        for known, members in reversed(self._given):
            if known & sums:
                self._fed.append(members)
                return

    def take(self, rows: int) -> list[int] | None:
        """The records that this many gradients belong to; None where it is unknown."""
        fed = [index for members in self._fed for index in members]
        matched, self._fed = bool(self._fed), []
        if matched and len(fed) == rows:
            return fed
        while self.drawn:  # pieces of a drawn batch come in order, and nothing else comes in between
            batch = self.drawn[0].members
            if rows < len(batch):
                self.drawn[0] = Draw(batch[rows:], "")
                return batch[:rows]
            self.drawn.popleft()
            if rows == len(batch):
                return batch
        last: list[int] = []
        while len(last) < rows and self._given:  # changed on the way to the model: the last ones, then
            last = self._given.pop()[1] + last
        self._given.clear()
        return last if len(last) == rows else None

    def settle(self, members: list[int]) -> str:
        """Which draw this step used; why it is not the sampler's next one, if it is not."""
        place = next((n for n, draw in enumerate(self._unused) if draw.members == members), None)
        if place is None:
            return "the step's records are not those of one drawn batch"
        passed = [self._unused.popleft() for _ in range(place)]
        skipped = sum(draw.handed_out for draw in passed)
        return f"{skipped} drawn batches were not trained on" if skipped else self._unused.popleft().why

    def fetch(self, members: list[int]) -> tuple[Any, str]:
        """The records of a batch, read anew from the data set; why they are not each record's own, if they are not."""
        data: Any = self._loader.dataset
        collate: Any = self._loader.collate_fn
        with quiet_randomness():
            if self._marks is None:  # not earlier: worker processes have begun by now
                self._marks = RecordMarks(self._records, lambda index: collate([data[index]]))
            batch = collate([data[index] for index in members])
            return batch, self._marks.check(batch, members)

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
        bits = _bits(tensor).reshape(rows, -1).long().cpu()
        total += (bits * _multipliers(place, bits.shape[1])).sum(1)
    return total.tolist()


@cache
def _multipliers(place: int, numbers: int) -> Tensor:
    k = torch.arange(1, numbers + 1) + (place << 40)
    return (k * k * 6364136223846793005 + k * 1442695040888963407) | 1


class _NotedSampler:
    """A sampler of batches that notes what it draws."""

    def __init__(self, noted: Batches, drawn: Any, *, handed_out: bool = True) -> None:
        self.sampler, self.drawn = noted.sampler, drawn
        self._noted, self._handed_out = noted, handed_out

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        batches = iter(self.sampler)
        while True:
            foreseen = self._noted.foreseen()
            batch = next(batches, None)
            if batch is None:
                return
            draw = self._noted.drew([int(index) for index in batch], foreseen)
            draw.handed_out = self._handed_out
            self.drawn.append(draw)
            yield batch

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.sampler, name)


class _FollowedIterator:
    """The loader's own iterator, which tells when it hands something out."""

    def __init__(self, batches: Any, noted: Batches, drawn: list[Draw] | None) -> None:
        self._batches, self._noted, self._drawn, self._place = batches, noted, drawn, 0

    def __iter__(self) -> _FollowedIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._drawn is not None:
            draw = self._drawn[self._place]
            self._place += 1
            self._noted.given(batch, draw)
        elif self._noted.drawn:
            self._noted.given(batch, self._noted.drawn.popleft())
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


@cache
def _followed(kind: type) -> type:
    """The same class of loaders, whose iterators are followed; a copy of such a loader is a plain one."""

    def follow(self: Any) -> Any:
        noted: Batches = vars(self)["_remanence_batches"]
        shared = vars(self)["batch_sampler"]
        vars(self)["batch_sampler"] = _NotedSampler(noted, [], handed_out=False)
        try:
            batches = kind.__iter__(self)
        finally:
            vars(self)["batch_sampler"] = shared
        own = getattr(batches, "_index_sampler", None)  # persistent workers keep that of their first epoch
        return _FollowedIterator(iter(batches), noted, own.drawn if isinstance(own, _NotedSampler) else None)

    def plain(self: Any, _: int) -> Any:
        noted: Batches = vars(self)["_remanence_batches"]
        own = {name: value for name, value in vars(self).items() if name != "_remanence_batches"}
        return object.__new__, (kind,), {**own, "batch_sampler": noted.sampler}

    return type(
        kind.__name__, (kind,), {"__iter__": follow, "__reduce_ex__": plain, "__module__": kind.__module__}
    )


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    whole = tensor.detach().contiguous()
    whole = torch.view_as_real(whole) if whole.is_complex() else whole
    return whole.view(_BITS[whole.element_size()])


@torch.no_grad()
def checksum(tensor: Tensor) -> tuple[Any, ...]:
    """Changes with any bit of the tensor and with their order, in all likelihood, and needs no copy of it."""
    return tuple(tensor.shape), zlib.crc32(_bits(tensor).cpu().numpy().data)
