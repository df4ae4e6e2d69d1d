"""The work of an audit: independent units, each with its own random streams, carried out anywhere and kept.

    with Run(Processes(4), Journal("runs/mine")) as run:
        audit(game, run=run)

A unit is a chunk of trials, or a block of shadow models. It runs with one thread and draws from generators that
depend on the seed and on its own number alone, so that its outcome does not depend on where or when it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, final

import torch

from remanence.core.checks import whole
from remanence.core.exceptions import InputError
from remanence.scale.executors import Do, Executor, InProcess, Task, one_thread
from remanence.scale.fingerprints import arithmetic, device_kind, fingerprint, versions
from remanence.scale.journal import LEARNING, Journal, Json, Plan, Tensors
from remanence.scale.progress import note, track
from remanence.scale.reading import UnusableFileError

Join = Callable[[Sequence[Tensors]], Tensors]  # from the outcomes of consecutive units to that of all


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
    _opened: bool = field(default=False, init=False)
    _used: bool = field(default=False, init=False)
    _replayed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.unit_trials is not None:
            whole("unit_trials", self.unit_trials, hint="--unit-trials 64")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._used:
            note("Nothing was played in this run: hand it over, as in audit(game, run=run).")
        if self.journal is None or not self._opened:
            return
        if kind is None:
            self.journal.finish()
        else:
            self.journal.forget_if_empty()

    def describe(self) -> dict[str, str]:
        """Where the units ran, for the result; only their size matters for reproducing it."""
        told = {"executor": f"{type(self.executor).__name__}, workers: {self.executor.workers}"}
        return told if self.unit_trials is None else {**told, "unit_trials": str(self.unit_trials)}

    @property
    def shows(self) -> bool:
        """Whether units may hold reconstructions: in memory always, on disk on request."""
        return self.journal is None or self.galleries

    def plan(
        self,
        name: str,
        total: int,
        at_once: int,
        device: torch.device | str,
        depends_on: Mapping[str, object],
    ) -> Plan:
        """A work as units, known by all that its outcome depends on; not worth computing where nothing is kept."""
        if self.journal is None:
            return Plan(name, "", total, at_once)
        code = self.settings.get("code")  # of the user's own, where a command knows it
        key = fingerprint(depends_on, versions(), arithmetic(), device_kind(device), code)
        return Plan(name, key, total, at_once)

    def checkpoint(self, belongs_to: str) -> Path | None:
        """A file of the run folder in which one thing that is learnt may keep its state between kills."""
        if self.journal is None:
            return None
        name = fingerprint(versions(), arithmetic(), self.settings.get("code"), belongs_to)
        return self.journal.folder / LEARNING / name

    def announce(self, plans: list[Plan]) -> None:
        """Say what there is to do, for `remanence status`."""
        if self.journal is None:
            return
        if not self._opened:  # only now: input that is refused leaves no trace
            _ = self.executor.workers  # and neither does a cluster that is not there
            self.journal.begin(self.settings, resume=self.resume)
            self._opened = True
        self.journal.announce(plans)

    def map(self, plan: Plan, prepare: Callable[[], Do], join: Join) -> Tensors:
        """What all units of a plan found, joined in order.

        Before recorded units are trusted, one of them is played again: what no fingerprint sees, such as a file that
        training reads, shows there. Where all of them are recorded, nothing is prepared once the run has seen that.
        """
        self._used = True
        self.announce([plan])
        found = self._recorded(plan)
        missing = [number for number in range(len(plan)) if number not in found]
        self.reused += len(found)
        if missing or not self._replayed:
            with one_thread():
                task = Task(plan.name, prepare())
                if found:
                    self._replay(task, *list(found.items())[len(found) // 2])
                with contextlib.closing(self.executor.run(task, missing, note)) as units:
                    for number, tensors in track(units, total=len(missing), what=plan.name):
                        found[number] = tensors
                        self.played += 1
                        if self.journal is not None:
                            self.journal.write(plan.key(number), tensors)
        return join([found[number] for number in range(len(plan))])

    def _recorded(self, plan: Plan) -> dict[int, Tensors]:
        """The units that are in the run folder; those that are damaged are named, and run again."""
        found = dict[int, Tensors]()
        if self.journal is None:
            return found
        for number in range(len(plan)):
            try:
                tensors = self.journal.read(plan.key(number))
            except UnusableFileError as error:
                note(f"{plan.name}: unit {plan.key(number)} is damaged and is run again ({error})")
            else:
                found |= {} if tensors is None else {number: tensors}
        return found

    def _replay(self, task: Task, number: int, recorded: Tensors) -> None:
        """Play a recorded unit again, and refuse the recorded ones if the outcome differs."""
        self._replayed = True
        again = task(number)
        same = again.keys() == recorded.keys() and all(_same(again[name], recorded[name]) for name in again)
        if not same:
            raise InputError(
                "A recorded unit gives another result now.",
                needs="the code, the data and the files that training read when the run began",
                got=f"unit {number} of {task.name} in {self.journal}",
                hint="undo the change, or start again in another folder",
            )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(one.isnan(), other.isnan()):
        return True
    # Some sums on a GPU are added up in whatever order they come.
    close = torch.cuda.is_available() and one.is_floating_point()
    return close and torch.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True)


IN_PROCESS = Run()  # here, and nothing is kept
