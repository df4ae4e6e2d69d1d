"""Shadow heads per second (networks.py has the networks) beside a loop over modules, with the weights compared.

python benchmarks/shadows.py                     # one thread of a CPU
python benchmarks/shadows.py --device cuda       # a GPU
python benchmarks/shadows.py --opacus            # heads trained by DP-SGD, beside a loop over Opacus
python benchmarks/shadows.py --profile           # which operations the time goes to
"""

import argparse
import time
import warnings
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from remanence import Records, TransferHead
from remanence.training.perceptron import initial_layer

_ROUNDS = 12


def seconds(function, device: str, repeats: int = 2) -> float:
    """The least of several runs."""
    best = float("inf")
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def _chunk(device: str, head: TransferHead, pool: Records, index: torch.Tensor) -> int:
    """Heads whose embeddings stay in a CPU's cache between the gather and the training."""
    return head.trials_at_once(pool.take(index[:1])) if device == "cuda" else 256


def heads(device: str, count: int, few: int, turns: int = _ROUNDS, *, profiled: bool = False) -> None:
    """Maciazek and Allison's MNIST heads: 256 features, 10 classes, N = 10, 32 steps; the gather is counted."""
    embedding = torch.randn(60_000 if device == "cuda" else 6000, 256, device=device).relu()
    index = 10 * torch.randint(len(embedding) // 10, (count, 10), device=device) + torch.arange(
        10, device=device
    )
    labels = torch.arange(len(embedding), device=device) % 10
    pool = Records(torch.zeros(len(embedding), 1, device=device), labels, embedding=embedding)
    head = TransferHead(10, 32, 0.01, 1e-5)

    def together():
        generator = torch.Generator(device).manual_seed(0)
        chunk = _chunk(device, head, pool, index)
        for start in range(0, count, chunk):
            head.release(None, pool.take(index[start : start + chunk]), generator)

    together()
    if profiled:
        with torch.profiler.profile() as profile:
            together()
        print(
            profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=30)
        )
        return
    generator = torch.Generator(device).manual_seed(0)
    weight, bias = initial_layer(0.002, few, 256, 10, generator)
    ours = head.release(None, pool.take(index[:few]), torch.Generator(device).manual_seed(0))
    trained = []

    def one_by_one():
        trained.clear()
        for model in range(few):
            layer = nn.Linear(256, 10, device=device)
            layer.weight.data, layer.bias.data = weight[model].clone(), bias[model].clone()
            optimizer = torch.optim.SGD(layer.parameters(), 0.01, weight_decay=1e-5)
            inputs, answers = embedding[index[model]], labels[index[model]]
            for _ in range(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(inputs), answers).backward()
                optimizer.step()
            trained.append(layer.weight.data)

    def from_given_weights() -> float:  # as in the loop, which is given its own
        drawn = initial_layer(0.002, count, 256, 10, torch.Generator(device).manual_seed(0))
        parts = zip(*(tensor.split(_chunk(device, head, pool, index)) for tensor in drawn), strict=True)
        with patch("remanence.heads.span.initial_layer", lambda *_: next(parts)):
            return seconds(together, device, 1)

    # In turns, so that whatever else the machine does meets all.
    rounds = [
        (seconds(together, device, 1), from_given_weights(), seconds(one_by_one, device, 1))
        for _ in range(turns)
    ]
    fast, given, slow = (
        many / min(times) for many, times in zip((count, count, few), zip(*rounds, strict=True), strict=True)
    )
    print(
        f"heads on {device}: {fast:,.0f} per second; {given:,.0f} from initial weights that are there already"
    )
    difference = float((torch.stack(trained) - ours["weight"]).abs().max())
    print(
        f"  a loop over nn.Linear: {slow:,.0f} per second; ratios {fast / slow:.0f} and {given / slow:.0f}; "
        f"largest difference {difference:.1e}"
    )


def private_heads(count: int = 2000, few: int = 3) -> None:
    """The same heads with Poisson batches at a rate of 0.9, clipping and noise, 32 steps; equal in law only."""
    warnings.simplefilter("ignore")
    from opacus import PrivacyEngine  # pyright: ignore[reportMissingImports]
    from torch.utils.data import DataLoader, TensorDataset

    embedding, labels = torch.randn(6000, 256).relu(), torch.arange(6000) % 10
    pool = Records(torch.zeros(6000, 1), labels, embedding=embedding)
    index = 10 * torch.randint(600, (count, 10)) + torch.arange(10)
    head = TransferHead(10, 29, 0.01, 1e-5, noise_multiplier=1.0, sample_rate=0.9)
    assert head.steps == 32

    def together():
        generator = torch.Generator().manual_seed(0)
        for start in range(0, count, 256):
            head.release(None, pool.take(index[start : start + 256]), generator)

    def one_by_one():
        for model in range(few):
            layer = nn.Linear(256, 10)
            optimizer = torch.optim.SGD(layer.parameters(), 0.01, weight_decay=1e-5)
            loader = DataLoader(TensorDataset(embedding[index[model]], labels[index[model]]), batch_size=9)
            engine: Any = PrivacyEngine(accountant="rdp")
            layer, optimizer, loader = engine.make_private(
                module=layer, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
            )
            loader.batch_sampler.sample_rate, loader.batch_sampler.steps = 0.9, 32
            for inputs, answers in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(inputs), answers).backward()
                optimizer.step()

    together()
    rounds = [(seconds(together, "cpu", 1), seconds(one_by_one, "cpu", 1)) for _ in range(_ROUNDS)]
    fast, slow = (
        many / min(times) for many, times in zip((count, few), zip(*rounds, strict=True), strict=True)
    )
    print(f"private heads: {fast:,.0f} per second; a loop over Opacus: {slow:,.1f}; ratio {fast / slow:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--opacus", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--count", type=int, help="heads; a million on a GPU, 5,000 else")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    asked = parser.parse_args()
    device = asked.device
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if asked.opacus:
        private_heads()
        return
    gpu = device == "cuda"
    heads(
        device,
        asked.count or (1_000_000 if gpu else 5000),
        few=30,
        turns=asked.rounds,
        profiled=asked.profile,
    )


if __name__ == "__main__":
    main()
