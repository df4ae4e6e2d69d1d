"""Clues of an object's parts, carried back through its pipeline to the table in front of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from remanence.tables.clues import UNKNOWN, Clue, fill, known
from remanence.tables.inverses import alike, backwards
from remanence.tables.members import members_of, places_of
from remanence.tables.parts import Part, spared, transformed


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
    found, split = Clue.nothing(rows, columns), []
    slices = _slices(part.estimator, part.features) if after is not None else {}
    for member in members:
        seen = member.sees(part.features)
        if not seen.shape[1]:
            continue
        own = Part(f"{part.path}.{member.name}", member.estimator, seen, member.labels, member.weights)
        behind = after[:, slices[member.name]] if after is not None and member.name in slices else None
        clue = recover(own, behind, plans)
        wide = Clue.nothing(rows, columns)
        held = np.arange(rows) if member.rows is None else member.rows
        once = np.bincount(held, minlength=rows)[held] == 1  # a row that was drawn twice is its own twin
        wide.values[np.ix_(held[once], places_of(part.features, member.columns))] = clue.values[once]
        said = known(clue.labels) & once
        if said.any():
            told = clue.labels[said]
            wide.labels[held[said]] = told if member.back is None else member.back(told)
        if member.by_label:
            split.append(wide)
        else:
            found = found.filled(wide)
    if split:
        found = found.filled(Clue(_agreed([c.values for c in split]), _agreed([c.labels for c in split])))
    return found


def _agreed(said: list[np.ndarray]) -> np.ndarray:
    """What at least two say and nobody denies: with a wrong label for the missing row, all are about other rows."""
    found = np.full(said[0].shape, UNKNOWN, dtype=object)
    for place in np.ndindex(found.shape):
        values = [each[place] for each in said if each[place] is not UNKNOWN]
        if len(values) > 1 and all(alike(values[0], other) for other in values[1:]):
            found[place] = values[0]
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
        widths = [
            (name, step.transform(spared(step, features[:1])).shape[1])
            for name, step in estimator.transformer_list
        ]
        ends = np.cumsum([width for _, width in widths]).tolist()
        return {name: slice(end - width, end) for (name, width), end in zip(widths, ends, strict=True)}
    return {}
