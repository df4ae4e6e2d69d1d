"""Units on all cores, or all GPUs, of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import current_process
from pathlib import Path
from typing import final

import cloudpickle
import torch
from joblib.externals.loky import ProcessPoolExecutor

from remanence.exceptions import InputError
from remanence.scale.journal import Tensors
from remanence.scale.run import Outcomes, Task

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ATTEMPTS = 4  # how often a unit may take its worker down before it is the unit's fault


@final
@dataclass(frozen=True)
class Processes:
    """Worker processes, each with one thread; with several GPUs, each has one of them.

    A worker that dies, killed or out of memory, is replaced, and what it was doing is done again. Workers stay until
    this process ends: the next attack finds them ready.
    """

    workers: int = os.cpu_count() or 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(
                "There is nobody to work.",
                needs="at least 1 worker",
                got=f"{self.workers}",
                hint="--workers 2",
            )

    def run(self, task: Task, numbers: Sequence[int], report: Callable[[str], None]) -> Outcomes:
        """Yield each unit when it is done; no more than two for each worker are under way."""
        left, attempts = list(numbers), 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "task"
            path.write_bytes(cloudpickle.dumps(task))  # once, not once for each unit
            while left:
                try:
                    for number, tensors in self._attempt(path, left):
                        left.remove(number)
                        yield number, tensors
                except BrokenProcessPool:
                    _pool.cache_clear()
                    attempts += 1
                    if attempts > ATTEMPTS:
                        raise _given_up(task, len(left)) from None
                    waiting = left[: 2 * self.workers]
                    report(
                        f"{task.plan.name}: a worker died; those of units {waiting} that it had are run again "
                        f"(attempt {attempts} of {ATTEMPTS})"
                    )

    def _attempt(self, path: Path, numbers: Sequence[int]) -> Outcomes:
        pool = _pool(self.workers)
        waiting, under_way = list(reversed(numbers)), set()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < 2 * self.workers:
                    under_way.add(pool.submit(_carry_out, str(path), waiting.pop()))
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for unit in done:
                    yield unit.result()
        finally:
            for unit in under_way:
                unit.cancel()


@lru_cache(maxsize=1)
def _pool(workers: int) -> ProcessPoolExecutor:
    # Of our own: the pool that loky shares with everybody is joblib's, and both would stumble over each other.
    return ProcessPoolExecutor(workers, env=_ENVIRONMENT)


def _given_up(task: Task, left: int) -> InputError:
    return InputError(
        "Workers die again and again.",
        needs="units that fit into the memory of a worker",
        got=f"{task.plan.name}: {ATTEMPTS} attempts, {left} units left",
        hint="fewer --workers, or smaller units with --unit-trials",
    )


def _carry_out(path: str, number: int) -> tuple[int, Tensors]:
    return number, _task(path)(number)


@lru_cache(maxsize=1)
def _task(path: str) -> Task:
    """What the driver wrote for its own workers, in a folder that only its user can enter."""
    worker = current_process().name.rsplit("-", 1)[-1]
    gpus = torch.cuda.device_count()
    if gpus > 1 and worker.isdigit() and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker) % gpus)
    return cloudpickle.loads(Path(path).read_bytes())
