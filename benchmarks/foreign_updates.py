"""What the audit of an update claims, on updates that are not what they are declared to be and on some that are.

python benchmarks/foreign_updates.py --count 2000 --workers 16

Foreign: Laplace noise, shuffled rows, another network's, weights that are off by 1 to 10 %. Genuine: batches of 1
to 64, and averages over 512, from which nothing may come back but what is right. Networks have 2 to 100 classes,
one or two hidden layers of 32 to 4,096, and numbers in half, single and double precision. Prints counts; a false
record is one that is further from every record of the batch than its stated error allows, or has another label.
`--shape single-layer` is about networks of one linear layer (3 to 100 classes), `--shape one-logit` about those
with hidden layers and one output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from remanence.updates.dense_layers import dense_head
from remanence.updates.reading import Reading, read_update
from remanence.updates.rounding import Rounding
from remanence.updates.watching import loss_of

FUNCTIONS = {"ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU, "tanh": nn.Tanh}
SHAPES = ("several-layers", "single-layer", "one-logit")
KINDS = ("noise", "shuffled", "other network", "stale weights")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Setting:
    """A network, a batch and the numbers that it is sent in."""

    network: nn.Sequential
    inputs: Tensor
    labels: Tensor
    dtype: torch.dtype

    def describe(self) -> str:
        widths = [layer.out_features for layer in self.network if isinstance(layer, nn.Linear)]
        return f"{self.inputs.shape[1]}-{'-'.join(map(str, widths))}, batch {len(self.labels)}, {self.dtype}"


def draw(
    seed: int,
    widest: int,
    function: type[nn.Module] = nn.ReLU,
    batch: int | None = None,
    shape: str = SHAPES[0],
) -> Setting:
    """A random network and batch: correlated inputs, as pictures are, or independent ones."""
    generator = torch.Generator().manual_seed(seed)

    def pick(options: list[int]) -> int:
        return options[int(torch.randint(len(options), (), generator=generator))]

    widths = [width for width in (32, 64, 128, 256, 512, 1024, 4096) if width <= widest]
    numbers, classes = pick([16, 64, 200, 784]), pick([2, 3, 5, 10, 100])
    hidden = [pick(widths) for _ in range(pick([1, 1, 2]))]
    hidden = [min(width, 512) if index else width for index, width in enumerate(hidden)]
    if shape == "single-layer":  # two rows in another order are the same two
        hidden, classes = [], max(3, classes)
    elif shape == "one-logit":
        classes = 1
    dtype = DTYPES[pick([0, 1, 2, 2, 3])]
    working = torch.float64 if dtype is torch.float64 else torch.float32
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in zip([numbers, *hidden], [*hidden, classes], strict=True):
        layers += [nn.Linear(before, after, dtype=working), function()]
    network = nn.Sequential(*layers[:-1])
    if pick([0, 1]):  # as if trained: larger logits
        with torch.no_grad():
            list(network.parameters())[-2].mul_(pick([3, 10]))
    batch = batch or pick([1, 2, 4, 8, 8, 16, 32, 64])
    inputs = torch.randn(batch, numbers, generator=generator)
    if pick([0, 1]):
        few = max(2, numbers // 4)
        inputs = torch.randn(batch, few, generator=generator) @ torch.randn(few, numbers, generator=generator)
        inputs = inputs / few**0.5 + torch.randn(numbers, generator=generator)
    labels = torch.randint(max(2, classes), (batch,), generator=generator)
    return Setting(network, inputs.to(working), labels, dtype)


def update_of(network: nn.Module, setting: Setting) -> dict[str, Tensor]:
    named = dict(network.named_parameters())
    loss = loss_of(network(setting.inputs), setting.labels)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def foreign_update(kind: str, setting: Setting, seed: int) -> dict[str, Tensor]:
    """An update that is not what it is declared to be."""
    torch.manual_seed(seed + 1)
    true = update_of(setting.network, setting)
    if kind == "noise":
        return {
            name: torch.distributions.Laplace(0.0, float(value.abs().mean()) + 1e-12).sample(value.shape)
            for name, value in true.items()
        }
    if kind == "shuffled":
        return {name: value[torch.randperm(len(value))] for name, value in true.items()}
    other = nn.Sequential(
        *(
            nn.Linear(layer.in_features, layer.out_features, dtype=layer.weight.dtype)
            if isinstance(layer, nn.Linear)
            else layer
            for layer in setting.network
        )
    )
    if kind == "stale weights":
        off = 0.01 * 10 ** float(torch.rand(()))
        other.load_state_dict(
            {
                name: value * (1 + off * torch.randn_like(value))
                for name, value in setting.network.state_dict().items()
            }
        )
    return update_of(other, setting)


def read(setting: Setting, update: dict[str, Tensor], search: bool) -> Reading:
    head = dense_head(setting.network)
    sent = {name: value.to(setting.dtype)[None] for name, value in update.items()}
    return read_update(head, head.layers_of(sent), Rounding.of([setting.dtype]), search=search)


def false_records(setting: Setting, reading: Reading) -> int:
    """Claims that no record of the batch accounts for."""
    proof = reading.proof
    claimed = proof.proposal[proof.proven]
    if not len(claimed):
        return 0
    true = setting.inputs.double()
    off = torch.cdist(claimed.inputs, true) / true.norm(dim=1)
    allowed = (4 * proof.error[proof.proven] + 1e-6)[:, None]
    named = claimed.labels[:, None]  # −1 where the label is left open
    right = (off <= allowed) & ((named == setting.labels[None]) | (named < 0))
    return int((~right.any(1)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="of foreign updates, and of genuine ones")
    parser.add_argument("--widest", type=int, default=4096)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further update after so many")
    parser.add_argument("--no-search", action="store_true", help="leave the low-rank search out")
    parser.add_argument(
        "--between", choices=FUNCTIONS, default="ReLU", help="the function between the layers"
    )
    parser.add_argument("--shape", choices=SHAPES, default=SHAPES[0], help="of the networks")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="a file that holds the table so far")
    options = parser.parse_args()
    job = Job(options.widest, options.between, not options.no_search, options.shape)
    counts: dict[str, Counter[str]] = {}
    slowest: list[tuple[float, str]] = []
    started = said = time.perf_counter()
    seeds = range(options.first, options.first + options.count)
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for number, results in enumerate(pool.imap_unordered(job, seeds), 1):
            for name, count, wrong, seconds in results:
                counts.setdefault(name, Counter()).update(count)
                slowest = sorted([*slowest, (seconds, wrong[1])], reverse=True)[:5]
                if wrong[0]:
                    print(*wrong, flush=True)
            now = time.perf_counter()
            if now - said > 5 or number == options.count or now - started > options.seconds:
                said = now
                print(f"{number} of {options.count} of each, {now - started:.0f} s", flush=True)
                if options.out is not None:
                    options.out.write_text(table(counts, now - started))
            if now - started > options.seconds:
                pool.terminate()
                break
    print(table(counts, time.perf_counter() - started))
    print("slowest:", *(f"{seconds:.0f} s: {which};" for seconds, which in slowest))


Told = tuple[
    str, Counter[str], tuple[str, str], float
]  # a row, its counts, what is wrong and with which, seconds


@dataclass(frozen=True)
class Job:
    """One foreign and one genuine update for each seed."""

    widest: int
    between: str
    search: bool
    shape: str

    def __call__(self, seed: int) -> list[Told]:
        torch.set_num_threads(1)
        function, kind, average = FUNCTIONS[self.between], KINDS[seed % len(KINDS)], seed % 10 == 0
        setting = draw(seed, self.widest, function, shape=self.shape)
        first = self._read(f"foreign: {kind}", setting, foreign_update(kind, setting, seed), seed)
        setting = draw(seed + 10**6, self.widest, function, 512 if average else None, self.shape)
        name = "genuine: average over 512" if average else "genuine: 1 to 64"
        return [first, self._read(name, setting, update_of(setting.network, setting), seed)]

    def _read(self, name: str, setting: Setting, update: dict[str, Tensor], seed: int) -> Told:
        started = time.perf_counter()
        reading = read(setting, update, self.search)
        count, wrong = tally(name, setting, reading)
        again = f"{setting.describe()}, {name}, again with --first {seed} --count 1"
        return name, count, (wrong, again), time.perf_counter() - started


def table(counts: dict[str, Counter[str]], seconds: float) -> str:
    columns = ("number", "refused", "exposed", "records", "claimed", "false", "sizes", "wrong")
    lines = [f"{'updates':28}" + "".join(f"{column:>9}" for column in columns)]
    for name, count in sorted(counts.items()):
        lines.append(f"{name:28}" + "".join(f"{count[column]:9}" for column in columns))
    return "\n".join([*lines, f"{seconds:.0f} s", ""])


def tally(name: str, setting: Setting, reading: Reading) -> tuple[Counter[str], str]:
    """What is counted, and what is wrong in words."""
    false = false_records(setting, reading)
    size = reading.proof.batch_size
    wrong = size is not None and size != len(setting.labels)
    foreign = name.startswith("foreign")
    said = ""
    if false or (foreign and reading.proof.count) or (wrong and not foreign):
        said = f"WRONG {name}: claimed {reading.proof.count}, false {false}, size {size}, {reading.belonging}"
    count: Counter[str] = Counter(
        number=1, refused=not reading.belonging.is_one_step, exposed=reading.proof.count > 0,
        records=len(setting.labels), claimed=reading.proof.count, false=false, sizes=size is not None, wrong=wrong,
    )  # fmt: skip
    return count, said


if __name__ == "__main__":
    main()
