"""Seconds until a reconstructor has a true positive rate at a false positive rate of 1 %, shadows included.

python benchmarks/time_to_rate.py FOLDER                             # 0.9 with one picture of each class
python benchmarks/time_to_rate.py FOLDER --per-class 4 --steps 6000  # with four
python benchmarks/time_to_rate.py FOLDER --parts --steps 300         # what the seconds are spent on
python benchmarks/time_to_rate.py --device cpu --steps 5             # digits, to see that it runs

FOLDER holds mnist.npz and the letters' backbone or data; without it the embedded digits are played.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from remanence.reconstructor.attack import Reconstructor
from remanence.reconstructor.network import HeldOut, ReconstructorNetwork
from remanence.reconstructor.shadows import ShadowFarm
from remanence_papers.maciazek import evaluate, handwriting_setup, prepare
from remanence_papers.reproduction import Settings

STEPS = 200, 300, 400, 500
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
    parser.add_argument("--per-class", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--rate", type=float, default=0.9, help="stop where it is reached")
    asked = parser.parse_args()
    settings = Settings("small" if asked.folder is None else "paper", asked.folder, device=asked.device)
    game = handwriting_setup(settings).game(asked.per_class)
    few, trials = (64, 50) if asked.folder is None else (1024, 2000)
    prepare(game, Reconstructor(steps=5, batch=few, separation=0.3), settings)  # compiles and warms up
    for steps in asked.steps if asked.parts else ():
        with timed(asked.device) as spent:
            _, seconds = prepare(game, Reconstructor(steps=steps, batch=few, separation=0.3), settings)
        told = ", ".join(f"{name} {taken:.2f}" for name, taken in spent.items())
        print(f"{steps} steps, {seconds:.2f} s: {told}, steps and the rest {seconds - spent.total():.2f}")
    for steps in () if asked.parts else asked.steps:
        reconstruct, seconds = prepare(game, Reconstructor(steps=steps, batch=few, separation=0.3), settings)
        rate = evaluate(game, reconstruct, settings, trials).roc().tpr_at_fpr(0.01)
        print(f"{steps} steps, {seconds:.1f} s: {rate}", flush=True)
        if rate is not None and rate.rate >= asked.rate:
            return


if __name__ == "__main__":
    main()
