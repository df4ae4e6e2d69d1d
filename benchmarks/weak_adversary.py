"""The weak adversary on MNIST heads: TPR at an FPR of 1 % after a given number of learning steps.

    python benchmarks/weak_adversary.py --data FOLDER --device cuda --per-class 1 --steps 1400

FOLDER holds mnist.npz and cyrillic-letters.npz. `--backbone FILE` keeps the trained backbone and reads it back.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from remanence import (
    Criterion,
    Game,
    Reconstructor,
    Records,
    Reduction,
    Roc,
    StratifiedPrior,
    TransferHead,
    embed,
    mean_squared_error,
    play,
)
from remanence.reproductions.letters import letters_network, pixels, train_letters

NEAREST_NEIGHBOUR = 0.0696  # the paper's threshold for MNIST


def backbone(arguments: argparse.Namespace) -> nn.Module:
    """Trained on letters and their quarter turns, or read back."""
    file = arguments.backbone
    if file is not None and file.exists():
        network = nn.Sequential(*list(letters_network(42 * 4))[:-1]).to(arguments.device)
        network.load_state_dict(torch.load(file, map_location=arguments.device, weights_only=True))
        return network.eval().requires_grad_(False)
    letters = np.load(arguments.data / "cyrillic-letters.npz")
    images, labels = torch.from_numpy(letters["xtr"]), torch.from_numpy(letters["ytr"].astype(np.int64))
    started = time.perf_counter()
    network = train_letters(images, labels, epochs=10, device=arguments.device)
    print(f"backbone: {time.perf_counter() - started:.0f} s")
    if file is not None:
        torch.save(network.state_dict(), file)
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--per-class", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--mode", default="strong")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--backbone", type=Path)
    arguments = parser.parse_args()
    network, device = backbone(arguments), arguments.device
    digits = np.load(arguments.data / "mnist.npz")

    def embedded(images: str, labels: str) -> Records:
        pictures = pixels(torch.from_numpy(digits[images]).to(device))
        return embed(Records(pictures, torch.from_numpy(digits[labels].astype(np.int64)).to(device)), network)

    public, private = embedded("xtr", "ytr"), embedded("xte", "yte")
    head = TransferHead(10, 26 + 6 * arguments.per_class, 0.01, 1e-5)
    generator = torch.Generator(device).manual_seed(0)
    heads = head.release(None, StratifiedPrior(public, arguments.per_class).sample(200, generator), generator)
    print(f"accuracy of heads: {float(head.accuracy(heads, private).mean()):.3f}")
    game = Game(
        head,
        StratifiedPrior(public, arguments.per_class),
        None,
        Criterion(mean_squared_error, NEAREST_NEIGHBOUR, Reduction.CLASS),
        targets=StratifiedPrior(private, arguments.per_class),
    )
    attack = Reconstructor(
        mode=arguments.mode, steps=arguments.steps, batch=1024 if arguments.mode == "strong" else 32
    )
    started = time.perf_counter()
    evidence = play(game, attack, trials=arguments.trials, device=device)
    seconds = time.perf_counter() - started
    roc = Roc(evidence.arrays["error"].numpy(), evidence.arrays["control_error"].numpy())
    print(
        f"N = {10 * arguments.per_class}, {arguments.mode}: TPR* {evidence.main}; FPR* {evidence.control}; "
        f"TPR at 1 % FPR {roc.tpr_at_fpr(0.01)}, at 0.1 % {roc.true_positive_rate(0.001):.3f}; {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
