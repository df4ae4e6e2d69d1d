"""How often the search for whole batches succeeds, said beforehand from the sizes alone.

Measured on random networks and batches (`python benchmarks/batch_sizes.py table` prints these lines; `held-out`
compares forecasts with what happens on networks of other kinds). A batch is no easier where it is larger, the
layer has fewer neurons for each record, there are fewer classes, or more layers. So the two measured cases that
are nearest and no easier limit the rate from below, and two that are no harder from above, by the intervals of
their rates. They are chosen by sizes, never by their results. Gradients that are much more uneven than those
measured, as trained networks make them, have no lower limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import final

import torch

from remanence.core.rates import SuccessRate
from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.span_equations import SpanEquations
from remanence.updates.sparse_columns import COARSE, SLOTS, column_space

# hidden layers, classes, neurons of the first layer, records, batches that came back whole, out of how many
_MEASURED: tuple[tuple[int, int, int, int, int, int], ...] = (
    (1, 2, 48, 16, 0, 12), (1, 2, 64, 16, 0, 12), (1, 2, 80, 16, 0, 12), (1, 2, 96, 16, 3, 12),
    (1, 2, 128, 16, 11, 12), (1, 2, 192, 16, 12, 12), (1, 2, 256, 16, 12, 12), (1, 2, 96, 32, 0, 12),
    (1, 2, 128, 32, 0, 12), (1, 2, 160, 32, 0, 12), (1, 2, 192, 32, 0, 12), (1, 2, 256, 32, 0, 12),
    (1, 2, 384, 32, 10, 12), (1, 2, 512, 32, 12, 12), (1, 2, 192, 64, 0, 12), (1, 2, 256, 64, 0, 12),
    (1, 2, 320, 64, 0, 12), (1, 2, 384, 64, 0, 12), (1, 2, 512, 64, 0, 12), (1, 2, 768, 64, 0, 12),
    (1, 2, 1024, 64, 0, 12), (1, 2, 384, 128, 0, 12), (1, 2, 512, 128, 0, 12), (1, 2, 640, 128, 0, 12),
    (1, 2, 768, 128, 0, 12), (1, 2, 1024, 128, 0, 11), (1, 2, 1536, 128, 0, 11), (1, 2, 2048, 128, 0, 11),
    (1, 2, 1024, 256, 0, 5), (1, 2, 1536, 256, 0, 5), (1, 2, 2048, 256, 0, 5), (1, 2, 4096, 256, 0, 5),
    (1, 5, 48, 16, 0, 12), (1, 5, 64, 16, 9, 12), (1, 5, 80, 16, 12, 12), (1, 5, 96, 16, 12, 12),
    (1, 5, 128, 16, 12, 12), (1, 5, 192, 16, 12, 12), (1, 5, 256, 16, 12, 12), (1, 5, 96, 32, 0, 12),
    (1, 5, 128, 32, 0, 12), (1, 5, 160, 32, 8, 12), (1, 5, 192, 32, 12, 12), (1, 5, 256, 32, 12, 12),
    (1, 5, 384, 32, 12, 12), (1, 5, 512, 32, 12, 12), (1, 5, 192, 64, 0, 12), (1, 5, 256, 64, 0, 12),
    (1, 5, 320, 64, 0, 12), (1, 5, 384, 64, 0, 12), (1, 5, 512, 64, 12, 12), (1, 5, 768, 64, 12, 12),
    (1, 5, 1024, 64, 12, 12), (1, 5, 384, 128, 0, 12), (1, 5, 512, 128, 0, 12), (1, 5, 640, 128, 0, 12),
    (1, 5, 768, 128, 0, 12), (1, 5, 1024, 128, 0, 11), (1, 5, 1536, 128, 1, 11), (1, 5, 2048, 128, 6, 11),
    (1, 10, 48, 16, 0, 12), (1, 10, 64, 16, 12, 12), (1, 10, 80, 16, 12, 12), (1, 10, 96, 16, 12, 12),
    (1, 10, 128, 16, 12, 12), (1, 10, 192, 16, 12, 12), (1, 10, 256, 16, 12, 12), (1, 10, 96, 32, 0, 12),
    (1, 10, 128, 32, 0, 12), (1, 10, 160, 32, 12, 12), (1, 10, 192, 32, 12, 12), (1, 10, 256, 32, 12, 12),
    (1, 10, 384, 32, 12, 12), (1, 10, 512, 32, 12, 12), (1, 10, 192, 64, 0, 12), (1, 10, 256, 64, 0, 12),
    (1, 10, 320, 64, 7, 12), (1, 10, 384, 64, 12, 12), (1, 10, 512, 64, 12, 12), (1, 10, 768, 64, 12, 12),
    (1, 10, 1024, 64, 12, 12), (1, 10, 384, 128, 0, 12), (1, 10, 512, 128, 0, 12), (1, 10, 640, 128, 0, 12),
    (1, 10, 768, 128, 0, 11), (1, 10, 1024, 128, 9, 11), (1, 10, 1536, 128, 11, 11), (1, 10, 2048, 128, 11, 11),
    (1, 10, 1024, 256, 0, 5), (1, 10, 1536, 256, 0, 5), (1, 10, 2048, 256, 0, 5), (1, 10, 4096, 256, 5, 5),
    (1, 100, 48, 16, 0, 12), (1, 100, 64, 16, 11, 12), (1, 100, 80, 16, 12, 12), (1, 100, 96, 16, 12, 12),
    (1, 100, 128, 16, 12, 12), (1, 100, 192, 16, 12, 12), (1, 100, 256, 16, 12, 12), (1, 100, 96, 32, 0, 12),
    (1, 100, 128, 32, 12, 12), (1, 100, 160, 32, 12, 12), (1, 100, 192, 32, 12, 12), (1, 100, 256, 32, 12, 12),
    (1, 100, 384, 32, 12, 12), (1, 100, 512, 32, 12, 12), (1, 100, 192, 64, 0, 12), (1, 100, 256, 64, 11, 12),
    (1, 100, 320, 64, 12, 12), (1, 100, 384, 64, 12, 12), (1, 100, 512, 64, 12, 12), (1, 100, 768, 64, 12, 12),
    (1, 100, 1024, 64, 12, 12), (1, 100, 384, 128, 0, 12), (1, 100, 512, 128, 1, 12), (1, 100, 640, 128, 12, 12),
    (1, 100, 768, 128, 11, 11), (1, 100, 1024, 128, 11, 11), (1, 100, 1536, 128, 11, 11),
    (1, 100, 2048, 128, 11, 11), (1, 100, 1024, 256, 0, 5), (1, 100, 1536, 256, 5, 5), (1, 100, 2048, 256, 5, 5),
    (1, 100, 4096, 256, 5, 5),
)  # fmt: skip
_OFTEN, _SELDOM = 0.8, 0.2
_NEAREST = 2  # measured cases on either side
_UNEVEN = 1e-3  # the smallest singular value over the largest: untrained networks lie above


@final
@dataclass(frozen=True)
class Forecast:
    """How often a batch of this size comes back whole, with an interval, before anything is searched for."""

    hidden_layers: int
    classes: int
    width: int
    records: int
    lower: float
    upper: float
    is_uneven: bool = False
    is_least: bool = (
        False  # the inputs span everything: there are so many records or more, and no search is made
    )

    @property
    def words(self) -> str:
        """The interval in words."""
        if self.lower >= _OFTEN:
            return "within reach"
        return "beyond reach" if self.upper <= _SELDOM else "at the edge of reach"

    def to_json(self) -> dict[str, object]:
        """For `audit.json`."""
        return {**vars(self), "words": self.words}

    def __str__(self) -> str:
        if not self.hidden_layers:
            return (
                f"The gradient spans all {self.records} dimensions for which a single layer of {self.classes} classes "
                "has room: any number of records may be behind it, and no search is made. That is no protection."
            )
        known = f"{'at least ' * self.is_least}{self.records} records behind {self.width} neurons"
        rate = (
            "Their inputs span all that there is, so that no search is made."
            if self.is_least
            else f"On random networks {self.lower:.2f} to {self.upper:.2f} of such batches come back whole."
        )
        text = f"Forecast for {known}, none of them exclusive: {self.words}. {rate}"
        if self.is_uneven:
            text += (
                " The records weigh so differently, as in a trained network, that the search may find fewer."
            )
        return text if self.lower >= _OFTEN else f"{text} What the search does not find is not protected."


def forecast(
    width: int, records: int, classes: int, hidden_layers: int = 1, *, is_uneven: bool = False
) -> Forecast:
    """The rate's limits from the nearest measured cases on either side.

    >>> forecast(1024, 64, 10).words, forecast(192, 64, 10).words
    ('within reach', 'beyond reach')
    """
    share = width / records
    below, above = 0.0, 1.0

    def apart(case: tuple[int, ...]) -> float:
        layers, others, neurons, size = case[:4]
        ratios = neurons / size / share, size / records, others / classes, layers / hidden_layers
        return sum(abs(log2(ratio)) for ratio in ratios)

    harder, easier = [], []
    for case in _MEASURED:
        layers, others, neurons, size = case[:4]
        if layers >= hidden_layers and others <= classes and neurons / size <= share and size >= records:
            harder.append(case)
        if layers <= hidden_layers and others >= classes and neurons / size >= share and size <= records:
            easier.append(case)
    if harder and not is_uneven:
        below = _together(sorted(harder, key=apart)).lower
    if easier:
        above = _together(sorted(easier, key=apart)).upper
    if records > SLOTS or width <= records:  # no search is made
        below = above = 0.0
    return Forecast(hidden_layers, classes, width, records, below, max(below, above), is_uneven)


def _together(cases: list[tuple[int, int, int, int, int, int]]) -> SuccessRate:
    """The nearest cases as one: the mean of rates that are all too low, or all too high, is so too."""
    return SuccessRate(sum(case[4] for case in cases[:_NEAREST]), sum(case[5] for case in cases[:_NEAREST]))


def forecast_of(head: DenseHead, layers: Layers, precision: float) -> Forecast | None:
    """The forecast for the first of some gradients; None where the search does not apply to it.

    The number of records is the rank of the first layer's gradient; more than are searched for count as one more.
    """
    (rows, bias), generator = layers[0], torch.Generator().manual_seed(0)
    room = min(head.independent_rows, rows.shape[2] + (bias is not None))
    if len(layers) == 1 and room > 1 and SpanEquations.of(head, layers, precision) is None:
        return Forecast(0, head.classes, rows.shape[1], room, 0.0, 0.0, is_least=True)
    if not head.activation.is_relu or precision > COARSE or not rows[0].any():
        return None
    both = rows[0] if bias is None else torch.cat([rows[0], bias[0][:, None].to(rows)], 1)
    basis = column_space(both, precision, SLOTS, generator)
    hidden, width = len(head.widths), rows.shape[1]
    if basis is None:
        least = min(SLOTS + 1, *rows.shape[1:])
        return Forecast(hidden, head.classes, width, least, 0.0, 0.0, is_least=True)
    sizes = torch.linalg.svdvals(basis.mT.to(both) @ both)
    uneven = bool(sizes[-1] < _UNEVEN * sizes[0])
    return forecast(width, basis.shape[1], head.classes, hidden, is_uneven=uneven)
