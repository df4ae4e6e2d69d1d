"""Whole batches within the span of the first layer's gradient, whatever function stands between the layers.

The first layer's gradient with its bias gradient beside it is G = s Σ_m δ_m (x_m, 1)ᵀ. Its rank is the batch size b,
so every (x_m, 1) is a combination c_m of b known directions: b² unknowns, however long an input is. The derivatives
δ_m follow from c_m and the label by one pass through the network, so that

    G Rᵀ = s Σ_m δ(c_m, y_m) c_mᵀ,    c_m · r = 1,

with the directions in the rows of R and their last column r, has as many equations as the layer has neurons, times
b. Gauss–Newton with damping solves it from random points: GELU, SiLU and tanh at once; ReLU, whose kinks stop it,
with kinks that are bent at first and sharpened step by step. No neuron need be exclusive and nothing need be sparse. It
either ends at a residual of rounding errors, or the batch is not found: recomputation tells which.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.scale.progress import track
from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.peeling import Recovered, reconstruct
from remanence.updates.single_layer import one_record
from remanence.updates.span_equations import COARSE, FITS, SpanEquations

_POLISHES = 4
_MORE = 4  # times as many starts without a bias


def fit_in_span(
    head: DenseHead, layers: Layers, *, precision: float, seed: int = 0, slots: int = 32, starts: int = 4
) -> Recovered:
    """Recover each gradient's batch, or nothing of it.

    At most `slots` samples are looked for, as the work grows with the fourth power of their number; `starts` random
    points are tried.
    """
    found = []
    for trial in range(len(layers[0][0])):
        own: Layers = [(w[trial : trial + 1], None if b is None else b[trial : trial + 1]) for w, b in layers]
        generator = torch.Generator(device="cpu").manual_seed(seed)
        found.append(_one_batch(head, own, precision, generator, slots, starts).padded(slots))
    return Recovered(
        *(torch.cat([getattr(one, name) for one in found]) for name in Recovered.__dataclass_fields__)
    )


def _one_batch(
    head: DenseHead, layers: Layers, precision: float, generator: torch.Generator, slots: int, starts: int
) -> Recovered:
    span = SpanEquations.of(head, layers, precision)
    if len(layers) == 1 and layers[0][1] is not None and (span is None or span.size == 1):
        return one_record(head, layers)
    best: tuple[float, Tensor, Tensor, float] | None = None
    if span is not None and 1 <= span.size <= slots:
        if span.ones is None:  # nothing says where inputs lie
            starts *= _MORE
        for attempt in track(range(starts), total=starts, what="solving within the span"):
            found = span.solve(generator, scale_is_known=not attempt % 2)
            best = found if best is None or found[0] < best[0] else best
            if best[0] < (0.3 * precision if precision > COARSE else max(1e-10, 1e2 * precision)) ** 2:
                break
    rows = layers[0][0]
    if best is None or best[0] > FITS or span is None:
        return Recovered(
            rows.new_zeros(1, 0, rows.shape[-1]),
            torch.zeros(1, 0, dtype=torch.int64, device=rows.device),
            rows.new_zeros(1, 0),
            rows.new_ones(1, len(layers)),
        )
    _, points, labels, share = best
    inputs = points @ span.directions[:, : rows.shape[-1]]
    if not head.activation.is_relu:
        inputs = _polished(head, rows[0], inputs, labels, share)
    named = Recovered(
        inputs[None], labels[None], rows.new_full((1, span.size), share), rows.new_ones(1, len(layers))
    )
    if not head.activation.is_relu:
        return named
    return reconstruct(head, layers, precision=precision, slots=slots, start=named)


def _polished(head: DenseHead, rows: Tensor, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
    """The same inputs, solved for once more from the whole first layer, as long as that leaves less of it."""
    best, least = inputs, torch.inf
    for _ in range(_POLISHES):
        values, logits = head.forward(inputs)
        delta = share * head.backward(values, head.loss_vectors(logits, labels))[0]
        rest = rows - delta.mT @ inputs
        if rest.norm() >= least:
            break
        best, least = inputs, float(rest.norm())
        inputs = inputs + torch.linalg.lstsq(delta.mT, rest).solution
    return best
