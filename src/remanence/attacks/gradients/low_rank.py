"""Whole batches from the low rank and the sparsity of a dense layer's gradient, without any exclusive neuron.

The first layer's gradient is G₀ = A X: column m of A holds sample m's derivatives δ_m / M, row m of X its input.
Its rank is the batch size b, so any basis L of its column space gives A = L Q for one invertible Q. A column of A
is zero wherever its sample does not activate the neuron, on about half of the rows, and no other direction of that
space is anything like as sparse. Dimitrov et al. 2024 (SPEAR) find these directions by drawing b − 1 rows and hoping
that one sample activates none of them, which takes about 2^(b−1) draws. Here they are minima of the ℓ₁-norm on the
sphere, found from many random starts at once by iteratively reweighted inverse iteration (the successor of 2025
learns the sparse dictionary too, by other means). With A known, X = A⁺ G₀; the bias gradient Σ_m a_m fixes the
scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.attacks.gradients.candidates import fit_scales
from remanence.attacks.gradients.dense_layers import DenseHead, Layers
from remanence.attacks.gradients.exact import Recovered, reconstruct, reconstruct_at_any_scale
from remanence.attacks.gradients.exclusive_neurons import (
    dense_mechanism,
    recovered_records,
    whole_gradient_head,
)
from remanence.data.releases import Gradient
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.references import DIMITROV_2024
from remanence.scale.progress import track

_STEPS = 100
_COOLING = 0.92  # per step; slower cooling finds more: 16 of 100 starts at batch 32, where 0.85 finds 10
_ZERO = 1e-3  # relative to the mean entry: an entry below counts as zero until the direction is polished
_FAINT = (
    1e-2  # rows this small are left out: bringing all rows to one size would magnify their rounding errors
)
_NUMBERS_AT_ONCE = 2**26
_HOPELESS = (
    (48, 1 / 8),
    (256, 1 / 2),
)  # starts after which a search is given up that has found less than this share
_LOOSELY = 0.6  # by how much a sample's derivatives may have changed in the course of several steps
_COARSE = 1e-4  # precisions above hide which entries are zero


@final
@dataclass(frozen=True)
class LowRank(Attack[Gradient]):
    """Find the sparse directions of the gradient's column space, one per sample; no neuron need be exclusive.

    The batch must be smaller than the first layer's width and its inputs independent. `starts` bounds the
    search; at most `slots` samples are returned.
    """

    slots: int = 64
    starts: int = 4096
    info: ClassVar[AttackInfo] = AttackInfo(
        "low-rank",
        "Finds the sparse directions of the first layer's gradient, one per sample of the batch.",
        "the gradient of one step on a fully connected ReLU network",
        "one gradient",
        DIMITROV_2024.at("by ℓ₁ minimisation"),
    )

    def check(self, knowledge: Knowledge) -> None:
        """A fully connected ReLU network."""
        self._subject(knowledge)

    def _subject(self, knowledge: Knowledge) -> tuple[SharedGradient, DenseHead]:
        mechanism, head = dense_mechanism(knowledge, self.info)
        return (mechanism, head) if mechanism.local_steps > 1 else whole_gradient_head(knowledge, self.info)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """Nothing is to be learnt; one seed serves every release, so that trials stay independent."""
        mechanism, head = self._subject(knowledge)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        search = reconstruct_low_rank if mechanism.local_steps == 1 else unmixed

        def attack(release: Gradient) -> Reconstruction:
            own = head.to(next(iter(release.tensors.values())).device)
            layers = own.layers_of(release.tensors)
            found = search(
                own, layers, precision=mechanism.precision, seed=seed, slots=self.slots, starts=self.starts
            )
            return recovered_records(found, mechanism)

        return attack


def reconstruct_low_rank(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    seed: int = 0,
    slots: int = 64,
    starts: int = 4096,
) -> Recovered:
    """Recover each gradient's batch; `starts` bounds the search, which ends early once all is explained.

    Only batches that exclusive neurons do not give away whole are searched, and what the search finds in part
    is peeled on from there.
    """
    first = reconstruct_at_any_scale(head, layers, precision=precision, slots=slots)
    complete = first.is_complete(precision)
    for trial in track(range(len(complete)), total=len(complete), what="searching sparse directions"):
        if complete[trial] or precision > _COARSE:
            continue
        own: Layers = [(w[trial : trial + 1], None if b is None else b[trial : trial + 1]) for w, b in layers]
        generator = torch.Generator(device=own[0][0].device).manual_seed(seed)
        found = _one_batch(head, own, precision, generator, slots, starts)
        if found.found.sum() > first.found[trial].sum():
            first = first.replaced(
                trial, reconstruct(head, own, precision=precision, slots=slots, start=found)
            )
    return first


def unmixed(
    head: DenseHead, layers: Layers, *, precision: float, slots: int = 64, starts: int = 1024, seed: int = 0
) -> Recovered:
    """Inputs behind updates of several steps: the span and the zeros survive, what a step makes of them does not.

    Labels and shares are those that come closest at the weights before the first step.
    """
    found = []
    for trial in range(len(layers[0][0])):
        own: Layers = [(w[trial : trial + 1], None if b is None else b[trial : trial + 1]) for w, b in layers]
        generator = torch.Generator(device=own[0][0].device).manual_seed(seed)
        found.append(
            _one_batch(head, own, precision, generator, slots, starts, tolerance=_LOOSELY).padded(slots)
        )
    return Recovered(
        *(torch.cat([getattr(one, name) for one in found]) for name in Recovered.__dataclass_fields__)
    )


def _one_batch(
    head: DenseHead,
    layers: Layers,
    precision: float,
    generator: torch.Generator,
    slots: int,
    starts: int,
    tolerance: float | None = None,
) -> Recovered:
    rows = layers[0][0][0]
    basis = _column_space(rows, precision, slots, generator)  # (neurons, rank)
    rank = basis.shape[1]
    empty = Recovered(
        rows.new_zeros(1, 0, rows.shape[1]),
        torch.zeros(1, 0, dtype=torch.int64, device=rows.device),
        rows.new_zeros(1, 0),
        rows.new_ones(1, len(layers)),
    )
    if not 1 <= rank <= slots:
        return empty
    sizes = basis.norm(dim=1)
    live = sizes > _FAINT * sizes.mean()
    level, _ = torch.linalg.qr(basis[live] / sizes[live, None])  # rows of equal weight count alike
    columns, best = rows.new_zeros(0, rank), empty
    largest = max(16, _NUMBERS_AT_ONCE // max(level.shape[0], rank**2))
    count, tried = min(16, largest), 0
    while tried < starts:
        tried, at_once, count = tried + count, count, min(2 * count, largest)
        columns = _distinct(
            torch.cat([columns, _sparse_directions(level, at_once, columns, precision, generator)]), level
        )
        chosen = _independent(columns, rank)
        if len(chosen) < rank:
            if any(tried >= starts and len(chosen) < share * rank for starts, share in _HOPELESS):
                break
            continue
        within = min(1e-2, max(1e-6, 1e4 * precision)) if tolerance is None else tolerance
        found = _solve(head, layers, live, (level @ chosen.mT) * sizes[live, None], within)
        best = max(best, found, key=lambda one: int(one.found.sum()))
        if best.found.sum() == rank:
            break
    return best


def _column_space(rows: Tensor, precision: float, slots: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis of the columns' span, from a random sketch; no columns where the rank is too high."""
    width = min(2 * slots, *rows.shape)
    shape = rows.shape[1], width
    sketch = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64).to(
        rows.device
    )
    left, values, _ = torch.linalg.svd(rows @ sketch, full_matrices=False)
    rank = int((values > 64 * precision * values[0]).sum())
    return left[:, : rank if rank < width else 0]


