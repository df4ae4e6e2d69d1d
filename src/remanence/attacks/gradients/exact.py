"""Exact reconstruction of a batch from its average gradient, sample by sample, with a residual that proves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.candidates import Candidates, Layers, find_candidates
from remanence.attacks.gradients.dense_layers import DenseHead

_ROUNDS = 64
_REFINEMENTS = 3
_NOISE = 256  # how many rounding errors a neuron's gradient must exceed to be looked at again after peeling


@final
@dataclass(frozen=True)
class Recovered:
    """What a batch of gradients gave away; empty slots are zeros with the label −1."""

    inputs: Tensor  # (trials, slots, numbers), what entered the first dense layer
    labels: Tensor  # (trials, slots)
    batch_size: Tensor  # (trials,), 0 where nothing was found to infer it from
    unexplained: Tensor  # (trials, layers): the share of each layer's gradient that is left, by norm

    @property
    def found(self) -> Tensor:
        """Which slots hold a sample, `(trials, slots)`."""
        return self.labels >= 0

    def replaced(self, trial: int, other: Recovered) -> Recovered:
        """The same with one trial taken from a result of a single one."""
        parts = {name: getattr(self, name).clone() for name in self.__dataclass_fields__}
        for name, values in parts.items():
            values[trial] = getattr(other, name)[0]
        return Recovered(**parts)


def reconstruct(
    head: DenseHead,
    layers: Layers,
    *,
    precision: float,
    slots: int = 64,
    peel: bool = True,
    start: Recovered | None = None,
) -> Recovered:
    """Recover every sample that has an exclusive neuron in the first layer; then peel and look again.

    The gradient of what was recovered is subtracted, so that neurons which the recovered samples shared with
    one other become exclusive to that one. `precision` is the rounding error of the numbers in which the
    gradient was computed: 1.2e-7 for float32, 2.2e-16 for float64. A batch that is recovered whole is refined
    by least squares over all neurons. `start` is what another attack has recovered already.
    """
    tolerance = min(1e-2, max(1e-6, 1e4 * precision))
    head.require_readable()
    trials, _, numbers = layers[0][0].shape
    device = layers[0][0].device
    inputs = torch.zeros(trials, 0, numbers, dtype=torch.float64, device=device)
    labels = torch.zeros(trials, 0, dtype=torch.int64, device=device)
    sizes = torch.zeros(trials, dtype=torch.int64, device=device)
    left, level = layers, layers[0][0].abs().amax(-1)
    live = level > 0
    if start is not None:
        (inputs, labels), sizes = _compact(start.inputs, start.labels, slots), start.batch_size
        left = _subtract(head, left, inputs, labels, sizes)
        live = (left[0][0].abs().amax(-1) > _NOISE * precision * level) & (sizes > start.found.sum(1))[
            :, None
        ]
    for _ in range(_ROUNDS if peel else 1):
        candidates = find_candidates(head, left, live, precision)
        candidates = candidates[candidates.deviation < tolerance]
        sizes = _vote(candidates, sizes, tolerance)
        # Half a sample is the most that rounding may excuse: beyond that the batch size proves nothing.
        excuse = torch.minimum(tolerance + candidates.slack, 0.5 / sizes[candidates.trial].clamp(min=1))
        agreed = (candidates.batch_size / sizes[candidates.trial] - 1).abs() < excuse.clamp(min=tolerance)
        new = _merge(head, left[0][0], candidates[agreed], trials, tolerance)
        new = _compact(*_unseen(inputs, *new, tolerance), slots)
        if not new[1].shape[1]:
            break
        inputs, labels = _compact(torch.cat([inputs, new[0]], 1), torch.cat([labels, new[1]], 1), slots)
        left = _subtract(head, left, *new, sizes)
        complete = (labels >= 0).sum(1) >= sizes
        if complete.all() or inputs.shape[1] >= slots:
            break
        # Where no more than rounding is left of a neuron's gradient, there is nothing to see.
        live = (left[0][0].abs().amax(-1) > _NOISE * precision * level) & ~complete[:, None]
    inputs, unexplained = _refine(head, layers, left, inputs, labels, sizes, precision)
    padding = slots - inputs.shape[1]
    return Recovered(
        torch.nn.functional.pad(inputs, (0, 0, 0, padding)),
        torch.nn.functional.pad(labels, (0, padding), value=-1),
        sizes,
        unexplained,
    )


def _vote(candidates: Candidates, sizes: Tensor, tolerance: float) -> Tensor:
    """The batch size that most neurons of a trial imply, where it is not known yet."""
    whole = candidates.batch_size.round().long()
    fits = (whole >= 1) & ((candidates.batch_size / whole.clamp(min=1) - 1).abs() < tolerance)
    if not fits.any():
        return sizes
    votes = torch.zeros(len(sizes), int(whole[fits].max()) + 1, device=sizes.device)
    votes.index_put_((candidates.trial[fits], whole[fits]), torch.ones_like(votes[0, 0]), accumulate=True)
    return torch.where((sizes == 0) & (votes.sum(1) > 0), votes.argmax(1), sizes)


def _merge(
    head: DenseHead, rows: Tensor, candidates: Candidates, trials: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """One sample per group of neurons that imply the same input: least squares over the group's rows."""
    counts = torch.bincount(candidates.trial, minlength=trials)
    most = int(counts.max()) if len(candidates.trial) else 0
    place = (
        torch.arange(len(candidates.trial), device=rows.device)
        - (counts.cumsum(0) - counts)[candidates.trial]
    )
    signal = rows.new_zeros(trials, most)
    labels = torch.full((trials, most), -1, dtype=torch.int64, device=rows.device)
    own = rows.new_zeros(trials, most, rows.shape[-1])
    index = candidates.trial, place
    signal[index], labels[index] = candidates.signal, candidates.label
    own[index] = rows[candidates.trial, candidates.neuron]
    x = own / signal.where(signal != 0, 1.0).unsqueeze(-1)
    distance = (
        torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist") if most else rows.new_zeros(trials, 0, 0)
    )
    size = x.norm(dim=-1)
    same = distance <= 10 * tolerance * torch.maximum(size.unsqueeze(-1), size.unsqueeze(-2))
    same &= (labels.unsqueeze(-1) == labels.unsqueeze(-2)) & (labels >= 0).unsqueeze(-1)
    leader = same.int().argmax(-1) if most else labels  # the first candidate of the group
    leads = (leader == torch.arange(most, device=rows.device)) & (labels >= 0)
    members = (same & leads.unsqueeze(-1)).to(rows)  # (trials, groups, candidates)
    if len(head.weights) == 2 and head.classes - (head.biases[0] is None) <= 2:
        # Too few classes for a column to disagree: only neurons that confirm each other count.
        leads &= members.sum(-1) >= 2
    merged = (
        members @ (own * signal.unsqueeze(-1)) / (members @ signal.square().unsqueeze(-1)).clamp(min=1e-300)
    )
    return merged * leads.unsqueeze(-1), labels.where(leads, -1)


