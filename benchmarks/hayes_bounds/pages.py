"""Words, tables and pictures of the page about bounds."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Section:
    text: str
    summary: str


def wrap(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    words = re.sub(r" (=|≤|≈|%) ?", lambda found: found[0].replace(" ", "\xa0"), " ".join(text.split()))
    filled = textwrap.fill(
        words, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace("\xa0", " ")


def page(*blocks: str) -> str:
    """Blocks of Markdown below each other; prose is wrapped, tables and pictures are left alone."""
    text = ""
    for block in blocks:
        kept = block.startswith(("|", "!", "#", "`"))
        together = block.startswith("- ") and text.rsplit("\n\n", 1)[-1].startswith("- ")
        text += ("\n" if together else "\n\n" if text else "") + (block if kept else wrap(block))
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["--:"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def digits(values: Iterable[float], form: str = ".4f") -> list[str]:
    return [format(value, form) for value in values]


def power_of_ten(log_value: float) -> str:
    exponent = log_value / math.log(10)
    return f"10^{exponent:.1f}" if exponent < -3 else f"{math.exp(log_value):.4f}"


@dataclass(frozen=True)
class Series:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    points_only: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    across: str
    up: str
    series: Sequence[Series]
    log_x: bool = True
    log_y: bool = False
    top: float | None = None
    x_ticks: Sequence[float] = ()
    y_ticks: Sequence[float] = ()


STYLES = (  # Okabe and Ito's colours, which colour-blind readers can tell apart; and a line style for each
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", ":"),
    ("#E69F00", (0, (5, 1, 1, 1, 1, 1))),
    ("#000000", (0, (1, 3))),
)


def figure_of(columns: int, rows: int, width: float, height: float) -> Any:
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    # Text stays text, and the same numbers give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "remanence", "font.size": 10})
    mpl.rcParams["font.sans-serif"] = ["DejaVu Sans", "Arial"]
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
    # A hundredth of a point is fine enough; no label has as many decimals as this drops.
    text = re.sub(r"(\d\.\d\d)\d{3,}", r"\1", path.read_text(encoding="utf-8"))
    path.write_text("\n".join(line.strip() for line in text.splitlines()) + "\n", encoding="utf-8")


def set_axes(axes: Any, panel: Panel) -> None:
    axes.set(xlabel=panel.across, ylabel=panel.up, title=panel.title)
    axes.set(xscale="log" if panel.log_x else "linear", yscale="log" if panel.log_y else "linear")
    axes.minorticks_off()
    for axis, logarithmic, ticks in (
        (axes.xaxis, panel.log_x, panel.x_ticks),
        (axes.yaxis, panel.log_y, panel.y_ticks),
    ):
        if ticks:
            axis.set_ticks(list(ticks), [f"{tick:g}" for tick in ticks])
        elif logarithmic:
            axis.set_major_formatter("{x:g}")
    if panel.top is not None:
        axes.set_ylim(0, panel.top)
    axes.grid(alpha=0.3)


def draw(path: Path, panels: Sequence[Panel]) -> None:
    figure = figure_of(len(panels), 1, 1.2 + 4.3 * len(panels), 4.6)
    for axes, panel in zip(figure.axes, panels, strict=True):
        for style, series in zip(STYLES, panel.series, strict=False):
            colour, line = STYLES[-1] if series.label == "guessing" else style
            marks = (
                {"linestyle": "none", "marker": "o", "markersize": 5}
                if series.points_only
                else {"linestyle": line}
            )
            axes.plot(series.x, series.y, color=colour, label=series.label, linewidth=1.8, **marks)
        set_axes(axes, panel)
        if len(panel.series) > 1:  # below the axes, where it hides no line
            axes.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2 if len(panel.series[0].label) > 8 else 3,
                fontsize=9, frameon=False, handlelength=3,
            )  # fmt: skip
    save(figure, path)


@dataclass(frozen=True)
class Pictures:
    folder: Path
    enabled: bool

    def add(self, name: str, alt: str, paint: Callable[[Path], None]) -> str:
        file = f"hayes-bounds-{name}.svg"
        if self.enabled:
            paint(self.folder / file)
        return f"![{alt}]({file})"

    def lines(self, name: str, alt: str, *panels: Panel) -> str:
        return self.add(name, alt, lambda path: draw(path, panels))
