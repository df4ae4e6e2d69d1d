"""Seconds until a reconstructor has a true positive rate of 0.9 at a false positive rate of 1 %, shadows included.

python benchmarks/time_to_rate.py FOLDER    # mnist.npz and the letters' backbone or data; a GPU is needed
"""

from __future__ import annotations

import argparse
from pathlib import Path

from remanence.reconstructor.attack import Reconstructor
from remanence_papers.maciazek import evaluate, handwriting_setup, prepare
from remanence_papers.reproduction import Settings

STEPS = 200, 300, 400, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    settings = Settings("paper", parser.parse_args().folder, device="cuda")
    game = handwriting_setup(settings).game(1)
    prepare(game, Reconstructor(steps=5, batch=1024, separation=0.3), settings)  # compiles and warms up
    for steps in STEPS:
        attack = Reconstructor(steps=steps, batch=1024, separation=0.3)
        reconstruct, seconds = prepare(game, attack, settings)
        rate = evaluate(game, reconstruct, settings, 2000).roc().tpr_at_fpr(0.01)
        print(f"{steps} steps, {seconds:.1f} s: {rate}", flush=True)
        if rate is not None and rate.rate >= 0.9:
            return


if __name__ == "__main__":
    main()
