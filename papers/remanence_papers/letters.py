"""A backbone for handwriting, trained on letters: what the digits' heads are put on.

The paper's was a VGG-11 of a sixteenth of the width, trained on EMNIST letters. Those cannot be shipped or had
everywhere, so that any set of 28 × 28 letters does; results name the set. Batch normalisation, random affine
changes, and a class of its own for every letter turned by a quarter make up for a smaller alphabet.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate

from remanence.core.exceptions import InputError
from remanence.scale.progress import track

SIDE = 32


def letters_network(classes: int, width: int = 32, features: int = 256) -> nn.Sequential:
    """Six convolutions and a layer of features behind a ReLU; the last layer is the letters' own head."""

    def block(inputs: int, outputs: int, pool: bool) -> list[nn.Module]:
        layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return [*layers, nn.MaxPool2d(2)] if pool else layers

    channels = [1, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
    layers = [layer for i in range(6) for layer in block(channels[i], channels[i + 1], pool=i % 2 == 1)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(64 * width, features),
        nn.BatchNorm1d(features),
        nn.ReLU(),
        nn.Linear(features, classes),
    )


def pixels(images: Tensor) -> Tensor:
    """Bytes `(n, 28, 28)` as 32 × 32 pictures in [−1, 1], with a channel."""
    scaled = interpolate(images[:, None].float(), size=(SIDE, SIDE), mode="bilinear", antialias=True)
    return scaled / 127.5 - 1


def random_affine(
    images: Tensor, generator: torch.Generator, *, turn: float, scale: float, shear: float, shift: float = 0.0
) -> Tensor:
    """Every picture turned (radians), scaled, sheared and shifted (pixels) a little, each by its own draw."""
    draws = 2 * torch.rand(len(images), 5, generator=generator, device=generator.device).to(images.device) - 1
    angle, factor, skew = draws[:, 0] * turn, 1 + draws[:, 1] * scale, draws[:, 2] * shear
    move = draws[:, 3:] * shift * 2 / images.shape[-1]
    cosine, sine = angle.cos() * factor, angle.sin() * factor
    rows = [cosine, skew - sine, move[:, 0], sine, cosine, move[:, 1]]
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images + 1, grid, align_corners=False) - 1  # what comes in from outside is background


def train_letters(
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    seed: int = 0,
    width: int = 32,
    device: str = "cpu",
    rotate: bool = True,
) -> nn.Sequential:
    """The backbone without the letters' head: 256 features, none below 0."""
    data, labels = images.to(device), labels.long().to(device)
    turns = 4 if rotate else 1
    classes = int(labels.max()) + 1
    generator = torch.Generator(device).manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = letters_network(classes * turns, width).to(device)
    batch = 512
    steps = epochs * (len(data) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    network.train()
    for _ in track(range(steps), total=steps, what="training the backbone"):
        index = torch.randint(len(data), (batch,), generator=generator, device=device)
        views = random_affine(pixels(data[index]), generator, turn=0.2, scale=0.15, shear=0.2, shift=2.0)
        turned = torch.randint(turns, (batch,), generator=generator, device=device)
        views = torch.stack([torch.rot90(views, k, (2, 3)) for k in range(turns)])[
            turned, torch.arange(batch, device=device)
        ]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = cross_entropy(network(views), labels[index] * turns + turned, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return _without_head(network)


def store_letters(backbone: nn.Module, path: Path) -> None:
    """Keep what `train_letters` made, for `load_letters`."""
    save_file({name: tensor.contiguous().cpu() for name, tensor in backbone.state_dict().items()}, path)


def load_letters(path: Path) -> nn.Sequential:
    """The backbone that `store_letters` kept; nothing is unpickled."""
    try:
        stored = load_file(path)
        network = _without_head(letters_network(1, width=len(stored["0.weight"])))
        network.load_state_dict(stored)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise InputError(
            "The stored backbone cannot be read.",
            needs="what `python benchmarks/letters_backbone.py FOLDER` wrote",
            got=f"{path}: {str(error).splitlines()[0]}",
            hint="delete the file: the backbone is then trained again",
        ) from None
    return network


def _without_head(network: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*list(network)[:-1]).eval().requires_grad_(False)
