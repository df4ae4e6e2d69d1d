"""What one gradient gives away, on real pictures: accuracy of the exact attacks, and their speed against optimisation.

python benchmarks/gradients.py exact --cifar cifar10.npz --retina retinamnist.npz      # (d-512-K), batch 8
python benchmarks/gradients.py low-rank --cifar cifar10.npz --device cuda              # whole batches of 16 and more
python benchmarks/gradients.py matching --cifar cifar10.npz --retina retinamnist.npz   # beside DLG and Inverting
python benchmarks/gradients.py angle                                                   # a step of Inverting, two ways
python benchmarks/gradients.py hybrid --cifar cifar10.npz --device cuda                # LeNet-5, AlexNet, VGG-13 shapes
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy, interpolate

from remanence import (
    EmpiricalPrior,
    Exact,
    Game,
    Records,
    SharedGradient,
    Uninformed,
    gradient_exposure,
)
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import reconstruct
from remanence.updates.dense.sparse_columns import reconstruct_low_rank
from remanence_papers.gradients.hybrid import hybrid_attack
from remanence_papers.gradients.matching import DLG, InvertingGradients, dense_angle
from remanence_papers.pan_convolutional import NETWORKS
from remanence_papers.picture_quality import Quality, quality

Pictures = tuple[Tensor, Tensor]  # (samples, channels, h, w) in [−1, 1], and labels


def pictures(path: Path, images: str, labels: str) -> Pictures:
    with np.load(path) as arrays:
        values, classes = arrays[images], arrays[labels]
    values = values[..., None] if values.ndim == 3 else values
    return torch.from_numpy(values).permute(0, 3, 1, 2).float() / 127.5 - 1, torch.from_numpy(
        classes
    ).flatten().long()


def perceptron(
    inputs: int, widths: list[int], classes: int, *, bias: bool, dtype: torch.dtype
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip([inputs, *widths], [*widths, classes], strict=True):
        layers += [nn.Linear(before, after, bias=bias, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def leak(network: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    named = dict(network.named_parameters())
    gradients = torch.autograd.grad(cross_entropy(network(inputs), labels), list(named.values()))
    return {name: gradient[None] for name, gradient in zip(named, gradients, strict=True)}


def draw(data: Pictures, count: int, seed: int) -> Pictures:
    index = torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(seed))[:count]
    return data[0][index], data[1][index]


def exact(options: argparse.Namespace) -> None:
    sets = {
        "CIFAR-10": (pictures(options.cifar, "xte", "yte"), 10),
        "RetinaMNIST": (pictures(options.retina, "train_images", "train_labels"), 5),
    }
    print(f"(d-512-K), untrained, {options.batches} ordinary batches of 8; worst PSNR over recovered samples")
    for name, (data, classes) in sets.items():
        for dtype in (torch.float64, torch.float32):
            for bias in (True, False):
                for peel in (False, True):
                    one_row(name, data, classes, dtype, bias=bias, peel=peel, batches=options.batches)


def one_row(name, data: Pictures, classes: int, dtype, *, bias: bool, peel: bool, batches: int) -> None:
    exposed = recovered = false = sizes = whole = 0
    worst, labels_right, seconds = [], 0, []
    for seed in range(batches):
        torch.manual_seed(seed)
        network = perceptron(data[0][0].numel(), [512], classes, bias=bias, dtype=dtype)
        inputs, labels = draw(data, 8, seed)
        inputs = inputs.to(dtype)
        exposed += int(gradient_exposure(network, inputs, labels).exposed.sum())
        head, gradient = dense_head(network, inputs), leak(network, inputs, labels)
        started = time.perf_counter()
        layers = head.layers_of({name: value[0] for name, value in gradient.items()})
        found = reconstruct(head, layers, precision=torch.finfo(dtype).eps, peel=peel).records
        seconds.append(time.perf_counter() - started)
        guesses, names = found.inputs, found.labels
        distance = torch.cdist(inputs.flatten(1).double(), guesses)
        near = distance < 1e-2 * inputs.flatten(1).double().norm(dim=1, keepdim=True)
        recovered += int(near.any(1).sum())
        false += int((~near.any(0)).sum())
        labels_right += int((near & (labels[:, None] == names)).any(1).sum())
        sizes += int(found.batch_size == 8)
        whole += int(near.any(1).all())
        errors = distance.square() / inputs[0].numel()
        worst.append(float(-10 * errors[near].max().log10()) if near.any() else float("inf"))
    print(
        f"{name:12s} {str(dtype)[6:]} {'bias' if bias else 'none'} {'peeled' if peel else 'first look':10s} "
        f"exposed {exposed} recovered {recovered} of {8 * batches}, false {false}, labels right {labels_right}, "
        f"batch size {sizes} of {batches}, whole batches {whole}, worst {min(worst):.1f} dB, "
        f"{np.median(seconds) * 1e3:.0f} ms",
        flush=True,
    )


def low_rank(options: argparse.Namespace) -> None:
    data = pictures(options.cifar, "xte", "yte")
    device = options.device
    for width, count in ((512, 16), (1024, 24), (1024, 32), (2048, 48), (4096, 64), (8192, 96)):
        for seed in range(options.batches):
            torch.manual_seed(seed)
            network = perceptron(3072, [width], 10, bias=True, dtype=torch.float32).to(device)
            inputs, labels = (tensor.to(device) for tensor in draw(data, count, seed))
            exposed = int(gradient_exposure(network, inputs, labels).exposed.sum())
            head, gradient = dense_head(network, inputs), leak(network, inputs, labels)
            started = time.perf_counter()
            found = reconstruct_low_rank(
                head,
                head.layers_of({name: value[0] for name, value in gradient.items()}),
                precision=torch.finfo(torch.float32).eps,
            )
            if device == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            guesses = found.records.inputs.view(-1, *inputs.shape[1:])
            near = (
                torch.cdist(inputs.flatten(1).double(), guesses.flatten(1)) < 0.01 * inputs[0].numel() ** 0.5
            )
            print(
                f"3072-{width}-10 batch {count} seed {seed}: exposed {exposed}, recovered {int(near.any(1).sum())}, "
                f"false {int((~near.any(0)).sum())}, batch size {found.records.batch_size}, unexplained "
                f"{float(found.unexplained[0]):.1e}, {seconds:.1f} s; "
                f"{quality(inputs, labels, guesses, found.records.labels, value_range=2.0)}",
                flush=True,
            )


def matching(options: argparse.Namespace) -> None:
    """The paper's (d-512-K), batch 8: our exact attack and the two optimisation attacks on the same batches."""
    # On a CPU, seconds of the processor: other work on the machine then does not count.
    clock = time.perf_counter if options.device == "cuda" else time.process_time
    print(f"(d-512-K), untrained, float32, batches of 8, {options.batches} each; device {options.device}")
    for name, data, classes in (
        ("CIFAR-10", pictures(options.cifar, "xte", "yte"), 10),
        ("RetinaMNIST", pictures(options.retina, "train_images", "train_labels"), 5),
    ):
        rows: dict[str, list[tuple[Quality, float]]] = {"ours": [], "DLG": [], "Inverting": []}
        for seed in range(options.batches):
            torch.manual_seed(seed)
            network = perceptron(data[0][0].numel(), [512], classes, bias=True, dtype=torch.float32).to(
                options.device
            )
            inputs, labels = (tensor.to(options.device) for tensor in draw(data, 8, seed))
            mechanism = SharedGradient(network, tuple(inputs.shape[1:]))
            game = Game(
                mechanism, Uninformed(), None, targets=EmpiricalPrior(Records(inputs, labels), set_size=8)
            )
            release = mechanism.release(None, Records(inputs, labels)[None], torch.Generator())
            attacks = {
                "ours": Exact(),
                "DLG": DLG(8, steps=300, value_range=(-1.0, 1.0)),
                "Inverting": InvertingGradients(8, steps=options.steps, value_range=(-1.0, 1.0)),
            }
            for key, attack in attacks.items():
                reconstruct_batch = attack.prepare(game.knowledge, torch.Generator().manual_seed(seed))
                calls = 6 if key == "ours" else 1  # the first call loads libraries; the median counts
                guesses, spent = [], []
                for _ in range(calls):
                    started = clock()
                    guesses.append(reconstruct_batch(release).records)
                    if options.device == "cuda":
                        torch.cuda.synchronize()
                    spent.append(clock() - started)
                guess, seconds = guesses[-1], float(np.median(spent))
                named = guess.labels[0].nan_to_num(nan=-1).long()
                found = quality(inputs, labels, guess.features[0], named, value_range=2.0)
                rows[key].append((found, seconds))
        for key, results in rows.items():
            mean = {
                part: np.mean([getattr(q, part) for q, _ in results])
                for part in ("mse", "psnr", "peak_psnr", "label_accuracy")
            }
            seconds = np.median([spent for _, spent in results])
            ratio = seconds / np.median([spent for _, spent in rows["ours"]])
            print(
                f"{name:12s} {key:10s} MSE {mean['mse']:.3g}, PSNR {mean['psnr']:.2f} dB "
                f"(peak {mean['peak_psnr']:.2f}), labels {mean['label_accuracy']:.3f}, "
                f"{seconds:.3f} s per batch, {ratio:.0f} times ours",
                flush=True,
            )


