"""The objective of a linear model that nobody has described, told by its coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.tables.checked import encoded, numbers
from remanence.tables.glm.families import Family, Gaussian, Logistic, Multinomial, Tweedie
from remanence.tables.glm.model import GLM
from remanence.tables.glm.one_against_rest import Indicators, SquaredHinge


def measured(
    model: Any, features: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, release: Weights
) -> tuple[GLM, np.ndarray]:
    """The family and the penalties that make this table an optimum, for a class that nobody has described."""
    found = []
    for family, coded in _families(model, labels):
        if family.outputs != len(release["coefficient"][0]):
            continue
        data = Records(
            torch.from_numpy(features),
            torch.from_numpy(coded),
            None if weights is None else torch.from_numpy(weights),
        )
        plain = GLM(family, penalty=0.0)
        own = plain.record_gradients(data[None], release, weights=data[None].weights)[0].numpy()
        with np.errstate(over="ignore"):
            total, spread = own.sum(0), np.sqrt((own**2).sum(0)) + 1e-300
        if not np.isfinite(spread).all():
            continue  # the exponential of such predictions is no mean of anything
        coefficient = release["coefficient"][0].numpy()
        slopes = total[:, 1:]
        active = coefficient != 0
        causes = (
            np.stack([coefficient[active], np.sign(coefficient[active])], 1) / spread[:, 1:][active][:, None]
        )
        sizes = np.linalg.lstsq(causes, -slopes[active] / spread[:, 1:][active], rcond=None)[0]
        for ridge, lasso in (_alone(causes[:, 0], slopes[active] / spread[:, 1:][active]), tuple(sizes)):
            ridge, lasso = (0.0 if size < 0 else float(size) for size in (ridge, lasso))
            left = slopes + ridge * coefficient + lasso * np.sign(coefficient)
            off = np.abs(left[active] / spread[:, 1:][active]).max(initial=0.0)
            level = np.abs(total[:, 0] / spread[:, 0]).max()
            intercept = bool(np.any(model.intercept_))
            found.append(
                (
                    off + intercept * level,
                    GLM(family, penalty=ridge, l1_penalty=lasso, fit_intercept=intercept),
                    coded,
                )
            )
            if off < 1e-6:
                break
    best = min(found, key=lambda entry: entry[0], default=None)
    if best is None or best[0] > 1e-3:
        raise InputError(
            f"{type(model).__name__} is at no optimum that is known here, or was fitted on another table.",
            needs="coefficients at which the gradient of a loss (least squares, logistic, hinge, Poisson, gamma) "
            "equals a ridge or lasso penalty's",
            got="none fits"
            if best is None
            else f"the nearest, {best[1].family.name}, is off by {best[0]:.2g}",
            hint="wrap its training in remanence.looped() and attack it with retrain-and-compare",
        )
    return best[1], best[2]


def _alone(cause: np.ndarray, effect: np.ndarray) -> tuple[float, float]:
    return (max(0.0, -float(cause @ effect) / float(cause @ cause)) if len(cause) else 0.0), 0.0


def _families(model: Any, labels: np.ndarray) -> Iterator[tuple[Family, np.ndarray]]:
    if hasattr(model, "classes_"):
        coded, count = encoded(model, labels), len(model.classes_)
        yield (Logistic() if count == 2 else Multinomial(count)), coded
        yield Indicators(count), coded
        yield SquaredHinge(count), coded
        return
    values = numbers(labels, "labels")
    yield Gaussian(), values
    if (values >= 0).all():
        yield Tweedie(1.0), values
    if (values > 0).all():
        yield Tweedie(2.0), values
