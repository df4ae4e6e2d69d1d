"""Bugs put into correct Opacus loops, and correct loops: what the audit of a recorded run says of each.

python benchmarks/bugs.py [--seeds 3] [--only NAME]    # every bug: none may be PROTECTED
python benchmarks/bugs.py --correct [--seeds 3]        # correct loops of many shapes: none may be CONTRADICTED

In 16 processes: `--part 1 16` to `--part 16 16`, each into a file of its own, then `--merge FILE...`.
"""

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, TensorDataset

from remanence import Policy
from remanence.auditing import AuditResult
from remanence.private.audit_run import audit_run
from remanence.private.canaries import crafted
from remanence.private.opacus import Reading, record
from remanence.results.verdict import Verdict

CLASSES, KNOWN = 5, 400
POLICY = Policy(0.98)  # so lax that nothing but a finding keeps a run from being PROTECTED


@dataclass
class Loop:
    """A training loop as a bug finds it."""

    engine: PrivacyEngine
    optimizer: Any
    model: Any
    loader: Any
    body: nn.Module
    memory: dict[str, Any] = field(default_factory=dict)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def norms(self) -> Tensor:
        """Of the gradients of the batch's records, before clipping."""
        return torch.stack([s.flatten(1).norm(dim=1) for s in self.optimizer.grad_samples]).norm(dim=0)

    def before_noise(self, change: Callable[[], None]) -> None:
        """Do this between the sum and the noise."""
        add_noise = self.optimizer.add_noise
        self.optimizer.add_noise = lambda: (change(), add_noise())

    def after_noise(self, change: Callable[[], object]) -> None:
        """Do this between the noise and the update."""
        add_noise = self.optimizer.add_noise
        self.optimizer.add_noise = lambda: (add_noise(), change())


class BatchNormalised(nn.Module):
    """Somebody's own layer, which Opacus does not know and so does not refuse."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0, correction=0) + 0.1)


def mlp(*, dropout: bool, mixing: bool = False) -> nn.Module:
    middle = [BatchNormalised()] if mixing else []
    drop = [nn.Dropout(0.2)] if dropout else []
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), *middle, nn.ReLU(), *drop, nn.Linear(24, CLASSES))


def cnn(*, dropout: bool, mixing: bool = False) -> nn.Module:
    middle = [BatchNormalised()] if mixing else []
    drop = [nn.Dropout(0.2)] if dropout else []
    convolution = nn.Conv2d(1, 8, 3, padding=1)
    return nn.Sequential(
        convolution, *middle, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *drop, nn.Linear(128, CLASSES)
    )


class Steps(nn.Module):
    """The rows of a picture one after the other."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.recurrent, self.out = kind(8, 12, batch_first=True), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.recurrent(x[:, 0])[0][:, -1])


class Words(nn.Module):
    """Pixels as words of a small vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(16, 6), nn.Linear(6 * 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words((4 * x.flatten(1)[:, :16]).long().clamp(0, 15)).flatten(1))


class Lora(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x.flatten(1)) + self.up(self.down(x.flatten(1)))


def plain(make: Callable[[], nn.Module]) -> Callable[..., nn.Module]:
    return lambda *, dropout=False, mixing=False: make()  # noqa: ARG005


# Bugs inside the optimizer: each is put in before recording begins.


def noise_times(factor: float) -> Callable[[Loop], None]:
    def bug(loop: Loop) -> None:
        optimizer, add_noise = loop.optimizer, loop.optimizer.add_noise

        def add() -> None:
            told, optimizer.noise_multiplier = optimizer.noise_multiplier, factor * optimizer.noise_multiplier
            add_noise()
            optimizer.noise_multiplier = told

        optimizer.add_noise = add

    return bug


def own_noise(draw: Callable[[int, int, Tensor], Tensor]) -> Callable[[Loop], None]:
    """Noise of somebody's own, from the step, the layer, and the noise that Opacus would draw."""

    def bug(loop: Loop) -> None:
        optimizer, step = loop.optimizer, iter(range(10**9))

        def add() -> None:
            now = next(step)
            std = optimizer.noise_multiplier * optimizer.max_grad_norm
            for layer, p in enumerate(optimizer.params):
                noise = std * draw(now, layer, torch.randn_like(p.summed_grad))
                p.grad = (p.summed_grad + noise).view_as(p)

        optimizer.add_noise = add

    return bug


def missing_on_last(loop: Loop) -> None:
    add_noise, last = loop.optimizer.add_noise, loop.optimizer.params[-1]

    def add() -> None:
        add_noise()
        last.grad = last.summed_grad.view_as(last).clone()

    loop.optimizer.add_noise = add


def same_in_every_layer(step: int, _: int, noise: Tensor) -> Tensor:
    long = torch.randn(
        100_000, generator=torch.Generator().manual_seed(torch.initial_seed() % 2**31 + 7919 * step)
    )
    return long[: noise.numel()].view_as(noise)


def layers_reuse(_: int, layer: int, noise: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31 + layer)
    return noise if layer == 0 else torch.randn(noise.shape, generator=generator)


def every_ten_steps(step: int, layer: int, noise: Tensor) -> Tensor:
    return torch.randn(noise.shape, generator=torch.Generator().manual_seed(1000 * (step % 10) + layer))


def seed_every_step(loop: Loop) -> None:
    add_noise, step = loop.optimizer.add_noise, iter(range(10**9))

    def add() -> None:
        loop.optimizer.generator = torch.Generator().manual_seed(next(step))
        add_noise()

    loop.optimizer.add_noise = add


def repeated_seed(loop: Loop) -> None:
    add_noise = loop.optimizer.add_noise

    def add() -> None:
        loop.optimizer.generator = torch.Generator().manual_seed(7)
        add_noise()

    loop.optimizer.add_noise = add


def unnoised_update(loop: Loop) -> None:
    optimizer = loop.optimizer

    def scale() -> None:
        for p in optimizer.params:
            p.grad = (p.summed_grad / optimizer.expected_batch_size).view_as(p).clone()

    optimizer.scale_grad = scale


