"""A second fit of the same estimator on the table: what two fits agree on must be the model's too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import clone

from remanence.core.exceptions import MisfitError
from remanence.tables.objects import arrays_in
from remanence.tables.parts import Part, as_input, spared

_ALIKE = 1e-4  # of the size of a number, between two fits that draw nothing


# Counters and clocks say nothing about the table; draws of random numbers are not the table's.
_NOT_THE_TABLES = (
    "n_iter_",
    "random_state",
    "time",
    "loss_curve",
    "validation_score",
    "_rng",
    "bit_generator",
)


def refit(part: Part, seed: int = 0) -> Any:
    """The same estimator with the same settings, fitted on the table; None where it cannot be."""
    fresh: Any = clone(part.estimator)
    settings = fresh.get_params(deep=False)
    if seed and settings.get("random_state", 0) is None:
        fresh.set_params(random_state=seed)
    features = as_input(part.estimator, spared(part.estimator, part.features))
    kind = getattr(getattr(part.estimator, "coef_", None), "dtype", None)
    if kind == np.float32 and not hasattr(features, "columns"):
        features = np.asarray(features, dtype=np.float32)  # solvers round as their input does
    if part.sparse:
        features = csr_matrix(np.asarray(features))
    options = {} if part.weights is None else {"sample_weight": part.weights}
    try:
        return fresh.fit(features, part.labels, **options) if part.labels is not None else fresh.fit(features)
    except Exception:  # noqa: BLE001 - a table on which it cannot be fitted decides nothing by itself
        return None


def compare_with_refit(part: Part) -> bool | None:
    """Compare with two fits on the table: numbers on which they agree must be the model's too."""
    if isinstance(part.estimator, str) or not hasattr(part.estimator, "fit"):
        return None
    fits = [refit(part, seed) for seed in (0, 1)]
    if fits[0] is None or fits[1] is None:
        raise MisfitError(
            "This model was not fitted on this table: it cannot be.",
            needs="a table that the model's own fit() accepts",
            got=f"{part.path}: {type(part.estimator).__name__} refuses it",
            hint="the table and the labels that fit() was called with",
        )
    mine, first, second = (dict(_numbers_in(each)) for each in (part.estimator, *fits))
    shared = {path: values for path, values in first.items() if path in second and path in mine}
    determined = {path: values for path, values in shared.items() if _distance(values, second[path]) <= 1e-9}
    random = any(shared[path].dtype.kind == "f" for path in shared.keys() - determined.keys())
    if random:  # what two fits agree on may be a coincidence, but for sums and the like over the whole table
        determined = {
            p: v for p, v in determined.items() if v.dtype.kind == "f" and v.size > 1 and p.count(".") == 1
        }
    off = {path: _distance(mine[path], values) for path, values in determined.items()}
    worst = max(off, key=off.__getitem__, default=None)
    if worst is not None and off[worst] > _ALIKE and getattr(part.estimator, "warm_start", False):
        return None  # it went on from an earlier fit, which cannot be repeated
    if worst is not None and off[worst] > _ALIKE:
        raise MisfitError(
            "This model was not fitted on this table.",
            needs="a table on which fitting the same estimator again gives the same numbers",
            got=f"{part.path}: {worst.removeprefix('model.')} differs by {off[worst]:.2g} of its size",
            hint="the table, the labels and the rows that fit() was called with, in their order; what partial_fit made "
            "cannot be repeated",
        )
    telling = any(values.dtype.kind == "f" and values.size for values in determined.values())
    return True if telling and not random else None


def learned(estimator: Any) -> bool:
    """Whether it holds any number that fitting can have put there; a function of single rows does not."""
    if isinstance(estimator, str) or not hasattr(estimator, "fit"):
        return False
    given = {"n_features_in_", *estimator.get_params(deep=False)}
    return any(path.split(".")[1].split("[")[0] not in given for path, _ in _numbers_in(estimator))


def _numbers_in(estimator: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, values in arrays_in(estimator):
        if not any(word in path for word in _NOT_THE_TABLES):
            values = np.asarray(values)
            yield (
                path,
                np.array([str(item) for item in values.ravel()]) if values.dtype.kind == "O" else values,
            )
    for name, value in vars(estimator).items():
        if (
            name.endswith("_")
            and isinstance(value, int | float)
            and not any(w in name for w in _NOT_THE_TABLES)
        ):
            yield f"model.{name}", np.asarray(float(value))


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    """The largest difference over the largest number; infinite where shapes or texts differ."""
    if left.shape != right.shape:
        return float("inf")
    if left.dtype.kind not in "fiubc" or right.dtype.kind not in "fiubc":
        return 0.0 if (left == right).all() else float("inf")
    if not left.size:
        return 0.0
    left, right = left.astype(complex), right.astype(complex)
    gaps = np.isnan(left)
    if (gaps != np.isnan(right)).any():
        return float("inf")
    left, right = left[~gaps], right[~gaps]
    same = left == right  # infinities too
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(left - right))
    size = max(float(np.abs(right[np.isfinite(right)]).max(initial=0.0)), 1e-12)
    return float(off.max(initial=0.0)) / size
