"""Which batches come back whole without exclusive neurons: by the layer's width, the batch size and the classes.

python benchmarks/batch_sizes.py table --batches 20 --workers 2
python benchmarks/batch_sizes.py held-out --count 200 --workers 2     # other networks
python benchmarks/batch_sizes.py then COMMIT                          # seconds of the processor, now and at that commit

One random network and batch for each seed, float32. A batch counts if every record came back within 1e-3 of its
size and nothing else was named. *table*: torch's own initialisation, 784 normal numbers.
*held-out*: 1 to 3 hidden layers, other initialisations, correlated or sparse inputs of other lengths, 2 to 100
classes, sizes drawn at random.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.core.rates import SuccessRate
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.sparse_columns import reconstruct_low_rank

ROOT = Path(__file__).parents[1]
SIZES = (16, 32, 64, 128)
TIMES = (3, 4, 5, 6, 8, 12, 16)  # widths, times the batch size
CLASSES = (2, 5, 10, 100)
STARTS = {
    "torch": None,
    "He": nn.init.kaiming_normal_,
    "Glorot": nn.init.xavier_uniform_,
    "orthogonal": nn.init.orthogonal_,
}
PRECISION = torch.finfo(torch.float32).eps


def batch(kind: str, count: int, numbers: int, generator: torch.Generator) -> torch.Tensor:
    """Inputs that are independent, correlated around a mean, or mostly zero as strokes on paper are."""
    inputs = torch.randn(count, numbers, generator=generator)
    if kind == "correlated":
        few = max(numbers // 4, count)
        mixing = torch.randn(few, numbers, generator=generator)
        inputs = torch.randn(count, few, generator=generator) @ mixing / few**0.5
        inputs = inputs + torch.randn(numbers, generator=generator)
    if kind == "sparse":
        inputs = inputs.abs() * (torch.rand(count, numbers, generator=generator) < 0.2)
    return inputs


def one(
    width: int,
    count: int,
    classes: int,
    seed: int,
    kind: str = "normal",
    start: str = "torch",
    depth: int = 1,
    numbers: int = 784,
    device: str = "cpu",
) -> tuple[int, int, float]:
    """Records that came back, records that are false, and seconds of the processor."""
    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before in [numbers, *[width] * (depth - 1)]:
        layers += [nn.Linear(before, width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(width, classes))
    for layer in network:
        if isinstance(layer, nn.Linear) and STARTS[start] is not None:
            STARTS[start](layer.weight)
    generator = torch.Generator().manual_seed(seed)
    inputs = batch(kind, count, numbers, generator).to(device)
    labels = torch.randint(classes, (count,), generator=generator).to(device)
    network = network.to(device)
    named = dict(network.named_parameters())
    parts = torch.autograd.grad(cross_entropy(network(inputs), labels), list(named.values()))
    head = dense_head(network)
    layers_of = head.layers_of(dict(zip(named, parts, strict=True)))
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    guesses = reconstruct_low_rank(head, layers_of, precision=PRECISION).records.inputs
    seconds = clock() - began
    near = torch.cdist(inputs.double(), guesses) < 1e-3 * inputs.double().norm(dim=1, keepdim=True)
    return int(near.any(1).sum()), int((~near.any(0)).sum()), seconds


def play(jobs: list[dict], options: argparse.Namespace) -> list[tuple[dict, tuple[int, int, float]]]:
    """All jobs that begin in time, in several processes."""
    started, done = time.perf_counter(), []
    jobs = [job | {"device": options.device} for job in jobs]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        waiting, running = iter(jobs), {}
        for job in waiting:
            running[pool.submit(one, **job)] = job
            if len(running) < options.workers:
                continue
            ready = next(as_completed(running))
            done.append((running.pop(ready), ready.result()))
            if time.perf_counter() - started > options.seconds:
                break
        done += [(running[ready], ready.result()) for ready in as_completed(running)]
    return done


def table(options: argparse.Namespace) -> None:
    jobs = [
        {"width": times * count, "count": count, "classes": classes, "seed": seed, "depth": depth}
        for seed in range(options.batches)  # every case has its first batch before any has its second
        for count in options.sizes
        for times in options.times
        for classes in options.classes
        for depth in options.depths
    ]
    done = play(jobs, options)
    false = sum(result[1] for _, result in done)
    print(f"{len(done)} batches, false records: {false}")
    print("hidden layers, classes, width, batch, whole, of  # rate (interval), records, median seconds")
    cells: dict[tuple[int, int, int, int], list[tuple[int, int, float]]] = {}
    for job, result in done:
        cells.setdefault((job["depth"], job["classes"], job["count"], job["width"]), []).append(result)
    for (depth, classes, count, width), results in sorted(cells.items()):
        whole = sum(back == count and not wrong for back, wrong, _ in results)
        seconds = sorted(spent for *_, spent in results)[len(results) // 2]
        records = sum(back for back, *_ in results) / (count * len(results))
        rate = SuccessRate(whole, len(results))
        print(
            f"    ({depth}, {classes}, {width}, {count}, {whole}, {len(results)}),  # {rate.rate:.2f} "
            f"({rate.lower:.2f} to {rate.upper:.2f}), records {records:.2f}, {seconds:.1f} s"
        )


def held_out(options: argparse.Namespace) -> None:
    generator = torch.Generator().manual_seed(2026)

    def draw(choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def between(least: float, most: float) -> float:
        return float(least * (most / least) ** torch.rand((), generator=generator))

    jobs = []
    for seed in range(options.count):
        count = round(between(12, options.largest))
        width = round(count * between(2.5, 20))
        jobs.append(
            {
                "width": width, "count": count, "classes": draw((2, 3, 5, 10, 20, 50, 100)), "seed": 10_000 + seed,
                "kind": draw(("normal", "correlated", "sparse")), "start": draw(tuple(STARTS)),
                "depth": draw((1, 2, 3)), "numbers": draw((300, 784, 1024)),
            }
        )  # fmt: skip
    done = play(jobs, options)
    print(f"{len(done)} batches, false records: {sum(result[1] for _, result in done)}")
    bins: dict[int, list[bool]] = {}
    for job, (back, wrong, _) in done:
        bins.setdefault(round(job["width"] / job["count"] / 4) * 4, []).append(
            back == job["count"] and not wrong
        )
        if options.verbose:
            print(job, back)
    print("width over batch, batches, came back whole (interval)")
    for times, entries in sorted(bins.items()):
        print(
            f"| {max(0, times - 2)} to {times + 2} | {len(entries)} | {SuccessRate(sum(entries), len(entries))} |"
        )


_PLAY = """
import sys
sys.path.insert(0, sys.argv[1])
from batch_sizes import one
import json
print(json.dumps([one(int(sys.argv[2]), int(sys.argv[3]), 10, seed) for seed in range(int(sys.argv[4]))]))
"""


def then(options: argparse.Namespace) -> None:
    """The same batches with the code of an earlier commit, turn by turn."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "then"
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(tree), options.commit], check=True)  # noqa: S603
        try:
            for width, count in ((256, 16), (512, 24), (1024, 32)):
                said = []
                for name, source in (("then", tree), ("now", ROOT)):
                    path = os.pathsep.join(str(source / part) for part in ("src", "papers"))
                    command = [sys.executable, "-c", _PLAY, str(ROOT / "benchmarks"), str(width), str(count)]
                    ran = subprocess.run(  # noqa: S603
                        [*command, str(options.batches)],
                        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                        stdout=subprocess.PIPE,
                        check=True,
                    )
                    results = json.loads(ran.stdout.splitlines()[-1])
                    whole = sum(back == count and not wrong for back, wrong, _ in results)
                    said.append((name, whole, sorted(spent for *_, spent in results)[len(results) // 2]))
                (_, before, slow), (_, after, quick) = said
                print(
                    f"width {width}, batch {count}: {before} of {options.batches} in {slow:.2f} s then, {after} in "
                    f"{quick:.2f} s now: {slow / quick:.1f} times as fast",
                    flush=True,
                )
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("table", "held-out", "then"))
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--times", type=int, nargs="+", default=TIMES)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--depths", type=int, nargs="+", default=(1,), help="hidden layers")
    parser.add_argument("--largest", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further batch after so many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    {"table": table, "held-out": held_out, "then": then}[options.what](options)


if __name__ == "__main__":
    main()
