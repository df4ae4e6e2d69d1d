"""Does this model belong to this table?

The owner has both, so this can be tested. A linear model's own equations hold on the table that it was fitted on.
Their residual is counted in records: one record too many or too few leaves as much as one record pulls, and an
unrelated table as much as all of them do. A model that stopped short of its optimum is fitted again on the table: the
same solver then stops at the same place. Everything else is compared with such a second fit, number by number.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import RANSACRegressor

from remanence.core.checks import same_columns
from remanence.core.exceptions import InputError, MisfitError
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.tables.glm.closed_form import NUMBERS_AT_ONCE
from remanence.tables.glm.model import GLM
from remanence.tables.linear import Objective, as_records, is_linear, objective
from remanence.tables.parts import Part, arrays_in, as_input, final_estimator, spared
from remanence.tables.statistics import published
from remanence.tables.stored import stored_rows
from remanence.tables.trees import misplaced_nodes

_ROUNDED = 1e-7  # of the size of a number: a table of fewer digits
_SEEDS = 6  # fits, before a model that draws at random is called another table's
_TOLERANCE = 1e-4  # of the size of a number, between two fits that draw nothing


# How closely a second fit reproduces a part: only nearly if, say, the table was rounded.
Fit = Literal["exactly", "nearly"]

# Counters and clocks say nothing about the table, and neither do random draws.
_NOT_THE_TABLES = ("_iter", "random_state", "time", "loss_curve", "validation_score", "_rng", "bit_generator")


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
    if part.sparse is not None:
        features = part.sparse
    options = {} if part.weights is None else {"sample_weight": part.weights}
    try:
        return fresh.fit(features, part.labels, **options) if part.labels is not None else fresh.fit(features)
    except Exception:  # noqa: BLE001 - a table on which it cannot be fitted decides nothing by itself
        return None


def compare_with_refit(part: Part) -> Fit | None:
    """Compare with two fits on the table: numbers on which they agree must be the model's too."""
    if isinstance(part.estimator, str) or not hasattr(part.estimator, "fit"):
        return None
    worst, off, conclusive = _compared(part, 2)
    if off > _TOLERANCE and part.estimator.get_params().get("random_state", 0) is None:
        worst, off, conclusive = _compared(part, _SEEDS)  # two fits that draw at random may agree by chance
    if off > _TOLERANCE and getattr(part.estimator, "warm_start", False):
        return None  # it went on from an earlier fit, which cannot be repeated
    if off > _TOLERANCE:
        raise MisfitError(
            "This model was not fitted on this table.",
            needs="a table on which fitting the same estimator again gives the same numbers",
            got=f"{part.path}: {worst.removeprefix('model.')} differs by {off:.2g} of its size",
            hint="the table, the labels and the rows that fit() was called with, in their order; a partial_fit "
            "cannot be repeated",
        )
    if not conclusive:
        return None
    return "nearly" if off > _ROUNDED else "exactly"


def _compared(part: Part, count: int) -> tuple[str, float, bool]:
    """Of the numbers on which this many fits agree, the one that the model is off most: its path and relative error.

    And whether these numbers are conclusive.
    """
    fits = [refit(part, seed) for seed in range(count)]
    if any(fit is None for fit in fits):
        raise MisfitError(
            "This model was not fitted on this table: it cannot be.",
            needs="a table that the model's own fit() accepts",
            got=f"{part.path}: {type(part.estimator).__name__} refuses it",
            hint="the table and the labels that fit() was called with",
        )
    mine, first, *others = (dict(_numbers_in(each)) for each in (part.estimator, *fits))
    shared = {path for path in first if path in mine and all(path in other for other in others)}
    agreed = {path for path in shared if all(_distance(first[path], other[path]) <= 1e-9 for other in others)}
    random = any(first[path].dtype.kind == "f" for path in shared - agreed)
    determined = {path: values for path, values in first.items() if path in agreed}
    if random:  # two fits may agree by coincidence, except on sums and the like over the whole table
        determined = {
            p: v for p, v in determined.items() if v.dtype.kind == "f" and v.size > 1 and p.count(".") == 1
        }
    conclusive = not random and any(v.dtype.kind == "f" and v.size for v in determined.values())
    off = {path: _distance(mine[path], values) for path, values in determined.items()}
    worst = max(off, key=off.__getitem__, default="")
    return worst, off.get(worst, 0.0), conclusive


def learned(estimator: Any) -> bool:
    """Whether it holds any number that fitting could have set; a function of single rows does not."""
    if isinstance(estimator, str) or not hasattr(estimator, "fit"):
        return False
    given = {"n_features_in_", *estimator.get_params(deep=False)}
    return any(path.split(".")[1].split("[")[0] not in given for path, _ in _numbers_in(estimator))


