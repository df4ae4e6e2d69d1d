"""Pictures behind convolutions: features exactly from the gradient, then pictures that have those features.

Pan et al. 2022, §5: stage one recovers what enters the dense layers; stage two searches pictures whose features
these are, argmin_ψ ‖Φ(h(z; ψ)) − Φ̂‖² (Equation 6), where h is an untrained convolutional generator on fixed noise.
Its structure is the prior: it draws natural pictures sooner than noise (Ulyanov et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from remanence.scale.progress import track
from remanence.updates.dense.layers import DenseHead, dense_head
from remanence.updates.dense.peeling import Remainder
from remanence.updates.dense.sparse_columns import reconstruct_low_rank

Extractor = Callable[[Tensor], Tensor]  # pictures (n, channels, h, w) → features (n, numbers)


def reconstruct_features(
    model: nn.Module, gradient: Mapping[str, Tensor], example: Tensor, *, precision: float
) -> Remainder:
    """Stage one: the features of every sample that the dense layers' gradient gives away."""
    head = dense_head(model, example).double()
    return reconstruct_low_rank(head, head.layers_of(gradient), precision=precision)


def extractor_of(model: nn.Module, head: DenseHead) -> Extractor:
    """The part of a module before its dense layers, as a differentiable function."""
    first = model.get_submodule(head.names[0])

    def extract(pictures: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = first.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            model(pictures)
        finally:
            handle.remove()
        return seen[0]

    return extract


def invert_features(
    extract: Extractor,
    features: Tensor,
    shape: tuple[int, int, int],
    *,
    value_range: tuple[float, float] = (-1.0, 1.0),
    steps: int = 2000,
    learning_rate: float = 0.01,
    width: int = 32,
    seed: int = 0,
) -> Tensor:
    """Stage two: one picture `(channels, h, w)` per row of features, all at once, a generator of its own for each."""
    generator = PictureGenerator(len(features), shape, width=width, value_range=value_range, seed=seed)
    generator = generator.to(features.device)
    wanted = features.float()
    sizes = wanted.square().sum(1)
    optimiser = torch.optim.Adam(generator.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in track(range(steps), total=steps, what="drawing pictures with these features"):
        optimiser.zero_grad()
        misfit = (extract(generator()) - wanted).square().sum(1) / sizes
        misfit.sum().backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return generator()


@final
class PictureGenerator(nn.Module):
    """Fixed noise, blurred and coloured by convolutions at growing sizes; one set of weights per picture.

    The sets are groups of one convolution, so that all pictures are drawn in one pass.
    """

    def __init__(
        self,
        count: int,
        shape: tuple[int, int, int],
        *,
        width: int = 32,
        value_range: tuple[float, float] = (-1.0, 1.0),
        seed: int = 0,
    ) -> None:
        super().__init__()
        channels, height, across = shape
        self.count, self.shape, self.value_range = count, shape, value_range
        self.sizes = [(max(1, height >> k), max(1, across >> k)) for k in range(4, -1, -1)]
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            wide = count * width
            self.blocks = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1, groups=count) for _ in self.sizes)
            self.norms = nn.ModuleList(nn.GroupNorm(count, wide) for _ in self.sizes)
            self.last = nn.Conv2d(wide, count * channels, 1, groups=count)
        self.noise: Tensor
        self.register_buffer("noise", torch.randn(1, wide, *self.sizes[0], generator=generator))

    def forward(self) -> Tensor:
        """The pictures, `(count, channels, h, w)`."""
        values = self.noise
        for size, block, norm in zip(self.sizes, self.blocks, self.norms, strict=True):
            values = functional.interpolate(values, size=size, mode="bilinear", align_corners=False)
            values = functional.leaky_relu(norm(block(values)), 0.2)
        low, high = self.value_range
        drawn = torch.sigmoid(self.last(values)) * (high - low) + low
        return drawn.view(self.count, *self.shape)


def hybrid_attack(
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    shape: tuple[int, int, int],
    *,
    precision: float,
    value_range: tuple[float, float] = (-1.0, 1.0),
    steps: int = 2000,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Remainder]:
    """Both stages: pictures, their labels, and what stage one recovered."""
    parameter = next(model.parameters())
    example = torch.zeros(2, *shape, device=parameter.device, dtype=parameter.dtype)
    found = reconstruct_features(model, gradient, example, precision=precision)
    extract = extractor_of(model, dense_head(model, example))
    pictures = invert_features(
        extract, found.records.inputs, shape, value_range=value_range, steps=steps, seed=seed
    )
    return pictures, found.records.labels, found
