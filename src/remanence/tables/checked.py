"""Features and labels as numbers, or a sentence that says what is in their way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError

_ORDERED = 4  # classes of which every order is tried


def encoded(model: Any, labels: np.ndarray) -> np.ndarray:
    """The class of each label, as the model counts them."""
    classes = list(model.classes_)
    strange = sorted(set(labels.tolist()) - set(np.asarray(classes).tolist()), key=str)
    if strange:
        raise InputError(
            "The labels are not those that the model was trained on.",
            needs=f"labels among {', '.join(map(str, classes[:8]))}",
            got=f"{strange[0]!r}",
            hint="pass the labels as they were passed to fit()",
        )
    return np.searchsorted(model.classes_, labels)


def codings(model: Any, labels: Any) -> Iterator[dict[Any, Any] | None]:
    """How the labels of a table may stand for those that a model was fitted on; None: they are the same.

    A file loses types, and people code words as numbers before they fit: by the same text, by the order of the
    alphabet (as LabelEncoder does) or by any other order.
    """
    classes = np.asarray(getattr(model, "classes_", ())).tolist()
    words = [] if labels is None else sorted(set(np.asarray(labels).tolist()), key=str)
    if not classes or np.ndim(classes) != 1 or set(words) <= set(classes):
        yield None
        return
    texts = {str(name): name for name in classes}
    if all(str(word) in texts for word in words):
        yield {word: texts[str(word)] for word in words}
    elif len(words) == len(classes) <= _ORDERED:
        for order in itertools.permutations(classes):
            yield dict(zip(words, order, strict=True))
    else:
        yield None


def numbers(values: Any, name: str) -> np.ndarray:
    """Finite numbers in double precision, or a sentence that says what is in their way.

    Those that are that already are not copied: a table may be as large as memory allows.
    """
    if hasattr(values, "toarray"):
        raise InputError(
            f"The {name} are a sparse matrix.",
            needs="a dense array",
            got=type(values).__name__,
            hint="X.toarray(), if it fits into memory",
        )
    summary, hint = (
        f"The {name} are not all numbers.",
        "encode categories as numbers first, as fit() required",
    )
    with refusing((TypeError, ValueError), summary, needs="numeric columns", got=name, hint=hint):
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
        array = array.astype(np.float64, copy=not array.flags.writeable)  # torch wants to be able to write
    if not np.isfinite(array).all():
        rows = np.unique(np.argwhere(~np.isfinite(array))[:, 0])
        raise InputError(
            f"The {name} contain NaN or infinite values.",
            needs="finite numbers",
            got=f"{len(rows)} records affected, the first is number {rows[0]}",
            hint="drop or impute those records, as fit() required",
        )
    return np.ascontiguousarray(array)