def _numbers_in(estimator: Any) -> Iterator[tuple[str, np.ndarray]]:
    single = [
        (f"model.{name}", np.asarray(float(value)))
        for name, value in vars(estimator).items()
        if name.endswith("_") and isinstance(value, int | float)
    ]
    for path, values in itertools.chain(arrays_in(estimator), single):
        if not any(word in path for word in _NOT_THE_TABLES):
            texts = values.dtype.kind == "O"
            yield path, np.array([str(item) for item in values.ravel()]) if texts else values


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    """The largest difference over the largest number; infinite where shapes or texts differ."""
    if left.shape != right.shape:
        return float("inf")
    if left.dtype.kind not in "fiubc" or right.dtype.kind not in "fiubc":
        return 0.0 if (left == right).all() else float("inf")
    left, right = left.astype(complex), right.astype(complex)
    same = (left == right) | (np.isnan(left) & np.isnan(right))  # infinities too
    with np.errstate(invalid="ignore"):
        off = np.nan_to_num(np.abs(left - right)[~same], nan=np.inf)
    size = max(float(np.abs(right[np.isfinite(right)]).max(initial=0.0)), 1e-12)
    return float(off.max(initial=0.0)) / size


_TO_THE_DIGIT = 1e-10  # records' worth, a square: the rounding of double precision
_SAME_STOP = 0.05  # records' worth, between two fits that stop early
_BY_CHANCE = 25.0  # times what two fits of a solver with random draws differ by


@dataclass(frozen=True)
class Belonging:
    """What the test found for the parts that it could test."""

    confirmed: tuple[str, ...]  # paths of parts that were confirmed
    unconfirmed: tuple[str, ...]  # parts whose training draws at random, so that they cannot be recomputed
    inexact: tuple[str, ...] = ()  # parts that need a table with more digits


def check_columns(estimator: Any, features: Any) -> None:
    """Refuse a table whose columns are not those that the model was fitted on."""
    names = getattr(estimator, "feature_names_in_", None)
    given = [str(name) for name in getattr(features, "columns", ())]
    count = getattr(estimator, "n_features_in_", None)
    if names is not None and given:
        expected = [str(name) for name in names]
        same_columns(given, expected, "the training table itself, with its own column names, and no others")
        if expected != given:
            raise MisfitError(
                "The table's columns are in another order than the model was fitted on.",
                needs=", ".join(expected)[:300],
                got=", ".join(given)[:300],
                hint="table[list(model.feature_names_in_)]",
            )
    shape = np.shape(features)
    if len(shape) != 2 or (count is not None and shape[1] != count):
        raise MisfitError(
            "The features do not fit the model.",
            needs=f"a table with {count} columns, one row per training record",
            got=f"an array of shape {shape}",
            hint="pass the same columns, in the same order, as to fit()",
        )


def check_belongs(whole: Part) -> Belonging:
    """Refuse a model that was not fitted on this table; otherwise report which parts were confirmed."""
    check_columns(whole.estimator, whole.features)
    confirmed, unconfirmed, inexact = [], [], []
    chooser = final_estimator(whole.estimator)
    if isinstance(chooser, RANSACRegressor) and isinstance(chooser.random_state, int):
        compare_with_refit(whole)  # the table chose the rows that its member saw: the others count too
    for part in whole.innermost():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a second fit repeats the warnings of the first
            found = _check_part(part)
            if found is None and _holds_this_table(part):
                found = "exactly"
        if found is not None:
            confirmed.append(part.path)
        elif learned(part.estimator):
            unconfirmed.append(part.path)
        if found == "nearly":
            inexact.append(part.path)
    return Belonging(tuple(confirmed), tuple(unconfirmed), tuple(inexact))


def _holds_this_table(part: Part) -> bool:
    """Whether a part that draws at random holds nothing but rows, or means of every column, of this very table."""
    if any(not each.among_others for each in stored_rows(part)):
        return True
    means = published(part)
    return bool(means) and any(
        not np.isnan(each.values[:, np.nanstd(part.matrix, 0) > 0]).any() for each in means
    )


def _check_part(part: Part) -> Fit | None:
    """How a part fits the table; None if this cannot be tested."""
    if part.features is None:
        return None
    model, features = part.estimator, part.numbers
    if features is not None and part.labels is not None and is_linear(model):
        try:
            own = objective(model, np.asarray(part.labels), part.weights)
        except (InputError, ValueError, TypeError):  # an unknown objective
            return compare_with_refit(part)
        if features.shape[1] == model.n_features_in_:
            return check_optimum(part, own, features)
    misplaced = misplaced_nodes(part)
    if misplaced is None:
        return compare_with_refit(part)
    if misplaced[0]:
        raise MisfitError(
            "This model was not fitted on this table.",
            needs="a table that gives every node of the trees its rows, its means and its threshold",
            got=f"{part.path}: {misplaced[0]} of {misplaced[1]} nodes hold others",
            hint="the table, the labels and the rows that fit() was called with, in their order",
        )
    if isinstance(model.get_params().get("random_state"), int):
        return compare_with_refit(part)  # another row could improve other splits
    return "exactly"


