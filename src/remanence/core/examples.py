"""Data sets shipped with scikit-learn, for the demo and for first steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remanence.core.records import Records


def example(name: str, scale: float = 1.0) -> Records:
    """A data set by name, with its features divided by `scale`."""
    import torch
    from sklearn import datasets

    from remanence.core.records import Records

    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return Records(torch.from_numpy(features / scale), torch.from_numpy(labels))


def column_names(name: str) -> tuple[str, ...]:
    """The names of its features."""
    from sklearn import datasets

    return tuple(map(str, getattr(datasets, f"load_{name}")().feature_names))
