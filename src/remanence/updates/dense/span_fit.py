"""Whole batches within the span of the first layer's gradient, for any activation between the layers.

The derivatives δ of all records follow from one pass through the head, and so do their derivatives in the coordinates,
so that `equations` are solved without a Jacobian of the size of the layer: GELU, SiLU and tanh at once; ReLU, whose
kinks stop the solver, with kinks that are bent at first and sharpened step by step. No neuron need be exclusive and
nothing need be sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.updates.dense.layers import DenseHead, Layers, product
from remanence.updates.dense.peeling import Proposal, Remainder, reconstruct, refined
from remanence.updates.equations import Equations, Solution, solved
from remanence.updates.parts import working
from remanence.updates.rounding import HALF
from remanence.updates.span import ROUNDED, Decomposed

_SOFT = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.008, 0.004, 0.002, 0.001)  # of the spread of what enters
_ITERATIONS, _LAST = 6, 30  # for each softness, and for the function itself
_RECOUNTS = 6  # how often labels are counted anew where the solution does not fit
# A residual that falls by less from one softness to the next, from this one on, stands still.
_FALLS, _SETTLES = 0.8, 0.1
FITS = 1e-2  # a residual above which nothing is proposed


@final
@dataclass(frozen=True, kw_only=True)
class SpanEquations(Equations):
    """The equations of one gradient of dense layers: one position for each record."""

    head: DenseHead  # its first layer reads coordinates
    last: tuple[Tensor, Tensor | None]  # gradients of the last layer, which tell the labels

    @classmethod
    def of(
        cls, head: DenseHead, layers: Layers, precision: float, *, even: bool = False, most: int | None = None
    ) -> SpanEquations | None:
        """From one gradient; None where its span is everything. Ranks above `most` say nothing."""
        (weight, bias), numbers = layers[0], layers[0][0].shape[-1]
        rows = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
        if not rows.any():
            return None
        part = Decomposed.of(rows, even=even, most=most).at(precision)
        independent = len(rows) - (len(layers) == 1)  # those of the logits sum to zero
        if part.fades or part.rank >= min(independent, rows.shape[1]):
            return None  # the span is everything, and says nothing
        # The equations weigh all rows alike: directions that the rounding of large ones hides are out of reach.
        _, sizes, turn = torch.linalg.svd(rows @ part.directions.mT, full_matrices=False)
        hidden = ROUNDED * precision * (rows.norm(dim=1).max() + rows.norm(dim=0).max())
        directions = (turn @ part.directions)[sizes > hidden]
        inside, last = rows @ directions.mT, layers[-1]
        ones = None if bias is None else directions[:, numbers]
        offset, free = solved(directions[:, numbers:], directions.new_ones(1, directions.shape[1] - numbers))
        first = product(directions[:, :numbers], head.weights[0].mT).mT
        weight = inside if len(layers) == 1 else last[0]
        return cls(
            directions=directions,
            rows=inside,
            ones=ones,
            offset=offset,
            free=free,
            count=len(directions),
            head=replace(head, weights=(first, *head.weights[1:])),
            last=(weight.to(working(weight)), last[1]),
        )

    def solve(self, generator: torch.Generator) -> Solution:
        """Points and labels from one random start.

        While kinks are bent, a share that is free drifts: it is kept at one over the batch size if the gradient is
        that of a mean.
        """
        points = self.start(generator)
        soft = _SOFT if self.head.activation.is_kinked and self.unknowns else ()
        found, stuck = Solution(points, self.labels(points), 1.0, torch.inf), 0
        for softness in (*soft, *[0.0] * _RECOUNTS):
            values = self.head.forward(self.coordinates(found.points).squeeze(1))[0]
            spread = [self.head.before(values, i).std() for i in range(len(self.head.widths))]
            bent = self.head.activation.softened(softness * float(min(spread, default=0)))
            known = self.scale_is_known and softness > 0
            eased = replace(self, head=replace(self.head, activation=bent), scale_is_known=known)
            before, steps = found.left, _ITERATIONS if bent.softness else _LAST
            found = eased.descend(found.points, found.labels, steps=steps)
            # predictions mean something now
            counted = self.labels(found.points, found.labels)
            is_counted = torch.equal(found.labels, counted)
            if not softness and (found.left < FITS**4 or is_counted):
                break
            # Where a batch is found, every sharpening halves the residual at least.
            stuck = stuck + 1 if found.left > _FALLS * before and softness < _SETTLES and is_counted else 0
            if stuck == 2 and found.left > FITS**2:
                break
            found = replace(found, labels=counted)
        return found

    def said(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, and the last bias's gradient; without one, that of the mean of what enters the last layer."""
        values, logits = self.head.forward(self.coordinates(points).squeeze(1))
        weight, bias = self.last
        if bias is None:
            middle = values[-1].mean(0)
            bias = weight @ middle / middle.square().sum()
        return logits, self.head.sign * bias

    def made(self, points: Tensor, labels: Tensor) -> Tensor:
        """The first layer's gradient."""
        inputs = self.coordinates(points).squeeze(1)
        values, logits = self.head.forward(inputs)
        delta = self.head.backward(values, self.head.loss_vectors(logits, labels))[0]
        return (delta.mT @ inputs).flatten() / (self.count * self.rows.norm())

    def products(self, points: Tensor, labels: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """JᵀJ, and Jᵀ times a vector.

        A move v of point m changes its part by (T_m v) c_mᵀ + δ_m vᵀ, where T_m is the derivative of δ_m: products of
        such terms for all pairs of points are sums of products of small matrices.
        """
        inputs, scale = self.coordinates(points).squeeze(1), 1 / (self.count * self.rows.norm())
        delta, turn = self._turns(inputs, labels)
        flat, open_ones = turn.flatten(0, 1), inputs @ self.free.mT
        shape = (*turn.shape[:2], *turn.shape[:2])
        matrix = (flat @ flat.mT).view(shape) * (inputs @ inputs.mT)[:, None, :, None]
        cross = turn @ delta.mT
        matrix += torch.einsum("mik,mj->mikj", cross, open_ones)
        matrix += torch.einsum("kjm,ki->mikj", cross, open_ones)
        identity = torch.eye(len(self.free), dtype=torch.float64, device=points.device)
        matrix += torch.einsum("mk,ij->mikj", delta @ delta.mT, identity)

        def along(values: Tensor) -> Tensor:
            rows = values.view_as(self.rows)
            turned = (turn @ (inputs @ rows.mT).unsqueeze(-1)).squeeze(-1)
            return scale * (turned + delta @ rows @ self.free.mT).flatten()

        return scale**2 * matrix.reshape(len(flat), len(flat)), along

    def _turns(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """δ of the first layer, and how it changes with each open coordinate of its point, (points, open, neurons)."""
        head = self.head
        values, logits = head.forward(inputs)
        deltas = head.backward(values, head.loss_vectors(logits, labels))
        moves = [(self.free @ head.weights[0].mT).expand(self.count, -1, -1)]  # of what each layer puts out
        for index in range(1, len(head.weights)):
            moves.append(product(moves[-1] * head.slopes(values, index).unsqueeze(1), head.weights[index].mT))
        chances = logits.softmax(-1).unsqueeze(1)
        turn = head.sign * chances * (moves[-1] - (chances * moves[-1]).sum(-1, keepdim=True))
        for index in range(len(head.weights) - 1, 0, -1):
            bent = head.activation.curvature(head.before(values, index - 1)) * product(
                deltas[index], head.weights[index]
            )
            turn = product(turn, head.weights[index]) * head.slopes(values, index).unsqueeze(1)
            turn = turn + bent.unsqueeze(1) * moves[index - 1]
        return deltas[0], turn


_MORE, _CHEAP = 16, 64  # times as many starts where little says where inputs lie; fewer of many records


def fit_in_span(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    even: bool = False,
    seed: int = 0,
    slots: int = 32,
    starts: int = 4,
) -> Proposal:
    """Recover the whole batch of one gradient, or nothing.

    Errors of its numbers are `precision` relative to each or, if they are `even`, to the largest. At most `slots`
    samples are looked for, as the work grows with the fourth power of their number; `starts` random points are tried.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    span = SpanEquations.of(head, layers, precision, even=even, most=slots)
    if span is None or not 1 <= span.count <= slots:
        return Proposal.nothing(layers)
    if span.ones is None or head.classes == 2:  # little says where inputs lie
        starts *= max(1, min(_MORE, _CHEAP // span.count))
    fits = (0.3 * precision if precision > HALF else max(1e-10, 1e2 * precision)) ** 2
    span, found = span.best_of(
        starts, lambda one: one.solve(generator), fits=fits, what="solving within the span"
    )
    if found.left > FITS:
        return Proposal.nothing(layers)
    share = found.scale / span.count
    inputs = span.coordinates(found.points).squeeze(1) @ span.directions[:, : layers[0][0].shape[1]]
    named = Proposal(inputs, found.labels, inputs.new_full((span.count,), share))
    if head.activation.is_relu:
        return reconstruct(head, layers, precision=precision, slots=slots, start=named).records
    return refined(head, Remainder.of(head, layers, named), precision).records
