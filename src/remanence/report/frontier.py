"""A frontier as a file: a table (.csv, .json) or a picture (.svg, .png)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from remanence.bounds.frontier import Axis, FrontierPoint
from remanence.core.checks import one_of, refusing
from remanence.report.svg import CEILING, GUESS, as_file, logarithmic, picture, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"sample_rate": "sampling rate", "epsilon": "ε", "candidates": "candidates"}


def check_name(path: Path) -> None:
    """Refuse a kind of file that cannot be written, before any time is spent."""
    one_of(f"the ending of {path.name}", path.suffix, (".csv", ".json", ".svg", ".png"))


def document(points: Sequence[FrontierPoint], over: Axis) -> str:
    """A frontier as JSON."""
    return json.dumps({"over": over, "points": [asdict(point) for point in points]}, indent=2) + "\n"


def write(points: Sequence[FrontierPoint], over: Axis, path: Path) -> None:
    """Write a table (.csv, .json) or a picture (.svg, .png), by the ending of the path."""
    check_name(path)
    rows = [asdict(point) for point in points]
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue().encode()
    elif path.suffix == ".json":
        content = document(points, over).encode()
    else:
        content = _picture(points, over, path.suffix)
    wanted = "a folder that exists"
    with refusing(OSError, "The file cannot be written.", needs=wanted, got=path, hint=wanted):
        path.write_bytes(content)


def _picture(points: Sequence[FrontierPoint], over: Axis, suffix: str) -> bytes:
    first = points[0]
    fixed = {
        "sample_rate": f"sampling rate {first.sample_rate:g}",
        "epsilon": f"ε = {first.epsilon:g}",
        "candidates": f"{first.candidates:g} candidates",
    }
    rest = ", ".join(text for name, text in fixed.items() if name != over)
    title = f"For {first.whose}: {rest}, δ = {first.delta:g}, {first.steps} steps"

    def draw(axes: Axes) -> None:
        at = [getattr(point, over) for point in points]
        look = {"marker": "o", "markersize": 3, "clip_on": False}
        axes.plot(
            at, [point.success_upper for point in points], color=CEILING, label="no attack exceeds", **look
        )
        axes.plot(at, [1 / point.candidates for point in points], "--", color=GUESS, label="a guess")
        axes.set(xlabel=_NAMES[over], ylabel="success", ylim=(0, 1.02), title=title)
        logarithmic(axes, "x")
        axes.legend(loc="best")

    if suffix == ".svg":
        label = f"The success that no attack exceeds, against the {_NAMES[over]}: {title}"
        return as_file(picture("frontier", label, draw, height=3.6)).encode()
    buffer = io.BytesIO()
    with themed(6.6, 3.6) as figure:
        draw(figure.add_subplot())
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