def clip_at(factor: float) -> Callable[[Loop], None]:
    def bug(loop: Loop) -> None:
        optimizer, clip = loop.optimizer, loop.optimizer.clip_and_accumulate

        def wider() -> None:
            told, optimizer.max_grad_norm = optimizer.max_grad_norm, factor * optimizer.max_grad_norm
            clip()
            optimizer.max_grad_norm = told

        optimizer.clip_and_accumulate = wider

    return bug


def batch_clipping(loop: Loop) -> None:
    optimizer = loop.optimizer

    def clip() -> None:
        sums = [sample.sum(0) for sample in optimizer.grad_samples]
        norm = torch.cat([part.flatten() for part in sums]).norm()
        for parameter, part in zip(optimizer.params, sums, strict=True):
            parameter.summed_grad = part * (optimizer.max_grad_norm / norm).clamp(max=1)

    optimizer.clip_and_accumulate = clip


# Bugs in the loop: each wraps one step.


def head_once_more(loop: Loop) -> None:
    head = loop.optimizer.params[-2:]
    raw = [p.grad_sample.mean(0).clone() for p in head]
    loop.step()
    with torch.no_grad():
        for p, gradient in zip(head, raw, strict=True):
            p -= 0.05 * gradient


def median_norm(loop: Loop) -> None:
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in loop.optimizer.grad_samples]).norm(dim=0)
    if len(norms):
        loop.optimizer.max_grad_norm = float(norms.median())
    loop.step()


def real_batch(loop: Loop) -> None:
    loop.optimizer.expected_batch_size = max(1, len(loop.optimizer.grad_samples[0]))
    loop.step()


def seed_is_the_step(loop: Loop) -> None:
    torch.manual_seed(
        len(loop.engine.accountant.history) + sum(n for *_, n in loop.engine.accountant.history)
    )
    loop.step()


def body_beside(loop: Loop) -> None:
    """The first layer is trained by a plain optimizer, from gradients that nobody clips."""
    plain = torch.optim.SGD(loop.body.parameters(), lr=0.05)
    for p in loop.body.parameters():
        sample = getattr(p, "grad_sample", None)
        p.grad = None if sample is None else sample.mean(0).clone()
        vars(p)["grad_sample"] = None
    plain.step()
    loop.step()


# Noise on some numbers, or not of its own.


def noise_changed(change: Callable[[list[Tensor]], list[Tensor]]) -> Callable[[Loop], None]:
    """Opacus' noise, changed before it is added."""

    def bug(loop: Loop) -> None:
        def after() -> None:
            noise = [p.grad - p.summed_grad.view_as(p) for p in loop.optimizer.params]
            for p, z in zip(loop.optimizer.params, change(noise), strict=True):
                p.grad = p.summed_grad.view_as(p) + z

        loop.after_noise(after)

    return bug


def spared(place: int, *numbers: Any) -> Callable[[list[Tensor]], list[Tensor]]:
    def change(noise: list[Tensor]) -> list[Tensor]:
        noise[place][numbers] = 0
        return noise

    return change


