"""Views of a sweep: one table, as text or for a terminal, and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from rich.table import Table

from remanence.report import words
from remanence.report.figures import curves
from remanence.report.svg import ATTACK, CEILING, FAINT, GUESS, INK, as_file, logarithmic, picture
from remanence.report.tables import thousandths
from remanence.sweeping import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("-", "--", "-.", ":")
_TICKS = 8  # as many values have room for a number each
_SCOPE = (
    "Numbers are out of 1000. Each interval holds at 95 % for its own line, so expect one in twenty to miss."
)


def document(points: Sequence[Point], about: dict[str, Any]) -> dict[str, Any]:
    """The sweep for machines: the settings and the whole result of each point."""
    found = [
        {
            "settings": dict(p.settings),
            "note": p.note,
            **({} if p.accuracy is None else {"accuracy": p.accuracy[0], "accuracy_error": p.accuracy[1]}),
            "audit": p.result.to_json(),
        }
        for p in points
    ]
    return {"schema_version": 1, **about, "points": found}


def rows(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Headings, and the cells of each line."""
    headings = [*points[0].settings, "verdict", "attack", "recovered", "control", "guess", "ceiling"]
    found = [curves(point.result, point.result.strongest).get("") for point in points]
    more = {
        "TPR at 1 % FPR": [
            ""
            if roc is None
            else words.true_positives(roc.tpr_at_fpr(0.01, confidence=p.result.strongest.main.confidence))
            for p, roc in zip(points, found, strict=True)
        ],
        "accuracy": ["" if p.accuracy is None else " ± ".join(map(thousandths, p.accuracy)) for p in points],
    }
    more = {name: cells for name, cells in more.items() if any(cells)}
    lines = []
    for number, point in enumerate(points):
        best, ceiling = point.result.strongest, words.tightest(point.result)
        lines.append(
            [
                *(str(value) for value in point.settings.values()),
                str(point.result.verdict),
                best.attack,
                words.interval(best.main),
                thousandths(best.control.rate),
                words.guessing(best.baseline),
                point.note if ceiling is None else thousandths(ceiling.success, up=True),
                *(cells[number] for cells in more.values()),
            ]
        )
    return [*headings, *more], lines


def table(points: Sequence[Point]) -> Table:
    """For a terminal."""
    headings, lines = rows(points)
    found = Table(*headings, caption=_SCOPE, caption_justify="left")
    for line in lines:
        found.add_row(*line)
    return found


def markdown(points: Sequence[Point], title: str, drawing: str) -> str:
    """A page with the table and the picture."""
    headings, lines = rows(points)
    cells = [headings, ["--:"] * len(headings), *lines]
    text = [f"# {title}", "", *("| " + " | ".join(line) + " |" for line in cells)]
    return "\n".join([*text, "", _SCOPE, "", f"![{title}]({drawing})", ""])


def svg(points: Sequence[Point], title: str) -> str:
    """Success against the first setting that has several values; a line for each combination of the others."""
    names = list(points[0].settings)
    across = next((n for n in names if len({p.settings[n] for p in points}) > 1), names[0])
    values = list(dict.fromkeys(p.settings[across] for p in points))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)

    def place(point: Point) -> float:
        value = point.settings[across]
        return float(value) if numbers and value is not None else float(values.index(value))

    lines: dict[str, list[Point]] = {}
    for point in sorted(points, key=place):
        others = "".join(f", {name} {value}" for name, value in point.settings.items() if name != across)
        lines.setdefault(others, []).append(point)
    at = sorted(map(place, points))

    def draw(axes: Axes) -> None:
        for dash, (label, members) in zip(cycle(_DASHES), lines.items(), strict=False):
            _line(axes, [(place(p), p) for p in members], dash, label)
        policy = points[0].result.policy
        name = "your limit" if policy.set_by == "user" else "the limit, a default"
        axes.axhline(policy.max_success, color=INK, linewidth=1, linestyle="--", label=name)
        axes.set(xlabel=across.replace("_", " "), ylabel="success", ylim=(-0.03, 1.03))
        if not numbers:
            axes.set_xticks(range(len(values)), [str(value) for value in values])
        elif at[0] > 0 and at[-1] >= 10 * at[0]:
            logarithmic(axes, "x")
            if len(values) <= _TICKS:
                ticks = sorted(set(at))
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        handles, told = axes.get_legend_handles_labels()
        once = dict(zip(told, handles, strict=True))
        # Below the axes, where it hides no line.
        place_of = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 3, "fontsize": 8}
        axes.legend(once.values(), once.keys(), **place_of)

    return as_file(picture("sweep", f"{title}: success against {across}", draw, height=3.6))


def _line(axes: Axes, placed: Sequence[tuple[float, Point]], dash: str, label: str) -> None:
    """Attack with its interval, ceiling, accuracy and guess of one combination of settings."""
    rates = [(at, p.result.strongest.main) for at, p in placed]
    low, high = ([getattr(rate, end) for _, rate in rates] for end in ("lower", "upper"))
    axes.fill_between([at for at, _ in rates], low, high, color=ATTACK, alpha=0.15, linewidth=0)
    ceilings = [(at, words.tightest(p.result)) for at, p in placed]
    drawn = {
        f"attack{label}": ([(at, rate.rate) for at, rate in rates], ATTACK, "D"),
        f"ceiling{label}": ([(at, c.success) for at, c in ceilings if c is not None], CEILING, "_"),
        f"accuracy{label}": ([(at, p.accuracy[0]) for at, p in placed if p.accuracy], FAINT, "o"),
        "guess": ([(at, p.result.strongest.baseline.seen) for at, p in placed], GUESS, ""),
    }
    for name, (places, colour, marker) in drawn.items():
        if places:
            look = {"color": colour, "marker": marker, "markersize": 4, "clip_on": False, "label": name}
            axes.plot(*zip(*places, strict=True), dash, **look)
