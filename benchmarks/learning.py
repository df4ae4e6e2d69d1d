"""Milliseconds per step of a reconstructor's learning on a GPU: as one CUDA graph, and launch by launch.

python benchmarks/learning.py                           # a GPU is needed
python benchmarks/learning.py --profile                 # and which kernels take them
python benchmarks/learning.py --device cpu --steps 1 2 --batch 4 --only perceptron  # only to see that it runs
"""

import argparse
import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from remanence import Records
from remanence.reconstructor.decoders import convolutional, perceptron, softmin_loss
from remanence.reconstructor.learning import Learner
from shadows import seconds


def networks() -> dict[str, tuple[nn.Module, int, int, tuple[int, ...]]]:
    """Each with the length of what it reads, the batch, and the shape of a record."""
    mnist, resized = (Records(torch.rand(8, *shape), torch.zeros(8)) for shape in ((28, 28), (1, 32, 32)))
    return {
        "perceptron for an informed adversary": (
            perceptron(7960, (1000, 1000), mnist, strong=True),
            7960,
            256,
            (28, 28),
        ),
        "convolutions, strong": (convolutional(779, 64, resized, trunk=1024), 779, 1024, (1, 32, 32)),
        "convolutions, paper": (convolutional(2580, 256, resized), 2580, 512, (1, 32, 32)),
    }


def learning(network: nn.Module, batch: list[Tensor], *, capture: bool) -> Callable[[int], nn.Module]:
    """So many steps on the same batch."""

    def loss(model: nn.Module, tensors) -> Tensor:
        return softmin_loss(model(tensors[0]), tensors[1])

    def learn(steps: int) -> nn.Module:
        learner = Learner(steps, 1e-3, capture=capture)
        # Better at every look, or learning would stop before its steps are done.
        return learner.fit(copy.deepcopy(network), lambda: batch, loss, lambda _, step: (float(step), ""))

    return learn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--steps", type=int, nargs=2, default=(20, 120), help="the difference of two runs is timed"
    )
    parser.add_argument("--only", default="", help="networks whose name begins like this")
    parser.add_argument("--batch", type=int, help="instead of each network's own")
    asked = parser.parse_args()
    device, steps = asked.device, asked.steps
    torch.manual_seed(0)
    for name, (network, size, batch, shape) in networks().items():
        if not name.startswith(asked.only):
            continue
        network, batch = network.to(device), asked.batch or batch
        data = [torch.randn(batch, size, device=device), torch.rand(batch, 1, *shape, device=device)]
        each = {}
        for capture in (True, False):
            learn = learning(network, data, capture=capture)
            learn(steps[0])
            short, long = (seconds(lambda s=s, f=learn: f(s), device) for s in steps)
            each[capture] = 1000 * (long - short) / (steps[1] - steps[0])
        last = min(
            6, steps[1]
        )  # three launched and three replayed: later ones differ by what rounding grows to
        weights = [
            torch.cat([p.flatten() for p in learning(network, data, capture=capture)(last).parameters()])
            for capture in (True, False)
        ]
        apart = float((weights[0] - weights[1]).norm() / weights[1].norm())
        print(
            f"{name}: {each[True]:.2f} ms as one graph, {each[False]:.2f} launch by launch, "
            f"ratio {each[False] / each[True]:.1f}; weights differ by {apart:.1e}",
            flush=True,
        )
        assert apart < 1e-2, "a graph has to learn what launches learn"
        if asked.profile:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                learning(network, data, capture=False)(10)
            table = profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=14)
            print("\n".join(line[:60] + line[-75:] for line in table.splitlines()))


if __name__ == "__main__":
    main()
