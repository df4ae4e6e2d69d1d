"""The backbone of the MNIST heads, trained on letters once: half a minute that each reproduction then saves.

    python benchmarks/letters_backbone.py FOLDER --device cuda    # writes FOLDER/letters-backbone.safetensors

FOLDER holds cyrillic-letters.npz. `remanence reproduce maciazek-table-1 --scale paper --data FOLDER` reads the file
where it finds it, and trains the same backbone where it does not.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from remanence_papers.letters import store_letters, train_letters
from remanence_papers.maciazek import BACKBONE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    with np.load(options.folder / "cyrillic-letters.npz") as letters:
        images, labels = torch.from_numpy(letters["xtr"]), torch.from_numpy(letters["ytr"].astype(np.int64))
    started = time.perf_counter()
    network = train_letters(images, labels, epochs=options.epochs, device=options.device)
    store_letters(network, options.folder / BACKBONE)
    print(f"trained on {len(images)} letters in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
