"""What a MobileNetV2 trained on ImageNet makes of faces: the input of `remanence reproduce maciazek-one-face`.

python benchmarks/face_features.py faces.npz mobilenet_v2-b0353104.pth OUT.npz

faces.npz holds x (n, 64, 64, 3) u8 and y, the person of each picture. OUT.npz has the features f beside them, and g,
those of the mirror images. `--people-from name` takes the person from the folder in each name instead of y, and
`--people-from nobody` takes every picture for a person of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from cifar_features import backbone, embed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faces", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--people-from", choices=("y", "name", "nobody"), default="y")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = backbone(options.weights).to(device)
    with np.load(options.faces) as arrays:
        x = arrays["x"]
        if options.people_from == "nobody":
            y = np.arange(len(x))
        elif options.people_from == "name":
            y = np.unique([name.split("/")[-2] for name in arrays["name"]], return_inverse=True)[1]
        else:
            y = arrays["y"]
    straight, mirrored = (embed(network, each, device) for each in (x, np.ascontiguousarray(x[:, :, ::-1])))
    np.savez(options.out, x=x, y=y, f=straight.astype(np.float16), g=mirrored.astype(np.float16))
    print(f"{len(x)} pictures of {len(np.unique(y))} people, {straight.shape[1]} features each")


if __name__ == "__main__":
    main()
