"""Whole batches from the low rank and the sparsity of a dense layer's gradient, without any exclusive neuron.

The first layer's gradient is G₀ = A X: column m of A holds sample m's derivatives δ_m / M, row m of X its
input. Its rank is the batch size, and a column of A is zero wherever its sample does not activate the neuron.
`sparse_columns` finds these columns up to their scales. With A known, X = A⁺ G₀; the bias gradient Σ_m a_m
fixes the scales. Only samples whose derivatives, recomputed from what was found, are their columns are named
(after Dimitrov et al. 2024, SPEAR, whose search grows with 2^b).
"""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.scale.progress import track
from remanence.updates.candidates import fit_scales, tolerance_of
from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.peeling import Recovered, reconstruct, reconstruct_at_any_scale
from remanence.updates.sparse_columns import COARSE, ROUNDS, SLOTS, SparseColumns


def reconstruct_low_rank(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    seed: int = 0,
    slots: int = SLOTS,
    rounds: int = ROUNDS,
    first: Recovered | None = None,
) -> Recovered:
    """Recover each gradient's batch; `rounds` bounds the search, which ends early once all is explained.

    Only batches that exclusive neurons do not give away whole (`first`, where it is known) are searched, and what the
    search finds in part is peeled on from there. At most `slots` samples are returned.
    """
    if first is None:
        first = reconstruct_at_any_scale(head, layers, precision=precision, slots=slots)
    first = first.padded(slots)
    complete = first.is_complete(precision)
    for trial in track(range(len(complete)), total=len(complete), what="searching sparse directions"):
        if complete[trial] or precision > COARSE:
            continue
        own: Layers = [(w[trial : trial + 1], None if b is None else b[trial : trial + 1]) for w, b in layers]
        generator = torch.Generator(device=own[0][0].device).manual_seed(seed)
        found = _one_batch(head, own, precision, generator, slots, rounds)
        if found.found.sum() > first.found[trial].sum():
            first = first.replaced(
                trial, reconstruct(head, own, precision=precision, slots=slots, start=found)
            )
    return first


def _one_batch(
    head: DenseHead,
    layers: Layers,
    precision: float,
    generator: torch.Generator,
    slots: int,
    rounds: int,
) -> Recovered:
    (rows, bias), within = layers[0], tolerance_of(precision)
    own = None if bias is None else bias[0]
    columns = SparseColumns.of(head, rows[0], own, precision=precision, most=slots, generator=generator)
    if columns is not None:
        found, settled = columns.search(generator, rounds)
        if settled.all():
            live = columns.live
            return _solve(head, layers, live, columns.basis[live] @ found, within)
    return Recovered(
        rows.new_zeros(1, 0, rows.shape[2]),
        torch.zeros(1, 0, dtype=torch.int64, device=rows.device),
        rows.new_zeros(1, 0),
        rows.new_ones(1, len(layers)),
    )


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
