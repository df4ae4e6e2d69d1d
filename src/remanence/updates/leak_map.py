"""What an update gives away, layer by layer: the entries of audit.json, their picture and table, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remanence.report.svg import ATTACK, FAINT, picture
from remanence.results.findings import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table
    from torch import Tensor, nn

    from remanence.auditing import AuditResult
    from remanence.updates.dense.exposure import Exposure
    from remanence.updates.rounding import Rounding

_FEW, _RANKS_UP_TO = 16, 128
_MOST = 10_000  # layers of a stored map


def leak_map(
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    *,
    rounding: Rounding,
    exposure: Exposure | None = None,
    unexplained: Mapping[str, float] | float | None = None,
) -> list[dict[str, object]]:
    """One entry of audit.json for each layer that has a weight; `gradient` has no dimension for trials.

    `nonzero` is the share of entries that are not zero (β of Pan et al. 2022, Theorem 1). `rank` is that of a dense
    layer's gradient, at most the batch size; None for other layers, or if it is not low. `exclusive` counts samples
    that have an exclusive neuron here, where the batch is known; `unexplained` is the share by norm that proven records
    leave, of each layer or of the whole update.
    """
    from torch import nn

    layers = []
    for name, values in gradient.items():
        if not name.endswith("weight") or values.ndim < 2:
            continue
        layer = name.removesuffix("weight").removesuffix(".")
        owner = model.get_submodule(name.rpartition(".")[0])  # attention calls its own in_proj_weight
        is_dense = values.ndim == 2 and not isinstance(owner, nn.Embedding)
        exclusive = None
        if exposure is not None and layer in exposure.names:
            exclusive = int((exposure.exclusive[exposure.names.index(layer)] >= 1).sum())
        layers.append(
            {
                "name": layer,
                "shape": list(values.shape),
                "nonzero": int(values.count_nonzero()) / values.numel(),
                "rank": _rank(values, rounding.of_tensor(name)) if is_dense else None,
                "exclusive": exclusive,
                "unexplained": unexplained.get(layer) if isinstance(unexplained, Mapping) else unexplained,
            }
        )
    return layers


def _rank(values: Tensor, rounding: Rounding) -> int | None:
    """The rank of a layer's gradient, looked for below 128; None where it is that or more, or as large as the layer."""
    from remanence.updates.span import sketched, span_of_sketch

    least, rank, width = min(values.shape), 0, 1
    for width in (min(_FEW, least), min(_RANKS_UP_TO, least)):  # of a large layer, wide sketches take long
        seen = sketched(values, width)
        rank = span_of_sketch(seen, values, rounding).rank if seen.any() else 0
        if 2 * rank <= width:
            break
    return rank if rank < width else None


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

    def draw(axes: Axes) -> None:
        for place, layer in enumerate(layers):
            left = layer["unexplained"]
            explained = 0.0 if left is None else max(0.0, 1 - left)
            axes.barh(place, 1, color=FAINT, alpha=0.2)
            axes.barh(place, explained, color=ATTACK)
            word = "exact" if explained > 1 - 1e-2 else f"{explained:.0%} explained"
            word = "not looked into" if left is None else word
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
    tokens = result.subject.get("tokens")
    if tokens is None:
        return []
    number, arrays, found = tokens["number"] or "No", result.strongest.arrays, []
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
    told = f"{proven} of {declared} records (declared) are proven by recomputing their part of the update."
    if declared and proven <= declared:
        return told
    size = f"larger than the declared {declared}" if declared else "unknown"
    return f"Proven by recomputing their part of the update: {proven}. The batch size is {size}."


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