def angle(options: argparse.Namespace) -> None:
    """A step's work of Inverting on (2352-512-5): the angle from slopes and inputs, or from gradients as they are."""
    network = nn.Sequential(nn.Linear(2352, 512), nn.ReLU(), nn.Linear(512, 5)).to(options.device)
    mechanism = SharedGradient(network, (2352,))
    for problems in (5, 40):
        x = torch.randn(problems, 8, 2352, device=options.device)
        labels = torch.randint(5, (problems, 8), device=options.device)
        seen = vmap(grad_of(mechanism))(x.roll(1, 0), labels.roll(1, 0))
        x.requires_grad_()
        ways = {
            "gradients": lambda x=x, y=labels, seen=seen: cosine(vmap(grad_of(mechanism))(x, y), seen),
            "slopes and inputs": lambda x=x, y=labels, seen=seen: dense_angle(
                network, mechanism.parameters, x, y, seen
            ),
        }
        spent = {}
        for name, value in ways.items():
            seconds = []
            for _ in range(6):  # the first loads libraries
                started = time.process_time() if options.device == "cpu" else time.perf_counter()
                torch.autograd.grad(value().sum(), x)[0].sum().item()
                seconds.append(
                    (time.process_time() if options.device == "cpu" else time.perf_counter()) - started
                )
            spent[name] = float(np.median(seconds[1:]))
        ratio = spent["gradients"] / spent["slopes and inputs"]
        print(f"{problems} batches of 8: {spent}, {ratio:.1f} times", flush=True)


