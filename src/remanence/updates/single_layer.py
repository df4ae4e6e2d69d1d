"""One record behind a single layer, at sight: every row of the gradient is the record times the row's bias.

G = s Σ_t g_t (x, 1)ᵀ, whatever the loss vectors g_t of one step or of several were. So x is a quotient. Larger batches
are `span_fit`'s; whether there is one record is for recomputation to say.
"""

from __future__ import annotations

import torch

from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.peeling import Recovered


def one_record(head: DenseHead, layers: Layers) -> Recovered:
    """The record that each gradient would have, were it that of one; none where the layer has no bias."""
    (weight, bias), trials = layers[0], len(layers[0][0])
    found = torch.zeros(trials, dtype=torch.bool, device=weight.device)
    if bias is not None and len(layers) == 1:
        found = bias.any(1)
    height = weight.new_zeros(weight.shape[:2]) if bias is None else bias
    inputs = (height.unsqueeze(1) @ weight) / height.square().sum(1).clamp(min=1e-300)[:, None, None]
    label = height.argmin(1, keepdim=True)  # only the label's own loss is negative
    loss = head.loss_vectors(head.forward(inputs)[1], label).squeeze(1)
    share = (loss * height).sum(1, keepdim=True) / loss.square().sum(1, keepdim=True).clamp(min=1e-300)
    left = (weight - (share * loss).unsqueeze(-1) * inputs).flatten(1).norm(dim=1) / weight.flatten(1).norm(
        dim=1
    ).clamp(min=1e-300)
    return Recovered(inputs, label.where(found[:, None], -1), share, left[:, None])
