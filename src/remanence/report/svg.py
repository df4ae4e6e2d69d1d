"""From matplotlib to a picture inside a page: text stays text, colours are the page's, and it has a label."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# matplotlib draws in these, and the page's variables replace them: one picture for day, night and paper.
INK, FAINT, ATTACK, GUESS, CEILING = "#1b1f24", "#6e7681", "#b42318", "#3d5a80", "#6b3fa0"
_VARIABLES = {INK: "ink", FAINT: "faint", ATTACK: "attack", GUESS: "guess", CEILING: "ceiling"}
_STYLE: Any = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "remanence",  # the same result gives the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
}


def picture(name: str, label: str, draw: Callable[[Axes], None], *, height: float, width: float = 6.6) -> str:
    """Draw on axes of this size in inches, and return one <svg> element to put into a page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the reader's own font will have it, or not
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return _themed(buffer.getvalue(), name, label)


def _themed(text: str, name: str, label: str) -> str:
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", body)  # several pictures share a page
    body = re.sub(r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>', _opening(name, label), body)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # would hold for the whole page
    body = re.sub(r"font-family: [^;]*;", "font-family: system-ui, sans-serif;", body)
    body = re.sub(r' (?:d|x|y|transform)="[^"]*"', _shorter, body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var(--{variable}, {colour})")
    return re.sub(r"\s*\n\s*", "\n", body).strip()


def _shorter(coordinates: re.Match[str]) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", coordinates.group())


def _opening(name: str, label: str) -> Callable[[re.Match[str]], str]:
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    named = f'role="img" aria-label="{escape(label)}" data-figure="{name}"'
    return lambda found: f'<svg {links} {found.group(1)} stroke-linejoin="round" {named}>'
