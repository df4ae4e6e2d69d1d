"""What the audit of an update claims, on updates that are not what they are declared to be and on some that are.

python benchmarks/foreign_updates.py --count 500 --seconds 1500

Foreign: Laplace noise, shuffled rows or columns, another network's, weights that are off by 1 to 10 %. Genuine: batches
of 1 to 64 and averages over 512, of normal, correlated, one-hot and binary records; sent plainly, quantised (8, 4 and 3
bits), sparsified, rounded to half precision and stored in float32, clipped, with a turned sign; with smoothed and mixed
labels, in training mode (dropout), and from networks with a weight that is used twice. Networks have 2 to 100 classes,
one or two hidden layers, and numbers in half, single and double precision. All is read as `remanence update` reads it.
Prints counts; a false record is one that is further from every record of the batch than its stated error allows, or has
a label that is not the record's (mixed labels have none). `--shape single-layer` is about networks of one linear layer
(3 to 100 classes), `--shape one-logit` about those with hidden layers and one output, `--shape convolution` about dense
layers behind a convolution, whose features are read, `--shape patches` about small vision transformers and `--shape
tokens` about small language models. `--workers 16` takes 16 processes; `--part 2 4` every fourth seed from the second.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, one_hot, scaled_dot_product_attention

from remanence.core.exceptions import MisfitError
from remanence.core.releases import Gradient
from remanence.updates.declared import Declared
from remanence.updates.dense.layers import head_inputs
from remanence.updates.dense.proofs import Proof
from remanence.updates.dense.reader import DenseReader
from remanence.updates.inspection import open_update
from remanence.updates.inspection import read as read_all
from remanence.updates.patches.reader import Pictures
from remanence.updates.shared_gradient import SharedGradient
from remanence.updates.texts.reader import Texts
from remanence.updates.watching import loss_of

FUNCTIONS = {"ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU, "tanh": nn.Tanh}
SHAPES = ("several-layers", "single-layer", "one-logit", "convolution", "patches", "tokens")
WHOLE = SHAPES[4:]  # of which records are proven together, or not at all
FOREIGN = ("noise", "shuffled rows", "shuffled columns", "other network", "stale weights")
GENUINE = (
    "plain", "plain", "average over 512", "8 bits", "4 bits", "3 bits", "largest tenth", "half in float32", "clipped",
    "turned", "smoothed labels", "mixed labels", "training mode", "used twice",
)  # fmt: skip
DATA = ("normal", "correlated", "one-hot", "binary")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Patches(nn.Module):
    """A vision transformer of one layer, for pictures of 8 × 16 in two patches."""

    def __init__(self, numbers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, numbers, 8, 8)
        self.places = nn.Parameter(0.02 * torch.randn(1, 3, numbers))
        self.block = nn.TransformerEncoderLayer(
            numbers, 2, 48, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(numbers, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        tokens = self.embed(pictures).flatten(2).mT
        tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1) + self.places
        return self.head(self.block(tokens)[:, 0])


class Attention(nn.Module):
    """One causal layer, as language models have them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down, self.drop = nn.Linear(size, 4 * size), nn.Linear(4 * size, size), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        q, k, v = (layer(y).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.o(mixed))
        return x + self.drop(self.down(gelu(self.up(self.second(x)))))


