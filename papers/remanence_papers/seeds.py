"""One page out of several: the same reproduction from other seeds, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ONCE = ("seed",)  # columns that name a row and are no result


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A page of the means over seeds; the figure, the notes and the environment are those of the first.

    >>> one = {"seed": 0, "rows": [{"k": 1, "error": 0.5}], "notes": [], "environment": {"seconds": 2.0}}
    >>> two = {**one, "seed": 1, "rows": [{"k": 1, "error": 0.3}]}
    >>> merged([one, two])["rows"]
    [{'k': 1, 'error': {'rate': 0.4, 'lower': 0.3, 'upper': 0.5}}]
    """
    first = documents[0]
    if len(documents) == 1:
        return dict(first)
    lines = zip(*(document["rows"] for document in documents), strict=True)
    seconds = sum(document["environment"]["seconds"] for document in documents)
    note = (
        f"Over {len(documents)} seeds: a mean with the least and the greatest value, and of a rate the outermost ends "
        "of its intervals. Data are split anew for each seed. The figure is that of the first."
    )
    return {
        **first,
        "seeds": [document["seed"] for document in documents],
        "rows": [_row(line) for line in lines],
        "notes": [note, *first["notes"]],
        "environment": {**first["environment"], "seconds": round(seconds, 1)},
    }


def _row(line: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: _cell([row.get(key) for row in line], key) for key in line[0]}


def _cell(values: Sequence[Any], key: str) -> Any:
    """What all seeds have in common, or their mean and how far they lie apart."""
    first = values[0]
    if all(value == first for value in values) or key in _ONCE:
        return first
    if all(isinstance(value, Mapping) for value in values):
        cell = {
            "rate": _mean([value["rate"] for value in values]),
            "lower": min(value["lower"] for value in values),
            "upper": max(value["upper"] for value in values),
        }
        return cell | ({"trials": sum(value["trials"] for value in values)} if "trials" in first else {})
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return first
    return {"rate": _mean(numbers), "lower": min(numbers), "upper": max(numbers)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
