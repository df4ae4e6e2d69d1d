"""Bugs put into correct Opacus loops, and correct loops: what the audit of a recorded run says of each.

python benchmarks/bugs.py [--seeds 5] [--only NAME]    # every bug: MLP and CNN, with and without dropout
python benchmarks/bugs.py --correct [--seeds 50]       # twenty correct loops, and how often one is accused
"""

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy.stats import binom
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from remanence import Policy
from remanence.auditing import AuditResult
from remanence.private.audit_run import audit_run
from remanence.private.canaries import crafted
from remanence.private.claim_test import LEVEL, ClaimTest, together
from remanence.private.consistency import read_run
from remanence.private.opacus import record

CLASSES, KNOWN = 5, 400
POLICY = Policy(0.95)


@dataclass
class Loop:
    """A training loop as a bug finds it."""

    engine: PrivacyEngine
    optimizer: Any
    model: Any
    loader: Any
    body: nn.Module

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


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


BUGS: dict[str, dict[str, Any]] = {
    "half the noise": {"bug": noise_times(0.5)},
    "a quarter of the noise": {"bug": noise_times(0.25)},
    "no noise on the last bias": {"bug": missing_on_last},
    "the same noise in every layer": {"bug": own_noise(same_in_every_layer)},
    "layers after the first reuse their noise": {"bug": own_noise(layers_reuse)},
    "noise from a repeated seed": {"bug": repeated_seed},
    "noise repeats after a while": {"bug": own_noise(every_ten_steps)},
    "seeds are the steps, own generator": {"bug": seed_every_step},
    "seeds are the steps": {"step": seed_is_the_step},
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
    keep: Any = "projections",
    epochs: int = 4,
    batch: int = 64,
    noise: float = 1.0,
    physical: int | None = None,
    optimizer: Callable[..., Any] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    schedule: Callable[[Any], Any] | None = None,
    private: dict[str, Any] | None = None,
    canaries: int = 120,
) -> None:
    """Train and record, with a bug or without."""
    torch.manual_seed(seed)
    chosen = crafted(canaries, (1, 8, 8), CLASSES, seed=seed)
    features, labels = torch.randn(KNOWN, 1, 8, 8), torch.randint(CLASSES, (KNOWN,))
    if twice:
        features, labels = torch.cat([features, features]), torch.cat([labels, labels])
    data = TensorDataset(
        torch.cat([features, chosen.inserted.features]), torch.cat([labels, chosen.inserted.labels])
    )
    plain = network(dropout=dropout, mixing=mixing)
    plain = Remembers(plain) if statistics else plain
    body = next(m for m in plain.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    own = [p for p in plain.parameters() if trained == "all" or all(p is not q for q in body.parameters())]
    engine = PrivacyEngine()
    made: Any = engine.make_private(
        module=plain,
        optimizer=optimizer(own),
        data_loader=DataLoader(data, batch_size=batch, shuffle=not poisson),
        noise_multiplier=noise,
        poisson_sampling=poisson,
        **{"max_grad_norm": 1.0, **(private or {})},
    )
    model, wrapped, *criterion, loader = made
    loop = Loop(engine, wrapped, model, loader, body)
    if bug is not None:
        bug(loop)
    rates = None if schedule is None else schedule(wrapped)
    objective = criterion[0] if criterion else cross_entropy
    with record(engine, wrapped, model, loader, out=out, canaries=chosen, keep=keep):
        for _ in range(epochs):
            for x, y in batches(loader, wrapped, physical):
                objective(model(x), y).backward()
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
CORRECT: dict[str, dict[str, Any]] = {
    "MLP": {},
    "MLP with dropout": {"dropout": True},
    "CNN": {"network": cnn},
    "CNN with dropout": {"network": cnn, "dropout": True},
    "no momentum": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.2)},
    "Nesterov and weight decay": {
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    },
    "Adam": {"optimizer": lambda p: torch.optim.Adam(p, lr=3e-3)},
    "AdamW": {"optimizer": lambda p: torch.optim.AdamW(p, lr=3e-3)},
    "RMSprop": {"optimizer": lambda p: torch.optim.RMSprop(p, lr=1e-3)},
    "learning-rate schedule": {"schedule": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8)},
    "noise schedule": {"schedule": lambda o: ExponentialNoise(o, gamma=0.95)},
    "clipping schedule": {"schedule": lambda o: ExponentialGradClip(o, gamma=0.9)},
    "full batches": {"batch": 1000, "epochs": 12, "noise": 3.0},
    "small batches": {"batch": 16, "epochs": 1},
    "virtual batches": {"physical": 16},
    "per-layer clipping": {"private": {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}},
    "adaptive clipping": {"private": ADAPTIVE},
    "functorch": {"private": {"grad_sample_mode": "functorch"}},
    "ghost clipping": {"private": {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}},
    "much noise": {"noise": 8.0},
}


KINDS = (
    (mlp, False, "projections"),
    (mlp, True, "whole"),
    (cnn, False, "whole"),
    (cnn, True, "projections"),
)


def bugs(seeds: int, only: str | None) -> None:
    for name, settings in BUGS.items():
        if only is not None and only not in name:
            continue
        verdicts, named = Counter(), Counter()
        for seed in range(seeds):
            for network, dropout, keep in KINDS:
                result = audited(seed=seed, network=network, dropout=dropout, keep=keep, **settings)
                verdicts[str(result.verdict)] += 1
                named.update(c.id for c in result.strongest.caveats if c.contradicts or c.voids)
        found = ", ".join(f"{which} {count}" for which, count in named.most_common(3))
        print(f"{name} | {', '.join(f'{v} {n}' for v, n in verdicts.items())} | {found}", flush=True)


def correct(seeds: int, only: str | None) -> None:
    accused, suspicious, flagged, total = 0, 0, 0, 0
    for place, (name, settings) in enumerate(CORRECT.items()):
        if only is not None and only not in name:
            continue
        named, values = Counter(), []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                run(Path(folder) / "run", seed=1000 * (1 + place) + seed, **settings)
                recorded = read_run(Path(folder) / "run")
                test = ClaimTest.of(recorded, guessed=None, seed=0)
                values.append(together(test.exact(), test.of_any_mechanism()))
                named.update(c.id for c in recorded.deviations() if c.contradicts or c.voids)
        found = sum(named.values()), sum(p <= LEVEL for p in values), sum(p <= 0.05 for p in values)
        flagged, accused, suspicious = flagged + found[0], accused + found[1], suspicious + found[2]
        total += seeds
        print(
            f"{name} | {dict(named) or 'nothing named'} | accused {found[1]} | p <= 0.05: {found[2]}",
            flush=True,
        )
    strict, usual = (int(binom.ppf(0.999, total, level)) for level in (LEVEL, 0.05))
    print(
        f"{total} correct runs: {flagged} findings, {accused} accused at {LEVEL} (chance: at most {strict}), "
    )
    print(f"{suspicious} with p <= 0.05 (chance: at most {usual})")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--correct", action="store_true", help="correct loops instead of bugs")
    parser.add_argument("--seeds", type=int, help="runs of each")
    parser.add_argument("--only", help="loops whose name contains this")
    given = parser.parse_args()
    if given.correct:
        correct(given.seeds or 50, given.only)
    else:
        bugs(given.seeds or 5, given.only)
