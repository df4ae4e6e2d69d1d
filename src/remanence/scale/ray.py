"""Ray: units on the cores and GPUs of a whole cluster, one that exists or one on this machine.

Workers need this package; what they find travels to the driver, which alone writes. Usage statistics are
switched off before Ray is loaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, final

from remanence.core.checks import brief, extra, refusing
from remanence.core.exceptions import InputError, RemanenceError
from remanence.scale.executors import Outcomes, Task
from remanence.scale.journal import Tensors
from remanence.scale.processes import ATTEMPTS

_PATIENCE = 5.0  # seconds for a cluster to answer
_AHEAD = 2  # units under way for each that can run: the next one is there when a worker is free


@final
@dataclass(frozen=True)
class Ray:
    """A Ray cluster: `local` starts one on this machine, `auto` or host:port joins one that runs.

    A unit takes one core and `gpus_per_unit` of a GPU. One whose node or worker dies is run again elsewhere.
    `slots` limits how many run at the same time.
    """

    address: str = "local"
    slots: int | None = None
    gpus_per_unit: float = 0.0

    @property
    def workers(self) -> int:
        """How many units the cluster can run at the same time."""
        if self.slots is not None:
            return self.slots
        there = self._ray.cluster_resources()
        fit = there.get("GPU", 0) / self.gpus_per_unit if self.gpus_per_unit else there.get("CPU", 1)
        return max(1, int(fit))

    def run(self, task: Task, numbers: Sequence[int], report: Callable[[str], None]) -> Outcomes:
        """Yield each unit when it is done."""
        ray = self._ray
        # Retries are ours, so that each of them is counted and told.
        remote = ray.remote(_carry_out).options(
            num_cpus=1, num_gpus=self.gpus_per_unit, max_retries=0, scheduling_strategy="SPREAD"
        )
        shared = [ray.put(task)]  # within a list it travels as a name, and each worker reads it once
        waiting, under_way, attempts = list(reversed(numbers)), {}, dict.fromkeys(numbers, 1)
        while waiting or under_way:
            while waiting and len(under_way) < _AHEAD * self.workers:
                number = waiting.pop()
                under_way[remote.remote(shared, number)] = number
            done, _ = ray.wait(list(under_way), num_returns=1)
            for reference in done:
                number = under_way.pop(reference)
                try:
                    found = ray.get(reference)
                except ray.exceptions.RayTaskError:
                    raise  # the unit itself failed, and would again
                except ray.exceptions.RayError as error:
                    attempts[number] += 1
                    if attempts[number] > ATTEMPTS:
                        lost = f"{task.name}, unit {number}: {ATTEMPTS} attempts, the last: {brief(error)}"
                        raise InputError(
                            "A unit takes down every worker that tries it.",
                            needs="units that fit into the memory of a worker",
                            got=lost,
                            hint="smaller units with --unit-trials",
                        ) from None
                    report(
                        f"{task.name}: unit {number} was lost ({type(error).__name__}) and is run again "
                        f"(attempt {attempts[number]} of {ATTEMPTS})"
                    )
                    waiting.append(number)
                    continue
                if isinstance(found, RemanenceError):
                    raise found
                yield number, found

    @cached_property
    def _ray(self) -> Any:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray = extra("ray", "ray", "the package ray, here and on every node")
        if not ray.is_initialized():
            local, unreachable = self.address == "local", "The Ray cluster cannot be reached."
            needs = "local, auto, or the host:port of a running cluster"
            hint = "ray status, on the machine that should join"
            kinds = (OSError, ValueError, RuntimeError)
            with refusing(kinds, unreachable, needs=needs, got=self.address, hint=hint):
                if ":" in self.address:  # Ray itself would end this process after minutes
                    asyncio.run(_knock(self.address))
                ray.init(
                    address=self.address,
                    num_cpus=self.slots if local else None,
                    include_dashboard=False if local else None,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
        return ray


async def _knock(address: str) -> None:
    """Raise unless a server listens at the address that the user gave."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), _PATIENCE)
    writer.close()


def _carry_out(shared: list[Any], number: int) -> Tensors | RemanenceError:
    try:
        return _task(shared[0])(number)
    except RemanenceError as error:
        return error  # raised on the other side, as it was


@lru_cache(maxsize=1)
def _task(reference: Any) -> Task:
    return import_module("ray").get(reference)
