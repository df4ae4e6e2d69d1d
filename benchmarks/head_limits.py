"""What lies between the heads that a processor trains in a second and what its memory would allow.

`python benchmarks/head_limits.py` takes 256 heads at a time (256 features, 10 classes, N = 10, 32 steps of SGD), one
thread, and prints microseconds of processor time a head: the parts of the training as the code has them, and beside
each what its bytes would take at the bandwidth of a plain copy, and its sums at the speed of a matrix product.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from remanence import Records, TransferHead
from remanence.heads import span
from remanence.training.perceptron import initial_layer

HEADS, NUMBERS, CLASSES, RECORDS, STEPS = 256, 256, 10, 10, 32
RECIPE = TransferHead(CLASSES, STEPS, 0.01, 1e-5)


def microseconds(work: Callable[[], object], rounds: int = 40) -> float:
    """Of processor time, the least of many: the machine may have other things to do."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return 1e6 * best


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedding = torch.randn(6000, NUMBERS).relu()
    index = RECORDS * torch.randint(600, (HEADS, RECORDS)) + torch.arange(RECORDS)
    pool = Records(torch.zeros(6000, 1), torch.arange(6000) % CLASSES, embedding=embedding)
    sets = pool.take(index)
    inputs = embedding[index]
    weight, bias = initial_layer(0.002, HEADS, NUMBERS, CLASSES, torch.Generator())
    gram = (inputs @ inputs.mT + 1).permute(1, 2, 0).contiguous()
    start = (weight @ inputs.mT + bias.unsqueeze(2)).permute(1, 2, 0).contiguous()
    targets = span._one_hot((torch.arange(RECORDS) % CLASSES)[:, None], CLASSES)
    mixing = torch.rand(HEADS, CLASSES, RECORDS)

    large, other = torch.rand(2**24), torch.empty(2**24)
    bandwidth = 2 * 4 * 2**24 / microseconds(lambda: other.copy_(large), 10)  # bytes a microsecond
    matrix = torch.rand(1024, 1024)
    speed = 2 * 1024**3 / microseconds(lambda: matrix @ matrix, 10)  # sums and products a microsecond

    rows, layer, square = 4 * NUMBERS * RECORDS, 4 * NUMBERS * CLASSES, 4 * RECORDS * RECORDS
    table = CLASSES * RECORDS
    parts = {
        "gather the features": (lambda: pool.take(index), 2 * rows, 0),
        "draw the initial weights": (
            lambda: initial_layer(0.002, HEADS, NUMBERS, CLASSES, torch.Generator()),
            layer,
            0,
        ),
        "Gram matrix and first logits": (
            lambda: (
                (inputs @ inputs.mT + 1).permute(1, 2, 0).contiguous(),
                (weight @ inputs.mT + bias.unsqueeze(2)).permute(1, 2, 0).contiguous(),
            ),
            2 * rows + layer + square,
            2 * 2 * NUMBERS * RECORDS * RECORDS,
        ),
        f"{STEPS} steps in the span": (
            lambda: span._descend(RECIPE, gram, start, targets, torch.Generator()),
            0,  # 256 heads' coefficients stay in the cache
            STEPS * 2 * table * RECORDS,
        ),
        "weights from coefficients": (
            lambda: torch.baddbmm(weight, mixing, inputs),
            rows + 2 * layer,
            2 * NUMBERS * table,
        ),
    }
    print(
        f"a copy moves {bandwidth / 1000:.1f} GB/s, a product of matrices takes {speed / 1000:.0f} GFLOP/s\n"
    )
    print("| µs a head | measured | its bytes | its sums |\n|---|--:|--:|--:|")
    whole = microseconds(lambda: RECIPE.release(None, sets, torch.Generator())) / HEADS
    sums = [0.0, 0.0, 0.0]
    for name, (work, moved, added) in parts.items():
        line = microseconds(work) / HEADS, moved / bandwidth, added / speed
        sums = [a + b for a, b in zip(sums, line, strict=True)]
        print(f"| {name} | {line[0]:.2f} | {line[1]:.2f} | {line[2]:.2f} |")
    print(f"| together | {sums[0]:.2f} | {sums[1]:.2f} | {sums[2]:.2f} |")
    print(f"\nTrained as it is, without the gather: {whole:.2f} µs a head, {1e6 / whole:,.0f} a second.")
    steps = microseconds(lambda: span._residual(torch.rand(CLASSES, RECORDS, HEADS), targets)) / HEADS
    draws = microseconds(lambda: torch.rand(CLASSES, RECORDS, HEADS)) / HEADS
    print(f"Of the steps, softmax and residual take {STEPS * (steps - draws):.2f} µs.")


if __name__ == "__main__":
    main()
