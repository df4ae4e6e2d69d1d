"""Every figure that docs print for one H200, measured again and set beside the old one, in under ten minutes.

python benchmarks/gpu.py --data FOLDER                  # mnist.npz, letters' backbone or data, cifar10.npz
python benchmarks/gpu.py --data FOLDER --model FOLDER   # and a language model, for the odds of texts
python benchmarks/gpu.py --tiny                         # on a CPU, seconds each: only to see that every command runs

Rows come from the benchmarks that docs name, each in a process of its own: a command, what to look for in its output,
and what docs say. A row whose data or package is not there, or that does not fit into the time left, is named as not
run. Pages of the papers' figures are not here: `remanence reproduce ... --scale paper` prints those in an hour.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

ROOT = Path(__file__).parent.parent
NUMBER = r"([\d,.]+(?:e[-+]\d+)?)"


@final
@dataclass(frozen=True)
class Row:
    """A figure of the docs: what it is, what they say, and where the output has today's; the last match counts."""

    what: str
    old: str
    pattern: str


@final
@dataclass(frozen=True)
class Command:
    """A benchmark, how it is called on a GPU and in a tiny form on a CPU, and the rows that it prints."""

    page: str
    gpu: str
    tiny: str
    rows: Sequence[Row]


def learning(name: str, graph: str, launches: str) -> list[Row]:
    return [
        Row(f"{name}: ms a step, as one graph", graph, rf"{name}: {NUMBER} ms as one graph"),
        Row(f"{name}: ms a step, launch by launch", launches, rf"{name}: .*graph, {NUMBER} launch"),
    ]


def on_device(name: str, cpu: str, cuda: str) -> list[Row]:
    return [
        Row(f"{name}: s on {device}", old, rf"{name} +{device} +{NUMBER} s")
        for device, old in (("cpu", cpu), ("cuda", cuda))
    ]


_TEXTS = r"^ +\d+ +\d+ +(?:\d+ +){3}[\d.e+-]+ +"
COMMANDS = (
    Command(
        "docs/evidence/shadows.md",
        "shadows.py --device cuda --rounds 4",
        "shadows.py --count 300 --rounds 1",
        [
            Row("linear heads a second", "12,462,870", rf"heads on \w+: {NUMBER} per second"),
            Row("largest difference of a weight to a loop", "2.6e-08", rf"largest difference {NUMBER}"),
            Row("times a loop over nn.Linear", "235277", rf"ratios {NUMBER} and"),
        ],
    ),
    Command(
        "docs/evidence/shadows.md",
        "networks.py --device cuda",
        "networks.py --count 20",
        [
            Row("10,000 networks, 1,000 known records: s", "0.83", rf"known records on \w+: {NUMBER} s"),
            Row("off from double precision, of a target's change", "1.1e-04", rf"ours: off by {NUMBER}"),
        ],
    ),
    Command(
        "docs/evidence/shadows.md",
        "learning.py",
        "learning.py --device cpu --steps 1 2 --batch 4 --only perceptron",
        [
            *learning("perceptron for an informed adversary", "0.31", "3.44"),
            *learning("convolutions, strong", "6.28", "10.22"),
            *learning("convolutions, paper", "14.99", "16.12"),
        ],
    ),
    Command(
        "docs/evidence/shadows.md",
        "time_to_rate.py {data} --per-class 1",
        "time_to_rate.py --device cpu --per-class 1 --steps 2 3",
        [
            Row("MNIST, N = 10, a rate of 0.9: s", "2.81", rf"\d+ steps, {NUMBER} s: "),
            Row("the rate there", "0.902", rf"steps, [\d.]+ s: {NUMBER}"),
        ],
    ),
    Command(
        "docs/evidence/shadows.md",
        "time_to_rate.py {data} --per-class 4 --steps 5000",
        "time_to_rate.py --device cpu --per-class 4 --steps 2",
        [
            Row("MNIST, N = 40, 5,000 steps: s", "44.53", rf"\d+ steps, {NUMBER} s: "),
            Row("the rate there", "0.354", rf"steps, [\d.]+ s: {NUMBER}"),
        ],
    ),
    Command(
        "docs/evidence/foundation.md",
        "on_device.py",
        "on_device.py --trials 20",
        [
            *on_device("leave one out, logistic, 600 records", "0.01", "0.02"),
            *on_device("leave one out, 10 classes, 1,800 records", "0.19", "0.08"),
            *on_device("10,000 fresh targets, logistic", "1.56", "0.22"),
            *on_device("10,000 trials of a shortlist of 32", "0.55", "0.31"),
            *on_device("10,000 membership trials", "0.54", "0.23"),
        ],
    ),
    Command(
        "docs/evidence/scale.md",
        "-m remanence reproduce hayes-shortlist-of-ten --scale paper --data {data} --device cuda --out {out}",
        "-m remanence reproduce hayes-shortlist-of-ten --trials 20 --out {out}",
        [Row("DP-SGD, 100 steps, 60,000 trials: s", "42.3", r"seconds of the command: ([\d.]+)")],
    ),
    Command(
        "docs/evidence/updates.md",
        "span_fit.py --device cuda --seconds 20",
        "span_fit.py --sizes small --only tanh --seeds 1 --seconds 1",
        [Row("records of 32 behind leaky ReLU that are proven", "32", r"leaky ReLU.* 32 +\d+ +\d+ +(\d+)")],
    ),
    Command(
        "docs/evidence/updates.md",
        "batch_sizes.py table --sizes 256 --classes 10 --times 16 --batches 2 --workers 1 --device cuda",
        "batch_sizes.py table --sizes 4 --classes 10 --times 16 --batches 1 --workers 1",
        [Row("256 records from a layer of 4,096: s", "4.5", rf"records [\d.]+, {NUMBER} s")],
    ),
    Command(
        "docs/evidence/updates.md",
        "update_texts.py tokens --tokens 512 --device cuda --batches 3 --dager",
        "update_texts.py tokens --tokens 64 --layers 2 --hidden 64 --vocabulary 256 --dager",
        [
            Row("512 tokens: s", "0.8", rf"{_TEXTS}{NUMBER}"),
            Row("DAGER: s", "0.9", rf"named +{NUMBER}"),
        ],
    ),
    Command(
        "docs/evidence/texts.md",
        "text_precision.py --device cuda",
        "text_precision.py --device cpu --texts 8 --compared 8 --layers 1 --vocabulary 99 --tokens 16",
        [
            Row("texts of 128 tokens a second, float32", "944", rf"float32: +{NUMBER} texts"),
            Row("in bfloat16, with its bracket", "5,585", rf"bfloat16: +{NUMBER}, with"),
            Row("of 1,000 that hold the float64 value", "1000", rf"inside the bracket: {NUMBER} of"),
        ],
    ),
    Command(
        "docs/evidence/updates.md",
        "update_texts.py tokens --tokens 2048 --hidden 4096 --layers 4 --device cuda --batches 1 --dager",
        "",
        [
            Row("2,048 tokens, width 4,096: s", "42 to 43", rf"{_TEXTS}{NUMBER}"),
            Row("DAGER: s", "50 to 51", rf"named +{NUMBER}"),
        ],
    ),
    Command(
        "docs/evidence/updates.md",
        "gradients.py hybrid --networks 1 --batches 1 --steps 2000 --device cuda --cifar {data}/cifar10.npz",
        "",
        [
            Row("LeNet-5, 224 x 224, 8 pictures: dB", "26.76", rf"PSNR {NUMBER}"),
            Row("s for them", "28", rf"; {NUMBER} s$"),
        ],
    ),
    Command(
        "docs/evidence/texts.md",
        "texts.py --model {model} --texts 10000 --samples 100 --secrets 2",
        "texts.py",
        [
            Row("tokens a second, temperature 1", "108,232", rf"{NUMBER} tokens/s \(temperature 1\)"),
            Row(
                "tokens a second, three decodings", "91,206", rf"{NUMBER} tokens/s \(temperature 1, greedy"
            ),
            Row("tokens a second, top-p 0.9", "68,502", rf"{NUMBER} tokens/s \(temperature 1, top-p"),
        ],
    ),
)  # fmt: skip


