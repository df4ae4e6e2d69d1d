"""Pan et al. 2022: the data, the networks, and how an attack on a batch is measured."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.records import Records
from remanence.updates.dense.layers import dense_head
from remanence_papers.datasets import DIGITS, load_arrays
from remanence_papers.gradients.insecure import make_insecure
from remanence_papers.picture_quality import Quality, quality
from remanence_papers.reproduction import Cell, Settings


@dataclass(frozen=True)
class Scenario:
    """Flat pictures with pixels in [−1, 1], of a shape, with so many classes."""

    name: str
    data: Records
    classes: int
    shape: tuple[int, ...]  # channels, height, width
    paper: str = ""  # the paper's data that these are, or stand in for

    def batch(self, size: int, seed: int) -> Records:
        """A batch drawn without replacement."""
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(seed))
        return self.data[order[:size]]

    def network(
        self,
        widths: tuple[int, ...] = (512,),
        *,
        seed: int,
        bias: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> nn.Sequential:
        """(d-widths-K) with torch's own initialisation, drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = (self.data.features.shape[1], *widths, self.classes)
            layers: list[nn.Module] = []
            for before, after in pairwise(sizes):
                layers += [nn.Linear(before, after, bias=bias, dtype=dtype), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def scenarios(settings: Settings) -> list[Scenario]:
    """CIFAR-10, RetinaMNIST, skin, MNIST and Olivetti faces from the user's folder, or scikit-learn's digits.

    FaceScrub and OrganMNIST are not to be had: faces stand in for the one, MNIST for the other. DermaMNIST was made
    of HAM10000, which is.
    """
    if settings.small:
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        return [Scenario(DIGITS, _records(digits.data / 8 - 1, digits.target), 10, (1, 8, 8))]
    found = []
    for name, paper, file, images, labels, classes in (
        ("CIFAR-10", "CIFAR-10", "cifar10.npz", "xte", "yte", 10),
        ("RetinaMNIST", "RetinaMNIST", "retinamnist.npz", "train_images", "train_labels", 5),
        ("HAM10000 (for DermaMNIST, which was made of it)", "DermaMNIST", "ham10000-28.npz", "x", "y", 7),
        ("MNIST (stand-in for OrganMNIST)", "OrganMNIST", "mnist.npz", "xte", "yte", 10),
        ("Olivetti faces (stand-in for FaceScrub)", "FaceScrub", "olivetti-faces.npz", "x", "y", 40),
    ):
        arrays = load_arrays(settings, file, images, labels)
        pixels = arrays[images]
        pixels = pixels[..., None] if pixels.ndim == 3 else pixels
        pixels = np.moveaxis(pixels, -1, 1)
        records = _records(pixels.reshape(len(pixels), -1) / 127.5 - 1, arrays[labels].ravel())
        found.append(Scenario(name, records, classes, pixels.shape[1:], paper))
    return found


def leak(network: nn.Module, batch: Records) -> dict[str, Tensor]:
    """The gradient of a batch with a dimension for trials in front."""
    named = dict(network.named_parameters())
    dtype = next(iter(named.values())).dtype
    loss = cross_entropy(network(batch.features.to(dtype)), batch.labels)
    return {
        name: value[None]
        for name, value in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)
    }


def insecure(network: nn.Module, batch: Records) -> Records:
    """The batch with the least change that makes it insecure."""
    dtype = next(network.parameters()).dtype
    moved = make_insecure(dense_head(network), batch.features.double())
    return Records(moved.to(dtype), batch.labels)


def measured(batch: Records, guesses: Tensor, labels: Tensor) -> Quality:
    """The paper's measures of one attacked batch."""
    return quality(batch.features, batch.labels, guesses, labels, value_range=2.0)


def summary(found: list[Quality]) -> dict[str, Cell]:
    """Means over batches, PSNR with two standard errors."""
    psnr = np.array([one.psnr for one in found])
    spread = float(2 * psnr.std(ddof=1) / len(psnr) ** 0.5) if len(psnr) > 1 else None
    return {
        "MSE": float(np.mean([one.mse for one in found])),
        "PSNR": float(psnr.mean()),
        "± (two errors)": spread,
        "label accuracy": float(np.mean([one.label_accuracy for one in found])),
    }


def _records(pixels: np.ndarray, labels: np.ndarray) -> Records:
    return Records(torch.from_numpy(pixels).float(), torch.from_numpy(labels.astype(np.int64)))
