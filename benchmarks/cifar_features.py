"""What a MobileNetV2 trained on ImageNet makes of CIFAR-10: the input of `remanence reproduce hayes-figure-2`.

Stands in for the paper's WRN-28-10, whose ImageNet weights cannot be had. Pictures are enlarged to 224 pixels.

python benchmarks/cifar_features.py cifar10.npz mobilenet_v2-b0353104.pth FOLDER    # writes FOLDER/cifar10-features.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from remanence.scale.progress import track

# Expansion, channels, blocks, stride of the first block: Sandler et al. 2018, Table 2.
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def activated(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class Block(nn.Module):
    """An inverted residual; the names of its parts are those of the published weights."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        widen = [activated(inputs, inner)] if expansion > 1 else []
        narrow = [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*widen, activated(inner, inner, 3, stride, inner), *narrow)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, values: Tensor) -> Tensor:
        return values + self.conv(values) if self.adds else self.conv(values)


def backbone(path: Path) -> nn.Sequential:
    layers: list[nn.Module] = [activated(3, 32, 3, 2)]
    channels = 32
    for expansion, outputs, count, stride in BLOCKS:
        for index in range(count):
            layers.append(Block(channels, outputs, stride if index == 0 else 1, expansion))
            channels = outputs
    features = nn.Sequential(*layers, activated(channels, 1280))
    stored = torch.load(path, weights_only=True)
    prefix = "features."
    features.load_state_dict({k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)})
    return features.eval()


@torch.no_grad()
def embed(network: nn.Sequential, pictures: np.ndarray, device: str) -> np.ndarray:
    parts = []
    batch = 1000 if device == "cuda" else 50
    mean, deviation = (torch.tensor(values, device=device)[:, None, None] for values in (MEAN, DEVIATION))
    starts = range(0, len(pictures), batch)
    for start in track(starts, total=len(starts), what="embedding"):
        pixels = (
            torch.from_numpy(pictures[start : start + batch]).to(device).permute(0, 3, 1, 2).float() / 255
        )
        large = nn.functional.interpolate(pixels, size=224, mode="bicubic", antialias=True).clamp(0, 1)
        parts.append(network((large - mean) / deviation).mean((2, 3)).cpu().numpy())
    return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--mirrored", action="store_true", help="of the training pictures' mirror images too")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = backbone(options.weights).to(device)
    with np.load(options.cifar) as arrays:
        train, test = arrays["xtr"][: options.train], arrays["xte"][: options.test]
        labels = {"ytr": arrays["ytr"][: options.train], "yte": arrays["yte"][: options.test]}
    features = {"ftr": embed(network, train, device), "fte": embed(network, test, device)}
    if options.mirrored:
        features["gtr"] = embed(network, np.ascontiguousarray(train[:, :, ::-1]), device)
    np.savez(options.folder / "cifar10-features.npz", **features, **labels)
    print(
        f"{options.train} training and {options.test} test pictures, {features['ftr'].shape[1]} features each"
    )


if __name__ == "__main__":
    main()
