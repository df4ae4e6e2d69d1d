"""Views of a stored reproduction: tables, a page of Markdown and a figure. Pure functions of the document."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from remanence.core.exceptions import InputError
from remanence.core.plain_text import plainly
from remanence.report.svg import logarithmic, themed
from remanence.scale.files import write_files
from remanence.scale.reading import UnusableFileError, parse_json, read_bytes
from remanence_papers.reproduction import Reproduction, as_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Document = Mapping[str, Any]
_SIDE = 64  # pixels of a stored picture

# Okabe and Ito's colours, which colour-blind readers tell apart, with dashes.
_SERIES: tuple[tuple[str, Any], ...] = (
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", ":"),
    ("#E69F00", (0, (5, 1, 1, 1, 1, 1))),
    ("#000000", (0, (1, 3))),
    ("#56B4E9", (0, (3, 1, 1, 1))),
)


def listing(entries: Iterable[Reproduction]) -> Table:
    """What `remanence reproduce` prints without a name."""
    table = Table("name", "what it is", "where")
    for entry in entries:
        table.add_row(entry.name, entry.title, entry.reference.short)
    table.caption = "The small scale takes one to five minutes for each on one core."
    return table


def terminal(document: Document) -> Group:
    """The result on a terminal."""
    table = Table(
        *(heading.replace("_", " ") for heading in headings(document)), box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for line in cells(document):
        table.add_row(*line)
    title = f"{document['reference']}: {document['title']}"
    return Group(title, f"Data: {document['dataset']}", table, *(f"- {note}" for note in document["notes"]))


def save(document: Document, folder: Path) -> list[Path]:
    """Write the document, its page and, where matplotlib is there, its figure; return their paths."""
    name = document["name"]
    document = {**document, "panels": [_with_small_pictures(panel) for panel in document["panels"]]}
    drawn = bool(document["panels"]) and can_draw()
    files = {f"{name}.svg": svg(document)} if drawn else {}
    files[f"{name}.md"] = markdown(document, picture=f"{name}.svg" if drawn else None).encode()
    entries = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in document.items())
    files[f"{name}.json"] = ("{\n" + ",\n".join(entries) + "\n}\n").encode()  # pictures would fill pages
    write_files(folder, files)
    return [folder / file for file in files]


def _with_small_pictures(panel: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with pictures of at most `_SIDE` pixels a side: a page is no archive."""
    if not panel["pictures"]:
        return panel
    return {**panel, "pictures": [[_smaller(np.array(one)) for one in row] for row in panel["pictures"]]}


