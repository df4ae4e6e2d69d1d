"""Whole batches within the span of the first layer's gradient, for any activation between the layers.

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

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.scale.progress import track
from remanence.updates.dense.layers import DenseHead, Layers, product
from remanence.updates.dense.peeling import Recovered, one_record, reconstruct
from remanence.updates.descent import descend
from remanence.updates.parts import working
from remanence.updates.span import Decomposed

_SOFT = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.008, 0.004, 0.002, 0.001)  # of the spread of what enters
_ITERATIONS, _LAST = 6, 30  # for each softness, and for the function itself
_RECOUNTS = 6  # how often labels are counted anew where the solution does not fit
_FALLS, _SETTLES = (
    0.8,
    0.1,
)  # a residual that falls by less from one softness to the next, from this one on, stands still
_STARTING = 0.5  # the spread of the first points, relative to what the neurons' quotients have
_ROUNDED = 0.25  # the deviation of a rounded number, in units of its precision
COARSE = 1e-4  # precisions above are half precision
FITS = 1e-2  # a residual above which nothing is proposed


def relabelled(labels: Tensor, counts: Tensor, logits: Tensor) -> Tensor:
    """Labels of which each class has as many as were counted, to the largest remainder; −1 is no label yet.

    A point whose class has too many gives its label up for one of which there are too few, where it leans to that.
    """
    wanted, labels = torch.zeros_like(counts), labels.clone()
    for _ in range(len(labels)):
        wanted[(counts - wanted).argmax()] += 1
    for label in range(len(counts)):
        own = (labels == label).nonzero().squeeze(1)
        surplus = len(own) - int(wanted[label])
        if surplus > 0:
            labels[own[logits[own, label].argsort()[:surplus]]] = -1
    for label in range(len(counts)):
        free = (labels < 0).nonzero().squeeze(1)
        missing = int(wanted[label]) - int((labels == label).sum())
        if missing > 0:
            labels[free[logits[free, label].argsort(descending=True)[:missing]]] = label
    return labels


@final
@dataclass(frozen=True)
class SpanEquations:
    """The equations of one gradient, in coordinates of the span of its rows."""

    head: DenseHead  # its first layer reads coordinates
    directions: Tensor  # (size, numbers and the bias's column, if there is one)
    rows: Tensor  # (neurons, size): the gradient in coordinates, its norm 1
    norm: Tensor
    ones: Tensor | None  # (size,), the bias's column
    last: tuple[Tensor, Tensor | None]  # of the last layer: they tell the labels

    @property
    def size(self) -> int:
        """The batch size: the rank of the gradient."""
        return len(self.directions)

    @classmethod
    def of(
        cls, head: DenseHead, layers: Layers, precision: float, *, even: bool = False, most: int | None = None
    ) -> SpanEquations | None:
        """From one gradient; None where its span is everything. Ranks above `most` say nothing."""
        (weight, bias), numbers = layers[0], layers[0][0].shape[-1]
        rows = weight[0] if bias is None else torch.cat([weight[0], bias[0][:, None]], 1)
        if not rows.any():
            return None
        part = Decomposed.of(rows, even=even, most=most).at(precision)
        if part.fades or part.basis.shape[1] >= min(head.independent_rows, rows.shape[1]):
            return None  # the span is everything, and says nothing
        # The equations weigh all rows alike: directions that the rounding of large ones hides are out of reach.
        _, sizes, turn = torch.linalg.svd(rows @ part.directions.mT, full_matrices=False)
        hidden = _ROUNDED * precision * (rows.norm(dim=1).max() + rows.norm(dim=0).max())
        directions = (turn @ part.directions)[sizes > hidden]
        inside = rows @ directions.mT
        first = product(directions[:, :numbers], head.weights[0].mT).mT
        last = inside if len(layers) == 1 else layers[-1][0][0]
        return cls(
            replace(head, weights=(first, *head.weights[1:])),
            directions,
            inside / inside.norm(),
            inside.norm(),
            None if bias is None else directions[:, numbers],
            (last.to(working(last)), None if layers[-1][1] is None else layers[-1][1][0]),
        )

    def solve(
        self, generator: torch.Generator, *, scale_is_known: bool
    ) -> tuple[float, Tensor, Tensor, float]:
        """The residual (a square), the points, their labels and the share of each, from one random start.

        While kinks are bent, a share that is free drifts: it is kept at one over the batch size if the gradient is
        that of a mean.
        """
        points, share = self._start(generator), 1 / self.size
        nothing = points.new_full((self.size,), -1, dtype=torch.int64)
        labels = self._relabelled(points, nothing, scale_is_known=scale_is_known)
        soft = () if self.head.activation.function is not None else _SOFT
        value, stuck = torch.inf, 0
        for softness in (*soft, *[0.0] * _RECOUNTS):
            spread = [
                self.head.before(self.head.forward(points)[0], i).std() for i in range(len(self.head.widths))
            ]
            bent = softness * float(min(spread, default=0))
            head = replace(self.head, activation=self.head.activation.softened(bent))
            fixed = share if softness and scale_is_known else None
            before = value
            points, value, share = self._descend(head, points, labels, fixed)
            # predictions mean something now
            counted = self._relabelled(points, labels, scale_is_known=scale_is_known)
            if not softness and (value < FITS**4 or torch.equal(labels, counted)):
                break
            # Where a batch is found, every sharpening halves the residual at least.
            stands_still = value > _FALLS * before and softness < _SETTLES and torch.equal(labels, counted)
            stuck = stuck + 1 if stands_still else 0
            if stuck == 2 and value > FITS**2:
                break
            labels = counted
        return value, points, labels, share

    def _start(self, generator: torch.Generator) -> Tensor:
        """Random points around the mean input that the neurons agree on best."""
        noise = torch.randn(self.size, self.size, generator=generator, dtype=torch.float64).to(self.rows)
        if self.ones is None:
            return noise
        height = self.rows @ self.ones
        middle = (height @ self.rows) / height.square().sum()
        live = height != 0
        quotients = self.rows[live] / height[live, None]
        reach = (quotients - middle).norm(dim=1).median()
        points = middle + _STARTING * reach / self.size**0.5 * noise
        return points + (1 - points @ self.ones)[:, None] * self.ones / self.ones.square().sum()

    def _relabelled(self, points: Tensor, labels: Tensor, *, scale_is_known: bool) -> Tensor:
        """Labels by counts: the last bias's gradient is the sum of predictions less the number of each class."""
        values, logits = self.head.forward(points)
        weight, bias = self.last
        if bias is None:
            middle = values[-1].mean(0)
            bias = weight @ middle / middle.square().sum()
        expected, bias = logits.softmax(-1).sum(0), self.head.sign * bias
        # At an unknown scale, some class is assumed to be absent.
        share = 1 / self.size if scale_is_known else float((bias / expected).max())
        counts = expected - bias / max(share, 1e-300)
        return relabelled(labels, counts, logits)

    def _descend(
        self, head: DenseHead, points: Tensor, labels: Tensor, fixed: float | None
    ) -> tuple[Tensor, float, float]:
        """Gauss–Newton steps in the points and, unless it is fixed, the share of all."""
        made = self._made(head, points, labels)
        share = float((self.rows * made).sum() / made.square().sum().clamp(min=1e-300))
        share = fixed or (share if share > 0 else 1 / self.size)

        def parts(at: Tensor) -> tuple[Tensor, float]:
            return at[:-1].view_as(points), float(at[-1])

        def value(at: Tensor) -> float:
            moved, shared = parts(at)
            return self._value(moved, self._made(head, moved, labels), shared)

        def normal(at: Tensor) -> tuple[Tensor, Tensor]:
            moved, shared = parts(at)
            matrix, slope = self._normal(head, moved, labels, shared)
            if fixed is not None:
                matrix[-1, :-1] = matrix[:-1, -1] = slope[-1] = 0
            return matrix, slope

        start = torch.cat([points.flatten(), points.new_tensor([share])])
        at, left = descend(start, value, normal, steps=_ITERATIONS if head.activation.softness else _LAST)
        points, share = parts(at)
        return points, left, share

    def _derivatives(self, head: DenseHead, points: Tensor, labels: Tensor) -> Tensor:
        """δ of the first layer, (points, neurons)."""
        values, logits = head.forward(points)
        return head.backward(values, head.loss_vectors(logits, labels))[0]

    def _turns(self, head: DenseHead, points: Tensor, labels: Tensor) -> Tensor:
        """How δ changes with each coordinate of its point, (points, size, neurons): forwards, then backwards."""
        values, logits = head.forward(points)
        deltas = head.backward(values, head.loss_vectors(logits, labels))
        moves = [head.weights[0].mT.expand(self.size, -1, -1)]  # of what each layer puts out
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
        return turn

    def _made(self, head: DenseHead, points: Tensor, labels: Tensor) -> Tensor:
        """The gradient of points with a share of 1."""
        return self._derivatives(head, points, labels).mT @ points / self.norm

    def _off(self, points: Tensor) -> Tensor:
        """The deviation of each point's last number from 1."""
        return points.new_zeros(self.size) if self.ones is None else points @ self.ones - 1

    def _value(self, points: Tensor, made: Tensor, share: float) -> float:
        """The squared residual."""
        return float((self.rows - share * made).square().sum() + self._off(points).square().sum())

    def _normal(self, head: DenseHead, points: Tensor, labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """JᵀJ and Jᵀ times the residual, J being the derivative in all points and the share.

        A move v of point m changes its part by (T_m v) c_mᵀ + δ_m vᵀ, where T_m is the derivative of δ_m: products of
        such terms for all pairs of points are sums of products of small matrices.
        """
        size = self.size
        delta, turn = self._derivatives(head, points, labels), self._turns(head, points, labels)
        made, scale = delta.mT @ points / self.norm, share / self.norm

        def along(rows: Tensor) -> Tensor:
            """Products of the gradient's change by each move with some rows."""
            return scale * (torch.einsum("min,nj,mj->mi", turn, rows, points) + delta @ rows)

        flat = turn.flatten(0, 1)
        matrix = (flat @ flat.mT).view(size, size, size, size) * (points @ points.mT)[:, None, :, None]
        cross = turn @ delta.mT
        matrix += torch.einsum("mik,mj->mikj", cross, points)
        matrix += torch.einsum("kjm,ki->mikj", cross, points)
        identity = torch.eye(size, dtype=torch.float64, device=points.device)
        matrix += torch.einsum("mk,ij->mikj", delta @ delta.mT, identity)
        matrix *= scale**2
        rest = self.rows - share * made
        slope = -along(rest)
        if self.ones is not None:
            matrix += torch.einsum("mk,i,j->mikj", identity, self.ones, self.ones)
            slope = slope + self._off(points)[:, None] * self.ones
        shares = along(made).flatten()[:, None]
        both = torch.cat([matrix.reshape(size**2, size**2), shares], 1)
        last = torch.cat([shares.squeeze(1), made.square().sum()[None]])
        return torch.cat([both, last[None]]), torch.cat([slope.flatten(), -(made * rest).sum()[None]])


_POLISHES = 4
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
) -> Recovered:
    """Recover the whole batch of one gradient, or nothing.

    Errors of its numbers are `precision` relative to each or, if they are `even`, to the largest. At most `slots`
    samples are looked for, as the work grows with the fourth power of their number; `starts` random points are tried.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    span = SpanEquations.of(head, layers, precision, even=even, most=slots)
    if len(layers) == 1 and layers[0][1] is not None and (span is None or span.size == 1):
        return one_record(head, layers)
    best: tuple[float, Tensor, Tensor, float] | None = None
    if span is not None and 1 <= span.size <= slots:
        if span.ones is None or head.classes == 2:  # little says where inputs lie
            starts *= max(1, min(_MORE, _CHEAP // span.size))
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
    """The inputs, refined by solving with the whole first layer, as long as its residual decreases."""
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
