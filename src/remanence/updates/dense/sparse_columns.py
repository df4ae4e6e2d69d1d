"""Whole batches from the low rank and the sparsity of a dense layer's gradient, without any exclusive neuron.

The first layer's gradient is G = A X: column m of A holds sample m's derivatives δ_m / M and is zero wherever the
sample does not activate the neuron; row m of X is its input, and a 1 for the bias. With an orthonormal basis U of G's
columns and K = Uᵀ G there is one invertible Q with A = U Q and X = Q⁻¹ K. An input determines which neurons are on, so
each row of Q⁻¹ says what its sample's column may be, up to one number for each logit; and all columns together give Q⁻¹
by least squares. From a random start the two are made to agree, which brings most samples close to the truth. A column
must also vanish where its input clearly switches neurons off: the ℓ₁-norm settles that exactly. Columns that vanish on
enough rows are kept, and make the rest easier. The bias gradient fixes the scales. Samples are named only if their
derivatives, recomputed, are their columns.

(Dimitrov et al. 2024, SPEAR, draw rows until the submatrix of some has a sample that activates none, about 2^b draws.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remanence.updates.dense.layers import DenseHead, Layer, Layers, product
from remanence.updates.dense.peeling import (
    Proposal,
    Remainder,
    fit_scales,
    reconstruct,
    reconstruct_at_any_scale,
    tolerance_of,
)
from remanence.updates.rounding import HALF
from remanence.updates.span import Decomposed

_SLOTS, _ROUNDS = 256, 24  # records that are looked for at most, and rounds of the search
_STEPS = 25  # towards agreement, before columns are looked at again; twice as many at first
_ROWS = 3  # clearly switched-off rows that a column is found from, times the batch size
_REWEIGHTINGS, _FLOOR, _COOLING = 15, 0.5, 0.7
_ZERO = 1e-3  # relative to the mean entry: an entry below counts as zero
_FAINT = 1e-2  # rows this small are left out: normalised, their rounding errors would be magnified
_VANISHES, _AS_MANY = 0.65, 0.85  # shares of the rows that should vanish: of those that do, and in number
_MORE = 1.2  # times the batch size: on this many rows a column must vanish; any direction can on fewer
_CLOSE = 0.85  # the cosine between a column and what the network allows, from which it is worth polishing
_OWN = 0.5  # the weight of a column itself, in every other step: it distinguishes samples of one label
_RIDGE = 1e-2  # on rows of Q⁻¹ that are nearly dependent
_LOGITS = 16  # that a column is a combination of, at most
_AT_ONCE = 2**24  # numbers in the largest tensor of a chunk
_RESTART, _PATIENCE = 3, 6  # rounds in vain after which points are drawn anew, and the search is given up


@final
@dataclass(frozen=True)
class SparseColumns:
    """The columns of one gradient, in coordinates of the space that they span."""

    head: DenseHead  # its first layer reads rows of Q⁻¹
    basis: Tensor  # (neurons, size), orthonormal
    inside: Tensor  # (size, numbers and the bias's column, if there is one)
    ones: Tensor | None  # (size,), the bias's column
    live: Tensor  # (neurons,): rows that are not faint
    precision: float

    @property
    def size(self) -> int:
        """The batch size: the rank of the gradient."""
        return self.basis.shape[1]

    @classmethod
    def of(
        cls,
        head: DenseHead,
        rows: Tensor,
        bias: Tensor | None,
        *,
        precision: float,
        even: bool,
        most: int,
    ) -> SparseColumns | None:
        """From a layer's gradient; None where its rank is above `most` or no lower than it could be."""
        both = rows if bias is None else torch.cat([rows, bias[:, None]], 1)
        if not both.any():
            return None
        directions = Decomposed.of(both, even=even, most=most).at(precision).directions
        if len(directions) > most or len(directions) >= min(both.shape):
            return None
        basis = torch.linalg.qr(both @ directions.mT).Q
        inside = basis.mT @ both
        first = product(inside[:, : rows.shape[1]], head.weights[0].mT).mT.to(inside)  # (neurons, size)
        if bias is not None and head.biases[0] is not None:
            first = first + head.biases[0][:, None] * inside[:, -1]
        sizes = basis.norm(dim=1)
        return cls(
            replace(head, weights=(first, *head.weights[1:]), biases=(None, *head.biases[1:])),
            basis,
            inside,
            None if bias is None else inside[:, -1],
            sizes > _FAINT * sizes.mean(),
            precision,
        )

    def search(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Columns of Q, and which of them are settled: they vanish where they should."""
        size = self.size
        random = torch.randn(_ROUNDS, size, size, generator=generator, device=generator.device)
        random = random.to(self.basis)
        known = self.basis.new_zeros(size, size)
        settled = torch.zeros(size, dtype=torch.bool, device=known.device)
        points, idle = torch.linalg.qr(random[0])[0], 0
        for number in range(_ROUNDS):
            points, columns, fit = self._agree(points, known, settled, _STEPS * (1 if number else 2))
            free = (~settled).nonzero().squeeze(1)
            worth = fit[free] >= min(_CLOSE, float(fit[free].quantile(0.75)))
            found = 0
            for chosen in free[worth].split(max(1, _AT_ONCE // (_ROWS * size**2))):
                polished, fine = self._polish(points[chosen], columns[:, chosen].mT)
                for place, column, good in zip(chosen.tolist(), polished, fine.tolist(), strict=True):
                    if good and (column @ known[:, settled]).abs().lt(1 - 1e-6).all():
                        known[:, place], settled[place] = column, True
                        found += 1
                    elif good:  # the same sample a second time: look elsewhere
                        points[place] = random[number, place]
            idle = 0 if found else idle + 1
            if settled.all() or idle >= _PATIENCE:
                break
            if idle >= _RESTART:
                points = torch.where(settled[:, None], points, random[number])
        return known, settled

    def _agree(
        self, points: Tensor, known: Tensor, settled: Tensor, steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of Q⁻¹, columns of Q, and the cosine between each column and what the network allows."""
        identity = torch.eye(self.size, dtype=points.dtype, device=points.device)

        def turned(points: Tensor) -> tuple[Tensor, Tensor]:
            points = normalize(points, dim=1)
            columns = torch.linalg.solve(points.mT @ points + _RIDGE * identity, points.mT)
            columns = torch.where(settled, known, normalize(columns, dim=0))
            if self.ones is not None:
                side = points @ self.ones < 0
            else:  # a column lies where the neurons are on
                on = (points @ self.head.weights[0].mT > 0).mT
                energy = (self.basis @ columns).square()
                side = (energy * on).sum(0) < energy.sum(0) / 2
            return torch.where(side[:, None], -points, points), columns

        fit = points.new_zeros(self.size)
        for number in range(steps):
            points, columns = turned(points)
            made = self.basis @ columns  # (neurons, size)
            allowed = self._allowed(points, made)
            fit = (allowed * made).sum(0) / made.norm(dim=0) / allowed.norm(dim=0).clamp(min=1e-300)
            if number % 2:
                on = (points @ self.head.weights[0].mT > 0).mT
                allowed = normalize(allowed, dim=0) + _OWN * made * on
            allowed = normalize(torch.where(settled, made, allowed), dim=0)
            points = torch.linalg.solve(allowed.mT @ allowed + 1e-6 * identity, allowed.mT @ self.basis)
        return *turned(points), fit

    def _allowed(self, points: Tensor, made: Tensor) -> Tensor:
        """The closest vector to each column among the derivatives that the logits have at its point."""
        if self.ones is not None:  # the last number of an input is 1
            height = points @ self.ones
            points = points / height.clamp(min=0.1 * float(height.abs().median()))[:, None]
        classes = self.head.classes
        centred = torch.eye(classes, dtype=made.dtype, device=made.device) - 1 / classes
        few = min(classes, _LOGITS)
        parts = []
        at_once = max(1, _AT_ONCE // (classes * max(self.head.widths)))
        for own, column in zip(points.split(at_once), made.mT.split(at_once), strict=True):
            values, _ = self.head.forward(own)
            turns = self.head.backward([value.unsqueeze(1) for value in values], centred[None])[0]
            along = (turns @ column.unsqueeze(-1)).squeeze(-1)  # (points, classes)
            if few < classes:
                best = (along / turns.norm(dim=-1).clamp(min=1e-300)).abs().topk(few).indices
                along = along.gather(1, best)
                turns = turns.gather(1, best.unsqueeze(-1).expand(-1, -1, turns.shape[-1]))
            gram = turns @ turns.mT
            level = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp(min=1e-300)
            gram = gram + 1e-8 * level * torch.eye(few, dtype=gram.dtype, device=gram.device)
            weights = torch.linalg.solve(gram, along.unsqueeze(-1))
            parts.append((turns.mT @ weights).squeeze(-1))
        return torch.cat(parts).mT

    def _polish(self, points: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Columns that vanish where their points clearly switch neurons off, and whether they do so as often as needed.

        Reweighted inverse iteration ends at a minimum of the ℓ₁-norm on these rows, whatever the few of them hold that
        should not be among them.
        """
        rows = normalize(self.basis[self.live], dim=1)
        before = points @ self.head.weights[0][self.live].mT  # (columns, rows)
        before = before / self.head.weights[0][self.live].norm(dim=1)
        clear = before.topk(min(_ROWS * self.size, len(rows)), largest=False).indices
        own = rows[clear]  # (columns, some rows, size)
        counts = (before.gather(1, clear) < 0).to(own)
        floor = _FLOOR
        ridge = 1e-12 * torch.eye(self.size, dtype=own.dtype, device=own.device)
        for _ in range(_REWEIGHTINGS):
            entries = (own @ columns.unsqueeze(-1)).squeeze(-1).abs()
            weights = counts / (entries / entries.mean(1, keepdim=True)).clamp(min=floor)
            system = (own * weights.unsqueeze(-1)).mT @ own + ridge
            columns = normalize(torch.linalg.solve_ex(system, columns).result.nan_to_num(), dim=1)
            floor *= _COOLING
        least = min(_ZERO, 1e3 * self.precision)  # what rounding makes of a zero
        for threshold in (10 * _ZERO, _ZERO, max(1e-5, least), max(1e-8, least)):
            entries = (columns @ rows.mT).abs()
            vanish = entries < threshold * entries.mean(1, keepdim=True)
            enough = vanish.sum(1) > _MORE * self.size
            exact = [
                torch.linalg.eigh(rows[some].mT @ rows[some]).eigenvectors[:, 0] for some in vanish[enough]
            ]
            columns = columns.clone()
            if exact:
                columns[enough] = torch.stack(exact)
        entries = (columns @ rows.mT).abs()
        vanish, off = entries < _ZERO * entries.mean(1, keepdim=True), before < 0
        expected = off.sum(1)
        fine = ((vanish & off).sum(1) >= _VANISHES * expected) & (vanish.sum(1) >= _AS_MANY * expected)
        return columns, fine & (vanish.sum(1) > _MORE * self.size)


def reconstruct_low_rank(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    even: bool = False,
    seed: int = 0,
    first: Remainder | None = None,
) -> Remainder:
    """Recover a gradient's batch.

    Only a batch that exclusive neurons do not give away whole (`first`, where it is known) is searched, and what the
    search finds in part is peeled on from there.
    """
    first = first or reconstruct_at_any_scale(head, layers, precision=precision, slots=_SLOTS)
    if first.is_complete(precision) or precision > HALF:  # half precision hides which entries are zero
        return first
    columns = SparseColumns.of(head, *layers[0], precision=precision, even=even, most=_SLOTS)
    if columns is None:
        return first
    generator = torch.Generator(device=columns.basis.device).manual_seed(seed)
    found, settled = columns.search(generator)
    if not settled.all():
        return first
    directions = columns.basis[columns.live] @ found
    named = _solve(head, layers[0], columns.live, directions, tolerance_of(precision))
    if len(named) <= len(first.records):
        return first
    return reconstruct(head, layers, precision=precision, slots=_SLOTS, start=named)


def _solve(head: DenseHead, first: Layer, live: Tensor, directions: Tensor, tolerance: float) -> Proposal:
    """Inputs, scales and labels from the columns of A up to scale; only samples that explain their column count."""
    rows, bias, rank = first[0][live], first[1], directions.shape[1]
    inputs = torch.linalg.lstsq(directions, rows).solution  # up to the scales of the columns
    if bias is not None:
        scales = torch.linalg.lstsq(directions, bias[live].unsqueeze(1)).solution.squeeze(1)
        inputs = inputs / scales.unsqueeze(1)
        implied = head.by_label(inputs)[1][..., live]
        target = head.sign * (directions * scales).mT.unsqueeze(1)  # (samples, 1, neurons)
        share = (implied * target).sum(-1) / implied.square().sum(-1)  # of each label
        off = (implied * share.unsqueeze(-1) - target).norm(dim=-1) / target.norm(dim=-1)
        deviation, labels = off.where(share > 0, torch.inf).min(-1)
        shares = share.gather(1, labels[:, None]).squeeze(1)
    else:
        columns = directions.new_zeros(rank, len(live))
        columns[:, live] = directions.mT
        both = torch.cat([inputs, -inputs]), torch.cat([columns, -columns])
        scale, labels, deviation = fit_scales(head, both[0], head.sign * both[1], down_to=0)
        side = (deviation[:rank] > deviation[rank:]).long() * rank + torch.arange(rank, device=rows.device)
        inputs = both[0][side] * scale[side].unsqueeze(1)
        labels, deviation = labels[side], deviation[side]
        values, logits = head.forward(inputs)
        delta = head.backward(values, head.loss_vectors(logits, labels))[0]
        shares = (delta * both[1][side] / scale[side].unsqueeze(1)).sum(-1) / delta.square().sum(-1)
    proven = (deviation < tolerance) & inputs.isfinite().all(-1) & (shares > 0)
    return Proposal(inputs, labels, shares)[proven]
