"""LightGBM's and XGBoost's models, which are no arrays of Python: read from the text that each writes of itself.

LightGBM writes the smallest and the largest value of every column (`feature_infos`). XGBoost's histograms split at
values of the training table, each as it stands there, in single precision. Neither package is needed to look.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SINGLE = 2.0**-23  # of a value, in single precision


def booster_state(held: Any) -> Mapping[str, Any] | None:
    """What a booster says of itself, as plain lists by name; None for anything else."""
    if isinstance(getattr(held, "state", None), Mapping):  # a file's
        return held.state
    if callable(getattr(held, "model_to_string", None)):
        return {"text": lines_of(held.model_to_string())}
    if callable(getattr(held, "save_raw", None)):
        return json.loads(bytes(held.save_raw("json")))
    return None


def booster_of(estimator: Any) -> Any:
    """The booster in an estimator of LightGBM's or XGBoost's; None in any other."""
    return getattr(estimator, "_Booster", None)


def values_in_booster(booster: Any) -> Iterator[tuple[str, int, list[float]]]:
    """Values of single columns that a booster holds: where they stand, the column, and the values."""
    yield from values_in_state(booster_state(booster) or {})


def values_in_state(state: Mapping[str, Any]) -> Iterator[tuple[str, int, list[float]]]:
    """The same, of what a booster says of itself."""
    for name, line in state.get("text", {}).items():
        if name == "feature_infos":
            for column, ends in enumerate(line):
                if isinstance(ends, str) and ends.startswith("["):
                    yield name, column, [float(end) for end in ends.strip("[]").split(":")]
    trees = state.get("learner", {}).get("gradient_booster", {}).get("model", {}).get("trees", [])
    splits: dict[int, list[float]] = {}
    for tree in trees:
        rows = zip(tree["left_children"], tree["split_indices"], tree["split_conditions"], strict=True)
        for left, column, value in rows:
            if left != -1:
                splits.setdefault(column, []).append(float(value))
    yield from (("split_conditions", column, sorted(set(values))) for column, values in splits.items())


def lines_of(text: str) -> dict[str, list[Any]]:
    """The lines name=value value … of LightGBM's text; those of trees are numbered."""
    found: dict[str, list[Any]] = {}
    tree = ""
    for line in text.partition("\nparameters:")[0].splitlines():
        name, equals, values = line.partition("=")
        if not equals:
            continue
        tree = f"{values}." if name == "Tree" else tree
        found[f"{tree}{name}"] = [_number(value) for value in values.split(" ")]
    return found


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
