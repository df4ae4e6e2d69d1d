"""Rows of the first layer's gradient that come from a single sample, and the proof that they do.

For an exclusive neuron j of the first layer the row of the gradient is G₀[j] = δ_j x / M, and the column of the
next layer's is G₁[:, j] = δ₁ h_j / M, with one sample's x, derivative δ and activation h. With a bias, x follows at
once: G₀[j] / G_b₀[j]. Without one its scale t is open, but for networks without hidden biases the logits are
linear in t, so that log(g_c / g_c') = t (f_c − f_c') gives it. Either way x implies δ₁ and h_j, hence the column,
up to the unknown batch size M, which must come out as a whole number. Shared neurons fail that test.

(Pan et al. 2022, §5, take ratios of the last layer's columns and fix the scale at 2/3 of its range; see
`remanence_papers.gradients.printed`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.updates.dense.layers import LARGE, DenseHead, Layers
from remanence.updates.parts import norm, row_slices, working

_AT_ONCE = 2**20  # numbers in the largest tensor of a chunk
_CLEARLY_NEGATIVE = 1e-3
_LARGE = 2**22  # weights of a network in which passes are worth saving
_SIDES = 4  # from which implied inputs are looked at, to see which are the same
_OF_A_KIND = 3  # neurons that imply the same input: at most this many are tested
_AFFORDED, _FEWEST = 2**33, 64  # multiplications for neurons without a twin, and how many are tested at least


@dataclass(frozen=True)
class Candidates:
    """Neurons that may be exclusive: `trial` and `neuron` name them, one entry each."""

    trial: Tensor
    neuron: Tensor
    signal: Tensor  # δ_j / M: the row of the gradient is this times the input
    label: Tensor
    batch_size: Tensor  # M as this neuron implies it, not yet a whole number
    deviation: Tensor  # of the column of the gradient from the one that the input implies, relative
    slack: Tensor  # the effect of rounding on the batch size: large if the label is nearly certain

    def __getitem__(self, index: Tensor) -> Candidates:
        return Candidates(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def worth_testing(
    head: DenseHead,
    first: tuple[Tensor, Tensor | None],
    live: Tensor,
    tolerance: float,
    *,
    only_twins: bool = True,
) -> Tensor:
    """Live neurons whose rows imply the same input as another's, as all of one sample's own do.

    In a large network every test is a forward pass, and most neurons are shared: these are tested first, and
    without `only_twins` as many others as the budget allows. In a small one, or without a bias, all are.
    """
    rows, signal = first
    weights = sum(weight.numel() for weight in head.weights)
    if signal is None or weights < _LARGE:
        return live
    if not only_twins:
        return live & (live.cumsum(1) <= max(_FEWEST, _AFFORDED // weights))
    generator = torch.Generator().manual_seed(0)
    sides = torch.randn(rows.shape[-1], _SIDES, generator=generator, dtype=torch.float64).to(rows)
    # (trials, neurons, sides), of the implied inputs
    groups = twins((rows @ sides) / signal.where(live, 1.0).unsqueeze(-1), live, tolerance)
    return (groups >= 0) & (groups < _OF_A_KIND)


def twins(seen: Tensor, live: Tensor, tolerance: float) -> Tensor:
    """For each implied input, `(trials, neurons, sides)`, how many earlier neurons imply the same one.

    0 for the first neuron of each group, 1 for the next; −1 for neurons whose input is unique.
    """
    seen = seen[..., :_SIDES].where(live.unsqueeze(-1), torch.nan)
    size = seen.abs().nanmedian(1, keepdim=True).values
    order = seen[..., 0].nan_to_num(nan=torch.inf).argsort(1)
    ordered = (seen / size).gather(1, order.unsqueeze(-1).expand_as(seen))
    twin, begins = torch.zeros_like(live), torch.ones_like(live)
    for apart in (1, 2):
        same = ((ordered[:, apart:] - ordered[:, :-apart]).abs() <= tolerance).all(-1)  # NaN is near nothing
        twin[:, apart:] |= same
        twin[:, :-apart] |= same
        begins[:, apart:] &= ~same
    place = torch.arange(live.shape[1], device=live.device).expand_as(order)
    before = place - place.where(begins, 0).cummax(1).values
    return torch.zeros_like(order).scatter(1, order, before.where(twin, -1))


def find_candidates(head: DenseHead, left: Remainder, live: Tensor, precision: float) -> Candidates:
    """Test every live neuron `(trials, neurons)` of the first layer.

    `precision` is the rounding error of the numbers that the gradient was computed in.
    """
    rows, signal = left.first
    bias = head.biases[0]
    if signal is not None and bias is not None:
        # h_j of the input that row j implies
        own = (rows * head.weights[0]).sum(-1) / signal + bias
        live = live & (own > 0)
    else:
        own = (rows * head.weights[0]).sum(-1)
        live = live & (own != 0)
    if len(head.weights) == 2 and left.second is not None:
        # columns are multiples of loss vectors, which have one negative entry
        columns = head.sign * left.second.mT
        floor = _CLEARLY_NEGATIVE * columns.abs().amax(-1, keepdim=True)
        live = live & ((columns < -floor).sum(-1) == 1)
    trial, neuron = live.nonzero(as_tuple=True)
    if not len(trial):
        empty = rows.new_zeros(0)
        return Candidates(trial, neuron, empty, trial, empty, empty, empty)
    if signal is not None and len(head.weights) > 2:  # one pass for all labels, before one for each
        parts = torch.arange(len(trial), device=trial.device).split(max(1, _AT_ONCE // max(head.widths)))
        may = torch.cat(
            [_silent_outside(head, left, (trial[some], neuron[some]), precision) for some in parts]
        )
        trial, neuron = trial[may], neuron[may]
    labels = 1 if len(head.weights) == 2 and signal is not None else head.classes
    largest = max(rows.shape[-1], *(width * head.classes for width in head.widths[1:]), head.classes * labels)
    parts = []
    for chunk in torch.arange(len(trial), device=trial.device).split(max(1, _AT_ONCE // largest)):
        t, j = trial[chunk], neuron[chunk]
        columns = head.sign * left.columns(t, j).to(rows)
        if signal is None:
            found = _without_bias(head, head.sign * rows[t, j], columns, head.sign * own[t, j], j, precision)
        else:
            x = rows[t, j] / signal[t, j, None]
            found = _with_bias(head, x, columns, signal[t, j], own[t, j], precision)
        parts.append(Candidates(t, j, *found))
    return Candidates(
        *(torch.cat([getattr(p, name) for p in parts]) for name in Candidates.__dataclass_fields__)
    )


def _silent_outside(
    head: DenseHead, left: Remainder, which: tuple[Tensor, Tensor], precision: float
) -> Tensor:
    """Neurons, by trial, whose column is zero where the implied input activates nothing, whatever its label.

    The excluded neurons would deviate by more than `tolerance_of`, even allowing for rounding.
    """
    rows, signal = left.first
    assert signal is not None
    columns = left.columns(*which).to(rows)
    inputs, logits = head.forward(rows[which] / signal[which].unsqueeze(-1))
    outside = (columns * (inputs[2] <= 0)).norm(dim=-1) / columns.norm(dim=-1)
    chances = logits.softmax(-1).topk(2).values
    loss = torch.maximum(1 - chances[:, 0], chances[:, 1])  # of the likeliest label, which is the least
    return outside < tolerance_of(precision) + 4 * precision / loss.clamp(min=precision)


def tolerance_of(precision: float) -> float:
    """How far a column may deviate from the one that an input implies."""
    return min(1e-2, max(1e-6, 1e4 * precision))


def _with_bias(
    head: DenseHead, x: Tensor, columns: Tensor, signal: Tensor, own: Tensor, precision: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The label whose implied column lies closest, the batch size and the deviation."""
    inputs, logits = head.forward(x)
    labels = torch.arange(head.classes, device=x.device).expand(len(x), -1)
    if len(head.weights) == 2:  # the column is a loss vector itself, and only its label's entry is negative
        labels = columns.argmin(-1, keepdim=True)
    losses = logits.softmax(-1).unsqueeze(-2) - one_hot(labels, head.classes)  # (candidates, labels, classes)
    implied = head.backward([values.unsqueeze(-2) for values in inputs], losses, down_to=1)[0]
    implied = implied * own[:, None, None]
    sizes = implied.norm(dim=-1)
    # A probability within rounding of 1 leaves a loss vector that is itself rounding: allow for that much.
    slack = 4 * precision * implied.abs().amax(-1) / losses.abs().amax(-1).clamp(min=precision)
    unit = columns / columns.norm(dim=-1, keepdim=True)
    deviations = ((implied / sizes.unsqueeze(-1) - unit.unsqueeze(-2)).norm(dim=-1) - slack / sizes).clamp(
        min=0
    )
    deviation, place = deviations.nan_to_num(nan=torch.inf).min(-1)
    chosen = implied.gather(1, place[:, None, None].expand(-1, 1, implied.shape[-1])).squeeze(1)
    label = labels.gather(1, place[:, None]).squeeze(1)
    batch_size = chosen.square().sum(-1) / (chosen * columns).sum(-1)
    return signal, label, batch_size, deviation, (slack / sizes).gather(1, place[:, None]).squeeze(1)