def halves(sign: float) -> Callable[[list[Tensor]], list[Tensor]]:
    def change(noise: list[Tensor]) -> list[Tensor]:
        for z in noise:
            flat = z.view(-1)
            flat[len(flat) // 2 : 2 * (len(flat) // 2)] = sign * flat[: len(flat) // 2]
        return noise

    return change


def one_direction(noise: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    for z in noise:
        away = torch.randn(z.shape, generator=generator)
        z -= away * (away * z).sum() / away.square().sum()
    return noise


def tape(step: int, layer: int, noise: Tensor) -> Tensor:
    long = torch.randn(10_000, generator=torch.Generator().manual_seed(torch.initial_seed() % 2**31 + layer))
    return long[step : step + noise.numel()].view_as(noise)


def seeded_by_the_gradient(loop: Loop) -> None:
    optimizer = loop.optimizer

    def add() -> None:
        mark = int(optimizer.params[0].summed_grad.abs().sum() * 1e6) % 2**31
        generator = torch.Generator().manual_seed(mark)
        for p in optimizer.params:
            noise = (
                torch.randn(p.shape, generator=generator)
                * optimizer.noise_multiplier
                * optimizer.max_grad_norm
            )
            p.grad = p.summed_grad.view_as(p) + noise

    optimizer.add_noise = add


def rewound(loop: Loop) -> None:
    """Every step begins with the state that the generator had at first."""

    def back() -> None:
        generator = loop.optimizer.generator or torch.default_generator
        loop.memory.setdefault("state", generator.get_state())
        generator.set_state(loop.memory["state"])

    loop.before_noise(back)


def forked(loop: Loop) -> None:
    with torch.random.fork_rng():
        loop.step()


# Ghost clipping.


def coefficients(make: Callable[[Any], Tensor]) -> Callable[[Loop], None]:
    def bug(loop: Loop) -> None:
        norms = loop.model.get_norm_sample
        loop.model.get_clipping_coef = lambda: make(norms())

    return bug


GHOST = {"private": {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}}


# Norms, rates and decays from the records.


def norm_by(rule: Callable[[Loop, Tensor], float]) -> Callable[[Loop], None]:
    def step(loop: Loop) -> None:
        norms = loop.norms()
        if len(norms):
            loop.optimizer.max_grad_norm = rule(loop, norms)
        loop.step()

    return step


def running_median(loop: Loop, norms: Tensor) -> float:
    loop.memory["seen"] = 0.9 * loop.memory.get("seen", 1.0) + 0.1 * float(norms.median())
    return loop.memory["seen"]


def last_median(loop: Loop, norms: Tensor) -> float:
    used, loop.memory["last"] = loop.memory.get("last", 1.0), float(norms.median())
    return used


def counted(loop: Loop, norms: Tensor) -> float:
    unclipped = float((norms <= loop.optimizer.max_grad_norm).float().mean())
    return loop.optimizer.max_grad_norm * torch.tensor(0.2 * (0.5 - unclipped)).exp().item()


def group_by(name: str, rule: Callable[[Loop], float]) -> Callable[[Loop], None]:
    def step(loop: Loop) -> None:
        for group in loop.optimizer.param_groups:
            group[name] = rule(loop)
        loop.step()

    return step


def noise_by_the_loss(loop: Loop) -> None:
    loop.optimizer.noise_multiplier = 1.0 if loop.norms().mean() > 2 else 1.01
    loop.step()


# Sampling.


def draws(change: Callable[[list[int], int], list[int]]) -> Callable[[Loop], None]:
    """Batches of the sampler, changed before they are used."""

    def bug(loop: Loop) -> None:
        sampler = loop.loader.batch_sampler
        number = iter(range(10**9))

        class Changed(type(sampler)):
            def __iter__(self) -> Iterator[list[int]]:
                for batch in super().__iter__():
                    yield change(batch, next(number))

        sampler.__class__ = Changed

    return bug


def thrice(batch: list[int], number: int) -> list[int]:
    more = torch.rand(20, generator=torch.Generator().manual_seed(number)) < 0.3
    return sorted({*batch, *more.nonzero().flatten().tolist()})


def fixed_size(_: list[int], number: int) -> list[int]:
    return torch.randperm(KNOWN, generator=torch.Generator().manual_seed(number))[:60].tolist()


def same_every_epoch(loop: Loop) -> None:
    sampler = loop.loader.batch_sampler

    class Again(type(sampler)):
        def __iter__(self) -> Iterator[list[int]]:
            self.generator = torch.Generator().manual_seed(3)
            return super().__iter__()

    sampler.__class__ = Again


def skips_the_worst(loop: Loop) -> None:
    if loop.norms().mean() < 3.8:
        loop.step()
    else:
        loop.optimizer.zero_grad()


# Kinds that the code has no word for.


def mixed_up(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return 0.7 * x + 0.3 * x.roll(1, 0), y


def by_the_batch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x - x.mean(0)) / (x.std(0) + 0.1) if len(x) > 1 else x, y


def balanced(logits: Tensor, labels: Tensor) -> Tensor:
    counts = torch.bincount(labels, minlength=CLASSES).float() + 1
    return cross_entropy(logits, labels, weight=counts.sum() / counts)


def one_unclipped(loop: Loop) -> None:
    def add() -> None:
        for p in loop.optimizer.params:
            sample = p.grad_sample
            if len(sample):
                p.summed_grad = p.summed_grad + 0.5 * sample[0].to(p.summed_grad)

    loop.before_noise(add)


def raw_momentum(loop: Loop) -> None:
    raw = [
        p.grad_sample.mean(0) if len(p.grad_sample) else torch.zeros_like(p) for p in loop.optimizer.params
    ]
    loop.step()
    for p, gradient in zip(loop.optimizer.params, raw, strict=True):
        memory = loop.optimizer.state[p].get("momentum_buffer")
        if memory is not None:
            memory.add_(0.1 * gradient)


def remembered_in_the_bias(loop: Loop) -> None:
    size = len(loop.optimizer.grad_samples[0])
    loop.step()
    with torch.no_grad():
        loop.optimizer.params[-1][0] += 1e-4 * size


def signs_of_the_sum(loop: Loop) -> None:
    def after() -> None:
        for p in loop.optimizer.params:
            p.grad = p.grad.abs() * p.summed_grad.view_as(p).sign()

    loop.after_noise(after)


def update_by_the_loss(loop: Loop) -> None:
    scale = loop.optimizer.scale_grad

    def more() -> None:
        scale()
        for p in loop.optimizer.params:
            p.grad *= float(loop.norms().mean()) / 3 if len(loop.norms()) else 1.0

    loop.optimizer.scale_grad = more


class Paired(Dataset):
    """A data set that mixes a record with another one, drawn at random, whenever it is read."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[place]
        if place >= KNOWN:
            return x, y  # canaries stay as they are
        return 0.7 * x + 0.3 * self.data[int(torch.randint(KNOWN, ()))][0], y


def collated(batch: list[Any]) -> Any:
    x, y = torch.stack([one for one, _ in batch]), torch.stack([other for _, other in batch])
    return x - x.mean(0), y


TODAY: dict[str, dict[str, Any]] = {
    "half the noise": {"bug": noise_times(0.5)},
    "a quarter of the noise": {"bug": noise_times(0.25)},
    "no noise on the last bias": {"bug": missing_on_last},
    "the same noise in every layer": {"bug": own_noise(same_in_every_layer)},
    "layers after the first reuse their noise": {"bug": own_noise(layers_reuse)},
    "noise from a repeated seed": {"bug": repeated_seed},
    "noise repeats after a while": {"bug": own_noise(every_ten_steps)},
    "seeds are the steps, own generator": {"bug": seed_every_step},
    "seeds are the steps": {"step": seed_is_the_step, "seed_by": "secret"},
    "Rademacher noise": {"bug": own_noise(lambda _, __, z: z.sign())},
    "uniform noise": {"bug": own_noise(lambda _, __, z: (2 * torch.rand_like(z) - 1) * 3**0.5)},
    "the update is not noised": {"bug": unnoised_update},
    "the head is stepped once more": {"step": head_once_more},
    "the body is trained beside": {"step": body_beside, "trained": "head"},
    "clipped at 10 C, noise at C": {"bug": clip_at(10.0)},
    "clipping per batch": {"bug": batch_clipping},
    "the norm is the batch's median": {"step": median_norm},
    "division by the real batch size": {"step": real_batch},
    "a layer of one's own mixes the batch": {"mixing": True},
    "the data are there twice": {"twice": True},
    "a shuffle accounted as Poisson": {"poisson": False},
    "a body in train mode with BatchNorm statistics": {"statistics": True},
}

FOUND: dict[str, dict[str, Any]] = {
    "ghost: all coefficients are 1": {**GHOST, "bug": coefficients(torch.ones_like)},
    "ghost: clipped at 10 C": {**GHOST, "bug": coefficients(lambda n: (10 / (n + 1e-6)).clamp(max=1))},
    "no noise on one weight": {"bug": noise_changed(spared(0, 3, 5))},
    "no noise on the bias of one class": {"bug": noise_changed(spared(-1, 2))},
    "no noise on one neuron": {"bug": noise_changed(spared(0, 7))},
    "half of each tensor repeats the other half": {"bug": noise_changed(halves(1.0))},
    "half of each tensor is the negative of the other": {"bug": noise_changed(halves(-1.0))},
    "one direction is spared": {"bug": noise_changed(one_direction)},
    "a shifted tape": {"bug": own_noise(tape)},
    "an own generator, seeded by the step": {"bug": seed_every_step},
    "an own generator, seeded by the gradient": {"bug": seeded_by_the_gradient},
    "noise cut at 3.5 deviations": {"bug": own_noise(lambda _, __, z: z.clamp(-3.5, 3.5))},
    "the norm is the batch's quantile 0.9": {"step": norm_by(lambda _, n: float(n.quantile(0.9)))},
    "the norm is the batch's quantile 0.25": {"step": norm_by(lambda _, n: float(n.quantile(0.25)))},
    "the norm is a running median": {"step": norm_by(running_median)},
    "the norm is the last batch's median": {"step": norm_by(last_median)},
    "the norm adapts to a count without noise": {"step": norm_by(counted)},
    "one record is in every batch": {"bug": draws(lambda batch, _: sorted({0, *batch}))},
    "20 records come three times as often": {"bug": draws(thrice)},
    "batches of one size": {"bug": draws(fixed_size)},
    "the same batches in every epoch": {"bug": same_every_epoch, "seed_by": "secret"},
    "batches with large gradients are skipped": {"step": skips_the_worst},
    "a record of each batch is left out": {"bug": draws(lambda batch, _: batch[1:])},
    "the rate is divided by the batch": {
        "step": group_by("lr", lambda loop: 0.1 * 60 / max(1, len(loop.optimizer.grad_samples[0])))
    },
    "the rate follows the gradients": {
        "step": group_by("lr", lambda loop: 0.05 + 0.01 * float(loop.norms().sum() / 60))
    },
    "the decay follows the gradients": {
        "step": group_by("weight_decay", lambda loop: 1e-3 * float(loop.norms().sum() / 60))
    },
}
OWN: dict[str, dict[str, Any]] = {
    "records are mixed up in the loop": {"prepare": mixed_up},
    "records are normalised by their batch": {"prepare": by_the_batch},
    "the loss weighs classes by their batch": {"loss": balanced, "private": {"max_grad_norm": 20.0}},
    "a data set mixes records": {"data": Paired},
    "a batch is centred when it is put together": {"collate": collated},
    "half a record is added once more": {"bug": one_unclipped},
    "momentum remembers raw gradients": {"step": raw_momentum},
    "a bias counts the records": {"step": remembered_in_the_bias},
    "signs of the raw sum": {"bug": signs_of_the_sum},
    "the update grows with the raw gradients": {"bug": update_by_the_loss},
    "the noise follows the gradients": {"step": noise_by_the_loss},
    "the generator is set back at every step": {"bug": rewound},
    "the generator is forked at every step": {"step": forked, "seed_by": "secret"},
}


# More of them, invented when the ones above were done.

LATELY: dict[str, Any] = {"loss": 1.0, "weights": torch.ones(CLASSES)}  # where anybody may look


class Peeking(torch.optim.SGD):
    """An optimizer of one's own, whose rate follows what the loop last saw."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad * LATELY["loss"]
        super().step(closure)


def tells_the_optimizer(loop: Loop) -> None:
    LATELY["loss"] = 0.5 + float(loop.norms().mean()) if len(loop.norms()) else 1.0
    loop.step()


def weighed(logits: Tensor, labels: Tensor) -> Tensor:
    """Each record's loss, weighed by how well its class did in the last batch."""
    return (cross_entropy(logits, labels, reduction="none") * LATELY["weights"][labels]).mean()


def weighs_classes(loop: Loop) -> None:
    sizes = loop.optimizer.params[-1].grad_sample.abs().sum(0)
    LATELY["weights"] = 0.5 + sizes / sizes.mean().clamp(min=1e-6)
    loop.step()


def nudged(loop: Loop) -> None:
    """The weights move where the noise is added."""

    def nudge() -> None:
        for p in loop.optimizer.params:
            p.data -= 0.01 * p.summed_grad.view_as(p)

    loop.before_noise(nudge)


def shrinks_before_the_noise(loop: Loop) -> None:
    loop.before_noise(lambda: setattr(loop.optimizer, "max_grad_norm", 0.5))


def clips_at_one(loop: Loop) -> None:
    loop.optimizer.max_grad_norm = 1.0
    loop.step()


def between_pieces(loop: Loop) -> None:
    """The weights move while a large batch is put together from small ones."""
    raw = [p.grad_sample.sum(0) for p in loop.optimizer.params]
    loop.step()
    if loop.optimizer._is_last_step_skipped:
        for p, gradient in zip(loop.optimizer.params, raw, strict=True):
            p.data -= 1e-3 * gradient.view_as(p)


def twice_if_bad(loop: Loop) -> None:
    bad = len(loop.norms()) > 0 and loop.norms().mean() > 3
    if loop.optimizer.pre_step():
        for _ in range(2 if bad else 1):
            loop.optimizer.original_optimizer.step()
    loop.optimizer.zero_grad()


def souvenir(loop: Loop) -> None:
    """The first batch's mean gradient is kept in the model."""
    if "kept" not in loop.memory:
        loop.memory["kept"] = loop.optimizer.grad_samples[-1].mean(0).clone()
        loop.body.register_buffer("scale", loop.memory["kept"])
    loop.step()


def rows_by_use(loop: Loop) -> None:
    """The rows of a frozen layer are put in order of what the raw gradients say."""
    sizes = loop.optimizer.grad_samples[-1].flatten(2).abs().sum((0, 2))
    loop.step()
    weight = loop.body.get_parameter("weight")
    weight.data = weight.data[sizes.argsort()]


def passes_lie(loop: Loop) -> None:
    """The number of accumulated passes, by which sums are divided, says how many records there were."""

    class Lying(type(loop.optimizer)):
        @property
        def accumulated_iterations(self) -> float:
            return max(1, len(self.grad_samples[0])) / 60

    loop.optimizer.__class__ = Lying


def without_dropout_where_it_hurts(loop: Loop) -> None:
    """Whether the next batch is trained with dropout is up to the gradients of this one."""
    many = len(loop.norms()) > 60
    loop.step()
    for module in loop.model.modules():
        if isinstance(module, nn.Dropout):
            module.train(many)


def counts_records(loop: Loop) -> None:
    counter = loop.memory.setdefault("counter", torch.zeros((), dtype=torch.int64))
    if "records" not in dict(loop.body.named_buffers()):
        loop.body.register_buffer("records", counter)
    counter += len(loop.optimizer.grad_samples[0])
    loop.step()


def limit_from_the_first_batch(loop: Loop) -> None:
    if "limit" not in loop.memory:
        loop.memory["limit"] = 0.02 * float(loop.norms().mean())
    if loop.optimizer.pre_step():
        nn.utils.clip_grad_norm_(loop.optimizer.params, loop.memory["limit"])
        loop.optimizer.original_optimizer.step()
    loop.optimizer.zero_grad()


def back_where_it_rises(loop: Loop) -> None:
    """The weights go back to the step before where the raw gradients have grown."""
    size, last = float(loop.norms().mean()), loop.memory.get("size", float("inf"))
    before = [p.detach().clone() for p in loop.optimizer.params]
    loop.step()
    if size > last:
        for p, old in zip(loop.optimizer.params, before, strict=True):
            p.data.copy_(old)
    loop.memory["size"] = size


def hardest_half(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    chosen = x.flatten(1).norm(dim=1).argsort()[len(x) // 2 :]
    return x[chosen], y[chosen]


def schedule_of_steps(loop: Loop) -> None:
    loop.memory["rates"] = torch.optim.lr_scheduler.ExponentialLR(loop.optimizer, 0.9)


def until_a_batch_is_large(loop: Loop) -> None:
    """The rate falls with every step, but not any more after a large batch."""
    called = loop.memory.setdefault("called", [True])
    called.append(called[-1] and (len(called) < 4 or len(loop.norms()) < 55))
    loop.step()
    if called[-1]:
        loop.memory["rates"].step()


def once_in_the_middle(loop: Loop) -> None:
    loop.memory["steps"] = loop.memory.get("steps", 0) + 1
    loop.step()
    if loop.memory["steps"] == 9:  # where a loss would say so
        loop.memory["rates"].step()


def batch_deviation(loop: Loop) -> None:
    """A hook that was hung onto a layer divides by what the whole batch gives."""
    loop.body.register_forward_hook(lambda _, __, out: out / (out.detach().std() + 0.1))


def seeds_the_noise(loop: Loop) -> None:
    """The system's entropy is replaced by a seed before the first step."""
    if not loop.memory:
        loop.memory["seeded"] = loop.optimizer.generator.manual_seed(42)
    loop.step()


def seeds_the_batches(loop: Loop) -> None:
    sampler = loop.loader.batch_sampler

    class Once(type(sampler)):
        def __iter__(self) -> Iterator[list[int]]:
            if not loop.memory:
                loop.memory["seeded"] = self.generator.manual_seed(3)
            return super().__iter__()

    sampler.__class__ = Once


def without_empty_ones(loop: Loop) -> None:
    sampler = loop.loader.batch_sampler

    class Full(type(sampler)):
        def __iter__(self) -> Iterator[list[int]]:
            return (batch for batch in super().__iter__() if batch)

    sampler.__class__ = Full


def edits_at_the_end(loop: Loop) -> None:
    """After the last step, a batch that is never noised comes, and the weights move."""
    raw = [p.grad_sample.mean(0) for p in loop.optimizer.params]
    loop.step()
    loop.memory["steps"] = loop.memory.get("steps", 0) + 1
    if loop.memory["steps"] == len(loop.loader):
        loop.optimizer.signal_skip_step(True)
        cross_entropy(loop.model(torch.ones(2, 1, 8, 8)), torch.tensor([0, 1])).backward()
        loop.step()
        for p, gradient in zip(loop.optimizer.params, raw, strict=True):
            p.data -= 0.5 * gradient


def large_batch(loop: Loop) -> None:
    """A value that is back to normal when anyone looks at the end."""
    LATELY["loss"] = 1.5 if len(loop.norms()) > 62 else 1.0
    loop.step()
    LATELY["loss"] = 1.0


def scaled_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels) * LATELY["loss"]


def after_a_large_batch(loop: Loop) -> None:
    large = len(loop.norms()) > 62
    loop.step()
    LATELY["loss"] = 1.5 if large else 1.0


def seeded_by_the_batch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(int(1e4 * x.abs().sum()) % 2**31)
    return x, y


def changes_records(loop: Loop) -> None:
    """What the first batch was like goes into records that have not come yet."""
    mean = loop.optimizer.grad_samples[-1].abs().mean()
    loop.step()
    if not loop.memory:
        loop.memory["changed"] = loop.loader.dataset.tensors[0][: KNOWN // 2].add_(mean)


class Collects(nn.Module):
    """A model that keeps something of its inputs beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.seen = mlp(dropout=False), []

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 1:
            self.seen.append(float(x.sum()))
        return self.network(x)


def second_optimizer(loop: Loop) -> None:
    last = loop.optimizer.params[-1]
    second = loop.memory.setdefault("second", torch.optim.Adam([last], lr=1e-3))
    raw = last.grad_sample.mean(0).clone()
    loop.step()
    last.grad = raw
    second.step()
    last.grad = None


def plateau(loop: Loop) -> None:
    rates = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer.original_optimizer, patience=0)
    loop.memory["rates"] = rates


def until_it_falls(loop: Loop) -> None:
    size = float(loop.norms().mean())
    loop.step()
    loop.memory["rates"].step(size)


def second_loss(loop: Loop) -> None:
    def after() -> None:
        for p in loop.optimizer.params:
            p.grad += 1e-2 * p.summed_grad.view_as(p).tanh()

    loop.after_noise(after)


def rounded_limit(loop: Loop) -> None:
    """A round number that the first batch gave, which nobody declared."""
    limit = loop.memory.setdefault("limit", float(f"{0.02 * float(loop.norms().mean()):.1g}"))
    limited(lambda loop: nn.utils.clip_grad_norm_(loop.optimizer.params, limit))(loop)


def limited_where_large(loop: Loop) -> None:
    """A declared limit, which is kept only where the raw gradients say so."""
    bad = len(loop.norms()) > 61
    limited(lambda loop: bad and nn.utils.clip_grad_norm_(loop.optimizer.params, 0.05))(loop)


def weighed_by_place(logits: Tensor, labels: Tensor) -> Tensor:
    return (torch.linspace(0.5, 1.5, len(labels)) * cross_entropy(logits, labels, reduction="none")).mean()


def two_to_a_step(loop: Loop) -> None:
    loop.memory["steps"] = loop.memory.get("steps", 0) + 1
    loop.optimizer.signal_skip_step(loop.memory["steps"] % 2 == 1)
    loop.step()


def noise_for_a_norm(loop: Loop) -> None:
    """Clipping by layers leaves the norm alone for which noise is made."""
    loop.optimizer.max_grad_norm = 1.0 if len(loop.norms()) < 60 else 1.3
    loop.step()


def smaller_norm(loop: Loop) -> None:
    loop.optimizer.max_grad_norm *= 0.99


def a_little(loop: Loop, tensors: list[Tensor]) -> None:
    """As much of the raw sums as may look like rounding."""
    for tensor, p in zip(tensors, loop.optimizer.params, strict=True):
        most = 9e-5 * tensor.abs()
        tensor.add_((0.01 * p.summed_grad.view_as(p)).clamp(-most, most))


def hidden_in_weights(loop: Loop) -> None:
    loop.optimizer.step()
    a_little(loop, [p.data for p in loop.optimizer.params])
    loop.optimizer.zero_grad()


def hidden_in_gradients(loop: Loop) -> None:
    loop.after_noise(lambda: a_little(loop, [p.grad for p in loop.optimizer.params]))


class Notes(nn.Module):
    """A model with room for notes."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.large, self._seen = mlp(dropout=False), 0, 0.0
        self.table = np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def counts_large_batches(loop: Loop) -> None:
    large = len(loop.norms()) > 60
    loop.step()
    loop.model._module.large += large


def notes_gradients(loop: Loop) -> None:
    sizes = float(loop.norms().sum())
    loop.step()
    loop.model._module._seen += sizes


def notes_in_an_array(loop: Loop) -> None:
    sizes = float(loop.norms().sum())
    loop.step()
    loop.model._module.table[1] += sizes


def remembers_the_first_batch(loop: Loop) -> None:
    sampler = loop.loader.batch_sampler

    class Told(type(sampler)):
        def __iter__(self) -> Iterator[list[int]]:
            for batch in super().__iter__():
                loop.memory.setdefault("first", batch)
                yield batch

    sampler.__class__ = Told


def changes_other_records(loop: Loop) -> None:
    """What the first batch was like goes into all records that were not in it."""
    if "changed" not in loop.memory:
        others = sorted({*range(KNOWN)} - {*loop.memory["first"]})
        mean = loop.optimizer.grad_samples[-1].abs().mean()
        loop.memory["changed"] = loop.loader.dataset.tensors[0].index_add_(
            0, torch.tensor(others), mean.expand(len(others), 1, 8, 8)
        )
    loop.step()


def draws_more(loop: Loop) -> None:
    loop.step()
    loop.loader.batch_sampler.sample_rate = 0.3


WIDE = {"private": {"max_grad_norm": 20.0}}  # so that the size of a gradient matters
LAYERS = {"private": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}}

LATEST: dict[str, dict[str, Any]] = {
    "a hook divides by the batch's deviation": {"bug": batch_deviation},
    "the noise is seeded inside the loop": {"step": seeds_the_noise},
    "the batches are seeded inside the loop": {"bug": seeds_the_batches},
    "the sampler leaves empty batches out": {
        "bug": without_empty_ones,
        "batch": 2,
        "epochs": 1,
        "canaries": 20,
    },
    "the weights are edited after a last, skipped step": {"step": edits_at_the_end, "epochs": 1},
    "an optimizer of one's own looks once in a while": {
        "optimizer": lambda p: Peeking(p, lr=0.1),
        "step": large_batch,
    },
    "the loss looks at the last batch once in a while": {
        "step": after_a_large_batch,
        "loss": scaled_loss,
        "reading": Reading(loss=scaled_loss),
        **WIDE,
    },
    "dropout is seeded by the batch": {"prepare": seeded_by_the_batch, "dropout": True},
    "records are changed before they come": {"step": changes_records},
    "a list in the model collects records": {"network": plain(Collects)},
    "a second optimizer, without noise": {"step": second_optimizer},
    "the rate falls when gradients do not": {"bug": plateau, "step": until_it_falls},
    "a second loss, after the noise": {"bug": second_loss},
    "a round limit that the first batch gave": {"step": rounded_limit},
    "a limit that is kept where gradients are large": {"step": limited_where_large, "limits": (0.05,)},
    "records are weighed by their place": {"loss": weighed_by_place, **WIDE},
    "two drawn batches to a step": {"step": two_to_a_step},
    "clipping by layers, and noise for another norm": {"bug": smaller_norm, **LAYERS},
    "clipping by layers, and noise that follows the batch": {"step": noise_for_a_norm, **LAYERS},
    "raw sums in the rounding of limited weights": {"step": hidden_in_weights, "limits": (1e3,)},
    "raw sums in the rounding of limited gradients": {"bug": hidden_in_gradients, "limits": (1e3,)},
    "a counter of large batches": {"step": counts_large_batches, "network": plain(Notes)},
    "an attribute keeps the raw gradients": {"step": notes_gradients, "network": plain(Notes)},
    "an array keeps the raw gradients": {"step": notes_in_an_array, "network": plain(Notes)},
    "records of later batches are changed": {
        "bug": remembers_the_first_batch,
        "step": changes_other_records,
    },
    "the sampler is told to draw more": {"step": draws_more},
}

LATER: dict[str, dict[str, Any]] = {
    "an optimizer of one's own looks at the raw gradients": {
        "optimizer": lambda p: Peeking(p, lr=0.1),
        "step": tells_the_optimizer,
    },
    "the loss weighs classes by the last batch": {
        "step": weighs_classes,
        "loss": weighed,
        "reading": Reading(loss=weighed),
    },
    "a schedule goes on until a batch is large": {"bug": schedule_of_steps, "step": until_a_batch_is_large},
    "a schedule is called once, in the middle": {"bug": schedule_of_steps, "step": once_in_the_middle},
    "the norm shrinks before the noise": {"bug": shrinks_before_the_noise, "step": clips_at_one},
    "the weights move with the noise": {"bug": nudged},
    "the weights move between small batches": {"step": between_pieces, "physical": 16},
    "a second step where gradients are large": {"step": twice_if_bad},
    "the first batch is kept in a buffer": {"step": souvenir},
    "frozen rows are put in order": {"step": rows_by_use, "network": plain(Lora)},
    "accumulated passes say how many records came": {"bug": passes_lie},
    "dropout is up to the last batch": {"step": without_dropout_where_it_hurts, "dropout": True},
    "a counter counts the records": {"step": counts_records},
    "a limit that the first batch gave": {"step": limit_from_the_first_batch},
    "weights go back where gradients grow": {"step": back_where_it_rises},
    "only the larger half of a batch is used": {"prepare": hardest_half},
}


class Remembers(nn.Module):
    """A frozen body whose running statistics go on."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().flatten(1).mean(0)
        return self.module(x)


def run(
    out: Path,
    *,
    seed: int,
    network: Callable[..., nn.Module] = mlp,
    dropout: bool = False,
    bug: Callable[[Loop], None] | None = None,
    step: Callable[[Loop], None] = Loop.step,
    mixing: bool = False,
    twice: bool = False,
    poisson: bool = True,
    statistics: bool = False,
    trained: str = "all",
    epochs: int = 3,
    batch: int = 64,
    noise: float = 1.5,
    physical: int | None = None,
    autocast: bool = False,
    optimizer: Callable[..., Any] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    schedule: Callable[[Any], Any] | None = None,
    private: dict[str, Any] | None = None,
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y),
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    data: Callable[[TensorDataset], Any] = lambda data: data,
    collate: Callable[[list[Any]], Any] | None = None,
    seed_by: Any = "os",
    own_seeds: bool = False,
    canaries: int = 30,
    reading: Reading | None = None,
    limits: tuple[float, ...] = (),
) -> None:
    """Train and record, with a bug or without; every canary is one of two records."""
    torch.manual_seed(seed)
    chosen = crafted(canaries, (1, 8, 8), CLASSES, candidates=2, seed=seed)
    features, labels = torch.randn(KNOWN, 1, 8, 8), torch.randint(CLASSES, (KNOWN,))
    if twice:
        features, labels = torch.cat([features, features]), torch.cat([labels, labels])
    records = TensorDataset(
        torch.cat([features, chosen.inserted.features]), torch.cat([labels, chosen.inserted.labels])
    )
    module = network(dropout=dropout, mixing=mixing)
    module = Remembers(module) if statistics else module
    body = next(m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Embedding))
    own = [p for p in module.parameters() if p.requires_grad]
    own = [p for p in own if trained == "all" or all(p is not q for q in body.parameters())]
    engine = PrivacyEngine()
    generators = [
        torch.Generator().manual_seed(seed + more) if own_seeds else None for more in (7919, 104729)
    ]
    made: Any = engine.make_private(
        module=module,
        optimizer=optimizer(own),
        data_loader=DataLoader(
            data(records), batch_size=batch, shuffle=not poisson, collate_fn=collate, generator=generators[0]
        ),
        noise_multiplier=noise,
        poisson_sampling=poisson,
        noise_generator=generators[1],
        **{"max_grad_norm": 1.0, **(private or {})},
    )
    model, wrapped, *criterion, loader = made
    loop = Loop(engine, wrapped, model, loader, body)
    if bug is not None:
        bug(loop)
    rates = None if schedule is None else schedule(wrapped)
    objective = criterion[0] if criterion else loss
    told: dict[str, Any] = {"canaries": chosen, "reading": reading, "seed": seed_by, "limits": limits}
    with record(engine, wrapped, model, loader, out=out, **told):
        for _ in range(epochs):
            for x, y in batches(loader, wrapped, physical):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    value = objective(model(prepare(x, y)[0]), prepare(x, y)[1])
                value.backward()
                step(loop)
            if rates is not None:
                rates.step()


def batches(loader: Any, optimizer: Any, physical: int | None) -> Iterator[Any]:
    if physical is None:
        yield from loader
        return
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as pieces:
        yield from pieces


def audited(**settings: Any) -> AuditResult:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "run", **settings)
        return audit_run(Path(folder) / "run", policy=POLICY)


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 5.0,
}


def limited(limit: Callable[[Loop], object]) -> Callable[[Loop], None]:
    """A step whose noised gradient is limited before the update."""

    def step(loop: Loop) -> None:
        if loop.optimizer.pre_step():
            limit(loop)
            loop.optimizer.original_optimizer.step()
        loop.optimizer.zero_grad()

    return step


def clip_noised(loop: Loop) -> None:
    loop.after_noise(lambda: nn.utils.clip_grad_norm_(loop.optimizer.params, 5.0))


def max_norm(loop: Loop) -> None:
    loop.step()
    with torch.no_grad():
        for p in loop.optimizer.params:
            if p.ndim > 1:
                p.copy_(p.renorm(2, 0, 0.6))


class SignDescent(torch.optim.SGD):
    """An optimizer of one's own that reads nothing but its gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad.sign()
        super().step(closure)


class Attention(nn.Module):
    """The rows of a picture, which look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x[:, 0], x[:, 0], x[:, 0])[0].mean(1))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(), nn.Linear(512, CLASSES)
    )


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, label_smoothing=0.1)


def one_cycle(loop: Loop) -> None:
    rates = torch.optim.lr_scheduler.OneCycleLR(loop.optimizer, 0.2, total_steps=1000)
    loop.memory["each step"] = rates.step


def averaged(loop: Loop) -> None:
    average = AveragedModel(loop.model._module)
    loop.memory["each step"] = lambda: average.update_parameters(loop.model._module)


def and_then(loop: Loop) -> None:
    loop.step()
    loop.memory["each step"]()


def groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 1e-3}], lr=3e-3)


CORRECT: dict[str, dict[str, Any]] = {
    "MLP": {},
    "MLP with dropout": {"dropout": True},
    "CNN": {"network": cnn},
    "CNN with dropout": {"network": cnn, "dropout": True},
    "LSTM": {"network": plain(lambda: Steps(DPLSTM))},
    "GRU": {"network": plain(lambda: Steps(DPGRU))},
    "embeddings": {"network": plain(Words)},
    "LoRA": {"network": plain(Lora)},
    "Nesterov and weight decay": {
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    },
    "Adam": {"optimizer": lambda p: torch.optim.Adam(p, lr=3e-3)},
    "AdamW in two groups": {"optimizer": groups},
    "RMSprop": {"optimizer": lambda p: torch.optim.RMSprop(p, lr=1e-3)},
    "learning-rate schedule": {"schedule": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8)},
    "noise schedule": {"schedule": lambda o: ExponentialNoise(o, gamma=0.95)},
    "clipping schedule": {"schedule": lambda o: ExponentialGradClip(o, gamma=0.9)},
    "full batches": {"batch": 1000, "epochs": 12, "noise": 4.0},
    "empty batches": {"batch": 2, "epochs": 1, "canaries": 20},
    "virtual batches": {"physical": 16},
    "per-layer clipping": LAYERS,
    "adaptive clipping": {"private": ADAPTIVE},
    "functorch": {"private": {"grad_sample_mode": "functorch"}},
    "ghost clipping": GHOST,
    "autocast": {"autocast": True},
    "clipped with its noise, in the loop": {
        "step": limited(lambda loop: nn.utils.clip_grad_norm_(loop.optimizer.params, 0.05)),
        "limits": (0.05,),
    },
    "clipped with its noise, by value": {
        "step": limited(lambda loop: nn.utils.clip_grad_value_(loop.optimizer.params, 0.02)),
        "limits": (0.02,),
    },
    "clipped with its noise, inside add_noise": {"bug": clip_noised, "limits": (5.0, 0.6)},
    "rows of weights projected": {"step": max_norm, "limits": (0.6,)},
    "attention": {"network": plain(Attention)},
    "convolutions and group norm": {"network": plain(normalised)},
    "an optimizer of one's own": {"optimizer": lambda p: SignDescent(p, lr=1e-3)},
    "smoothed labels": {"loss": smoothed, "reading": Reading(loss=smoothed)},
    "one cycle, a call a step": {"bug": one_cycle, "step": and_then},
    "weights averaged on the way": {"bug": averaged, "step": and_then},
    "the owner's own seeds": {"seed_by": "secret", "own_seeds": True},
    "no word about seeds": {"seed_by": None},
}


def told(
    kinds: dict[str, dict[str, Any]], seeds: int, only: str | None, part: tuple[int, int]
) -> Iterator[str]:
    """A line for every kind: the verdicts of its runs, and what was named."""
    for place, (name, settings) in enumerate(kinds.items()):
        if (only is not None and only not in name) or place % part[1] != part[0] - 1:
            continue
        verdicts, named = Counter(), Counter()
        for seed in range(seeds):
            result = audited(seed=1000 * (1 + place) + seed, **settings)
            verdicts[str(result.verdict)] += 1
            named.update(c.id for c in result.strongest.caveats if c.contradicts or c.voids)
        found = ", ".join(which for which, _ in named.most_common())
        yield f"| {name} | {', '.join(f'{v} {n}' for v, n in verdicts.items())} | {found} |"


def merged(kinds: dict[str, dict[str, Any]], files: list[Path]) -> Iterator[str]:
    """The lines of all parts, in the order of the kinds."""
    lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("| ")]
    yield from sorted(lines, key=lambda line: list(kinds).index(line.split(" | ")[0][2:]))


def counted_up(lines: Iterator[str]) -> Counter[str]:
    """Print every line, and count its verdicts."""
    every: Counter[str] = Counter()
    for line in lines:
        print(line, flush=True)
        for verdict in line.split(" | ")[1].split(", "):
            every[verdict.split()[0]] += int(verdict.split()[1])
    return every


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--correct", action="store_true", help="correct loops instead of bugs")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--only", help="loops whose name contains this")
    parser.add_argument("--part", type=int, nargs=2, default=(1, 1), help="one part of so many")
    parser.add_argument("--merge", type=Path, nargs="+", help="files with the lines of all parts")
    given = parser.parse_args()
    kinds = CORRECT if given.correct else {**TODAY, **FOUND, **OWN, **LATER, **LATEST}
    counts = counted_up(
        merged(kinds, given.merge) if given.merge else told(kinds, given.seeds, given.only, tuple(given.part))
    )
    print(f"{counts.total()} runs: {dict(counts)}")
    wrong = Verdict.CONTRADICTED if given.correct else Verdict.PROTECTED
    raise SystemExit(f"{counts[str(wrong)]} {wrong}" if counts[str(wrong)] else 0)
