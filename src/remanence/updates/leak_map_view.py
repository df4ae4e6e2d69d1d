"""What an update gives away: the leak map, layer by layer, and notes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from remanence.report.svg import ATTACK, FAINT, picture
from remanence.results.findings import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

    from remanence.auditing import AuditResult

_MOST = 10_000  # layers of a stored map


def sections(result: AuditResult) -> list[Section]:
    """Where the update leaks, for the annex of a report."""
    layers = _valid(
        result.subject.get("leak_map"), {"name": str, "rank": int | None, "unexplained": float | None}
    )
    if not layers:
        return []
    told = ["Each bar is a layer. Its length is the share of the layer's update that proven samples explain."]
    told += [
        f"Update {place}: {update['proven']} of {update['different_records']} different records are proven. Equal "
        "records count once: a batch that has each twice sends the same."
        for place, update in enumerate(
            _valid(result.subject.get("updates"), {"proven": int, "different_records": int | None})
        )
        if update["different_records"]
    ]
    return [Section("Where the update leaks", tuple(told), picture=leak_map_picture(layers))]


def _valid(entries: object, kinds: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a stored list that can be drawn; a file may hold anything."""
    found = entries if isinstance(entries, list) else []
    whole = [each for each in found[:_MOST] if isinstance(each, dict) and kinds.keys() <= each.keys()]
    return [each for each in whole if all(isinstance(each[name], kind) for name, kind in kinds.items())]


def leak_map_picture(layers: Sequence[Mapping[str, Any]]) -> str:
    """One bar per layer, from the entries of audit.json: the share of its update that proven samples explain."""
    return _drawn(json.dumps(layers))


@lru_cache(maxsize=1)  # a file of its own and a part of the page
def _drawn(entries: str) -> str:
    layers = json.loads(entries)

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


def tokens_sentence(result: AuditResult) -> list[str]:
    """The known tokens of a text, whether or not their order is known."""
    found = [
        f"A weight decay was found and subtracted: {abs(decay):.3g} times the weights."
        for decay in result.subject.get("decays", ())
        if decay
    ]
    tokens = result.subject.get("tokens")
    if tokens is None:
        return found
    number = tokens["number"] or "No"
    arrays = result.strongest.arrays
    named = int(arrays["named"][0]) if not arrays["proven"][0] else 0
    if named:
        alike = float(arrays["similarity"][0])
        found.append(
            f"Texts proposed but not proven: {named}. Their update has a cosine of {alike:.3f} with the one sent."
        )
    if tokens["certain"] and tokens["number"]:
        sure = "Different tokens of the vocabulary that are certainly in the first update's batch"
        return [*found, f"{sure}: {number}."]
    doubt = "It is not proven that they are in its batch, nor that others are not."
    return [*found, f"{number} tokens fit the first update. {doubt}"]


def proven_sentence(result: AuditResult, declared: int | None) -> str:
    """How many records of the first update are proven, and what is known about the size of its batch."""
    arrays = result.strongest.arrays
    proven, size = (int(arrays[name][0]) if name in arrays else 0 for name in ("proven", "proven_batch_size"))
    if not proven:
        return "No record is proven."
    if size == 1:
        return "The one record is proven by recomputing the update, which also proves that there is no other."
    if size:
        return (
            f"{proven} of {size} records are proven by recomputing the update, and so is their number. "
            f"Equal records count once: a batch that has each twice sends the same."
        )
    if declared:
        return (
            f"{proven} of {declared} records (declared) are proven by recomputing their part of the update."
        )
    return f"Proven by recomputing their part of the update: {proven}. The batch size is unknown."


def leak_table(leaks: Sequence[Mapping[str, Any]]) -> Table:
    """One line per layer: how much gradient there is, and how much of it was traced to samples."""
    from rich.table import Table

    table = Table("layer", title="Leak map", title_justify="left")
    for heading in ("shape", "not zero", "rank", "samples exposed", "explained"):
        table.add_column(heading, justify="right")
    for leak in leaks:
        table.add_row(
            leak["name"],
            " × ".join(map(str, leak["shape"])),
            f"{leak['nonzero']:.1%}",
            "" if leak["rank"] is None else str(leak["rank"]),
            "" if leak["exclusive"] is None else str(leak["exclusive"]),
            "" if leak["unexplained"] is None else f"{max(0.0, 1 - leak['unexplained']):.1%}",
        )
    return table
