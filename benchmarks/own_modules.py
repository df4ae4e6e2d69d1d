"""Twenty modules, trained in the informed game and by a plain PyTorch loop: `python benchmarks/own_modules.py`.

Prints how far the weights are apart, as a share of how far training moved them, and how the game trained them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, softmax
from torch.nn.utils import parameters_to_vector

from remanence import SGD, AnyModule, Records

EPOCHS, RATE, MOMENTUM, RECORDS, PIXELS, CLASSES = 20, 0.2, 0.9, 12, 16, 3


class Around(nn.Module):
    """Two layers with a function between them."""

    def __init__(
        self, between: Callable[[Tensor], Tensor], after: Callable[[Tensor], object] = lambda x: x
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(PIXELS, 8), nn.Linear(8, CLASSES)
        self.between, self.after = between, after

    def forward(self, values: Tensor) -> object:
        return self.after(self.second(self.between(self.first(values.flatten(1)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = nn.Linear(PIXELS, PIXELS), nn.Linear(PIXELS, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.shared(self.shared(values.flatten(1)).tanh()).tanh())


class Standardised(nn.Module):
    """A convolution whose weights are standardised in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(16, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        weight = self.first.weight
        weight = (weight - weight.mean((1, 2, 3), True)) / weight.std((1, 2, 3), keepdim=True)
        return self.last(conv2d(values, weight, self.first.bias).relu().flatten(1))


class Transformer(nn.Module):
    """A row of the picture is a token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.layer(values.squeeze(1)).flatten(1))


def convolutions(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES))


def frozen() -> nn.Module:
    made = Around(torch.tanh)
    made.first.requires_grad_(False)
    return made


def balanced(values: Tensor) -> Tensor:
    """Experts, chosen so that each has the same share of the batch."""
    return values * softmax(values - values.mean(0), 1)


def attending(values: Tensor) -> Tensor:
    return softmax(values @ values.T, 1) @ values


MODULES: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES)),
    "two layers, tanh": lambda: Around(torch.tanh),
    "two layers, the first frozen": frozen,
    "a residual": lambda: Around(lambda x: x + x.tanh()),
    "a first layer that writes over its input": lambda: nn.Sequential(
        nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(PIXELS, CLASSES)
    ),
    "logits in a dict": lambda: Around(torch.tanh, lambda x: {"logits": x}),
    "logits first in a tuple": lambda: Around(torch.tanh, lambda x: (x, None)),
    "a layer used twice": Tied,
    "convolutions, GroupNorm": lambda: convolutions(nn.GroupNorm(2, 4)),
    "convolutions, InstanceNorm": lambda: convolutions(nn.InstanceNorm2d(4)),
    "convolutions, BatchNorm in evaluation": lambda: convolutions(nn.BatchNorm2d(4).eval()),
    "standardised convolutions": Standardised,
    "attention within a record": Transformer,
    "centred over the batch": lambda: Around(lambda x: (x - x.mean(0)).tanh()),
    "whitened over the batch": lambda: Around(
        lambda x: ((x - x.mean(0)) / (x.std(0, correction=0) + 1e-3)).tanh()
    ),
    "attention over the batch": lambda: Around(attending),
    "scaled by the batch's largest": lambda: Around(lambda x: x / x.abs().amax()),
    "each less the next record": lambda: Around(lambda x: (x - x.roll(1, 0)).tanh()),
    "experts balanced over the batch": lambda: Around(balanced),
    "a hundredth of the batch's mean": lambda: Around(lambda x: (x + 0.01 * x.mean(0)).tanh()),
}


def plain_loop(module: nn.Module, data: Records) -> Tensor:
    module = copy.deepcopy(module)
    trained = [each for each in module.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM)
    for _ in range(EPOCHS):
        answer = module(data.features.clone())
        answer = (
            answer["logits"]
            if isinstance(answer, dict)
            else answer[0]
            if isinstance(answer, tuple)
            else answer
        )
        optimizer.zero_grad()
        cross_entropy(answer, data.labels).backward()
        optimizer.step()
    return parameters_to_vector(trained).detach()


def distance(make: Callable[[], nn.Module]) -> tuple[float, bool]:
    """How far the game's weights are from the plain loop's, in units of what training moved; and whether it looped."""
    torch.manual_seed(0)
    module = make()
    data = Records(torch.randn(RECORDS, 1, 4, 4), torch.arange(RECORDS) % CLASSES)
    known, target, before = data[:-1], data[None, -1:], data.features.clone()
    network = AnyModule(module)
    release = SGD(network, EPOCHS, RATE, MOMENTUM).release(known, target, torch.Generator())
    assert torch.equal(data.features, before), "the data were written over"
    by_hand = plain_loop(module, data)
    start = parameters_to_vector(list(network.trained.values())).detach()
    apart = (release["parameters"][0] - by_hand).norm() / (by_hand - start).norm()
    return float(apart), network.mixes(known, target, len(known) + 1)


def main() -> None:
    print(f"{EPOCHS} steps of SGD on {RECORDS} records; torch {torch.__version__}\n")
    print("| module | apart from a plain loop | trained |\n|---|--:|---|")
    for name, make in MODULES.items():
        apart, looped = distance(make)
        print(f"| {name} | {apart:.0e} | {'one after the other' if looped else 'many at once'} |")


if __name__ == "__main__":
    main()
