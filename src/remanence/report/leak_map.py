"""The leak map as a picture: layer by layer, what of an update was traced back to proven samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remanence.report.svg import ATTACK, FAINT, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def leak_map_picture(layers: Sequence[Mapping[str, Any]]) -> str:
    """One bar per layer, from the entries of audit.json: the share of its update that proven samples explain."""

    def draw(axes: Axes) -> None:
        for place, layer in enumerate(layers):
            left = layer["unexplained"]
            explained = 0.0 if left is None else max(0.0, 1 - left)
            axes.barh(place, 1, color=FAINT, alpha=0.2)
            axes.barh(place, explained, color=ATTACK)
            word = (
                "not looked into"
                if left is None
                else "exact"
                if left < 1e-2
                else f"{explained:.0%} explained"
            )
            rank = "" if layer["rank"] is None else f", rank {layer['rank']}"
            axes.text(1.02, place, word + rank, va="center")
        axes.set_yticks(range(len(layers)), [str(layer["name"]) or "network" for layer in layers])
        axes.set_xlim(0, 1.6)
        axes.set_xticks([0, 0.5, 1], ["0", "half", "all"])
        axes.set_xlabel("of the layer's update, explained by proven samples")
        axes.invert_yaxis()

    label = "Leak map: the share of each layer's update that proven samples explain"
    return picture("leak-map", label, draw, height=0.9 + 0.36 * len(layers))
