"""What units cost: on one and two processes, in the run folder, on Ray, in memory, and as an audit grows.

    python benchmarks/scale.py processes overhead memory costs [ray] [--device cuda]

Ratios are measured within one run. `processes` wants a quiet machine; `ray` wants Ray, and loopback only:
unshare -n sh -c 'ip link set lo up && .venv-cluster/bin/python benchmarks/scale.py ray'
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from remanence import DPSGD, Criterion, FinitePrior, Game, Perceptron, PriorAware, Records, mismatch, play
from remanence.reconstructor.shadows import ShadowFarm, split
from remanence.results.outcome import join
from remanence.scale.executors import Executor, InProcess
from remanence.scale.journal import Journal, Plan, Tensors
from remanence.scale.run import Run
from remanence.scale.seeds import stream
from remanence.targets import digits_dpsgd, digits_mlp

_NOTHING = 400  # units without any work in them


def seconds(function: Callable[[], object]) -> float:
    before = time.perf_counter()
    function()
    return time.perf_counter() - before


def audited(game: Game, trials: int, run: Run, device: str = "cpu") -> None:
    with run:
        play(game, PriorAware(), trials=trials, device=device, run=run)


def nothing(number: int) -> Tensors:
    return {"number": torch.tensor([number])}


def idle(executor: Executor, journal: Journal | None = None, *, resume: bool = False) -> float:
    """Seconds for each unit that does nothing."""
    plan = Plan("doing nothing", "nothing", _NOTHING, 1)
    with Run(executor, journal, resume=resume) as run:
        return seconds(lambda: run.map(plan, lambda: nothing, join)) / _NOTHING


def workers_seconds() -> list[float]:
    """The CPU seconds of each child of this process so far (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = path.read_text().rsplit(")", 1)[1].split()
        if int(fields[1]) == os.getpid():
            found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return sorted(found)


def processes(_: str) -> None:
    """Units per second of a compute-bound audit, with one worker process and with two."""
    from remanence.scale.processes import Processes

    game, units, at_once = digits_dpsgd(), 16, 16
    walls, spent = {}, {}
    for workers in (1, 2):
        executor = Processes(workers)
        audited(game, 2 * workers * at_once, Run(executor, unit_trials=at_once))  # workers that are awake
        before = workers_seconds()
        walls[workers] = seconds(
            lambda executor=executor: audited(game, units * at_once, Run(executor, unit_trials=at_once))
        )
        spent[workers] = [
            now - then for now, then in zip(workers_seconds(), before, strict=True) if now > then
        ]
        print(f"  {workers} workers: {units / walls[workers]:.2f} units/s; CPU seconds: {spent[workers]}")
    print(
        f"digits-dpsgd, {units} units of {at_once} trials: two processes do {walls[1] / walls[2]:.2f} times the units"
    )
    print(
        f"  of one by the clock, and {max(spent[1]) / max(spent[2]):.2f} times by CPU time, as on cores of their own"
    )


def overhead(_: str) -> None:
    """What a unit costs beyond its work."""
    from remanence.scale.processes import Processes

    idle(Processes(2))
    with tempfile.TemporaryDirectory() as folder:
        print(f"a unit without work, in-process:            {1e3 * idle(InProcess()):.2f} ms")
        print(
            f"  with a run folder (write, flush, read):   {1e3 * idle(InProcess(), Journal(folder)):.2f} ms"
        )
        again = idle(InProcess(), Journal(folder), resume=True)
        print(f"  read back from there:                     {1e3 * again:.2f} ms")
        print(f"  two processes:                            {1e3 * idle(Processes(2)):.2f} ms")
        print(
            f"  two processes and a run folder:           {1e3 * idle(Processes(2), Journal(folder)):.2f} ms"
        )


def ray(_: str) -> None:
    """The same on Ray, on this machine."""
    from remanence.scale.ray import Ray

    executor = Ray(slots=2)
    first = seconds(lambda: idle(executor))
    with tempfile.TemporaryDirectory() as folder:
        print(f"Ray, two slots: started, with {_NOTHING} units, in {first:.1f} s")
        print(f"  a unit without work:     {1e3 * idle(executor):.2f} ms")
        print(f"  and with a run folder:   {1e3 * idle(executor, Journal(folder)):.2f} ms")


def tiny_game() -> Game:
    generator = torch.Generator().manual_seed(0)
    data = Records(torch.randn(25, 4, generator=generator), torch.arange(25) % 3)
    mechanism = DPSGD(Perceptron((4, 5, 3)), noise_multiplier=1.0, steps=6)
    return Game(mechanism, FinitePrior(data[:5]), data[5:], Criterion(mismatch, 0.5))


def memory(_: str) -> None:
    """The peak of a process that plays the prior-aware audit, by the number of trials."""
    peaks = {}
    for trials in (10**3, 10**4, 10**5):
        command = [sys.executable, __file__, "peak", "--trials", str(trials)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        spent, peak = map(float, found.stdout.split())
        peaks[trials] = peak
        print(f"  {trials:>7,} trials: {peak:.1f} MiB, {spent:.1f} s, {trials / spent:.0f} trials/s")
    print(f"peak memory at 10^5 trials: {peaks[10**5] / peaks[10**3]:.3f} times that at 10^3")


def peak(trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spent = seconds(lambda: audited(tiny_game(), trials, Run(journal=Journal(Path(folder)))))
    print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def costs(device: str) -> None:
    """How the seconds of an audit grow."""
    game = digits_dpsgd()
    mechanism = game.mechanism
    assert isinstance(mechanism, DPSGD)
    assert isinstance(game.prior, FinitePrior)
    known = game.known_data
    assert known is not None
    source = Records(
        torch.cat([game.prior.candidates.features, known.features]),
        torch.cat([game.prior.candidates.labels, known.labels]),
    )
    trials = 64 if device == "cpu" else 4096

    def measured(name: str, changed: Game, factor: int, count: int = trials) -> None:
        audited(changed, min(count, 64), Run(), device)
        spent = statistics.median(
            [seconds(partial(audited, changed, count, Run(), device)) for _ in range(3)]
        )
        base.setdefault("seconds", spent)
        print(f"  {name:<42} {spent:8.3f} s   {spent / base['seconds']:6.2f} times ({factor} times as many)")

    base: dict[str, float] = {}
    print(f"prior-aware on digits-dpsgd, {trials} trials, {device}:")
    measured("32 candidates, 100 steps, 64-10-10", game, 1)
    measured("4 times the trials", game, 4, 4 * trials)
    shortlist = FinitePrior(source[:128])
    measured("128 candidates", replace(game, prior=shortlist), 4)
    measured("400 steps", replace(game, mechanism=replace(mechanism, steps=400)), 4)
    wide = replace(mechanism, network=Perceptron((64, 40, 10)))
    measured(f"64-40-10: {wide.network.numbers} parameters, not 760", replace(game, mechanism=wide), 4)
    doubled = Records(known.features.repeat(4, 1), known.labels.repeat(4))
    measured("2,000 known records", replace(game, known_data=doubled), 4)
    network = digits_mlp().to(device)
    for count in (250, 1000):
        farm = ShadowFarm(split(network.knowledge)[0], stream(0, "attack", device))
        farm.stored(64)
        spent = seconds(partial(farm.stored, count))
        print(f"  {count} shadow models of digits-mlp: {spent:.2f} s, {1e3 * spent / count:.2f} ms each")


PARTS = {part.__name__: part for part in (processes, overhead, ray, memory, costs)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "peak"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trials", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for part in arguments.parts:
        if part == "peak":
            peak(arguments.trials)
        else:
            PARTS[part](arguments.device)
