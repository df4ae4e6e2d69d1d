"""Who carries out units: the task that each of them runs, and this process as the simplest of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, final

import torch
from threadpoolctl import threadpool_limits

from remanence.scale.journal import Tensors

Do = Callable[[int], Tensors]  # from the number of a unit to what it found
Outcomes = Generator[tuple[int, Tensors], None, None]  # what units found, in whatever order they are done


@final
@dataclass(frozen=True)
class Task:
    """What an executor runs, by the number of a unit; the work's name is for messages."""

    name: str
    do: Do

    def __call__(self, number: int) -> Tensors:
        """What a unit finds, here and now."""
        with one_thread():
            outcome = self.do(number)
        return {
            name: values.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, values in outcome.items()
        }


class Executor(Protocol):
    """Runs units. What it yields may come in any order."""

    @property
    def workers(self) -> int:
        """How many units run at the same time."""
        ...

    def run(self, task: Task, numbers: Sequence[int], report: Callable[[str], None]) -> Outcomes:
        """Yield each unit and what it found when it is done; `report` what had to be run again."""
        ...


@final
@dataclass(frozen=True)
class InProcess:
    """One unit after the other, here: vectorised, on one device."""

    workers: int = field(default=1, init=False)

    def run(self, task: Task, numbers: Sequence[int], report: Callable[[str], None]) -> Outcomes:
        """Yield each unit when it is done."""
        for number in numbers:
            yield number, task(number)


_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with a single thread: how many there are changes the order of sums, and so their last bits."""
    if _ALONE.get():  # looking for every library's threads takes milliseconds
        yield
        return
    before, token = torch.get_num_threads(), _ALONE.set(True)
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
        _ALONE.reset(token)
