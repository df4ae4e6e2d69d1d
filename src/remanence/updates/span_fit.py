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

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.references import REMANENCE
from remanence.core.releases import Gradient
from remanence.scale.progress import track
from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.exact import Recovered, reconstruct, reconstruct_at_any_scale
from remanence.updates.exclusive_neurons import (
    dense_mechanism,
    recovered_records,
    refuse_steps,
    whole_gradient_head,
)
from remanence.updates.single_layer import one_record
from remanence.updates.span_equations import COARSE, FITS, SpanEquations

_POLISHES = 4
_MORE = 4  # times as many starts without a bias


@final
@dataclass(frozen=True)
class SpanFit(Attack[Gradient]):
    """Solve for the whole batch within the span of the first layer's gradient.

    Any of the usual functions may stand between the layers. The batch must be smaller than the input and the first
    layer. `starts` random points are tried; at most `slots` samples are looked for, as the work grows with the fourth
    power of their number.
    """

    slots: int = 32
    starts: int = 4
    info: ClassVar[AttackInfo] = AttackInfo(
        "span-fit",
        "Solves for the whole batch within the span of the first layer's gradient, by Gauss–Newton.",
        "the gradient of one step on a fully connected network; a batch smaller than its first layer",
        "one gradient",
        REMANENCE,
    )

    def check(self, knowledge: Knowledge) -> None:
        """A fully connected network and the gradient of one step."""
        mechanism, head = dense_mechanism(knowledge, self.info)
        if len(head.weights) > 1:  # one record behind a single layer is a quotient, after any number of steps
            refuse_steps(mechanism, self.info)
        if head.activation.is_relu:
            whole_gradient_head(knowledge, self.info)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """Nothing is to be learnt; one seed serves every release, so that trials stay independent."""
        self.check(knowledge)
        mechanism, head = dense_mechanism(knowledge, self.info)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

        def attack(release: Gradient) -> Reconstruction:
            own = head.to(next(iter(release.tensors.values())).device)
            found = fit_in_span(
                own,
                own.layers_of(release.tensors),
                precision=mechanism.precision,
                seed=seed,
                slots=self.slots,
                starts=self.starts,
            )
            return recovered_records(found, mechanism)

        return attack


def fit_in_span(
    head: DenseHead, layers: Layers, *, precision: float, seed: int = 0, slots: int = 32, starts: int = 4
) -> Recovered:
    """Recover each gradient's batch, or nothing of it; what exclusive neurons give away whole is not solved for."""
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
    if head.activation.is_relu:
        at_sight = reconstruct_at_any_scale(head, layers, precision=precision, slots=slots)
        if at_sight.is_complete(precision).all():
            return at_sight
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