def _sparse_directions(
    level: Tensor, count: int, known: Tensor, precision: float, generator: torch.Generator
) -> Tensor:
    """Local minima of ‖level · q‖₁ on the sphere, polished to the null vector of the rows that vanish."""
    rank = level.shape[1]
    q = torch.randn(count, rank, generator=generator, device=generator.device, dtype=torch.float64).to(level)
    if 0 < len(known) < rank:
        frame = torch.linalg.qr(known.mT)[0]  # look first where nothing has been found
        q[::2] -= q[::2] @ frame @ frame.mT
    q = torch.nn.functional.normalize(q, dim=1)
    products = (level.unsqueeze(2) * level.unsqueeze(1)).flatten(1)  # (neurons, rank²)
    floor = 1.0
    for _ in range(_STEPS):
        size = (q @ level.mT).abs()
        weights = 1 / (size / size.mean(1, keepdim=True)).clamp(min=floor)
        system = (weights @ products).view(count, rank, rank)
        q = torch.nn.functional.normalize(torch.linalg.solve(system, q), dim=1)
        floor *= _COOLING
    for threshold in (_ZERO, _ZERO / 10, max(_ZERO / 10, 1e3 * precision)):
        size = (q @ level.mT).abs()
        vanish = (size < threshold * size.mean(1, keepdim=True)).to(level)
        enough = vanish.sum(1) >= rank - 1
        q = torch.linalg.eigh((vanish @ products).view(count, rank, rank)).eigenvectors[..., 0]
        q = q[enough]
        count = len(q)
    return q


