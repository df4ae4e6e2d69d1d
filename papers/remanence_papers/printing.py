"""Print many pages: what is there and fresh is left alone, so that a run goes on where it was cut off."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from remanence_papers import registry, views
from remanence_papers.reproduction import Reproduction, Settings
from remanence_papers.seeds import merged
from remanence_papers.signatures import code_signature, data_signature

_PARTS = ".seeds"  # pages of single seeds, until all of one are there


@dataclass(frozen=True)
class Unit:
    """One seed of one page."""

    entry: Reproduction
    settings: Settings

    def path(self, out: Path) -> Path:
        """Where its document is kept."""
        return out / _PARTS / str(self.settings.seed) / f"{self.entry.name}.json"


def units(entry: Reproduction, settings: Settings) -> list[Unit]:
    """A page's seeds: one at the small scale."""
    count = 1 if settings.small else entry.seeds
    return [Unit(entry, replace(settings, seed=settings.seed + k)) for k in range(count)]


def print_pages(
    entries: Sequence[Reproduction], settings: Settings, out: Path, *, jobs: int, say: Callable[[str], None]
) -> dict[str, str]:
    """Print those that are not fresh, `jobs` processes at a time, and return why each that failed did."""
    due = [entry for entry in entries if not is_fresh(out / f"{entry.name}.json", entry, settings)]
    say(f"{len(entries) - len(due)} of {len(entries)} pages are there already.")
    failed: dict[str, str] = {}
    left = {entry.name: units(entry, settings) for entry in due}
    # The first seed of every page comes first: a page of one seed is better than three of another. Of these, what took
    # longest begins, and pages that were never timed.
    work = sorted(
        (unit for pages in left.values() for unit in pages),
        key=lambda unit: (unit.settings.seed, -_seconds(out / f"{unit.entry.name}.json")),
    )

    def one(unit: Unit) -> tuple[Unit, str | None, float]:
        started = time.perf_counter()
        path = unit.path(out)
        _adopt(unit, out)
        if is_fresh(path, unit.entry, unit.settings):
            return unit, None, 0.0
        wrong = _alone(unit, path.parent) if jobs == 1 else _in_a_process(unit, path.parent, jobs)
        return unit, wrong, time.perf_counter() - started

    with ThreadPoolExecutor(jobs) as pool:
        for unit, wrong, seconds in pool.map(one, work) if jobs == 1 else _as_they_end(pool, one, work):
            name = unit.entry.name
            if wrong is not None:
                failed[name] = wrong
                say(f"{name}, seed {unit.settings.seed}: {wrong}")
                continue
            there = [each for each in left[name] if is_fresh(each.path(out), unit.entry, each.settings)]
            if not there:
                failed[name] = "code or data changed while it was printed"
                say(f"{name}, seed {unit.settings.seed}: {failed[name]}; the same command goes on")
                continue
            parts = [json.loads(each.path(out).read_text(encoding="utf-8")) for each in there]
            views.save(merged(parts), out)
            say(
                f"{name}, seed {unit.settings.seed}: {seconds:.0f} s, {len(there)} of {len(left[name])} seeds"
            )
    return failed


def _seconds(path: Path) -> float:
    """What a stored page took, of whatever code."""
    if not path.exists():
        return math.inf
    return json.loads(path.read_text(encoding="utf-8"))["environment"]["seconds"]


def _adopt(unit: Unit, out: Path) -> None:
    """A stored page of one seed is that seed's document: a run goes on from the pages that the repository has."""
    page, part = out / f"{unit.entry.name}.json", unit.path(out)
    if part.exists() or not page.exists():
        return
    document = json.loads(page.read_text(encoding="utf-8"))
    if "seeds" not in document and document["seed"] == unit.settings.seed:
        part.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, part)


def is_fresh(path: Path, entry: Reproduction, settings: Settings) -> bool:
    """Whether today's code printed this document from the data that are there, with these settings."""
    if not path.exists():
        return False
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    signature = document.get("signature")
    wanted = settings.scale, settings.trials
    if signature is None or (document["scale"], document.get("trials")) != wanted:
        return False
    seeds = document.get("seeds", [document["seed"]])
    if path.parent.parent.name != _PARTS and seeds != [unit.settings.seed for unit in units(entry, settings)]:
        return False
    return signature["code"] == code_signature(entry.home) and not other_data(
        signature["data"], settings.data
    )


def other_data(hashes: dict[str, str], folder: Path | None) -> list[str]:
    """The files of a page that are in the folder with other bytes."""
    if folder is None:
        return []
    return [
        name
        for name, value in hashes.items()
        if (path := folder / name).exists() and data_signature(path) != value
    ]


def _alone(unit: Unit, folder: Path) -> str | None:
    try:
        views.save(registry.run(unit.entry, unit.settings), folder)
    except Exception as error:  # noqa: BLE001  # one page that fails leaves the others
        return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return None


def _in_a_process(unit: Unit, folder: Path, jobs: int) -> str | None:
    settings = unit.settings
    command = [sys.executable, "-m", "remanence", "reproduce", unit.entry.name, "--scale", settings.scale]
    command += ["--seed", str(settings.seed), "--device", settings.device.split(":")[0], "--out", str(folder)]
    command += ["--data", str(settings.data)] if settings.data else []
    command += ["--trials", str(settings.trials)] if settings.trials else []
    shared = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)), "REMANENCE_PROCESSES": str(jobs)}
    environment = {**shared, **os.environ}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)  # noqa: S603
    if ran.returncode == 0:
        return None
    lines = [line for line in ran.stderr.splitlines() if line.strip()] or ["no word"]
    return f"exit {ran.returncode}: {lines[-1].strip()[:200]}"


def _as_they_end(
    pool: ThreadPoolExecutor, one: Callable[[Unit], Any], work: Sequence[Unit]
) -> Iterator[tuple[Unit, str | None, float]]:
    from concurrent.futures import as_completed

    for future in as_completed([pool.submit(partial(one, unit)) for unit in work]):
        yield future.result()
