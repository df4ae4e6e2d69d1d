"""Stands in for your own files: a network, its weights before and after a round, and the update that a client sent.

The client trained one step on eight digits that scikit-learn carries.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

NETWORK = """from torch import nn


def make():
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
"""


def main() -> None:
    Path("network.py").write_text(NETWORK)
    made: dict = {}
    exec(NETWORK, made)  # noqa: S102
    torch.manual_seed(0)
    network = made["make"]()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    pixels, labels = load_digits(return_X_y=True)
    inputs, answers = torch.tensor(pixels[:8]).float() / 16, torch.tensor(labels[:8])
    nn.functional.cross_entropy(network(inputs), answers).backward()
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    after = dict(network.state_dict())
    save_file(before, "before.safetensors")
    save_file(after, "after.safetensors")
    save_file({name: after[name] - before[name] for name in after}, "update.safetensors")


main()
