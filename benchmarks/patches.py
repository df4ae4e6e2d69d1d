"""Pictures from updates of vision transformers: which batches come back whole, and how long that takes.

python benchmarks/patches.py
python benchmarks/patches.py sent
A random transformer of two layers for each seed, float32, 10 classes; pictures are random numbers, in patches of 8 × 8
with three channels. *proven*: pictures from which the whole update was recomputed; *off*: the worst of them, relative.
`sent`: what clients send instead of a plain gradient, of pictures of four patches.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.updates.declared import LocalTraining
from remanence.updates.opening import rounding_of_difference
from remanence.updates.patches.fit import fit_patches
from remanence.updates.patches.model import patch_model
from remanence.updates.patches.reader import Pictures, verify_pictures
from remanence.updates.rounding import Rounding, coarsest

SIZES = (
    (1, 16, 192),
    (1, 4, 96),
    (2, 4, 96),
    (4, 4, 96),
    (8, 2, 96),
    (8, 4, 96),
)  # pictures, patches of each, outputs


class Transformer(nn.Module):
    def __init__(self, positions: int, numbers: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, numbers, 8, 8)
        self.one = nn.Parameter(0.02 * torch.randn(1, 1, numbers))
        self.places = nn.Parameter(0.02 * torch.randn(1, positions + 1, numbers))
        layer = nn.TransformerEncoderLayer(
            numbers, 4, 2 * numbers, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(numbers, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        tokens = self.embed(pictures).flatten(2).mT
        tokens = torch.cat([self.one.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.blocks(tokens)[:, 0])


@dataclass(frozen=True)
class Sending:
    """What becomes of a gradient before it leaves."""

    name: str
    factor: float = 1.0  # new minus old weights have a learning rate instead
    decay: float = 0.0
    training: LocalTraining = field(default_factory=LocalTraining)

    @property
    def is_difference(self) -> bool:
        return self.training.learning_rate is not None


WAYS = (
    Sending("plain"),
    Sending("clipped to a hundredth", factor=0.01),
    Sending("weight decay 1e-4", decay=1e-4),
    Sending("weights before and after, 0.1", training=LocalTraining(1, 0.1)),
    *(
        Sending(f"{steps} steps at {rate:g}" + (f", momentum {momentum:g}" if momentum else ""),
                training=LocalTraining(steps, rate, momentum))
        for steps, rate, momentum in (
            (2, 0.001, 0.0), (2, 0.01, 0.0), (5, 0.01, 0.0), (5, 0.01, 0.9), (20, 0.01, 0.0),
            (5, 0.1, 0.0), (20, 0.1, 0.0),
        )
    ),
)  # fmt: skip


def update(
    model: Transformer, pictures: Tensor, labels: Tensor, way: Sending
) -> tuple[dict[str, Tensor], Rounding]:
    """What leaves the client, in float32, as a gradient of a mean; and how coarse it is."""
    named, training = dict(model.named_parameters()), way.training

    def slopes() -> dict[str, Tensor]:
        parts = torch.autograd.grad(cross_entropy(model(pictures), labels), list(named.values()))
        return {n: part + way.decay * named[n].detach() for n, part in zip(named, parts, strict=True)}

    if not way.is_difference:
        return {name: (way.factor * value).double() for name, value in slopes().items()}, Rounding(1.2e-7)
    assert training.learning_rate is not None
    before = {name: value.detach().clone() for name, value in named.items()}
    optimiser = torch.optim.SGD(named.values(), training.learning_rate, training.momentum)
    for _ in range(training.steps):
        for name, value in slopes().items():
            named[name].grad = value
        optimiser.step()
    sent = {n: (before[n] - value.detach()).double() / training.learning_rate for n, value in named.items()}
    with torch.no_grad():
        for name, value in named.items():
            value.copy_(before[name])
    return sent, rounding_of_difference(before).times(1 / training.learning_rate)


def read(
    model: Transformer, shape: tuple[int, ...], gradient: dict[str, Tensor], rounding: Rounding, way: Sending
) -> tuple[Tensor, Pictures]:
    """The pictures that come back, and what recomputation says about them."""
    training, patch, precision = way.training, patch_model(model, shape), coarsest([gradient], rounding)
    gradient = {
        n: v - way.decay * patch.parameters[n] for n, v in gradient.items()
    }  # as where it is declared
    found, said, _ = fit_patches(
        patch, gradient, precision=precision, is_difference=way.is_difference,
        along=training.along if training.steps > 1 else None,
    )  # fmt: skip
    return found, verify_pictures(patch, gradient, found, said, rounding=rounding, training=training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", default="sizes", choices=("sizes", "sent"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further batch after so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    print(
        f"{'pictures':>8}{'patches':>9}{'outputs':>9}{'seed':>6}{'proven':>8}{'off':>10}{'seconds of processor':>22}"
        "  what is sent"
    )
    sizes = SIZES if options.what == "sizes" else [(count, 4, 96) for count in (1, 2, 4)]
    ways = WAYS[:1] if options.what == "sizes" else WAYS
    for (count, positions, numbers), way, seed in itertools.product(sizes, ways, range(options.seeds)):
        if time.perf_counter() - started > options.seconds:
            return
        torch.manual_seed(seed)
        model = Transformer(positions, numbers).eval()
        width = positions if positions == 2 else int(positions**0.5)
        shape = (3, 8 * positions // width, 8 * width)
        pictures, labels = torch.rand(count, *shape), torch.randint(10, (count,))
        gradient, rounding = update(model, pictures, labels, way)
        begun = time.process_time()
        found, proof = read(model, shape, gradient, rounding, way)
        true = pictures.double().flatten(1)
        off = torch.cdist(true, found.flatten(1)).amin(1) / true.norm(dim=1) if proof.count else torch.ones(1)
        print(
            f"{count:8}{positions:9}{numbers:9}{seed:6}{proof.count:8}{float(off.max()):10.1e}"
            f"{time.process_time() - begun:22.1f}  {way.name}",
            flush=True,
        )


if __name__ == "__main__":
    main()
