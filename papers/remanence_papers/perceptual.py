"""LPIPS, the learned perceptual distance between pictures (Zhang et al. 2018), from weights that the user has."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from remanence.core.errors import Error
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.scale.folders import MOST
from remanence.scale.reading import UnusableFileError, parse_tensors, read_bytes

_CONVOLUTIONS = {0: (3, 64, 11, 4, 2), 3: (64, 192, 5, 1, 2), 6: (192, 384, 3, 1, 1)}
_CONVOLUTIONS |= {8: (384, 256, 3, 1, 1), 10: (256, 256, 3, 1, 1)}
_LEAST_SIDE = 64  # smaller pictures do not survive AlexNet's poolings
_AT_ONCE = 256
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of pixels in [−1, 1]


def lpips(weights: Path) -> Error:
    """LPIPS with AlexNet's features, for pictures with pixels in [0, 1], grey or in colour.

    `weights` is a safetensors file with AlexNet's convolutions under torchvision's names (`features.0.weight`, ...) and
    the five layers of LPIPS 0.1 under theirs (`lin0.model.1.weight`, ...). Remanence carries neither.
    """
    parts = _load(weights)
    convolutions = nn.ModuleDict({str(place): nn.Conv2d(*shape) for place, shape in _CONVOLUTIONS.items()})
    try:
        for place, layer in convolutions.items():
            layer.load_state_dict({n: parts[f"features.{place}.{n}"] for n in ("weight", "bias")})
        linear = [parts[f"lin{k}.model.1.weight"].reshape(1, -1, 1, 1) for k in range(len(_CONVOLUTIONS))]
    except (KeyError, RuntimeError) as error:
        raise _unreadable(weights, str(error).splitlines()[0]) from None
    convolutions.requires_grad_(requires_grad=False)

    @torch.no_grad()
    def measure(targets: Records, guesses: Records) -> Tensor:
        pairs = torch.broadcast_tensors(targets.features, guesses.features)
        device, batch = pairs[0].device, targets.labels.ndim
        layers, shares = convolutions.to(device), [share.to(device) for share in linear]
        left, right = (pair.flatten(0, batch - 1) for pair in pairs)
        parts = []
        for start in range(0, len(left), _AT_ONCE):
            both = [_features(layers, each[start : start + _AT_ONCE]) for each in (left, right)]
            differences = [(a - b).square() for a, b in zip(*both, strict=True)]
            kept = [(d * w).sum(1).mean((1, 2)) for d, w in zip(differences, shares, strict=True)]
            parts.append(torch.stack(kept).sum(0))
        return torch.cat(parts).double().reshape(pairs[0].shape[:batch])

    return Error("LPIPS (AlexNet)", measure)


def _features(layers: nn.ModuleDict, pictures: Tensor) -> list[Tensor]:
    """Each layer's output, every position normalised over the channels."""
    values = pictures.float() * 2 - 1
    values = values.unsqueeze(1) if values.ndim == 3 else values
    values = values.expand(-1, 3, -1, -1)
    shift, scale = (values.new_tensor(numbers).view(1, 3, 1, 1) for numbers in (_SHIFT, _SCALE))
    values = (values - shift) / scale
    if min(values.shape[2:]) < _LEAST_SIDE:
        values = interpolate(values, size=(_LEAST_SIDE, _LEAST_SIDE), mode="bilinear", align_corners=False)
    found = []
    for place, layer in layers.items():
        if place in ("3", "6"):
            values = nn.functional.max_pool2d(values, 3, 2)
        values = layer(values).relu()
        found.append(normalize(values, dim=1, eps=1e-10))
    return found


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return parse_tensors(read_bytes(path, MOST))
    except UnusableFileError as error:
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        "LPIPS needs weights that remanence does not carry.",
        needs="a safetensors file with AlexNet's features and the layers of LPIPS 0.1",
        got=f"{path}: {reason}",
        hint="docs/informed-adversary.md has the three lines that make it; mean_squared_error needs none",
    )
