"""Does an update belong to these weights? Identities that every gradient of a ReLU network meets, whatever the batch.

A ReLU neuron, leaky or not, is homogeneous: incoming weights times their gradients equal outgoing weights times theirs.
For every hidden neuron j,

    Σ_i W_l[j, i] G_l[j, i] + b_l[j] G_b[j] = Σ_k W_{l+1}[k, j] G_{l+1}[k, j],

and cross-entropy is invariant to a constant added to all logits, so Σ_k G_last[k, :] = 0. Neither depends on the batch,
dropout, class weights, or a factor. An update that meets the first alone has another loss (squares, one sigmoid for
each class). Noise, another network's update and new weights fail them. A weight decay λ adds λ W, which is solved for
and subtracted. Several local steps meet them approximately, less so if they are longer. Behind GELU, SiLU or tanh, and
in a single layer, only the last layer's sums apply; with one logit they are trivial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from remanence.core.exceptions import MisfitError
from remanence.updates.dense.layers import DenseHead, Layer, decays, has_one_logit
from remanence.updates.parts import row_slices
from remanence.updates.rounding import Rounding

# Rounding errors by which an identity may be off: sums over many records in float32 or float64. With these tolerances
# `python benchmarks/foreign_updates.py --count 500 --workers 1` refused 500 of 500 foreign updates and no plain one.
_ROUNDINGS = 4
_OF_SUMS = 32  # the same if only columns' sums apply: an average over thousands of records cancels
_OF_ONE = 64  # the same for a single neuron, whose sums may cancel
_ONCE = 0.5  # the same for half precision, in which only the sent numbers are rounded


@final
@dataclass(frozen=True)
class Belonging:
    """How well an update meets the identities."""

    misfit: float  # by how much the identities fail, relative to the size of their terms
    allowed: float  # the tolerance for rounding
    decay: float  # the multiple of the weights that was found in the update, 0 if none was

    @property
    def is_one_step(self) -> bool:
        """Whether the update is a gradient at these weights, up to rounding."""
        return self.misfit <= self.allowed


def belonging(head: DenseHead, layers: Sequence[Layer], rounding: Rounding) -> Belonging:
    """Test one update against the identities, with and without a weight decay.

    The columns' sums are asked only where no neuron balances: another loss fails them too.
    """
    balanced = _neurons(head, layers) if head.activation.is_kinked else []
    neurons = [one for one in map(_Identities.where_there_is_any, balanced) if len(one.off)]
    if neurons:
        return _held_against(head, neurons, rounding, _ROUNDINGS)
    return _held_against(head, [_logits(head, layers).where_there_is_any()], rounding, _OF_SUMS)


def has_another_loss(head: DenseHead, layers: Sequence[Layer], rounding: Rounding) -> bool:
    """Whether the last layer's columns do not sum to zero, as those of cross-entropy do."""
    columns = _logits(head, layers).where_there_is_any()
    return not _held_against(head, [columns], rounding, _OF_SUMS).is_one_step


def _held_against(
    head: DenseHead, kinds: Sequence[_Identities], rounding: Rounding, roundings: int
) -> Belonging:
    if not len(kinds[0].off):
        return Belonging(0.0, 0.0, 0.0)
    # The sums here, and in coordinates of a large layer, are in double precision: the squares of n errors add up. That
    # is comparable to the rounding of an update in double precision, and negligible for others.
    longest = max(head.numbers or 0, *(max(weight.shape) for weight in head.weights))
    own = torch.finfo(torch.float64).eps * longest**0.5
    # Independent rounding errors of many terms add up as squares: relative to the terms' norm they stay at
    # the precision.
    allowed = (_ONCE if rounding.is_coarse else roundings) * rounding.relative + own
    allowed += _ROUNDINGS * rounding.absolute * max(float((k.weights / k.size).median()) for k in kinds)
    slope = sum(float((k.by_decay / k.size).square().sum()) for k in kinds)
    decay = sum(float((k.off * k.by_decay / k.size**2).sum()) for k in kinds) / max(slope, 1e-300)

    def misfit(decay: float) -> float:
        return max(float(((k.off - decay * k.by_decay) / k.size).abs().median()) for k in kinds)

    plain, decayed = misfit(0.0), misfit(decay)
    if plain > allowed and decayed < plain / 4:
        return Belonging(decayed, allowed, decay)
    return Belonging(plain, allowed, 0.0)


