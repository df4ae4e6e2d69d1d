"""A frontier as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remanence.bounds.frontier import Axis, FrontierPoint
from remanence.report.svg import CEILING, GUESS, as_file, logarithmic, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"sample_rate": "sampling rate", "epsilon": "ε", "candidates": "candidates"}


def frontier_picture(points: Sequence[FrontierPoint], over: Axis, title: str) -> str:
    """The ceiling and a guess against what varies, as an SVG file."""

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

    label = f"The success that no attack exceeds, against the {_NAMES[over]}. {title}"
    return as_file(picture("frontier", label, draw, width=6.6, height=3.6))
