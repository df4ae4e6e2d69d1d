"""Units on all cores, or all GPUs, of this machine."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import current_process
from typing import final

import cloudpickle
import torch
from joblib.externals.loky import ProcessPoolExecutor

from remanence.core.checks import whole
from remanence.core.exceptions import InputError
from remanence.scale.executors import Outcomes, Task
from remanence.scale.journal import Tensors

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_CORES = os.cpu_count() or 1
_PER_CORE = 16  # a file that asks for thousands would take the machine down
ATTEMPTS = 4  # how often a unit may take its worker down before it is the unit's fault


@final
@dataclass(frozen=True)
class Processes:
    """Worker processes, each with one thread; with several GPUs, each has one of them.

    A worker that dies, killed or out of memory, is replaced, and what it was doing is done again. Workers stay until
    this process ends: the next attack finds them ready.
    """

    workers: int = _CORES

    def __post_init__(self) -> None:
        hint = f"--workers {_CORES}: {_PER_CORE} per core at most"
        whole("workers", self.workers, most=_PER_CORE * _CORES, hint=hint)

    def run(self, task: Task, numbers: Sequence[int], report: Callable[[str], None]) -> Outcomes:
        """Yield each unit when it is done; no more than two for each worker are under way."""
        left, attempts = list(numbers), 1
        # Once, and sent to a worker once: it holds data, and never touches a disk.
        packed = cloudpickle.dumps(task)
        while left:
            try:
                for number, tensors in self._attempt(packed, left):
                    left.remove(number)
                    yield number, tensors
            except BrokenProcessPool:
                _POOLS.clear()
                attempts += 1
                if attempts > ATTEMPTS:
                    raise InputError(
                        "Workers keep dying.",
                        needs="units that fit into the memory of a worker",
                        got=f"{task.name}: {ATTEMPTS} attempts, {len(left)} units left",
                        hint="fewer --workers, or smaller units with --unit-trials",
                    ) from None
                waiting = left[: 2 * self.workers]
                report(
                    f"{task.name}: a worker died; its units among {waiting} are run again "
                    f"(attempt {attempts} of {ATTEMPTS})"
                )

    def _attempt(self, packed: bytes, numbers: Sequence[int]) -> Outcomes:
        pool, name = _pool(self.workers), hashlib.sha256(packed).hexdigest()
        waiting, under_way, sent = list(reversed(numbers)), set(), 0
        try:
            while waiting or under_way:
                while waiting and len(under_way) < 2 * self.workers:
                    sent += 1
                    under_way.add(
                        pool.submit(_carry_out, name, packed if sent <= self.workers else None, waiting.pop())
                    )
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for unit in done:
                    number, tensors = unit.result()
                    if tensors is None:  # a worker that has not seen the task yet
                        under_way.add(pool.submit(_carry_out, name, packed, number))
                    else:
                        yield number, tensors
        finally:
            for unit in under_way:
                unit.cancel()


_BETWEEN_LOOKS = 0.5  # seconds
_POOLS: dict[int, ProcessPoolExecutor] = {}  # by the number of their workers; one at a time


def _pool(workers: int) -> ProcessPoolExecutor:
    # Our own pool: loky's shared one is joblib's, and the two would interfere.
    if workers not in _POOLS:
        _POOLS.clear()
        _POOLS[workers] = ProcessPoolExecutor(
            workers, env=_ENVIRONMENT, initializer=_begin, initargs=(os.getpid(),)
        )
    return _POOLS[workers]


def _begin(parent: int) -> None:
    _end_with(parent)
    worker, gpus = current_process().name.rsplit("-", 1)[-1], torch.cuda.device_count()
    if gpus > 1 and worker.isdigit() and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker) % gpus)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, and leave Ctrl+C to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_BETWEEN_LOOKS)
        os._exit(1)

    if hasattr(os, "getppid") and os.getppid() == parent:
        threading.Thread(target=watch, daemon=True).start()


_KNOWN: dict[str, Task] = {}  # in a worker: the task that it has, by its hash


def _carry_out(name: str, packed: bytes | None, number: int) -> tuple[int, Tensors | None]:
    if name not in _KNOWN:
        if packed is None:
            return number, None
        _KNOWN.clear()
        _KNOWN[name] = cloudpickle.loads(packed)  # what the driver made, through its own pipe
    return number, _KNOWN[name](number)
