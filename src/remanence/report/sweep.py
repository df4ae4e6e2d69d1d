"""Views of a sweep: one table, as text or for a terminal, and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from remanence.report import words
from remanence.report.figures import curves
from remanence.report.svg import ATTACK, CEILING, FAINT, GUESS, INK, picture
from remanence.report.tables import thousandths
from remanence.sweeping import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("-", "--", "-.", ":")
_SCOPE = (
    "Numbers are out of 1000. Each interval holds at 95 % for its own line; "
    "of twenty lines, one may be expected to miss."
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
        "accuracy": ["" if p.accuracy is None else _give_or_take(*p.accuracy) for p in points],
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


def _give_or_take(share: float, error: float) -> str:
    return f"{thousandths(share)} ± {thousandths(error)}"


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
    for point in points:
        others = ", ".join(f"{name} {value}" for name, value in point.settings.items() if name != across)
        lines.setdefault(others, []).append(point)

    def draw(axes: Axes) -> None:
        for number, (label, members) in enumerate(lines.items()):
            members = sorted(members, key=place)
            dash, x = _DASHES[number % len(_DASHES)], [place(p) for p in members]
            rates = [p.result.strongest.main for p in members]
            axes.fill_between(
                x, [r.lower for r in rates], [r.upper for r in rates], color=ATTACK, alpha=0.15, linewidth=0
            )
            name = f"attack, {label}" if label else "attack"
            axes.plot(x, [r.rate for r in rates], dash, color=ATTACK, marker="D", markersize=4, label=name)
            ceilings = [words.tightest(p.result) for p in members]
            proven = [(at, c.success) for at, c in zip(x, ceilings, strict=True) if c is not None]
            if proven:
                name = f"ceiling, {label}" if label else "ceiling"
                axes.plot(*zip(*proven, strict=True), dash, color=CEILING, marker="_", label=name)
            useful = [(at, p.accuracy[0]) for at, p in zip(x, members, strict=True) if p.accuracy is not None]
            if useful:
                name = f"accuracy, {label}" if label else "accuracy"
                axes.plot(*zip(*useful, strict=True), dash, color=FAINT, marker="o", markersize=4, label=name)
            guesses = [p.result.strongest.baseline.seen for p in members]
            axes.plot(x, guesses, dash, color=GUESS, linewidth=1, label="guess" if number == 0 else None)
        limit = points[0].result.policy.max_success
        axes.axhline(limit, color=INK, linewidth=1, linestyle="--", label="your limit")
        if (
            numbers
            and min(map(place, points)) > 0
            and max(map(place, points)) >= 10 * min(map(place, points))
        ):
            axes.set_xscale("log")
        if not numbers:
            axes.set_xticks(range(len(values)), [str(value) for value in values])
        axes.set(xlabel=across, ylabel="success", ylim=(-0.02, 1.02))
        axes.legend(fontsize=8)

    return picture("sweep", f"{title}: success against {across}", draw, height=3.6)