def _without_bias(
    head: DenseHead, rows: Tensor, columns: Tensor, own: Tensor, neuron: Tensor, precision: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The scale of the input by a linear fit, sharpened by the batch size being a whole number."""
    side = own.sign()
    direction = rows * side.unsqueeze(-1)  # an input with h_j > 0
    scale, label, deviation = fit_scales(head, direction, columns, down_to=1)
    inputs, logits = head.forward(direction)
    last = head.biases[-1]
    offset = torch.zeros_like(logits[0]) if last is None else last
    logits = logits - offset
    classes = torch.eye(head.classes, dtype=torch.float64, device=rows.device)
    basis = classes.expand(len(rows), -1, -1)
    spread = head.backward([values.unsqueeze(-2) for values in inputs], basis, down_to=1)[0]
    own_weights = head.weights[1][:, neuron].to(spread)
    weight_back = torch.einsum("nko,on->nk", spread, own_weights)  # δ_j of each class

    def implied(scale: Tensor) -> tuple[Tensor, Tensor]:
        """t δ_j(t), which is M, and its derivative."""
        p = (scale.unsqueeze(-1) * logits + offset).softmax(-1)
        delta = (weight_back * (p - classes[label])).sum(-1)
        slope = (weight_back * p * (logits - (p * logits).sum(-1, keepdim=True))).sum(-1)
        return scale * delta * side, (delta + scale * slope) * side

    batch_size, _ = implied(scale)
    whole = batch_size.round().clamp(min=1)
    for _ in range(4):
        value, derivative = implied(scale)
        largest = 0.1 * scale.abs()
        scale = scale - ((value - whole) / derivative).clamp(-largest, largest)
    certain = (scale.unsqueeze(-1) * logits + offset).softmax(-1).gather(1, label[:, None]).squeeze(1)
    slack = 4 * precision / (1 - certain).clamp(min=precision)
    return head.sign * side / scale, label, batch_size.nan_to_num(nan=0.0), deviation, slack


def fit_scales(
    head: DenseHead, directions: Tensor, columns: Tensor, *, down_to: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The scale t of inputs t · direction whose derivative at layer `down_to` is parallel to a column.

    Without hidden biases the pattern of activations does not depend on t, so that the derivative is a known
    matrix times the loss vector, and log(g_c / g_c') = t (f_c − f_c') for classes other than the label.
    Returns the scale, the label and how far the column is from any such derivative.
    """
    inputs, logits = head.forward(directions)
    last = head.biases[-1]
    offset = torch.zeros_like(logits[0]) if last is None else last
    logits = logits - offset
    basis = torch.eye(head.classes, dtype=torch.float64, device=columns.device).expand(len(columns), -1, -1)
    spread = head.backward([values.unsqueeze(-2) for values in inputs], basis, down_to=down_to)[0]
    if down_to == len(head.weights) - 1:
        losses, misfit = columns, torch.zeros_like(columns[:, 0])
    else:
        gram = spread @ spread.mT  # singular if too few neurons are active to distinguish the classes
        losses = torch.linalg.solve_ex(gram, (spread @ columns.unsqueeze(-1))).result.squeeze(-1)
        fitted = (spread.mT @ losses.unsqueeze(-1)).squeeze(-1)
        misfit = (fitted - columns).norm(dim=-1) / columns.norm(dim=-1)
    label = losses.argmin(-1)
    others = torch.ones_like(losses).scatter(-1, label.unsqueeze(-1), 0.0)
    heights = (losses.clamp(min=1e-300).log() - offset) * others
    level, rise = _centred(logits * others, others), _centred(heights, others)
    scale = (level * rise).sum(-1) / level.square().sum(-1)
    fit = (rise - scale.unsqueeze(-1) * level).norm(dim=-1) / others.sum(-1).sqrt()
    deviation = torch.maximum(misfit, fit).where(scale > 0, torch.inf).nan_to_num(nan=torch.inf)
    return scale, label, deviation


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    """The values minus their mean, both over the mask only."""
    return (values - values.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)) * mask


