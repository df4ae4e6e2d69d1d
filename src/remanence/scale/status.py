"""How far a run is, read from its folder: while somebody runs it, and after it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remanence.scale.heartbeat import alive
from remanence.scale.journal import Json, existing, plans


@dataclass(frozen=True)
class WorkStatus:
    """One work of a run."""

    name: str
    done: int
    units: int


@dataclass(frozen=True)
class RunStatus:
    """All that the folder tells. `seconds_left` is at the speed that was measured, where any was."""

    place: str
    settings: Json
    works: tuple[WorkStatus, ...]
    finished: str | None
    running: int
    process: str | None  # who is at work
    seconds_left: float | None

    @property
    def done(self) -> int:
        """Units that are recorded."""
        return sum(work.done for work in self.works)

    @property
    def left(self) -> int:
        """Units that are neither recorded nor running, of the works that are known so far."""
        return sum(work.units for work in self.works) - self.done - self.running


def read_status(place: str | Path) -> RunStatus:
    """Look into a run folder, without a trace."""
    journal, manifest = existing(place)
    there = journal.finished()
    works = tuple(
        WorkStatus(plan.name, sum(plan.key(number) in there for number in range(len(plan))), len(plan))
        for plan in plans(manifest)
    )
    missing = sum(work.units - work.done for work in works)
    beat = None if manifest["finished"] else journal.last_beat()
    at_work = beat is not None and alive(beat)
    speed = beat["played"] / beat["seconds"] if beat and beat["played"] and beat["seconds"] else None
    return RunStatus(
        place=str(place),
        settings=manifest["settings"],
        works=works,
        finished=manifest["finished"],
        running=min(beat["workers"], missing) if beat and at_work else 0,
        process=f"{beat['process']} on {beat['host']}" if beat and at_work else None,
        seconds_left=missing / speed if speed else None,
    )
