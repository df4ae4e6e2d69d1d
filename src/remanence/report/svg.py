"""One look for every chart: text stays text, colours are the page's, and a picture has a label."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib draws in these, and the page's variables replace them: one picture for day, night and paper.
INK, FAINT, ATTACK, GUESS, CEILING = "#1b1f24", "#6e7681", "#b42318", "#3d5a80", "#6b3fa0"
_VARIABLES = {INK: "ink", FAINT: "faint", ATTACK: "attack", GUESS: "guess", CEILING: "ceiling"}
_NIGHT = "--ink:#e6e9ee;--faint:#9aa3ae;--attack:#ff8a7a;--guess:#9fbfe6;--ceiling:#c9a7f5"

_THEME: Any = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
    "font.size": 10,
    "grid.alpha": 0.3,
    "image.cmap": "gray",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "remanence",  # the same result gives the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def themed(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of this size in inches; whatever is drawn on it inside the block has our look."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_THEME), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the reader's own font will have it, or not
        yield Figure(figsize=(width, height), layout="constrained")


def picture(name: str, label: str, draw: Callable[[Axes], None], *, height: float, width: float = 4.6) -> str:
    """Draw on axes of this size in inches, and return one <svg> element to put into a page."""
    buffer = io.StringIO()
    with themed(width, height) as figure:
        draw(figure.add_subplot())
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return _for_a_page(buffer.getvalue(), name, label)


def as_file(drawn: str) -> str:
    """A picture as a file of its own: without a page to take its colours from, it brings them along."""
    opening, rest = drawn.split(">", 1)
    return f"{opening}><style>@media (prefers-color-scheme: dark) {{ svg {{ {_NIGHT} }} }}</style>{rest}\n"


def logarithmic(axes: Axes, ways: str) -> None:
    """Make these axes ("x", "y" or "xy") logarithmic, with numbers as text: matplotlib's own are formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for way in ways:
        getattr(axes, f"set_{way}scale")("log")
        axis = getattr(axes, f"{way}axis")
        low, high = sorted(map(abs, axis.get_view_interval()))
        between = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
        axis.set_major_locator(LogLocator(subs=between, numticks=7))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def _for_a_page(text: str, name: str, label: str) -> str:
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", body)  # several pictures share a page
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    named = f'stroke-linejoin="round" role="img" aria-label="{escape(label)}" data-figure="{name}"'
    body = re.sub(r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>', lambda m: f"<svg {links} {m[1]} {named}>", body)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # would hold for the whole page
    body = re.sub(r"font-family: [^;]*;", "font-family: system-ui, sans-serif;", body)
    shortened = partial(re.sub, r"(\.\d\d)\d+", r"\1")
    body = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda coordinates: shortened(coordinates[0]), body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var(--{variable}, {colour})")
    return re.sub(r"\s*\n\s*", "\n", body).strip()