def grad_of(mechanism: SharedGradient) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    return lambda x, labels: mechanism.update(mechanism.parameters, x, labels)


def cosine(found: dict[str, Tensor], seen: dict[str, Tensor]) -> Tensor:
    one, other = (torch.cat([tensors[name].flatten(1) for name in seen], 1) for tensors in (found, seen))
    return nn.functional.cosine_similarity(one, other)


def hybrid(options: argparse.Namespace) -> None:
    """Pictures upsampled to 224 × 224 as in the paper; its data sets (ImageNet, ISIC, FaceScrub) are not to be had."""
    data = pictures(options.cifar, "xte", "yte")
    for make in list(NETWORKS.values())[: options.networks]:
        for seed in range(options.batches):
            torch.manual_seed(seed)
            network = make(3, 224, 10).to(options.device)
            inputs, labels = draw(data, 8, seed)
            inputs = interpolate(inputs, size=(224, 224), mode="bilinear", align_corners=False).to(
                options.device
            )
            labels = labels.to(options.device)
            gradient = {name: value[0] for name, value in leak(network, inputs, labels).items()}
            started = time.perf_counter()
            guesses, named, found = hybrid_attack(
                network,
                gradient,
                (3, 224, 224),
                precision=torch.finfo(torch.float32).eps,
                steps=options.steps,
            )
            measured = quality(inputs, labels, guesses, named, value_range=2.0)
            print(
                f"{make.__name__} seed {seed}: {len(found.records)} of 8 features recovered, batch size "
                f"{found.records.batch_size}, unexplained {float(found.unexplained[0]):.1e}; {measured}; "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["exact", "low-rank", "matching", "angle", "hybrid"])
    parser.add_argument("--cifar", type=Path, default=Path("cifar10.npz"))
    parser.add_argument("--retina", type=Path, default=Path("retinamnist.npz"))
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--networks", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    commands = {"exact": exact, "low-rank": low_rank, "matching": matching, "angle": angle, "hybrid": hybrid}
    commands[options.what](options)


if __name__ == "__main__":
    main()