def _distinct(q: Tensor, level: Tensor) -> Tensor:
    """Each direction once, the sparsest first."""
    size = (q @ level.mT).abs()
    zeros = (size < _ZERO * size.mean(1, keepdim=True)).sum(1)
    q = q[zeros.argsort(descending=True, stable=True)]
    same = (q @ q.mT).abs() > 1 - 1e-6
    return q[~same.tril(-1).any(1)]


def _independent(q: Tensor, rank: int) -> Tensor:
    """Greedily the sparsest directions that are linearly independent: a mixture of chosen ones adds nothing."""
    chosen, frame = [], q.new_zeros(q.shape[1], 0)
    for direction in q:
        rest = direction - frame @ (frame.mT @ direction)
        if rest.norm() > 1e-3:
            chosen.append(direction)
            frame = torch.cat([frame, (rest / rest.norm()).unsqueeze(1)], 1)
        if len(chosen) == rank:
            break
    return torch.stack(chosen) if chosen else q[:0]


def _solve(head: DenseHead, layers: Layers, live: Tensor, directions: Tensor, tolerance: float) -> Recovered:
    """Inputs, scales and labels from the columns of A up to scale; only samples that explain their column count."""
    rows, bias = layers[0][0][0][live], layers[0][1]
    rank = directions.shape[1]
    inputs = torch.linalg.lstsq(directions, rows).solution  # up to the scales of the columns
    if bias is not None:
        scales = torch.linalg.lstsq(directions, bias[0][live].unsqueeze(1)).solution.squeeze(1)
        inputs = inputs / scales.unsqueeze(1)
        values, logits = head.forward(inputs)
        classes = torch.eye(head.classes, dtype=torch.float64, device=rows.device)
        losses = logits.softmax(-1).unsqueeze(-2) - classes  # (samples, labels, classes)
        implied = head.backward([value.unsqueeze(-2) for value in values], losses)[0][..., live]
        target = (directions * scales).mT.unsqueeze(1)  # (samples, 1, neurons)
        share = (implied * target).sum(-1) / implied.square().sum(-1)  # of each label
        off = (implied * share.unsqueeze(-1) - target).norm(dim=-1) / target.norm(dim=-1)
        deviation, labels = off.where(share > 0, torch.inf).min(-1)
        shares = share.gather(1, labels[:, None]).squeeze(1)
    else:
        columns = directions.new_zeros(rank, len(live))
        columns[:, live] = directions.mT
        both = torch.cat([inputs, -inputs]), torch.cat([columns, -columns])
        scale, labels, deviation = fit_scales(head, *both, down_to=0)
        side = (deviation[:rank] > deviation[rank:]).long() * rank + torch.arange(rank, device=rows.device)
        inputs = both[0][side] * scale[side].unsqueeze(1)
        labels, deviation = labels[side], deviation[side]
        values, logits = head.forward(inputs)
        delta = head.backward(values, head.loss_vectors(logits, labels))[0]
        shares = (delta * both[1][side] / scale[side].unsqueeze(1)).sum(-1) / delta.square().sum(-1)
    proven = (deviation < tolerance) & inputs.isfinite().all(-1) & (shares > 0)
    return Recovered(
        inputs[proven][None],
        labels[proven][None],
        shares[proven][None],
        rows.new_ones(1, len(layers)),
    )
