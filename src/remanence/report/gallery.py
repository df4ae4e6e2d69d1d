"""Targets next to their reconstructions: training data, so a separate page that only its owner can read."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remanence.auditing import AuditResult
from remanence.report import words
from remanence.report.html import style, template

_ROWS = 12
_COLUMNS = 40  # of a table; a picture is shown whole


def gallery_page(result: AuditResult, name: Callable[[Tensor], str] | None = None) -> str | None:
    """The page, or None where no reconstructions were kept; `name` tells what its owner calls a target."""
    shown = result.gallery
    if shown is None or len(shown["targets"]) == 0:
        return None
    pairs = [_pair(shown, index) for index in range(min(_ROWS, len(shown["targets"])))]
    called = ["" if name is None else name(target) for target in shown["targets"][: len(pairs)]]
    width, named = shown["targets"][0].numel(), result.subject.get("columns", [])
    names = named if len(named) == width else [f"column {place}" for place in range(width)]
    about = {"pairs": pairs, "called": called, "columns": names[:_COLUMNS], "words": words, "style": style()}
    return template("gallery.html.jinja").render(result=result, **about)


def _pair(shown: Mapping[str, Tensor], index: int) -> dict[str, Any]:
    rows = {
        "target": shown["targets"][index],
        "reconstruction": shown["reconstructions"][index],
        "control": shown["controls"][index],
    }
    values = {name: np.asarray(row.detach().cpu().double()) for name, row in rows.items()}
    picture, pictures = _as_picture(values["target"].shape), None
    if picture is not None:
        ends = float(np.nanmin(values["target"])), float(np.nanmax(values["target"]))
        pictures = {name: _png(row.reshape(picture), *ends) for name, row in values.items()}
    return {
        "succeeded": bool(shown["succeeded"][index]),
        "pictures": pictures,
        "numbers": {name: row.flatten()[:_COLUMNS].tolist() for name, row in values.items()},
        "more": max(0, values["target"].size - _COLUMNS),
    }


def _as_picture(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape as height and width, colours first if there are any; None for plain numbers.

    >>> _as_picture((64,)), _as_picture((3, 32, 32)), _as_picture((28, 28)), _as_picture((30,))
    ((8, 8), (3, 32, 32), (28, 28), None)
    """
    if len(shape) == 1:
        side = isqrt(shape[0])
        return (side, side) if side * side == shape[0] and side >= 8 else None
    if len(shape) == 3 and shape[0] not in (1, 3):
        return None
    return shape if len(shape) in (2, 3) else None


def _png(picture: NDArray[np.float64], low: float, high: float) -> str:
    """A picture as a data address, black at the target's smallest value and white at its largest."""
    from matplotlib.image import imsave

    grey = np.clip((np.nan_to_num(picture) - low) / max(high - low, 1e-12), 0, 1)
    grey = grey.transpose(1, 2, 0) if grey.ndim == 3 else grey
    grey = grey[..., 0] if grey.ndim == 3 and grey.shape[2] == 1 else grey
    buffer = io.BytesIO()
    imsave(buffer, grey, format="png", cmap="gray", vmin=0, vmax=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
