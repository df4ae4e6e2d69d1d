"""The work of an audit: independent units, each with its own random streams, carried out anywhere and kept.

    with Run(Processes(4), Journal("runs/mine")):
        audit(game)

A unit is a chunk of trials, or a block of shadow models. It runs with one thread and draws from generators that
depend on the seed and on its own number alone, so that its outcome does not depend on where or when it runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, final

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from remanence.exceptions import InputError
from remanence.fingerprints import code_version, fingerprint
from remanence.journal import DamagedUnitError, Journal, Json, Plan, Tensors
from remanence.progress import note, track

_BETWEEN_BEATS = 1.0  # seconds

Do = Callable[[int, int], Tensors]  # from the number of a unit and its size to what it found


@final
@dataclass(frozen=True)
class Task:
    """What an executor runs, by the number of a unit; a journal gets the outcome, otherwise it is returned."""

    plan: Plan
    do: Do
    journal: Journal | None

    def __call__(self, number: int) -> Tensors:
        """Carry out a unit, unless it is recorded already."""
        if self.journal is not None and self._recorded(self.journal, number):
            return {}
        with Run(), one_thread():
            outcome = self.do(number, self.plan.size(number))
        found = {
            name: values.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, values in outcome.items()
        }
        if self.journal is None:
            return found
        self.journal.write(self.plan.key(number), found)
        return {}

    def _recorded(self, journal: Journal, number: int) -> bool:
        # A worker may have died after it wrote and before it said so.
        try:
            return journal.read(self.plan.key(number)) is not None
        except DamagedUnitError:
            return False


class Executor(Protocol):
    """Runs units. What it yields may come in any order."""

    @property
    def workers(self) -> int:
        """How many units run at the same time."""
        ...

    def run(
        self, task: Task, numbers: Sequence[int], report: Callable[[str], None]
    ) -> Iterator[tuple[int, Tensors]]:
        """Yield the number of each unit when it is done; `report` what had to be run again."""
        ...


@final
@dataclass(frozen=True)
class InProcess:
    """One unit after the other, here: vectorised, on one device."""

    workers: int = field(default=1, init=False)

    def run(
        self, task: Task, numbers: Sequence[int], report: Callable[[str], None]
    ) -> Iterator[tuple[int, Tensors]]:
        """Yield each unit when it is done."""
        for number in numbers:
            yield number, task(number)


@final
@dataclass
class Run:
    """Where units are carried out, and where what they found is kept. Use it in a `with` statement.

    Without a journal nothing is kept. `unit_trials` makes units smaller than memory would allow; it is part of what
    a result depends on, as the seed is. With `galleries`, reconstructions, which are data, go into the journal too.
    """

    executor: Executor = field(default_factory=InProcess)
    journal: Journal | None = None
    unit_trials: int | None = None
    galleries: bool = False
    settings: Json = field(default_factory=dict)  # for the manifest
    resume: bool = False  # units of a run that is finished are used too
    reused: int = field(default=0, init=False)
    played: int = field(default=0, init=False)
    _tokens: list[Token[Run]] = field(default_factory=list, init=False)
    _opened: bool = field(default=False, init=False)
    _last_beat: float = field(default=0.0, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        if self.unit_trials is not None and self.unit_trials < 1:
            raise InputError(
                "Units cannot be made.",
                needs="at least one trial in each",
                got=f"{self.unit_trials}",
                hint="--unit-trials 64",
            )

    def __enter__(self) -> Self:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _CURRENT.reset(self._tokens.pop())
        if self.journal is None or not self._opened:
            return
        if kind is None:
            self.journal.finish()
        else:
            self.journal.forget_if_empty()

    def describe(self) -> dict[str, str]:
        """What a result says about where its units ran; only their size matters to who wants it again."""
        told = {"executor": f"{type(self.executor).__name__}, workers: {self.executor.workers}"}
        return told if self.unit_trials is None else {**told, "unit_trials": str(self.unit_trials)}

    @property
    def shows(self) -> bool:
        """Whether units may hold reconstructions: in memory always, on disk on request."""
        return self.journal is None or self.galleries

    def checkpoint(self, belongs_to: str) -> Path | None:
        """A file of the run folder in which one thing that is learnt may keep its state between kills."""
        if self.journal is None:
            return None
        return self.journal.checkpoint(fingerprint(code_version(), belongs_to))

    def announce(self, plans: list[Plan]) -> None:
        """Say what there is to do, for `remanence status`."""
        if self.journal is None:
            return
        if not self._opened:  # only now: input that is refused leaves no trace
            workers = self.executor.workers  # and neither does a cluster that is not there
            self.journal.begin(self.settings, resume=self.resume)
            self.journal.beat(workers, 0, 0.0)
            self._opened = True
        self.journal.announce(plans)

    def perform(self, plan: Plan, prepare: Callable[[], Do]) -> list[Tensors]:
        """What every unit of a plan found, in order. Nothing is prepared where all units are recorded."""
        self.announce([plan])
        found = self._recorded(plan)
        missing = [number for number in range(len(plan)) if number not in found]
        self.reused += len(found)
        if missing:
            with one_thread():
                task = Task(plan, prepare(), self.journal)
                units = self.executor.run(task, missing, self._report)
                for number, tensors in track(
                    units, total=len(missing), what=lambda: self._doing(plan, found)
                ):
                    found[number] = (
                        tensors if self.journal is None else self._written(self.journal, plan, number)
                    )
                    self.played += 1
                    self._beat()
        return [found[number] for number in range(len(plan))]

    def _recorded(self, plan: Plan) -> dict[int, Tensors]:
        if self.journal is None:
            return {}
        found, there = {}, self.journal.finished()
        for number in range(len(plan)):
            key = plan.key(number)
            if key not in there:
                continue
            try:
                tensors = self.journal.read(key)
            except DamagedUnitError as error:
                self.journal.set_aside(key)
                self._report(f"{plan.name}: a damaged unit was set aside and is run again ({error})")
                continue
            if tensors is not None:
                found[number] = tensors
        return found

    def _written(self, journal: Journal, plan: Plan, number: int) -> Tensors:
        tensors = journal.read(plan.key(number))
        if tensors is None:
            raise InputError(
                "A worker finished a unit, and it is not in the run folder.",
                needs="a run folder that all workers share, such as NFS or s3://",
                got=f"{journal}, which the worker sees as another folder",
                hint="--journal with a shared place",
            )
        return tensors

    def _doing(self, plan: Plan, found: dict[int, Tensors]) -> str:
        left = len(plan) - len(found)
        return f"{plan.name} ({min(self.executor.workers, left)} running)"

    def _beat(self) -> None:
        now = time.monotonic()
        if self.journal is not None and now - self._last_beat > _BETWEEN_BEATS:
            self._last_beat = now
            self.journal.beat(self.executor.workers, self.played, now - self._since)

    def _report(self, line: str) -> None:
        note(line)
        if self.journal is not None:
            self.journal.log(line)


_CURRENT: ContextVar[Run] = ContextVar("run")


def current() -> Run:
    """The run of the innermost `with` statement; in this process and in memory where there is none."""
    return _CURRENT.get(None) or Run()


def unit_seed(entropy: Sequence[int], unit: int) -> int:
    """The seed of a unit's stream: units draw from independent children of one seed.

    >>> unit_seed([0], 1) == unit_seed([0], 2)
    False
    """
    sequence = np.random.SeedSequence(entropy, spawn_key=(unit,) if unit else ())
    words = sequence.generate_state(2, np.uint32)
    return (int(words[0]) << 32) | int(words[1])


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
