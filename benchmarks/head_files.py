"""How long an audit of a head takes that starts from files: 20 pictures of 32 × 32, 900 public ones, two cores.

`python benchmarks/head_files.py FOLDER` writes pictures, a backbone and a head into a folder, runs the command and
prints when each attack answered, by the clock and by the processor: the machine may have other things to do. The
pictures are coloured shapes, and the backbone is a small convolutional network.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

CLASSES, OWN, PUBLIC, SIDE = 10, 2, 90, 32
RECIPE = ["--epochs", "30", "--learning-rate", "0.05", "--initialisation", "0.002"]

BACKBONE = """
from torch import nn

def make():
    parts = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(3), nn.Flatten())
"""


def shape(label: int, generator: np.random.Generator) -> np.ndarray:
    """A ring of so many beams, somewhere, in some colours."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
    x, y = x - generator.uniform(-0.15, 0.15), y - generator.uniform(-0.15, 0.15)
    angle, radius = np.arctan2(y, x) + generator.uniform(0, 6), np.hypot(x, y)
    mask = (np.cos((label + 1) * angle) * 0.12 + generator.uniform(0.2, 0.3) > radius)[..., None]
    ink, paper = generator.uniform(0, 255, (2, 3))
    return np.clip(np.where(mask, ink, paper) + generator.normal(0, 8, (SIDE, SIDE, 3)), 0, 255).astype(
        np.uint8
    )


def pixels(path: Path) -> Tensor:
    """As the command reads them."""
    return (torch.from_numpy(np.array(Image.open(path), dtype=np.float32)).permute(2, 0, 1) / 255 - 0.5) / 0.5


def write(folder: Path) -> None:
    """Pictures, a backbone and a head, by nothing but PyTorch."""
    generator = np.random.default_rng(0)
    for label in range(CLASSES):
        for place in range(OWN + PUBLIC):
            where = folder / ("mine" if place < OWN else "others") / f"class-{label}"
            where.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shape(label, generator)).save(where / f"{place:03}.png")
    torch.manual_seed(0)
    parts: dict = {}
    exec(BACKBONE, parts)  # noqa: S102
    backbone = parts["make"]().eval()
    save_file(dict(backbone.state_dict()), folder / "backbone.safetensors")
    (folder / "backbone.py").write_text(BACKBONE)
    files = sorted((folder / "mine").glob("*/*.png"))
    labels = torch.tensor([int(path.parent.name.removeprefix("class-")) for path in files])
    with torch.no_grad():
        features = backbone(torch.stack([pixels(path) for path in files]))
    head = nn.Linear(features.shape[1], CLASSES)
    nn.init.normal_(head.weight, std=0.002)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), labels).backward()
        optimizer.step()
    save_file(dict(head.state_dict()), folder / "head.safetensors")


def _processor(pid: int) -> float:
    """Seconds that all threads of a process have computed for (on Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Write, run, and tell the time at every line."""
    folder = Path(sys.argv[1])
    write(folder)
    line = ["remanence", "head", "head.safetensors", "--backbone", "backbone.py:make"]
    line += ["--weights", "backbone.safetensors", "--images", "mine"]
    line += ["--public", "others", "--out", "run", *RECIPE]
    print(" ".join(line), flush=True)
    print("  clock processor (of all cores together)")
    started = time.perf_counter()
    command = [sys.executable, "-m", *line]
    with subprocess.Popen(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for each in process.stdout:
            spent = _processor(process.pid)
            print(f"{time.perf_counter() - started:6.0f} s {spent:6.0f} s  {each.rstrip()}", flush=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"exit code {process.returncode}; {os.cpu_count()} cores, {spent.ru_utime + spent.ru_stime:.0f} s of processor"
    )


if __name__ == "__main__":
    main()