def balanced(head: DenseHead, layers: Sequence[Layer], rounding: Rounding) -> Tensor:
    """Which neurons of the first layer balance individually: one whose small numbers were dropped does not.

    A median over neurons, as `belonging` takes it, does not see that some were changed.
    """
    neurons = _neurons(head, layers[:2])[0]
    allowed = rounding.relative * neurons.size + rounding.absolute * neurons.weights
    return neurons.off.abs() <= _OF_ONE * allowed


def misfit(fit: Belonging, source: str) -> MisfitError:
    """The error: what does not fit, and what the update may be instead."""
    return MisfitError(
        f"This is not one step of this network from these weights: {source}.",
        needs=f"neurons that balance within rounding ({fit.allowed:.1g}), and a last layer whose columns sum to zero",
        got=f"neurons or columns that are off balance by {fit.misfit:.2g}",
        hint="--weights for the weights before the round; --local-steps and --learning-rate if the client took several "
        "steps; --noise-multiplier with --batch-size if it added noise; the update as it was before it was compressed; "
        "behind GELU, SiLU and tanh, and in a single layer, a loss that is not cross-entropy looks the same",
    )


def realised_noise(head: DenseHead, layers: Sequence[Layer]) -> tuple[float, int]:
    """The deviation of the noise in an update's numbers, and from how many neurons it is known.

    A gradient balances in every neuron, and its last columns sum to zero: any imbalance is noise, of its
    deviation times the norm of the weights.
    """
    one = _neurons(head, layers[:2])[0] if head.activation.is_kinked else _logits(head, layers)
    return float((one.off / one.weights).square().mean().sqrt()), len(one.off)


def require_noise(head: DenseHead, layers: Sequence[Layer], declared: float, source: str) -> None:
    """Refuse an update whose noise is not the declared one; five deviations of the estimate are allowed."""
    if not head.activation.is_kinked and has_one_logit(head):
        return  # not testable
    found, neurons = realised_noise(head, layers)
    if abs(found / declared - 1) > 5 / (2 * neurons) ** 0.5:
        raise MisfitError(
            f"The noise in this update is not the declared one: {source}.",
            needs=f"a deviation of {declared:.3g} in each number: --noise-multiplier times --max-grad-norm over "
            "--batch-size",
            got=f"{found:.3g}, from the balance of {neurons} neurons or columns",
            hint="the batch size that the sum was divided by, the norm of each record's gradient, the weights before "
            "the round",
        )


@dataclass(frozen=True)
class _Identities:
    """One per neuron or column."""

    off: Tensor  # its residual
    by_decay: Tensor  # the contribution of a unit of decay
    size: Tensor  # the norm of its terms
    weights: Tensor  # the norm of the weights in it

    def where_there_is_any(self) -> _Identities:
        """The identities with nonzero terms."""
        live = self.size > 0
        return _Identities(self.off[live], self.by_decay[live], self.size[live], self.weights[live])


def _neurons(head: DenseHead, layers: Sequence[Layer]) -> list[_Identities]:
    """The incoming and outgoing sums of each neuron, for every layer but the last; each layer is read once."""
    sums = [_sums(own, weight) for own, (weight, _) in zip(head.weights, layers, strict=False)]
    found = []
    for index, ((into, _), (_, out)) in enumerate(pairwise(sums)):
        shift, into_bias = head.biases[index], layers[index][1]
        shift = torch.zeros_like(into[0]) if shift is None else shift
        bias = torch.zeros_like(shift) if into_bias is None else shift * into_bias
        incoming = into[2] + shift.square()
        found.append(
            _Identities(
                into[0] + bias - out[0],
                incoming - out[2],
                (into[1] + bias.square() + out[1]).sqrt(),
                (incoming + out[2]).sqrt(),
            )
        )
    return found


def _sums(weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of weight times gradient, of its squares and of the weight's squares: `(3, outputs)`, `(3, inputs)`."""
    by_row, by_column = (weight.new_zeros(3, size, dtype=torch.float64) for size in weight.shape)
    for rows in row_slices(weight):
        own = weight[rows].double()
        terms = own * gradient[rows]
        three = terms, terms.square(), own.square()
        by_row[:, rows] = torch.stack([part.sum(1) for part in three])
        by_column += torch.stack([part.sum(0) for part in three])
    return by_row, by_column


def _logits(head: DenseHead, layers: Sequence[Layer]) -> _Identities:
    """The sum of each column of the last layer."""
    weight = layers[-1][0].double()
    count = torch.full_like(weight[0], weight.shape[0] ** 0.5)
    return _Identities(weight.sum(0), decays(head)[-1][0].sum(0), weight.norm(dim=0), count)
