"""Inputs made more precise by the neurons that they switch off.

With a bias, the first layer's gradient is (G₀, G_b) = A X̃: column m of A is zero on every neuron that record m switches
off, and row m of X̃ is (x_m, 1). Where as many records are known as the gradient has dimensions, V spans its rows and
B = G Vᵀ, there is one combination u_m of B's columns that is zero on these neurons, and A = B U, hence X̃ = U⁻¹ V. That
takes thousands of neurons instead of the few that an input was read off, and nothing of the layers behind: there, one
gate that is on the wrong side because an input is a little off moves every derivative, and a fit of the whole network
follows it. Differences of weights, which have few digits, need this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.updates.dense_layers import DenseHead, product
from remanence.updates.remainder import Remainder

_ROUGHLY = 0.1  # the share of the gradient that may be unexplained for this to make sense
_CLEARLY = 1e-2  # of the usual size of what a neuron puts out: so far below zero it must be to count as off


def sharpened(
    head: DenseHead, left: Remainder, found: tuple[Tensor, Tensor, Tensor], nearly: float
) -> tuple[Tensor, Tensor, Remainder]:
    """Inputs, shares and what these leave, where samples explain much and not `nearly` all, and then do.

    `found` is inputs, labels and shares, `(trials, slots, ...)` each. What does not come to explain nearly all stays as
    it is.
    """
    inputs, labels, shares = found
    rest = left.unexplained.amax(1)
    for trial in ((rest >= nearly) & (rest < _ROUGHLY)).nonzero().squeeze(1).tolist():
        own = labels[trial] >= 0
        weight, bias = left.whole[0]
        first = weight[trial], None if bias is None else bias[trial]
        sharp = _by_what_is_off(head, first, inputs[trial][own])
        if sharp is None:
            continue
        tried, parts = inputs.clone(), shares.clone()
        tried[trial, own] = sharp
        parts[trial, own] = _shares(head, first[1], sharp, labels[trial][own])
        after = left.by(head, tried, labels, parts)
        if after.unexplained[trial].max() < nearly:
            inputs, shares, left = tried, parts, after
    return inputs, shares, left


def _by_what_is_off(head: DenseHead, first: tuple[Tensor, Tensor | None], inputs: Tensor) -> Tensor | None:
    """The inputs of one gradient, `(records, numbers)`; None where they do not follow from what they switch off."""
    (weight, bias), shift, records = first, head.biases[0], len(inputs)
    if bias is None or shift is None or not head.activation.is_relu or not 1 < records < weight.shape[1]:
        return None
    both = torch.cat([weight, bias[:, None]], 1).double()  # (neurons, numbers + 1)
    span = torch.linalg.svd(both, full_matrices=False)[2][:records]
    within = both @ span.mT  # (neurons, records)
    before = product(inputs, head.weights[0].mT) + shift
    off = before < -_CLEARLY * before.abs().median()
    if int(off.sum(1).min()) < 2 * records:
        return None
    mixing = torch.stack([torch.linalg.svd(within[own], full_matrices=False)[2][-1] for own in off], 1)
    mixed, failed = torch.linalg.solve_ex(mixing, span)
    sharp = mixed[:, :-1] / mixed[:, -1:]
    return None if failed or not sharp.isfinite().all() else sharp


def _shares(head: DenseHead, bias: Tensor | None, inputs: Tensor, labels: Tensor) -> Tensor:
    """The share of each sample in the first layer's bias, by least squares."""
    assert bias is not None
    values, logits = head.forward(inputs)
    deltas = head.backward(values, head.loss_vectors(logits, labels))[0]
    return torch.linalg.lstsq(deltas.mT, bias.to(deltas)[:, None]).solution.squeeze(1)
