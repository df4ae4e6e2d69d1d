"""Seconds until a reconstructor has a true positive rate at a false positive rate of 1 %, shadows included.

python benchmarks/time_to_rate.py FOLDER                        # to 0.9 with one picture of each class, 0.36 with four
python benchmarks/time_to_rate.py FOLDER --parts --steps 300    # what the seconds are spent on
python benchmarks/time_to_rate.py --device cpu --steps 5        # digits, to see that it runs

FOLDER holds mnist.npz and the letters' backbone or data; without it the embedded digits are played.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from remanence.reconstructor.attack import Reconstructor
from remanence.reconstructor.network import HeldOut, ReconstructorNetwork
from remanence.reconstructor.shadows import ShadowFarm
from remanence_papers.maciazek import evaluate, handwriting_setup, prepare
from remanence_papers.reproduction import Settings

AIMS = {
    1: (0.9, (200, 300, 400, 500)),
    4: (0.36, (1500, 2500, 3500, 5000)),
}  # the rate, and steps that may reach it
PARTS = {
    "training shadows": (ShadowFarm, "block"),
    "reading them": (ReconstructorNetwork, "prepare"),
    "looks at held-out heads": (HeldOut, "quality"),
}


@contextmanager
def timed(device: str) -> Iterator[Counter[str]]:
    """Seconds of each part; a part waits for the device before and after, so that they add up."""
    spent: Counter[str] = Counter()

    def watched(name: str, inner):
        def run(*given, **more):
            wait()
            started = time.perf_counter()
            found = inner(*given, **more)
            wait()
            spent[name] += time.perf_counter() - started  # pyright: ignore[reportArgumentType]
            return found

        return run

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    with ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            stack.enter_context(patch.object(owner, method, watched(name, getattr(owner, method))))
        yield spent


def main() -> None:
    """Learn for so many steps, and for more until the rate is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--per-class", type=int, nargs="+", choices=list(AIMS), default=list(AIMS))
    parser.add_argument("--steps", type=int, nargs="+", help="instead of the usual ones")
    parser.add_argument("--batch", type=int, default=1024, help="with a folder; digits take 64")
    parser.add_argument("--parts", action="store_true")
    asked = parser.parse_args()
    settings = Settings("small" if asked.folder is None else "paper", asked.folder, device=asked.device)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}; the first run of each, which compiles, is not counted",
        flush=True,
    )
    setup, (batch, trials) = (
        handwriting_setup(settings),
        (64, 50) if asked.folder is None else (asked.batch, 2000),
    )
    attack = Reconstructor(batch=batch, separation=0.3)
    for per_class in asked.per_class:
        game, (aim, usual) = setup.game(per_class), AIMS[per_class]
        records = per_class * setup.head.classes
        prepare(game, replace(attack, steps=5), settings)
        for steps in asked.steps or usual:
            with timed(asked.device) if asked.parts else nullcontext(Counter()) as spent:
                reconstruct, seconds = prepare(game, replace(attack, steps=steps), settings)
            said = f"N = {records}: {steps} steps, {seconds:.2f} s: "
            if asked.parts:
                told = ", ".join(f"{part} {taken:.2f}" for part, taken in spent.items())
                print(f"{said}{told}, steps and the rest {seconds - spent.total():.2f}", flush=True)
                continue
            rate = evaluate(game, reconstruct, settings, trials).roc().tpr_at_fpr(0.01)
            print(f"{said}{rate}, aim {aim}", flush=True)
            if rate is not None and rate.rate >= aim:
                break


if __name__ == "__main__":
    main()