def main() -> None:
    """Run, look for the figures, and print both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="commands that hold one of these words")
    parser.add_argument("--seconds", type=float, default=590.0, help="for everything")
    parser.add_argument("--out", type=Path, default=Path("remanence-runs/gpu"))
    parser.add_argument("--verbose", action="store_true", help="print what the commands print")
    asked = parser.parse_args()
    given = {
        name: str(getattr(asked, name).resolve()) for name in ("data", "model", "out") if getattr(asked, name)
    }
    print(_machine(tiny=asked.tiny))
    print("\n| row | docs | now | docs over now | printed by |\n|---|--:|--:|--:|---|", flush=True)
    started, wrong = time.perf_counter(), 0
    for command in COMMANDS:
        line = command.tiny if asked.tiny else command.gpu
        if not line or (asked.only and not any(word in line for word in asked.only)):
            continue
        missing = [name for name in re.findall(r"\{(\w+)\}", line) if name not in given]
        left = asked.seconds - (time.perf_counter() - started)
        if missing or left < 5:
            output, why = "", f"not run: no --{missing[0]}" if missing else "not run: no time left"
        else:
            output, why = _output(line.format(**given), left)
        if asked.verbose:
            print(output)
        shown = line.replace("{out}", "OUT").replace("{data}", "DATA").replace("{model}", "MODEL")
        for row in command.rows:
            found = re.findall(row.pattern, output, re.MULTILINE)
            wrong += bool(asked.tiny and why)
            now = found[-1] if found else why or "not printed"
            print(
                f"| {row.what} ([page]({command.page})) | {row.old} | {now} | {_ratio(row.old, now)} | `{shown}` |",
                flush=True,
            )
    print(f"\n{time.perf_counter() - started:.0f} s in all")
    raise SystemExit(wrong > 0)


def _output(line: str, left: float) -> tuple[str, str]:
    """What a command prints, and why there is nothing to find in it if it failed."""
    first, *rest = line.split()
    call = [sys.executable, *([first] if first == "-m" else [str(ROOT / "benchmarks" / first)]), *rest]
    paths = [str(ROOT / "src"), str(ROOT / "papers"), os.environ.get("PYTHONPATH", "")]
    started = time.perf_counter()
    try:
        done = subprocess.run(  # noqa: S603
            call,
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return printed, "not finished in time"
    taken = f"\nseconds of the command: {time.perf_counter() - started:.1f}\n"
    why = "" if done.returncode == 0 else f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:120]}"
    return done.stdout + (taken if not why else ""), why


def _ratio(old: str, now: str) -> str:
    try:
        return f"{float(old.replace(',', '')) / float(now.replace(',', '').rstrip('.')):.2f}"
    except (ValueError, ZeroDivisionError):
        return ""


def _machine(*, tiny: bool) -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    about = f"{name}, {os.cpu_count()} cores, torch {torch.__version__}"
    return f"{about}; tiny sizes, so that figures mean nothing" if tiny else about


if __name__ == "__main__":
    main()