def check_optimum(part: Part, own: Objective, features: np.ndarray) -> Fit | None:
    """Refuse a table on which the model's equations leave more records' worth than early stopping explains.

    None if this cannot be tested: a fit that continued from an earlier one stops elsewhere than a fresh one.
    """
    if gaps := int((~np.isfinite(features)).any(1).sum()):
        raise MisfitError(
            "This model was not fitted on this table.",
            needs="a finite number in every cell that reaches a linear model",
            got=f"{part.path}: {gaps} of {len(features)} rows with an empty or infinite cell",
            hint="the table as it was passed to fit(), with its gaps filled as they were then",
        )
    left = _LeftOver.of(own, features, part.weights)
    total = left.total_at(own.release)
    worth = left.worth(total)
    mechanism = own.mechanism
    free = mechanism.penalty == 0 and mechanism.l1_penalty == 0
    if free and len(features) <= features.shape[1] + mechanism.fit_intercept:
        return compare_with_refit(part)  # it meets every label: its equations hold on any of its rows
    if worth <= _TO_THE_DIGIT:
        return "exactly"
    totals, off = [left.total_at(fit) for fit in _fitted_again(part)], float("nan")
    if totals:
        off = left.worth(total - totals[0])
        chance = left.worth(totals[0] - totals[-1])
        if off <= max(_TO_THE_DIGIT, _BY_CHANCE * chance):
            return "exactly"
        if off <= _SAME_STOP:
            return "nearly"
    if getattr(part.estimator, "warm_start", False):
        return None
    raise MisfitError(
        "This model was not fitted on this table.",
        needs="a table on which the model's own equations hold, or stop where its solver stops",
        got=f"{part.path}: their residual is worth {worth:.3g} of {len(features)} records"
        + (f", and {off:.3g} after fitting it again on this table" if totals else ""),
        hint="the table, its columns in their order, the rows and the sample weights that fit() was called with",
    )


@dataclass(frozen=True)
class _LeftOver:
    """A table's gradients at a model, and the numbers that convert them to records."""

    mechanism: GLM
    data: Records
    active: np.ndarray  # (outputs, 1 + features), the entries that are zero at an optimum
    unit: np.ndarray  # (active,)
    whitening: np.ndarray  # (active, active)

    def worth(self, total: np.ndarray) -> float:
        """Gᵀ (Σ g gᵀ)⁻¹ G, whose average for one record is parameters / records."""
        scaled = total / self.unit
        return float(scaled @ self.whitening @ scaled) * len(self.data) / len(total)

    def total_at(self, release: Weights) -> np.ndarray:
        """The gradient of the whole loss on this table, `(active,)`."""
        class_weights = self.mechanism.class_weights_of([self.data[None]])
        total = self.mechanism.known_gradient(self.data, release, class_weights)
        return (total + self.mechanism.penalty_gradient(release))[0].numpy()[self.active]

    @classmethod
    def of(cls, own: Objective, features: np.ndarray, weights: np.ndarray | None) -> _LeftOver:
        """Σ g gᵀ over the records, and Σ |g| with |y| in place of the residual: its rounding is no misfit."""
        mechanism, data = own.mechanism, as_records(features, own.labels, weights)
        active = np.insert(own.release["coefficient"][0].numpy() != 0, 0, mechanism.fit_intercept, axis=1)
        active[:, 1:] |= mechanism.l1_penalty == 0
        class_weights, numbers = mechanism.class_weights_of([data[None]]), active.size
        square = np.zeros((numbers, numbers))
        rounding = mechanism.penalty_gradient(own.release)[0].abs().numpy()
        size = 1.0 if mechanism.family.classes else float(data.labels.double().abs().max())
        for part in data.split(max(1, NUMBERS_AT_ONCE // numbers)):
            some = part[None]
            each = mechanism.record_gradients(
                some, own.release, weights=mechanism.training_weights(some, class_weights)
            )
            gradients = each[0].flatten(1).numpy()
            square += gradients.T @ gradients
            rounding[:, 1:] += size * part.flat.abs().sum(0).numpy()
            rounding[:, 0] += size * len(part)
        if not np.isfinite(square).all():
            raise MisfitError(
                "This model was not fitted on this table.",
                needs="a table on which the squares of the model's own gradients do not overflow",
                got=f"numbers of up to {float(data.flat.abs().max()):.2g}",
                hint="the table as it was passed to fit(), in the same units",
            )
        chosen = active.ravel()
        square = square[np.ix_(chosen, chosen)]
        square[np.diag_indices_from(square)] += (1e-13 * rounding[active]) ** 2 + 1e-300
        unit = np.sqrt(np.diag(square))
        whitening = np.linalg.pinv(square / unit / unit[:, None], rcond=1e-10, hermitian=True)
        return cls(mechanism, data, active, unit, whitening)


def _fitted_again(part: Part) -> Iterator[Weights]:
    """The model's numbers after fitting it twice more, from the start, on the table; none where that cannot be done."""
    for seed in (0, 1):
        with contextlib.suppress(InputError):
            if (fitted := refit(part, seed)) is not None:
                yield objective(fitted, np.asarray(part.labels), part.weights).release
