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
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.attacks.gradients.candidates import Layers
from remanence.attacks.gradients.dense_layers import DenseHead
from remanence.attacks.gradients.exact import Recovered, reconstruct, reconstruct_at_any_scale
from remanence.attacks.gradients.exclusive_neurons import (
    dense_mechanism,
    recovered_records,
    refuse_steps,
    whole_gradient_head,
)
from remanence.data.releases import Gradient
from remanence.references import REMANENCE
from remanence.scale.progress import track

_SOFT = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.008, 0.004, 0.002, 0.001)  # of the spread of what enters
_ITERATIONS, _LAST = 6, 30  # for each softness, and for the function itself
_DAMPING, _EASED, _RAISED, _LEAST_DAMPING, _HOPELESS = 1e-2, 1 / 5, 4.0, 1e-10, 1e8
_NOTHING = 1e-26  # a residual (a square) below is zero
_SETTLED = 0.999  # a step that leaves more than this share of the residual is the last
_STARTING = 0.5  # the spread of the first points, relative to what the neurons' quotients have
_COARSE = 1e-4  # precisions above hide the rank
_FITS = 1e-2  # a residual above which nothing is proposed


@final
@dataclass(frozen=True)
class SpanFit(Attack[Gradient]):
    """Solve for the whole batch within the span of the first layer's gradient.

    Any of the usual functions may stand between the layers. The batch must be smaller than the input and the first
    layer. `starts` random points are tried; at most `slots` samples are looked for, as the work grows with the fourth
    power of their number.
    """

    slots: int = 32
    starts: int = 2
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
    head: DenseHead, layers: Layers, *, precision: float, seed: int = 0, slots: int = 32, starts: int = 2
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
    span = None if precision > _COARSE else _Span.of(head, layers, precision)
    best: tuple[float, Tensor, Tensor, float] | None = None
    if span is not None and 1 <= span.size <= slots:
        for attempt in track(range(starts), total=starts, what="solving within the span"):
            found = span.solve(generator, scale_is_known=not attempt % 2)
            best = found if best is None or found[0] < best[0] else best
            if best[0] < max(1e-10, 1e2 * precision) ** 2:
                break
    rows = layers[0][0]
    if best is None or best[0] > _FITS or span is None:
        return Recovered(
            rows.new_zeros(1, 0, rows.shape[-1]),
            torch.zeros(1, 0, dtype=torch.int64, device=rows.device),
            rows.new_zeros(1, 0),
            rows.new_ones(1, len(layers)),
        )
    _, points, labels, share = best
    inputs = points @ span.directions[:, : rows.shape[-1]]
    named = Recovered(
        inputs[None], labels[None], rows.new_full((1, span.size), share), rows.new_ones(1, len(layers))
    )
    if not head.activation.is_relu:
        return named
    return reconstruct(head, layers, precision=precision, slots=slots, start=named)