def is_whole(sizes: Tensor, tolerance: float) -> Tensor:
    """Whether sizes are whole numbers; False if the tolerance is too wide to decide."""
    return ((sizes / sizes.round().clamp(min=1) - 1).abs() < tolerance) & (tolerance * sizes < 0.05)


def mode(values: Tensor, tolerance: float) -> tuple[float, int]:
    """The centre of the densest cluster of values, and its size."""
    if not len(values):
        return 0.0, 0
    ordered = values.sort().values
    first = torch.searchsorted(ordered, ordered * (1 - tolerance))
    count = torch.searchsorted(ordered, ordered * (1 + tolerance), right=True) - first
    best = int(count.argmax())
    return float(ordered[first[best] : first[best] + count[best]].median()), int(count[best])


@final
@dataclass(frozen=True)
class Remainder:
    """The residual of gradients after subtracting samples; with a dimension for trials.

    A label of −1 marks an empty slot.
    """

    whole: Layers
    inputs: Tensor  # (trials, slots, numbers) of the samples, and (trials, slots) the labels and shares
    labels: Tensor
    shares: Tensor
    first: tuple[Tensor, Tensor | None]  # the residual of the first layer
    second: Tensor | None  # and of the second; None of a large one, of which only columns are made
    parts: list[tuple[Tensor, Tensor]]  # what enters each layer and the loss's derivative in what it puts out
    sizes: Tensor  # (trials, layers), norms of the gradients

    @classmethod
    def of(
        cls,
        head: DenseHead,
        layers: Layers,
        samples: tuple[Tensor, Tensor, Tensor],
        sizes: Tensor | None = None,
    ) -> Self:
        """The residual given inputs, labels and shares."""
        if sizes is None:
            sizes = torch.stack([torch.stack([norm(one) for one in own]) for own, _ in layers], 1)
        inputs, labels, shares = samples
        parts = head.parts(inputs, labels.clamp(min=0), shares * (labels >= 0))
        (weight, bias), after = layers[0], layers[1][0]
        small = len(layers) == 2 or after[0].numel() <= LARGE
        first = _less(weight, *parts[0]), None if bias is None else bias - parts[0][1].sum(-2)
        second = _less(after, *parts[1]) if small else None
        return cls(layers, *samples, first, second, parts, sizes)

    def by(self, head: DenseHead, samples: tuple[Tensor, Tensor, Tensor]) -> Self:
        """The residual of the same gradients given other samples."""
        return self.of(head, self.whole, samples, self.sizes)

    def columns(self, trial: Tensor, neuron: Tensor) -> Tensor:
        """The residual of some columns of the second layer, `(columns, outputs)`."""
        if self.second is not None:
            return self.second[trial, :, neuron]
        values, delta = self.parts[1]
        own = self.whole[1][0][trial, :, neuron].to(delta)
        return own - torch.einsum("ns,nso->no", values[trial, :, neuron], delta[trial])

    @cached_property
    def unexplained(self) -> Tensor:
        """The relative residual of each layer's gradient, by norm: `(trials, layers)`."""
        pairs = zip(self.whole, self.parts, strict=True)
        left = torch.stack([_left(own, *parts) for (own, _), parts in pairs], 1)
        return (left / self.sizes).where(self.sizes > 0, 0.0)


def _less(weight: Tensor, values: Tensor, delta: Tensor) -> Tensor:
    own = weight.to(working(weight))
    return torch.baddbmm(own, delta.mT.to(own), values.to(own), alpha=-1)


def _left(weight: Tensor, values: Tensor, delta: Tensor) -> Tensor:
    """The norm of a layer's residual gradient, for each trial."""
    squares = values.new_zeros(len(weight), dtype=torch.float64)
    for rows in row_slices(weight[0]):
        squares += _less(weight[:, rows], values, delta[..., rows]).flatten(1).norm(dim=1).square()
    return squares.sqrt()
