"""How far a run is, read from its folder: while somebody runs it, and after it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remanence.scale.journal import Json, existing, plans


@dataclass(frozen=True)
class WorkStatus:
    """One work of a run."""

    name: str
    done: int
    units: int


@dataclass(frozen=True)
class RunStatus:
    """All that the folder tells. Whether somebody is at work cannot be told on object storage."""

    place: str
    settings: Json
    works: tuple[WorkStatus, ...]
    finished: str | None
    at_work: bool | None

    @property
    def done(self) -> int:
        """Units that are recorded."""
        return sum(work.done for work in self.works)

    @property
    def left(self) -> int:
        """Units that are not recorded, of the works that are known so far."""
        return sum(work.units for work in self.works) - self.done


def read_status(place: str | Path) -> RunStatus:
    """Look into a run folder, without a trace."""
    journal, manifest = existing(place)
    there = journal.finished()
    works = tuple(
        WorkStatus(plan.name, sum(plan.key(number) in there for number in range(len(plan))), len(plan))
        for plan in plans(manifest)
    )
    at_work = False if manifest["finished"] else journal.folder.locked()
    return RunStatus(str(place), manifest["settings"], works, manifest["finished"], at_work)
