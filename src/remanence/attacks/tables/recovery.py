"""Clues of an object's parts, carried back through its pipeline to the table in front of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from remanence.attacks.tables.clues import Clue, fill
from remanence.attacks.tables.inverses import backwards
from remanence.mechanisms.tables.parts import Part, columns_of, members_of, transformed


def recover(part: Part, after: np.ndarray | None, plans: dict[str, list]) -> Clue:
    """The table in front of an estimator, from its own clues and from what is known of the table behind it."""
    rows, columns = part.features.shape
    if isinstance(part.estimator, Pipeline):
        return _through_steps(part, after, plans)
    if part.estimator is None or isinstance(part.estimator, str):
        nothing = Clue.nothing(rows, columns)
        return nothing if after is None else Clue(after, nothing.labels)
    members = members_of(part.estimator, part.features, part.labels, part.weights)
    if members is None:
        found = Clue.nothing(rows, columns)
        for plan in plans.get(part.path, ()):
            found = found.filled(plan.clue(part))
        if after is not None:
            found = Clue(fill(found.values, backwards(part.estimator, after, part.features)), found.labels)
        return found
    found = Clue.nothing(rows, columns)
    slices = _slices(part.estimator, part.features) if after is not None else {}
    for member in members:
        seen = member.sees(part.features)
        if not seen.shape[1]:
            continue
        own = Part(f"{part.path}.{member.name}", member.estimator, seen, member.labels, member.weights)
        behind = after[:, slices[member.name]] if after is not None and member.name in slices else None
        clue = recover(own, behind, plans)
        wide = Clue.nothing(rows, columns)
        places = np.arange(columns) if member.columns is None else _places(part.features, member.columns)
        held = np.arange(rows) if member.rows is None else member.rows
        wide.values[np.ix_(held, places)] = clue.values
        if member.labels is part.labels:  # others see them recoded
            wide.labels[held] = clue.labels
        found = found.filled(wide)
    return found


def _through_steps(part: Part, after: np.ndarray | None, plans: dict[str, list]) -> Clue:
    """Backwards from the last step to the first."""
    tables, steps = [part.features], part.estimator.steps
    for _, step in steps[:-1]:
        tables.append(transformed(step, tables[-1], part.labels))
    labels = Clue.nothing(len(part.features), 0).labels
    for (name, step), table in zip(reversed(steps), reversed(tables), strict=True):
        if table is None:
            continue
        last = step is steps[-1][1]
        own = Part(f"{part.path}.{name}", step, table, part.labels, part.weights if last else None)
        clue = recover(own, after, plans)
        after, labels = clue.values, fill(labels, clue.labels)
    assert after is not None
    return Clue(after, labels)


def _slices(estimator: Any, features: Any) -> dict[str, slice]:
    """Which columns each member put out."""
    if isinstance(estimator, ColumnTransformer):
        return dict(estimator.output_indices_)
    if isinstance(estimator, FeatureUnion):
        widths = [(name, step.transform(features[:1]).shape[1]) for name, step in estimator.transformer_list]
        ends = np.cumsum([width for _, width in widths]).tolist()
        return {name: slice(end - width, end) for (name, width), end in zip(widths, ends, strict=True)}
    return {}


def _places(features: Any, columns: Any) -> np.ndarray:
    """The places of a member's columns in the outer table."""
    count = features.shape[1]
    if hasattr(features, "columns"):
        chosen = columns_of(features.iloc[:0], columns).columns
        return np.array([list(features.columns).index(name) for name in chosen])
    return np.arange(count)[None][:, columns][0]