class Tokens(nn.Module):
    """A language model of two layers and 300 tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(300, size), nn.Embedding(32, size)
        self.layers = nn.Sequential(Attention(size), Attention(size), nn.LayerNorm(size))
        self.head = nn.Linear(size, 300, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(ids) + self.places.weight[: ids.shape[1]]))


@dataclass(frozen=True)
class Setting:
    """A network, a batch and the numbers that it is sent in."""

    network: nn.Module
    inputs: Tensor
    labels: Tensor
    dtype: torch.dtype

    def describe(self) -> str:
        widths = [layer.out_features for layer in self.network.modules() if isinstance(layer, nn.Linear)]
        return f"{self.inputs.shape[1]}-{'-'.join(map(str, widths))}, batch {len(self.labels)}, {self.dtype}"


def draw_whole(seed: int, kind: str, shape: str) -> Setting:
    """A random network that reads patches or tokens, and a batch."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    size, count = (48, 64)[seed % 2], (1, 1, 2, 4)[seed % 4]
    count = 64 if kind == "average over 512" else count
    if shape == "patches":
        network, inputs = Patches(size, 10), torch.rand(count, 1, 8, 16, generator=generator)
    else:
        network, inputs = Tokens(size), torch.randint(300, (count, 8), generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return Setting(network.eval(), inputs, labels, torch.float32)


def draw(seed: int, widest: int, function: type[nn.Module], kind: str, shape: str) -> Setting:
    """A random network and batch."""
    if shape in WHOLE:
        return draw_whole(seed, kind, shape)
    generator = torch.Generator().manual_seed(seed)

    def pick(options):
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
    if kind not in ("plain", "average over 512", "clipped", "turned", *FOREIGN):
        dtype = DTYPES[pick([2, 3])]
    working = torch.float64 if dtype is torch.float64 else torch.float32
    torch.manual_seed(seed)
    if kind == "used twice":
        hidden = [numbers, numbers] if numbers <= 200 else [64, 64]
    layers: list[nn.Module] = []
    if shape == "convolution":
        numbers = 64
        layers = [
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3, padding=1, dtype=working),
            nn.ReLU(),
            nn.Flatten(),
        ]
    for before, after in zip([256 if layers else numbers, *hidden], [*hidden, classes], strict=True):
        layers += [nn.Linear(before, after, dtype=working), function()]
    network = nn.Sequential(*layers[:-1])
    if kind == "used twice" and shape == SHAPES[0] and numbers <= 200:
        network[2].weight = network[0].weight
    if kind == "training mode" and len(network) > 2:
        network = nn.Sequential(*list(network)[:-1], nn.Dropout(0.5), network[-1])
    if pick([0, 1]):  # as if trained: larger logits
        with torch.no_grad():
            list(network.parameters())[-2].mul_(pick([3, 10]))
    batch = 512 if kind == "average over 512" else pick([1, 2, 4, 8, 8, 16, 32, 64])
    data = pick(DATA)
    inputs = torch.randn(batch, numbers, generator=generator)
    if data == "correlated":
        few = max(2, numbers // 4)
        inputs = torch.randn(batch, few, generator=generator) @ torch.randn(few, numbers, generator=generator)
        inputs = inputs / few**0.5 + torch.randn(numbers, generator=generator)
    elif data == "one-hot":
        inputs = one_hot(torch.randint(numbers, (batch,), generator=generator), numbers).float()
    elif data == "binary":
        inputs = (torch.rand(batch, numbers, generator=generator) < 0.3).float()
    labels = torch.randint(max(2, classes), (batch,), generator=generator)
    return Setting(network.eval(), inputs.to(working), labels, dtype)


def update_of(network: nn.Module, setting: Setting, kind: str = "plain") -> dict[str, Tensor]:
    named = dict(network.named_parameters())
    network.train(kind == "training mode")
    said, labels = network(setting.inputs), setting.labels
    network.eval()
    if said.ndim == 3:  # a language model's texts are their own labels
        said, labels = said[:, :-1].flatten(0, 1), setting.inputs[:, 1:].flatten()
    if kind == "smoothed labels" and said.shape[1] > 1:
        loss = cross_entropy(said, labels, label_smoothing=0.1)
    elif kind == "mixed labels" and said.shape[1] > 1:
        loss = cross_entropy(said, torch.softmax(2 * torch.randn_like(said), 1))
    else:
        loss = loss_of(said, labels)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def codes(values: Tensor, levels: int) -> Tensor:
    step = values.abs().max().clamp(min=1e-30) / (levels // 2)
    return (values / step).round() * step


def sent(kind: str, values: Tensor) -> Tensor:
    """A tensor as it leaves the client."""
    if kind.endswith("bits"):
        return codes(values, 2 ** int(kind[0]) - 1)
    if kind == "largest tenth":
        floor = values.abs().flatten().topk(max(1, round(0.1 * values.numel()))).values[-1]
        return values.where(values.abs() >= floor, 0.0)
    if kind == "half in float32":
        return values.bfloat16().to(values)
    return values * {"clipped": 0.037, "turned": -0.1}.get(kind, 1.0)


def foreign_update(kind: str, setting: Setting, seed: int) -> dict[str, Tensor]:
    """An update that is not what it is declared to be."""
    torch.manual_seed(seed + 1)
    true = update_of(setting.network, setting)
    if kind == "noise":
        return {
            name: torch.distributions.Laplace(0.0, float(value.abs().mean()) + 1e-12).sample(value.shape)
            for name, value in true.items()
        }
    if kind == "shuffled rows":
        return {name: value[torch.randperm(len(value))] for name, value in true.items()}
    if kind == "shuffled columns":
        return {n: v[:, torch.randperm(v.shape[1])] if v.ndim == 2 else v for n, v in true.items()}
    other = copy.deepcopy(setting.network)
    for layer in other.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding | nn.LayerNorm):
            layer.reset_parameters()
    if kind == "stale weights":
        off = 0.01 * 10 ** float(torch.rand(()))
        other.load_state_dict(
            {
                name: value * (1 + off * torch.randn_like(value))
                for name, value in setting.network.state_dict().items()
            }
        )
    return update_of(other, setting)


@dataclass(frozen=True)
class Read:
    """What the audit says about one update."""

    is_refused: bool
    claimed: int = 0
    false: int = 0
    size: int | None = None  # of the batch, as far as it is proven


def read(kind: str, setting: Setting, update: dict[str, Tensor]) -> Read:
    """As `remanence update` does, without a control; claims that no record of the batch accounts for are false."""
    network, shape = setting.network, tuple(setting.inputs.shape[1:])
    sent = {name: value.to(setting.dtype) for name, value in update.items()}
    try:
        subject = open_update(network, sent, Declared(input_shape=shape))
    except MisfitError:
        return Read(True)
    reader, (found,) = subject.reader, subject.updates
    if isinstance(reader, DenseReader):
        (proof,) = read_all(subject)
        assert isinstance(proof, Proof)
        entering = head_inputs(network, reader.head, setting.inputs)
        return Read(False, proof.count, false_records(kind, setting, proof, entering), proof.batch_size)
    mechanism = SharedGradient(network, shape, captured=subject.sent).read_as(reader)
    gradients = Gradient({name: value[None] for name, value in found.gradient.items()})
    guess = reader.reconstruct(gradients, mechanism, seed=0, longest=12)
    (proof,) = reader.proofs(guess, gradients, mechanism, claims=True)
    if isinstance(proof, Texts):
        true = {tuple(ids) for ids in setting.inputs.tolist()}
        return Read(
            False, proof.count, len(set(proof.sequences) - true) if proof.count else 0, proof.batch_size
        )
    assert isinstance(proof, Pictures)
    named = ~guess.records.labels[0].isnan()
    pictures, true = guess.records.features[0][named].flatten(1), setting.inputs.flatten(1).double()
    off = torch.cdist(pictures, true) / true.norm(dim=1)
    right = (
        (off <= 4 * proof.error + 1e-6) & (guess.records.labels[0][named][:, None] == setting.labels)
    ).any(1)
    return Read(False, proof.count, int((~right).sum()) if proof.count else 0, proof.batch_size)


def false_records(kind: str, setting: Setting, proof: Proof, true: Tensor) -> int:
    """Claims that no record of the batch accounts for."""
    claimed = proof.proposal[proof.proven]
    if not len(claimed):
        return 0
    off = torch.cdist(claimed.inputs, true) / true.norm(dim=1).clamp(min=1e-300)
    allowed = (4 * proof.error[proof.proven] + 1e-6)[:, None]
    named = claimed.labels[:, None]  # −1 where the label is left open
    is_right = (
        torch.zeros_like(off, dtype=torch.bool) if kind == "mixed labels" else named == setting.labels[None]
    )
    right = (off <= allowed) & (is_right | (named < 0))
    return int((~right.any(1)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="of foreign updates, and of genuine ones")
    parser.add_argument("--widest", type=int, default=512)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further update after so many")
    parser.add_argument(
        "--between", choices=FUNCTIONS, default="ReLU", help="the function between the layers"
    )
    parser.add_argument("--shape", choices=SHAPES, default=SHAPES[0], help="of the networks")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument(
        "--part", type=int, nargs=2, default=(1, 1), metavar=("I", "N"), help="every Nth seed"
    )
    parser.add_argument("--out", type=Path, help="a file that holds the table so far")
    options = parser.parse_args()
    job = Job(options.widest, options.between, options.shape)
    counts: dict[str, Counter[str]] = {}
    slowest: list[tuple[float, str]] = []
    started = said = time.perf_counter()
    part, parts = options.part
    seeds = range(options.first + part - 1, options.first + options.count, parts)
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for number, results in enumerate(pool.imap_unordered(job, seeds), 1):
            for name, count, wrong, seconds in results:
                counts.setdefault(name, Counter()).update(count)
                slowest = sorted([*slowest, (seconds, wrong[1])], reverse=True)[:5]
                if wrong[0]:
                    print(*wrong, flush=True)
            now = time.perf_counter()
            if now - said > 5 or number == len(seeds) or now - started > options.seconds:
                said = now
                print(f"{number} of {len(seeds)} of each, {now - started:.0f} s", flush=True)
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
    shape: str

    def __call__(self, seed: int) -> list[Told]:
        torch.set_num_threads(1)
        function = FUNCTIONS[self.between]
        kind = FOREIGN[seed % len(FOREIGN)]
        setting = draw(seed, self.widest, function, kind, self.shape)
        first = self._read(f"foreign: {kind}", kind, setting, foreign_update(kind, setting, seed), seed)
        kind = GENUINE[seed % len(GENUINE)]
        setting = draw(seed + 10**6, self.widest, function, kind, self.shape)
        torch.manual_seed(seed + 2)
        update = update_of(setting.network, setting, kind)
        update = {name: sent(kind, value) for name, value in update.items()}
        return [first, self._read(f"genuine: {kind}", kind, setting, update, seed)]

    def _read(self, name: str, kind: str, setting: Setting, update: dict[str, Tensor], seed: int) -> Told:
        started = time.perf_counter()
        count, wrong = tally(name, setting, read(kind, setting, update))
        again = f"{setting.describe()}, {name}, again with --first {seed} --count 1"
        return name, count, (wrong, again), time.perf_counter() - started


def table(counts: dict[str, Counter[str]], seconds: float) -> str:
    columns = ("number", "refused", "exposed", "records", "claimed", "false", "sizes", "wrong")
    lines = [f"{'updates':28}" + "".join(f"{column:>11}" for column in columns)]
    total: dict[str, Counter[str]] = {}
    for name, count in sorted(counts.items()):
        total.setdefault(name.partition(":")[0], Counter()).update(count)
    for name, count in [*sorted(counts.items()), *((f"all {name}", count) for name, count in total.items())]:
        lines.append(f"{name:28}" + "".join(f"{count[column]:11}" for column in columns))
    return "\n".join([*lines, f"{seconds:.0f} s", ""])


def tally(name: str, setting: Setting, found: Read) -> tuple[Counter[str], str]:
    """What is counted, and what is wrong in words."""
    false, claimed, size = found.false, found.claimed, found.size
    different = len(setting.inputs.unique(dim=0))  # equal records count once
    wrong = size is not None and size not in (len(setting.labels), different)
    foreign = name.startswith("foreign")
    said = ""
    if false or (foreign and claimed) or (wrong and not foreign):
        said = f"WRONG {name}: claimed {claimed}, false {false}, size {size}"
    count: Counter[str] = Counter(
        number=1, refused=found.is_refused, exposed=claimed > 0,
        records=len(setting.labels), claimed=claimed, false=claimed if foreign else false, sizes=size is not None,
        wrong=wrong,
    )  # fmt: skip
    return count, said


if __name__ == "__main__":
    main()