def _smaller(picture: np.ndarray) -> list[list[float]]:
    block = -(-max(picture.shape) // _SIDE)  # pixels a side that become one, their mean
    if block == 1:
        return picture.tolist()
    height, width = (size // block for size in picture.shape)
    cut = picture[: height * block, : width * block].reshape(height, block, width, block)
    return cut.mean((1, 3)).round(3).tolist()


def load(path: Path) -> dict[str, Any]:
    """Read a stored reproduction back, to draw what another machine computed."""
    try:
        document = plainly(parse_json(read_bytes(path), {"type": "object", "required": ["name", "panels"]}))
    except UnusableFileError as error:
        raise _unreadable(path, str(error)) from None
    if path.stem != document["name"]:
        raise _unreadable(path, "it lacks the name of its file")
    try:  # a document may hold anything: one that can be shown once can be stored
        markdown(document, picture=None)
        terminal(document)
        if document["panels"] and can_draw():
            svg(document)
    except Exception as error:  # noqa: BLE001
        raise _unreadable(path, f"it cannot be drawn ({type(error).__name__})") from None
    return document


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        "The stored reproduction cannot be read.",
        needs="a NAME.json that `remanence reproduce NAME` wrote",
        got=f"{path}: {reason}",
        hint="run it again",
    )


def headings(document: Document) -> list[str]:
    """The columns of the table: every key that a row has, in order of appearance."""
    return list(dict.fromkeys(key for row in document["rows"] for key in row))


def cells(document: Document) -> list[list[str]]:
    """The table as text, a list per row."""
    return [[as_text(row.get(key)) for key in headings(document)] for row in document["rows"]]


def markdown(document: Document, *, picture: str | None) -> str:
    """A page: what ran, the table, the figure and the notes."""
    titles = [heading.replace("_", " ") for heading in headings(document)]
    lines = [titles, ["--:"] * len(titles), *cells(document)]
    environment = document["environment"]
    where = f"{environment['device']}, torch {environment['torch']}, {environment['seconds']:g} s"
    if "signature" in document:
        signed = document["signature"]
        hashes = {"code": signed["code"], **signed["data"]}
        where += "".join(f", {name} {value[:12]}" for name, value in hashes.items())
    settings = "; ".join(f"{key.replace('_', ' ')} {as_text(v)}" for key, v in document["settings"].items())
    command = f"remanence reproduce {document['name']} --scale {document['scale']} --seed {document['seed']}"
    command += " --data FOLDER" if document["scale"] == "paper" else ""
    command += f" --trials {document['trials']}" if document.get("trials") else ""
    if "seeds" in document:
        command = command.replace("--scale", "--all --scale") + " --out FOLDER"
    reduced = document.get("reduced")
    return "\n".join(
        [
            f"# {document['reference']}: {document['title']}",
            "",
            f"`{command}` ({where})",
            "",
            f"**Data**: {document['dataset']}"
            + (f"  \n**Settings**: {settings}" if settings else "")
            + (f"  \n**Less than in the paper**: {reduced}" if reduced else ""),
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
            *(["", f"![{document['title']}]({picture})"] if picture else []),
            *(["", *(f"- {note}" for note in document["notes"])] if document["notes"] else []),
            "",
        ]
    )


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def svg(document: Document) -> bytes:
    """The panels as a picture; the same document gives the same bytes."""
    panels = document["panels"]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with themed(max(6.0, 4.4 * columns), 3.6 * rows) as figure:
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(grid, panels, strict=False):
            (_draw_pictures if panel["pictures"] else _draw_curves)(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    # A hundredth of a point is fine enough, and no label has as many decimals as this drops.
    return re.sub(rb"(\d\.\d\d)\d{2,}", rb"\1", buffer.getvalue())


def _draw_curves(axes: Axes, panel: Mapping[str, Any]) -> None:
    for number, line in enumerate(panel["curves"]):
        colour, style = _SERIES[number % len(_SERIES)]
        printed = line["label"].startswith("paper")  # two values that a text mentions are no curve
        dots = panel.get("dots", False)
        axes.plot(
            line["x"], line["y"], color=f"C{number % 10}" if dots else colour,
            linestyle="none" if printed or dots else style, marker="s" if printed else "o",
            markersize=1.5 if dots else 3, label=line["label"],
        )  # fmt: skip
        if line["lower"] is not None:
            axes.fill_between(line["x"], line["lower"], line["upper"], color=colour, alpha=0.2, linewidth=0)
    logarithmic(axes, "x" * bool(panel["log_across"]) + "y" * bool(panel["log_up"]))
    axes.set(title=panel["title"], xlabel=panel["across"], ylabel=panel["up"])
    axes.grid(visible=True)
    axes.legend(fontsize=7)


def _draw_pictures(axes: Axes, panel: Mapping[str, Any]) -> None:
    import numpy as np

    rows: Sequence[Any] = panel["pictures"]
    tiles = np.asarray(rows)  # (rows, columns, height, width), or (rows, columns, 3, height, width)
    tiles = np.moveaxis(tiles, 2, -1) if tiles.ndim == 5 else tiles
    edges = ((0, 0), (0, 0), (0, 1), (0, 1), *[(0, 0)] * (tiles.ndim - 4))
    tiles = np.pad(tiles, edges, constant_values=1.0)
    high, wide = tiles.shape[2:4]
    axes.imshow(
        np.concatenate(np.concatenate(tiles, axis=1), axis=1), vmin=0, vmax=1, interpolation="nearest"
    )
    axes.set_yticks([high * (row + 0.5) for row in range(len(rows))], panel["picture_rows"])
    centres = [wide * (column + 0.5) for column in range(tiles.shape[1])]
    axes.set_xticks(centres, panel["picture_columns"] or [""] * len(centres))
    axes.tick_params(length=0)
    axes.set_title(panel["title"])
