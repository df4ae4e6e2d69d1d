"""How long `remanence update` takes on an update of 100 million parameters, and how much memory.

python benchmarks/large_updates.py

Three networks: a wide and a deep one of dense layers, and one whose dense layers stand behind a convolution; updates in
single and half precision, and weights before and after a step. Prints wall-clock and processor seconds, the peak of
resident memory, and that peak less the interpreter's and the network's own, over the size of the files. It writes up to
2 GB into a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {"wide": "3072", "deep": "3072", "convolutional": "3,52,52"}
FACTORIES = """
import torch
from torch import nn

def layers(*widths):
    made = []
    for before, after in zip(widths, widths[1:]):
        made += [nn.Linear(before, after), nn.ReLU()]
    return made[:-1]

def wide():
    torch.manual_seed(0)
    return nn.Sequential(*layers(3072, 16384, 3072, 10))

def deep():
    torch.manual_seed(0)
    return nn.Sequential(*layers(3072, 6300, 6300, 6300, 10))

def convolutional():
    torch.manual_seed(0)
    head = layers(9216, 8192, 3000, 10)
    return nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), *head)
"""


def prepare(folder: Path, name: str, batch: int) -> None:
    """Write the update of one batch in four forms; in a process of its own, whose memory nobody inherits."""
    import torch
    from safetensors.torch import save_file
    from torch import nn
    from torch.nn.functional import cross_entropy

    space: dict[str, object] = {}
    exec(FACTORIES, space)  # noqa: S102, our own text above
    model = space[name]()  # pyright: ignore[reportCallIssue]
    assert isinstance(model, nn.Module)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(batch, *map(int, SHAPES[name].split(",")), generator=generator)
    cross_entropy(model(inputs), torch.randint(10, (batch,), generator=generator)).backward()
    gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    save_file(gradient, folder / "float32.safetensors")
    save_file({n: v.half() for n, v in gradient.items()}, folder / "float16.safetensors")
    save_file({n: v.bfloat16() for n, v in gradient.items()}, folder / "bfloat16.safetensors")
    with torch.no_grad():
        save_file(model.state_dict(), folder / "before.safetensors")
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad
        save_file(model.state_dict(), folder / "after.safetensors")


def timed(command: list[str]) -> tuple[float, float, int, str]:
    """Wall-clock and processor seconds, peak resident bytes and the output of a command."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603, our own command
    assert process.stdout is not None
    said = process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    spent = time.perf_counter() - started
    return (
        spent,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        said,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only", choices=SHAPES)
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare, options.only, options.batch)
        return
    for name in [options.only] if options.only else SHAPES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "networks.py").write_text(FACTORIES)
            made = ["--prepare", place, "--only", name, "--batch", str(options.batch)]
            subprocess.run([sys.executable, __file__, *made], check=True)  # noqa: S603, our own command
            count = (folder / "float32.safetensors").stat().st_size // 4
            build = f"import sys; sys.path.insert(0, {place!r}); import remanence.cli.main, networks; networks.{name}()"
            *_, bare, _ = timed([sys.executable, "-c", build])
            forms = {
                "float32": ["--gradient", "float32.safetensors"],
                "float16": ["--gradient", "float16.safetensors"],
                "bfloat16": ["--gradient", "bfloat16.safetensors"],
                "before and after": ["--before", "before.safetensors", "--after", "after.safetensors"],
            }
            for form, files in forms.items():
                paths = [str(folder / part) if part.endswith("s") else part for part in files]
                size = sum(Path(part).stat().st_size for part in paths if not part.startswith("--"))
                command = [
                    sys.executable,
                    "-m",
                    "remanence",
                    "update",
                    f"{folder}/networks.py:{name}",
                    *paths,
                ]
                command += ["--input-shape", SHAPES[name], "--out", str(folder / "out")]
                seconds, processor, peak, said = timed(command)
                lines = said.splitlines()
                proven = next((line[:40] for line in lines if "records are proven" in line), said[-300:])
                print(
                    f"{name:13} {count / 1e6:.0f} M, {form:16}: {seconds:5.1f} s, {processor:5.1f} s of processor, "
                    f"peak {peak / 1e9:.2f} GB, beyond the network {(peak - bare) / size:.1f} times the files' "
                    f"{size / 1e9:.2f} GB; {proven}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