@dataclass(frozen=True)
class _Span:
    """The equations of one gradient, in coordinates of the span of its rows."""

    head: DenseHead  # its first layer reads coordinates
    directions: Tensor  # (size, numbers and the bias's column, if there is one)
    rows: Tensor  # (neurons, size): the gradient in coordinates, its norm 1
    norm: Tensor
    ones: Tensor | None  # (size,), the bias's column
    last: tuple[Tensor, Tensor | None]  # of the last layer: they tell the labels

    @property
    def size(self) -> int:
        return len(self.directions)

    @classmethod
    def of(cls, head: DenseHead, layers: Layers, precision: float) -> _Span | None:
        (weight, bias), numbers = layers[0], layers[0][0].shape[-1]
        rows = weight[0] if bias is None else torch.cat([weight[0], bias[0][:, None]], 1)
        _, sizes, right = torch.linalg.svd(rows, full_matrices=False)
        size = int((sizes > 64 * precision * sizes[0]).sum())
        if not sizes[0] or size >= min(rows.shape):
            return None  # the span is everything, and says nothing
        directions = right[:size]
        inside = rows @ directions.mT
        first = head.weights[0] @ directions[:, :numbers].mT
        return cls(
            replace(head, weights=(first, *head.weights[1:])),
            directions,
            inside / inside.norm(),
            inside.norm(),
            None if bias is None else directions[:, numbers],
            (layers[-1][0][0], None if layers[-1][1] is None else layers[-1][1][0]),
        )

    def solve(
        self, generator: torch.Generator, *, scale_is_known: bool
    ) -> tuple[float, Tensor, Tensor, float]:
        """The residual (a square), the points, their labels and the share of each, from one random start.

        While kinks are bent, a share that is free drifts: it is kept at one over the batch size if the gradient is
        that of a mean.
        """
        points, share = self._start(generator), 1 / self.size
        labels = self._labels(points)
        soft = () if self.head.activation.function is not None else _SOFT
        value = torch.inf
        for stage, softness in enumerate((*soft, 0.0)):
            spread = [
                self.head.before(self.head.forward(points)[0], i).std() for i in range(len(self.head.widths))
            ]
            head = replace(self.head, activation=self.head.activation.softened(softness * float(min(spread))))
            fixed = share if softness and scale_is_known else None
            points, value, share = self._descend(head, points, labels, fixed)
            if not stage:  # predictions mean something now
                labels = self._labels(points)
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

    def _labels(self, points: Tensor) -> Tensor:
        """Labels by counts: the last bias's gradient is the sum of predictions less the number of each class."""
        values, logits = self.head.forward(points)
        weight, bias = self.last
        if bias is None:
            middle = values[-1].mean(0)
            bias = weight @ middle / middle.square().sum()
        expected = logits.softmax(-1).sum(0)
        counts = expected - self.size * bias
        if (counts - counts.round()).abs().max() > 0.35 or abs(float(counts.round().sum()) - self.size) > 0.5:
            share = (bias / expected).max()  # a class that nobody has, at a scale that nobody knows
            counts = expected - bias / share
        found = []
        for _ in range(self.size):  # the largest remainder
            found.append(int(counts.argmax()))
            counts[found[-1]] -= 1
        return torch.tensor(sorted(found), device=points.device)

    def _descend(
        self, head: DenseHead, points: Tensor, labels: Tensor, fixed: float | None
    ) -> tuple[Tensor, float, float]:
        """Damped Gauss–Newton steps in the points and, unless it is fixed, the share of all."""
        made = self._made(head, points, labels)
        share = float((self.rows * made).sum() / made.square().sum().clamp(min=1e-300))
        share = fixed or (share if share > 0 else 1 / self.size)
        value, damping = self._value(points, made, share), _DAMPING
        for _ in range(_ITERATIONS if head.activation.softness else _LAST):
            matrix, slope = self._normal(head, points, labels, share)
            if fixed is not None:
                matrix[-1, :-1] = matrix[:-1, -1] = slope[-1] = 0
            while damping < _HOPELESS:
                damped = matrix + torch.diag(damping * (matrix.diagonal() + 1e-12))
                factor, failed = torch.linalg.cholesky_ex(damped)
                step = torch.cholesky_solve(slope[:, None], factor).squeeze(1)
                moved, shared = points - step[:-1].view_as(points), share - float(step[-1])
                after = self._value(moved, self._made(head, moved, labels), shared)
                if not failed and after < value:
                    break
                damping *= _RAISED
            else:
                break
            settled = after > _SETTLED * value or after < _NOTHING
            points, share, value, damping = moved, shared, after, max(damping * _EASED, _LEAST_DAMPING)
            if settled:
                break
        return points, value, share

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
            moves.append((moves[-1] * head.slopes(values, index).unsqueeze(1)) @ head.weights[index].mT)
        chances = logits.softmax(-1).unsqueeze(1)
        turn = chances * (moves[-1] - (chances * moves[-1]).sum(-1, keepdim=True))
        for index in range(len(head.weights) - 1, 0, -1):
            bent = head.activation.curvature(head.before(values, index - 1)) * (
                deltas[index] @ head.weights[index]
            )
            turn = (turn @ head.weights[index]) * head.slopes(values, index).unsqueeze(1)
            turn = turn + bent.unsqueeze(1) * moves[index - 1]
        return turn

    def _made(self, head: DenseHead, points: Tensor, labels: Tensor) -> Tensor:
        """The gradient of points with a share of 1."""
        return self._derivatives(head, points, labels).mT @ points / self.norm

    def _off(self, points: Tensor) -> Tensor:
        """By how much the last number of each is not 1."""
        return points.new_zeros(self.size) if self.ones is None else points @ self.ones - 1

    def _value(self, points: Tensor, made: Tensor, share: float) -> float:
        """The square of what is left."""
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