def _unseen(known: Tensor, new: Tensor, labels: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Drop what an earlier round found already; after peeling its remains could pass for a sample."""
    if not known.shape[1] or not new.shape[1]:
        return new, labels
    near = torch.cdist(new, known) <= 100 * tolerance * new.norm(dim=-1, keepdim=True)
    fresh = ~near.any(-1)
    return new * fresh.unsqueeze(-1), labels.where(fresh, -1)


def _compact(inputs: Tensor, labels: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Move the samples to the front and cut what is empty in every trial."""
    most = min(slots, int((labels >= 0).sum(1).max()))
    order = (labels < 0).int().argsort(dim=1, stable=True)[:, :most]
    return inputs.gather(1, order.unsqueeze(-1).expand(-1, -1, inputs.shape[-1])), labels.gather(1, order)


def _subtract(head: DenseHead, layers: Layers, inputs: Tensor, labels: Tensor, sizes: Tensor) -> Layers:
    """The gradient that the recovered samples do not explain."""
    share = (labels >= 0).to(inputs) / sizes.clamp(min=1).unsqueeze(1)
    explained = head.gradients(inputs, labels.clamp(min=0), present=share)
    return [
        (weight - weight_part, None if bias is None else bias - bias_part)
        for (weight, bias), (weight_part, bias_part) in zip(layers, explained, strict=True)
    ]


def _refine(
    head: DenseHead,
    layers: Layers,
    left: Layers,
    inputs: Tensor,
    labels: Tensor,
    sizes: Tensor,
    precision: float,
) -> tuple[Tensor, Tensor]:
    """Where the whole batch is known, solve Σ δ_m x_mᵀ = M G₀ over all neurons; keep it as long as it explains more."""
    present = labels >= 0
    improving = (present.sum(1) == sizes) & (sizes > 0)
    shares = _shares(left, layers)
    for _ in range(_REFINEMENTS):
        if not improving.any():
            break
        values, logits = head.forward(inputs)
        losses = head.loss_vectors(logits, labels.clamp(min=0))
        deltas = head.backward(values, losses)[0] * present.unsqueeze(-1)
        gram = deltas @ deltas.mT + torch.diag_embed((~present).to(deltas))
        step, failed = torch.linalg.solve_ex(gram, deltas @ left[0][0])
        # Where the label is all but certain, δ was rounded much more than the row that the input was read from.
        sharp = losses.norm(dim=-1) > min(0.1, 1e9 * precision)
        usable = (present & sharp & (improving & (failed == 0))[:, None]).unsqueeze(-1)
        tried = inputs + (step * sizes[:, None, None]).where(usable, 0.0)
        after = _subtract(head, layers, tried, labels, sizes)
        shares_after = _shares(after, layers)
        improving &= shares_after.sum(1) < shares.sum(1)
        inputs = torch.where(improving[:, None, None], tried, inputs)
        worthwhile = shares_after.sum(1) < shares.sum(1) / 2
        shares = torch.where(improving[:, None], shares_after, shares)
        improving &= worthwhile
        if improving.any():
            left = [
                (_choose(improving, w, v), b if c is None or b is None else _choose(improving, b, c))
                for (w, b), (v, c) in zip(after, left, strict=True)
            ]
    return inputs, shares


def _choose(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Trial by trial."""
    return torch.where(condition.view(-1, *[1] * (first.ndim - 1)), first, second)


def _shares(left: Layers, whole: Layers) -> Tensor:
    """What is left of each layer's gradient, relative, by norm: `(trials, layers)`."""
    sizes = torch.stack([weight.flatten(1).norm(dim=1) for weight, _ in whole], 1)
    rest = torch.stack([weight.flatten(1).norm(dim=1) for weight, _ in left], 1)
    return (rest / sizes).where(sizes > 0, 0.0)
